// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Reads the maps and adds them up: threads to processes, ends of channels to who talks to whom. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "stat_read.h"

static const struct {
	const char *name;
	enum medium medium;
} kinds[SLUICE_KINDS] = {
	[SLUICE_PIPE] = {"pipe", MEDIUM_PIPE},
	[SLUICE_FIFO] = {"fifo", MEDIUM_PIPE},
	[SLUICE_SPLICE] = {"splice", MEDIUM_PIPE},
	[SLUICE_VMSPLICE] = {"vmsplice", MEDIUM_PIPE},
	[SLUICE_TEE] = {"tee", MEDIUM_PIPE},
	[SLUICE_SENDFILE] = {"sendfile", MEDIUM_PIPE},
	[SLUICE_UNIX_STREAM] = {"unix_stream", MEDIUM_SOCKET},
	[SLUICE_UNIX_DGRAM] = {"unix_dgram", MEDIUM_SOCKET},
	[SLUICE_UNIX_SEQPACKET] = {"unix_seqpacket", MEDIUM_SOCKET},
	[SLUICE_PROCESS_VM] = {"process_vm", MEDIUM_VM},
	[SLUICE_ARENA_MEMFD] = {"arena_memfd", MEDIUM_ARENA},
	[SLUICE_ARENA_KMOD] = {"arena_kmod", MEDIUM_ARENA},
};

const char *kind_name(enum sluice_kind kind)
{
	return kind < SLUICE_KINDS ? kinds[kind].name : "unknown";
}

enum medium kind_medium(enum sluice_kind kind)
{
	return kinds[kind].medium;
}

const char *medium_name(enum medium medium)
{
	static const char *const names[MEDIUMS] = {"pipe", "socket", "process_vm", "arena"};

	return names[medium];
}

struct count_entry {
	struct sluice_count_key key;
	struct sluice_count value;
};

struct end_entry {
	struct sluice_end_key key;
	struct sluice_end value;
};

struct task_entry {
	struct sluice_task_key key;
	struct sluice_task value;
};

struct memory_entry {
	struct sluice_task_key key;
	struct sluice_memory value;
};

struct arena_entry {
	struct sluice_arena_key key;
	struct sluice_arena value;
};

/* All bytes of a map; returns their number or a negative errno. The caller frees @bytes. */
static ssize_t read_bytes(const struct counters *c, enum stat_map map, char **bytes)
{
	size_t room = 1 << 16, used = 0;
	ssize_t n = -ENOMEM;
	char *more;
	int fd;

	*bytes = NULL;
	fd = counters_iterate(c, map);
	if (fd < 0)
		return fd;
	for (;;) {
		more = realloc(*bytes, room);
		if (!more) {
			n = -ENOMEM;
			break;
		}
		*bytes = more;
		while (used < room && (n = read(fd, *bytes + used, room - used)) > 0)
			used += n;
		if (used < room) {
			n = n < 0 ? -errno : (ssize_t)used;
			break;
		}
		room *= 2;
	}
	close(fd);
	return n;
}

static int compare_keys(const void *a, const void *b, void *key_size)
{
	return memcmp(a, b, *(size_t *)key_size);
}

/*
 * The entries of a map, each once, for the caller to free. Returns their number in @n, or a negative
 * errno.
 *
 * The iterator holds no lock. Entries that come may show it another one twice, of which one stays here.
 * Where entries go, as those of ended threads and processes do if the counters are always on, it may
 * pass over a neighbour, or see half of the entry that takes the place: one of thousands, and the next
 * look is right again.
 */
static void *read_map(const struct counters *c, enum stat_map map, size_t key_size,
		      size_t entry_size, int *n)
{
	char *entries, *to;
	ssize_t size;

	*n = 0;
	size = read_bytes(c, map, &entries);
	if (size < 0)
		*n = size;
	if (size <= 0)
		return entries;
	qsort_r(entries, size / entry_size, entry_size, compare_keys, &key_size);
	to = entries;
	for (char *from = entries; from + entry_size <= entries + size; from += entry_size) {
		if (*n && !memcmp(to - entry_size, from, key_size))
			continue;
		if (to != from)
			memcpy(to, from, entry_size);
		to += entry_size;
		++*n;
	}
	return entries;
}

/* Names are set by the processes themselves: nothing but printable ASCII reaches a terminal. */
static void copy_comm(char *to, size_t size, const char *from, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len && from[i] && n + 5 <= size; i++) {
		unsigned char ch = from[i];

		if (ch > ' ' && ch < 0x7f && ch != '\\' && ch != '"')
			to[n++] = ch;
		else if (ch == ' ')
			to[n++] = '_';
		else
			n += snprintf(to + n, size - n, "\\x%02x", ch);
	}
	to[n] = '\0';
}

