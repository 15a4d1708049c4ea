// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What `sluice trace` prints at the end. */
#include <stdlib.h>
#include <string.h>
#include "stat_write.h"
#include "trace_report.h"

#define MAX_ROWS  24
#define MAX_EDGES 24

/*
 * Shares are of the time from a process's first transfer to its last: starting up is nobody's wait.
 * A side that waits for less than this is kept busy by something else.
 */
#define MUCH 0.25

static double lifetime(const struct snapshot *s, const struct process *p, __u64 start_ns)
{
	__u64 from = p->start_ns > start_ns ? p->start_ns : start_ns;
	__u64 to = p->exit_ns ? p->exit_ns : s->now_ns;

	return to > from ? (to - from) / 1e9 : 1e-9;
}

static bool is_real(const struct process *p)
{
	return !p->other && !p->exited;
}

static __u64 sum_bytes(const struct process *p)
{
	__u64 sum = 0;

	for (int m = 0; m < MEDIUMS; m++)
		sum += process_bytes(p, m, SLUICE_OUT) + process_bytes(p, m, SLUICE_IN);
	return sum;
}

/* The medium and direction that a thread of @p waited for longest. */
static __u64 longest_wait(const struct process *p, double *share)
{
	__u64 longest = 0;

	*share = 0;
	for (int m = 0; m < MEDIUMS; m++) {
		for (int dir = 0; dir < 2; dir++) {
			if (p->longest_sleep_ns[m][dir] <= longest)
				continue;
			longest = p->longest_sleep_ns[m][dir];
			*share = longest / 1e9 / process_span(p, m, dir);
		}
	}
	return longest;
}

static int compare_processes(const void *a, const void *b)
{
	const struct process *x = *(const struct process *const *)a;
	const struct process *y = *(const struct process *const *)b;
	__u64 bx = sum_bytes(x), by = sum_bytes(y);

	if (bx != by)
		return bx < by ? 1 : -1;
	return x->tgid - y->tgid;
}

static void print_row(FILE *f, const struct snapshot *s, const struct process *p, __u64 start_ns)
{
	double life = lifetime(s, p, start_ns), in_calls = 0, share;
	__u64 wait = longest_wait(p, &share);
	struct sluice_count sum;
	char text[MEDIUMS][2][24], rate[24];

	for (int m = 0; m < MEDIUMS; m++) {
		for (int dir = 0; dir < 2; dir++) {
			process_sum(p, m, dir, &sum);
			format_bytes(text[m][dir], sizeof(text[m][dir]), sum.bytes);
			in_calls += sum.time_ns / 1e9;
		}
	}
	format_bytes(rate, sizeof(rate), is_real(p) ? sum_bytes(p) / life : 0);
	fprintf(f, "%8d %-16.32s %9s %9s %9s %9s %9s %9s %9s/s %8.3f %8.3f %5.1f\n", p->tgid,
		p->comm, text[MEDIUM_PIPE][0], text[MEDIUM_PIPE][1], text[MEDIUM_SOCKET][0],
		text[MEDIUM_SOCKET][1], text[MEDIUM_ARENA][0], text[MEDIUM_ARENA][1], rate,
		in_calls, wait / 1e9, 100 * share);
}

static void print_table(FILE *f, const struct snapshot *s, __u64 start_ns)
{
	const struct process **rows;
	double share;
	int n = 0;

	rows = calloc(s->num_processes + 1, sizeof(*rows));
	if (!rows)
		return;
	for (int i = 0; i < s->num_processes; i++)
		if (sum_bytes(&s->processes[i]) || longest_wait(&s->processes[i], &share))
			rows[n++] = &s->processes[i];
	qsort(rows, n, sizeof(*rows), compare_processes);
	fprintf(f, "%8s %-16s %9s %9s %9s %9s %9s %9s %11s %8s %8s %5s\n", "PID", "COMM",
		"PIPE OUT", "PIPE IN", "SOCK OUT", "SOCK IN", "ARENA OUT", "ARENA IN", "RATE",
		"CALLS s", "WAIT s", "WAIT%");
	for (int i = 0; i < n && i < MAX_ROWS; i++)
		print_row(f, s, rows[i], start_ns);
	if (n > MAX_ROWS)
		fprintf(f, "         and %d more with less\n", n - MAX_ROWS);
	free(rows);
}

