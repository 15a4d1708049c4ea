// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Reads the maps and adds them up: threads to processes, ends of channels to who talks to whom. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <bpf/bpf.h>
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

/* All entries of a hash map; the caller frees both. */
static int read_map(int fd, size_t key_size, size_t value_size, void **keys, void **values)
{
	LIBBPF_OPTS(bpf_map_batch_opts, opts);
	__u32 room = 1024, n = 0, chunk, batch = 0;
	void *in = NULL, *k, *v;
	int err = 0;

	*keys = malloc(room * key_size);
	*values = malloc(room * value_size);
	while (*keys && *values) {
		chunk = room - n;
		err = bpf_map_lookup_batch(fd, in, &batch, (char *)*keys + n * key_size,
					   (char *)*values + n * value_size, &chunk, &opts);
		if (err && err != -ENOENT && err != -ENOSPC)
			return err;
		/* -ENOSPC: the next bucket does not fit, what fitted is there. */
		n += chunk;
		if (err == -ENOENT)
			return n;
		in = &batch;
		if (err != -ENOSPC && room - n >= room / 4)
			continue;
		room *= 2;
		k = realloc(*keys, room * key_size);
		if (k)
			*keys = k;
		v = realloc(*values, room * value_size);
		if (v)
			*values = v;
		if (!k || !v)
			break;
	}
	return -ENOMEM;
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
	const struct sluice_count_key *x = *(const struct sluice_count_key *const *)a;
	const struct sluice_count_key *y = *(const struct sluice_count_key *const *)b;

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

static int add_counts(struct snapshot *s, struct sluice_count_key *keys,
		      struct sluice_count *values, int n)
{
	const struct sluice_count_key **order, *k, *last = NULL;
	__u64 sleep[MEDIUMS] = {0};
	struct process *p;
	int index = -1;

	order = malloc((n + 1) * sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (int i = 0; i < n; i++)
		order[i] = &keys[i];
	qsort(order, n, sizeof(*order), compare_counts);
	for (int i = 0; i < n; i++) {
		const struct sluice_count *value;
		enum medium medium;

		k = order[i];
		value = &values[k - keys];
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
		if (index < 0) {
			free(order);
			return -ENOMEM;
		}
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
	free(order);
	return 0;
}

static int read_counts(struct snapshot *s, const struct counters *c)
{
	struct sluice_count_key *keys;
	struct sluice_count *values;
	int n;

	n = read_map(counters_map_fd(c, STAT_COUNTS), sizeof(*keys), sizeof(*values),
		     (void **)&keys, (void **)&values);
	if (n > 0)
		n = add_counts(s, keys, values, n);
	free(keys);
	free(values);
	return n < 0 ? n : 0;
}

static int read_memory(struct snapshot *s, const struct counters *c)
{
	struct sluice_task_key *keys;
	struct sluice_memory *values;
	int n, index = 0;

	n = read_map(counters_map_fd(c, STAT_MEMORY), sizeof(*keys), sizeof(*values),
		     (void **)&keys, (void **)&values);
	for (int i = 0; i < n && index >= 0; i++) {
		index = get_process(s, keys[i].tgid, keys[i].start_ns);
		if (index >= 0)
			s->processes[index].memory = values[i];
	}
	free(keys);
	free(values);
	return n < 0 ? n : index < 0 ? -ENOMEM : 0;
}

static void read_names(struct snapshot *s, const struct counters *c)
{
	for (int i = 0; i < s->num_processes; i++) {
		struct process *p = &s->processes[i];
		struct sluice_task_key key = {.start_ns = p->start_ns, .tgid = p->tgid};
		struct sluice_task t;

		if (!p->tgid) {
			p->exited = p->start_ns == 1;
			p->other = !p->exited;
			snprintf(p->comm, sizeof(p->comm), p->exited ? "(ended)" : "(other)");
			continue;
		}
		if (bpf_map_lookup_elem(counters_map_fd(c, STAT_TASKS), &key, &t)) {
			read_comm(p);
			continue;
		}
		copy_comm(p->comm, sizeof(p->comm), t.comm, sizeof(t.comm));
		p->ppid = t.ppid;
		p->exit_ns = t.exit_ns;
		/* The map has the name at the first call, before any exec or rename. */
		if (!p->exit_ns)
			read_comm(p);
	}
}

struct end {
	const struct sluice_end_key *key;
	const struct sluice_end *value;
};

static int compare_ends(const void *a, const void *b)
{
	const struct end *x = a, *y = b;
	int mx = kinds[x->key->kind].medium, my = kinds[y->key->kind].medium;

	if (mx != my)
		return mx - my;
	if (x->key->dev != y->key->dev)
		return x->key->dev < y->key->dev ? -1 : 1;
	if (x->key->ino != y->key->ino)
		return x->key->ino < y->key->ino ? -1 : 1;
	return (int)x->key->dir - (int)y->key->dir;
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
static int add_channel(struct snapshot *s, const struct end *ends, int n)
{
	enum medium medium = kinds[ends->key->kind].medium;
	__u64 out = 0, in = 0;
	int writers = 0, err = 0;

	while (writers < n && ends[writers].key->dir == SLUICE_OUT)
		out += ends[writers++].value->bytes;
	for (int i = writers; i < n; i++)
		in += ends[i].value->bytes;
	for (int i = 0; i < writers && !err; i++) {
		const struct end *w = &ends[i];
		int from = find_process(s, w->key->tgid, w->key->start_ns);

		if (writers == n)
			err = add_edge(s, from, -1, medium, w->value->bytes, w->value->calls,
				       false);
		for (int j = writers; j < n && !err && in; j++) {
			const struct end *r = &ends[j];
			int to = find_process(s, r->key->tgid, r->key->start_ns);
			double share = (double)r->value->bytes / in;

			err = add_edge(s, from, to, medium, w->value->bytes * share,
				       w->value->calls, writers > 1 && n - writers > 1);
		}
	}
	for (int j = 0; j < n && !writers && !err; j++)
		err = add_edge(s, -1, find_process(s, ends[j].key->tgid, ends[j].key->start_ns),
			       medium, ends[j].value->bytes, ends[j].value->calls, false);
	return err;
}

static int compare_edges(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;

	return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static int read_edges(struct snapshot *s, const struct counters *c)
{
	struct sluice_end_key *keys;
	struct sluice_end *values;
	struct end *ends = NULL;
	int n, m = 0, err = 0;

	n = read_map(counters_map_fd(c, STAT_ENDS), sizeof(*keys), sizeof(*values), (void **)&keys,
		     (void **)&values);
	if (n > 0)
		ends = calloc(n, sizeof(*ends));
	for (int i = 0; ends && i < n; i++)
		if (keys[i].kind < SLUICE_KINDS && keys[i].ino)
			ends[m++] = (struct end){&keys[i], &values[i]};
	if (n > 0 && !ends)
		err = -ENOMEM;
	if (ends)
		qsort(ends, m, sizeof(*ends), compare_ends);
	for (int i = 0, len; i < m && !err; i += len) {
		for (len = 1; i + len < m; len++)
			if (ends[i].key->ino != ends[i + len].key->ino ||
			    ends[i].key->dev != ends[i + len].key->dev ||
			    kinds[ends[i].key->kind].medium !=
				    kinds[ends[i + len].key->kind].medium)
				break;
		err = add_channel(s, &ends[i], len);
	}
	if (s->num_edges)
		qsort(s->edges, s->num_edges, sizeof(*s->edges), compare_edges);
	free(ends);
	free(keys);
	free(values);
	return n < 0 ? n : err;
}

static int read_arenas(struct snapshot *s, const struct counters *c)
{
	struct sluice_arena_key *keys;
	struct sluice_arena *values;
	int n;

	n = read_map(counters_map_fd(c, STAT_ARENAS), sizeof(*keys), sizeof(*values),
		     (void **)&keys, (void **)&values);
	if (n > 0) {
		s->arenas = calloc(n, sizeof(*s->arenas));
		if (!s->arenas)
			n = -ENOMEM;
	}
	for (int i = 0; i < n; i++) {
		s->arenas[i].key = keys[i];
		s->arenas[i].count = values[i];
		s->arenas[i].process = find_process(s, keys[i].tgid, keys[i].start_ns);
		s->num_arenas++;
	}
	free(keys);
	free(values);
	return n < 0 ? n : 0;
}

int snapshot_read(struct snapshot *s, const struct counters *c)
{
	struct timespec ts;
	__u32 zero = 0;
	int err;

	memset(s, 0, sizeof(*s));
	clock_gettime(CLOCK_BOOTTIME, &ts);
	s->now_ns = ts.tv_sec * 1000000000ull + ts.tv_nsec;
	counters_missed(c, &s->missed, &s->missed_costs);
	err = bpf_map_lookup_elem(counters_map_fd(c, STAT_LOST), &zero, &s->lost);
	if (!err)
		err = read_counts(s, c);
	if (!err)
		err = read_memory(s, c);
	if (!err)
		err = read_edges(s, c);
	if (!err)
		err = read_arenas(s, c);
	if (!err)
		read_names(s, c);
	return err;
}

void snapshot_free(struct snapshot *s)
{
	free(s->processes);
	free(s->edges);
	free(s->arenas);
	memset(s, 0, sizeof(*s));
}