static void read_comm(struct process *p)
{
	char path[64], comm[32] = "";
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", p->tgid);
	f = fopen(path, "re");
	if (f) {
		n = fread(comm, 1, sizeof(comm) - 1, f);
		fclose(f);
	}
	if (n && comm[n - 1] == '\n')
		comm[n - 1] = '\0';
	if (n > 1)
		copy_comm(p->comm, sizeof(p->comm), comm, sizeof(comm));
}

static int find_process(const struct snapshot *s, int tgid, __u64 start_ns)
{
	for (int i = s->num_processes - 1; i >= 0; i--)
		if (s->processes[i].tgid == tgid && s->processes[i].start_ns == start_ns)
			return i;
	return -1;
}

static int get_process(struct snapshot *s, int tgid, __u64 start_ns)
{
	struct process *p;
	int i;

	i = find_process(s, tgid, start_ns);
	if (i >= 0)
		return i;
	if (!(s->num_processes & (s->num_processes - 1))) {
		size_t room = s->num_processes ? 2 * (size_t)s->num_processes : 1;

		p = realloc(s->processes, room * sizeof(*p));
		if (!p)
			return -1;
		s->processes = p;
	}
	p = &s->processes[s->num_processes];
	memset(p, 0, sizeof(*p));
	p->tgid = tgid;
	p->start_ns = start_ns;
	snprintf(p->comm, sizeof(p->comm), "?");
	return s->num_processes++;
}

static void add_count(struct sluice_count *to, const struct sluice_count *from)
{
	to->bytes += from->bytes;
	to->calls += from->calls;
	to->fails += from->fails;
	to->time_ns += from->time_ns;
	to->slept_ns += from->slept_ns;
	to->waits += from->waits;
	if (!to->first_ns || (from->first_ns && from->first_ns < to->first_ns))
		to->first_ns = from->first_ns;
	if (from->last_ns > to->last_ns)
		to->last_ns = from->last_ns;
	for (int i = 0; i < SLUICE_HIST; i++)
		to->slept_us_log2[i] += from->slept_us_log2[i];
}

void process_sum(const struct process *p, enum medium medium, enum sluice_dir dir,
		 struct sluice_count *sum)
{
	memset(sum, 0, sizeof(*sum));
	for (int kind = 0; kind < SLUICE_KINDS; kind++)
		if (kinds[kind].medium == medium)
			add_count(sum, &p->kinds[kind][dir]);
}

double process_span(const struct process *p, enum medium medium, enum sluice_dir dir)
{
	struct sluice_count sum;

	process_sum(p, medium, dir, &sum);
	return sum.last_ns > sum.first_ns ? (sum.last_ns - sum.first_ns) / 1e9 : 1e-9;
}

__u64 process_bytes(const struct process *p, enum medium medium, enum sluice_dir dir)
{
	__u64 sum = 0;

	for (int kind = 0; kind < SLUICE_KINDS; kind++)
		if (kinds[kind].medium == medium)
			sum += p->kinds[kind][dir].bytes;
	return sum;
}

/* By process, then by thread, medium and direction, so that a thread's sleep can be added up. */
static int compare_counts(const void *a, const void *b)
{
	const struct sluice_count_key *x = &((const struct count_entry *)a)->key;
	const struct sluice_count_key *y = &((const struct count_entry *)b)->key;

	if (x->tgid != y->tgid)
		return x->tgid < y->tgid ? -1 : 1;
	if (x->start_ns != y->start_ns)
		return x->start_ns < y->start_ns ? -1 : 1;
	if (x->tid != y->tid)
		return x->tid < y->tid ? -1 : 1;
	if (x->dir != y->dir)
		return x->dir < y->dir ? -1 : 1;
	return (int)x->kind - (int)y->kind;
}