static void sum_memory(const struct snapshot *s, struct sluice_memory *sum)
{
	memset(sum, 0, sizeof(*sum));
	for (int i = 0; i < s->num_processes; i++) {
		const struct sluice_memory *m = &s->processes[i].memory;

		sum->faults += m->faults;
		sum->fault_ns += m->fault_ns;
		sum->unmaps += m->unmaps;
		sum->unmap_bytes += m->unmap_bytes;
		sum->unmap_ns += m->unmap_ns;
	}
}

static void print_memory(FILE *f, const struct snapshot *s)
{
	struct sluice_memory sum;
	char text[24];

	sum_memory(s, &sum);
	if (!sum.faults && !sum.unmaps)
		return;
	fprintf(f, "\nshared mappings: %llu page faults (%.3f s), %llu unmapped (%s, %.3f s)",
		sum.faults, sum.fault_ns / 1e9, sum.unmaps,
		format_bytes(text, sizeof(text), sum.unmap_bytes), sum.unmap_ns / 1e9);
	/* Where kernel code is preempted: of the whole host, and waits in poll() among them. */
	if (s->missed_costs)
		fprintf(f, "; up to %llu more were not seen", s->missed_costs);
	fputc('\n', f);
}

/* Shared memory moves bytes without a call to count; what can be seen is what it costs. */
static void write_shared(FILE *f, const struct snapshot *s, double counted)
{
	struct sluice_memory sum;

	sum_memory(s, &sum);
	if (sum.unmap_bytes <= counted)
		return;
	fprintf(f,
		"most data moved through shared mappings, at the cost of %llu page faults (%.2f s) "
		"and "
		"%llu unmaps (%.2f s); besides, ",
		sum.faults, sum.fault_ns / 1e9, sum.unmaps, sum.unmap_ns / 1e9);
}

static const char *end_name(char *buf, size_t size, const struct snapshot *s, int process)
{
	if (process < 0)
		snprintf(buf, size, "(elsewhere)");
	else
		snprintf(buf, size, "%.40s[%d]", s->processes[process].comm,
			 s->processes[process].tgid);
	return buf;
}

static void print_edges(FILE *f, const struct snapshot *s)
{
	char from[64], to[64], bytes[24];

	if (s->num_edges)
		fputs("\nwho talks to whom\n", f);
	for (int i = 0; i < s->num_edges && i < MAX_EDGES; i++) {
		const struct edge *e = &s->edges[i];

		fprintf(f, "  %-24s == %s%s %s ==> %s\n", end_name(from, sizeof(from), s, e->from),
			e->shared ? "about " : "", format_bytes(bytes, sizeof(bytes), e->bytes),
			medium_name(e->medium), end_name(to, sizeof(to), s, e->to));
	}
	if (s->num_edges > MAX_EDGES)
		fprintf(f, "  and %d more with less\n", s->num_edges - MAX_EDGES);
}

static void print_lost(FILE *f, const struct snapshot *s)
{
	const struct sluice_lost *l = &s->lost;

	if (l->counts)
		fprintf(f, "\nThe map was full: %llu calls are counted under (other).\n",
			l->counts);
	if (l->ends)
		fprintf(f, "\nThe map was full: %llu calls are missing in who talks to whom.\n",
			l->ends);
	if (l->tasks)
		fprintf(f, "\nThe map was full: %llu times no name of a process could be kept.\n",
			l->tasks);
	if (l->memory)
		fprintf(f, "\nThe map was full: %llu faults and unmaps are not counted.\n",
			l->memory);
	if (l->arenas)
		fprintf(f, "\nThe map was full: %llu steps of batches are missing in the arenas.\n",
			l->arenas);
	if (l->records)
		fprintf(f, "\nThere was no memory: %llu calls lack their time.\n", l->records);
	if (l->targets)
		fprintf(f, "\nThe map was full: %llu child processes were not traced.\n",
			l->targets);
	if (s->missed)
		fprintf(f, "\nThe kernel kept %llu calls from an interrupted counter.\n",
			s->missed);
}