static int add_counts(struct snapshot *s, struct count_entry *entries, int n)
{
	const struct sluice_count_key *last = NULL;
	__u64 sleep[MEDIUMS] = {0};
	struct process *p;
	int index = -1;

	qsort(entries, n, sizeof(*entries), compare_counts);
	for (int i = 0; i < n; i++) {
		const struct sluice_count_key *k = &entries[i].key;
		const struct sluice_count *value = &entries[i].value;
		enum medium medium;

		if (k->kind >= SLUICE_KINDS || k->dir > SLUICE_IN)
			continue;
		if (!k->tgid && !k->start_ns && !value->calls && !value->waits)
			continue;
		/* Neither of the two is a process: each gets a line of its own, start 0 and 1. */
		if (!k->tgid && k->tid == SLUICE_TID_EXITED)
			index = get_process(s, 0, 1);
		else if (!last || last->tgid != k->tgid || last->start_ns != k->start_ns ||
			 index < 0 || !k->tgid)
			index = get_process(s, k->tgid, k->start_ns);
		if (index < 0)
			return -ENOMEM;
		p = &s->processes[index];
		if (!last || last->tgid != k->tgid || last->start_ns != k->start_ns ||
		    last->tid != k->tid || last->dir != k->dir) {
			memset(sleep, 0, sizeof(sleep));
			p->threads += !last || last->tid != k->tid || last->tgid != k->tgid;
		}
		last = k;
		add_count(&p->kinds[k->kind][k->dir], value);
		if (!k->tgid || k->tid == SLUICE_TID_EXITED)
			continue;
		medium = kinds[k->kind].medium;
		sleep[medium] += value->slept_ns;
		if (sleep[medium] > p->longest_sleep_ns[medium][k->dir])
			p->longest_sleep_ns[medium][k->dir] = sleep[medium];
	}
	return 0;
}

static int read_counts(struct snapshot *s, const struct counters *c)
{
	struct count_entry *entries;
	int n;

	entries = read_map(c, STAT_COUNTS, sizeof(entries->key), sizeof(*entries), &n);
	if (n > 0)
		n = add_counts(s, entries, n);
	free(entries);
	return n < 0 ? n : 0;
}

static int read_memory(struct snapshot *s, const struct counters *c)
{
	struct memory_entry *entries;
	int n, index = 0;

	entries = read_map(c, STAT_MEMORY, sizeof(entries->key), sizeof(*entries), &n);
	for (int i = 0; i < n && index >= 0; i++) {
		index = get_process(s, entries[i].key.tgid, entries[i].key.start_ns);
		if (index >= 0)
			s->processes[index].memory = entries[i].value;
	}
	free(entries);
	return n < 0 ? n : index < 0 ? -ENOMEM : 0;
}

static int read_names(struct snapshot *s, const struct counters *c)
{
	struct task_entry *entries;
	int n;

	entries = read_map(c, STAT_TASKS, sizeof(entries->key), sizeof(*entries), &n);
	for (int i = 0; i < n; i++) {
		const struct sluice_task *t = &entries[i].value;
		int index = find_process(s, entries[i].key.tgid, entries[i].key.start_ns);

		if (index < 0)
			continue;
		copy_comm(s->processes[index].comm, sizeof(s->processes[index].comm), t->comm,
			  sizeof(t->comm));
		s->processes[index].ppid = t->ppid;
		s->processes[index].exit_ns = t->exit_ns;
	}
	free(entries);
	for (int i = 0; i < s->num_processes; i++) {
		struct process *p = &s->processes[i];

		if (!p->tgid) {
			p->exited = p->start_ns == 1;
			p->other = !p->exited;
			snprintf(p->comm, sizeof(p->comm), p->exited ? "(ended)" : "(other)");
		} else if (!p->exit_ns) {
			/* The map has the name at the first call, before any exec or rename. */
			read_comm(p);
		}
	}
	return n < 0 ? n : 0;
}

static int compare_ends(const void *a, const void *b)
{
	const struct sluice_end_key *x = &((const struct end_entry *)a)->key;
	const struct sluice_end_key *y = &((const struct end_entry *)b)->key;
	int mx = kinds[x->kind].medium, my = kinds[y->kind].medium;

	if (mx != my)
		return mx - my;
	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return (int)x->dir - (int)y->dir;
}

static int add_edge(struct snapshot *s, int from, int to, enum medium medium, __u64 bytes,
		    __u64 calls, bool shared)
{
	struct edge *e;

	if (!bytes)
		return 0;
	for (int i = 0; i < s->num_edges; i++) {
		e = &s->edges[i];
		if (e->from == from && e->to == to && e->medium == medium) {
			e->bytes += bytes;
			e->calls += calls;
			e->shared |= shared;
			return 0;
		}
	}
	if (!(s->num_edges & (s->num_edges - 1))) {
		size_t room = s->num_edges ? 2 * (size_t)s->num_edges : 1;

		e = realloc(s->edges, room * sizeof(*e));
		if (!e)
			return -ENOMEM;
		s->edges = e;
	}
	s->edges[s->num_edges++] = (struct edge){
		.from = from,
		.to = to,
		.medium = medium,
		.bytes = bytes,
		.calls = calls,
		.shared = shared,
	};
	return 0;
}

/*
 * The ends of one channel. With one process at either side the other side's bytes are the edges;
 * with several at both, each pair gets its share of what was read.
 */
static int add_channel(struct snapshot *s, const struct end_entry *ends, int n)
{
	enum medium medium = kinds[ends->key.kind].medium;
	__u64 out = 0, in = 0;
	int writers = 0, err = 0;

	while (writers < n && ends[writers].key.dir == SLUICE_OUT)
		out += ends[writers++].value.bytes;
	for (int i = writers; i < n; i++)
		in += ends[i].value.bytes;
	for (int i = 0; i < writers && !err; i++) {
		const struct end_entry *w = &ends[i];
		int from = find_process(s, w->key.tgid, w->key.start_ns);

		if (writers == n)
			err = add_edge(s, from, -1, medium, w->value.bytes, w->value.calls, false);
		for (int j = writers; j < n && !err && in; j++) {
			const struct end_entry *r = &ends[j];
			int to = find_process(s, r->key.tgid, r->key.start_ns);
			double share = (double)r->value.bytes / in;

			err = add_edge(s, from, to, medium, w->value.bytes * share, w->value.calls,
				       writers > 1 && n - writers > 1);
		}
	}
	for (int j = 0; j < n && !writers && !err; j++)
		err = add_edge(s, -1, find_process(s, ends[j].key.tgid, ends[j].key.start_ns),
			       medium, ends[j].value.bytes, ends[j].value.calls, false);
	return err;
}

static int compare_edges(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;

	return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static int read_edges(struct snapshot *s, const struct counters *c)
{
	struct end_entry *ends;
	int n, m = 0, err = 0;

	ends = read_map(c, STAT_ENDS, sizeof(ends->key), sizeof(*ends), &n);
	for (int i = 0; i < n; i++)
		if (ends[i].key.kind < SLUICE_KINDS && ends[i].key.ino)
			ends[m++] = ends[i];
	if (m)
		qsort(ends, m, sizeof(*ends), compare_ends);
	for (int i = 0, len; i < m && !err; i += len) {
		for (len = 1; i + len < m; len++)
			if (ends[i].key.ino != ends[i + len].key.ino ||
			    ends[i].key.dev != ends[i + len].key.dev ||
			    kinds[ends[i].key.kind].medium != kinds[ends[i + len].key.kind].medium)
				break;
		err = add_channel(s, &ends[i], len);
	}
	if (s->num_edges)
		qsort(s->edges, s->num_edges, sizeof(*s->edges), compare_edges);
	free(ends);
	return n < 0 ? n : err;
}

static int read_arenas(struct snapshot *s, const struct counters *c)
{
	struct arena_entry *entries;
	int n;

	entries = read_map(c, STAT_ARENAS, sizeof(entries->key), sizeof(*entries), &n);
	if (n > 0) {
		s->arenas = calloc(n, sizeof(*s->arenas));
		if (!s->arenas)
			n = -ENOMEM;
	}
	for (int i = 0; i < n; i++) {
		s->arenas[i].key = entries[i].key;
		s->arenas[i].count = entries[i].value;
		s->arenas[i].process =
			find_process(s, entries[i].key.tgid, entries[i].key.start_ns);
		s->num_arenas++;
	}
	free(entries);
	return n < 0 ? n : 0;
}

static int read_lost(struct snapshot *s, const struct counters *c)
{
	ssize_t n;
	char *at;

	n = read_bytes(c, STAT_LOST, &at);
	if (n >= 0 && (size_t)n != sizeof(__u32) + sizeof(s->lost))
		n = -EIO;
	if (n > 0)
		memcpy(&s->lost, at + sizeof(__u32), sizeof(s->lost));
	free(at);
	return n < 0 ? n : 0;
}

int snapshot_read(struct snapshot *s, const struct counters *c)
{
	struct timespec ts;
	int err;

	memset(s, 0, sizeof(*s));
	clock_gettime(CLOCK_BOOTTIME, &ts);
	s->now_ns = ts.tv_sec * 1000000000ull + ts.tv_nsec;
	counters_missed(c, &s->missed, &s->missed_costs);
	err = read_lost(s, c);
	if (!err)
		err = read_counts(s, c);
	if (!err)
		err = read_memory(s, c);
	if (!err)
		err = read_edges(s, c);
	if (!err)
		err = read_arenas(s, c);
	if (!err)
		err = read_names(s, c);
	return err;
}

void snapshot_free(struct snapshot *s)
{
	free(s->processes);
	free(s->edges);
	free(s->arenas);
	memset(s, 0, sizeof(*s));
}