static const struct process *find_largest(const struct snapshot *s, enum medium medium,
					  enum sluice_dir dir)
{
	const struct process *largest = NULL;
	__u64 bytes = 0;

	for (int i = 0; i < s->num_processes; i++) {
		const struct process *p = &s->processes[i];

		if (is_real(p) && process_bytes(p, medium, dir) > bytes) {
			bytes = process_bytes(p, medium, dir);
			largest = p;
		}
	}
	return largest;
}

void report_verdict(FILE *f, const struct snapshot *s)
{
	static const char *const through[MEDIUMS] = {"pipes", "unix sockets", "process_vm calls",
						     "arenas"};
	const struct process *sender, *receiver;
	double bytes[MEDIUMS], all = 0, wait_in = 0, wait_out = 0;
	enum medium m = MEDIUM_PIPE;
	char text[24];

	for (int i = 0; i < MEDIUMS; i++) {
		double sum[2] = {0};

		for (int j = 0; j < s->num_processes; j++)
			for (int dir = 0; dir < 2; dir++)
				sum[dir] += process_bytes(&s->processes[j], i, dir);
		/* The other end may not have been traced. */
		bytes[i] = sum[0] > sum[1] ? sum[0] : sum[1];
		all += bytes[i];
		if (bytes[i] > bytes[m])
			m = i;
	}
	/* An arena is a shared mapping too, but one whose bytes are counted. */
	if (!bytes[MEDIUM_ARENA])
		write_shared(f, s, all);
	if (all <= 0) {
		fputs("nothing went through pipes, unix sockets or arenas", f);
		return;
	}
	fprintf(f, "%.0f %% of the %s between processes went through %s", 100 * bytes[m] / all,
		format_bytes(text, sizeof(text), all), through[m]);
	receiver = find_largest(s, m, SLUICE_IN);
	sender = find_largest(s, m, SLUICE_OUT);
	if (receiver) {
		wait_in = receiver->longest_sleep_ns[m][SLUICE_IN] / 1e9 /
			  process_span(receiver, m, SLUICE_IN);
		fprintf(f, "; %s[%d] received most and waited %.0f %% of its time for them",
			receiver->comm, receiver->tgid, 100 * wait_in);
	}
	if (sender) {
		wait_out = sender->longest_sleep_ns[m][SLUICE_OUT] / 1e9 /
			   process_span(sender, m, SLUICE_OUT);
		fprintf(f, "; largest sender: %s[%d] with %s, which waited %.0f %% of its time",
			sender->comm, sender->tgid,
			format_bytes(text, sizeof(text), process_bytes(sender, m, SLUICE_OUT)),
			100 * wait_out);
	}
	if (wait_in >= MUCH && wait_in >= wait_out)
		fputs("; the receiver waits for its senders", f);
	else if (wait_out >= MUCH)
		fputs("; the senders wait for their receiver", f);
	else
		fputs("; neither side waits much", f);
}

void report_print(FILE *f, const struct snapshot *s, __u64 start_ns)
{
	fprintf(f, "\nsluice trace: %d processes, %.3f s\n\n", s->num_processes,
		(s->now_ns - start_ns) / 1e9);
	print_table(f, s, start_ns);
	print_memory(f, s);
	print_edges(f, s);
	print_lost(f, s);
	fputs("\nverdict: ", f);
	report_verdict(f, s);
	fputs(".\n", f);
}
