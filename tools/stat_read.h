/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* One look at the maps, added up by process. */
#ifndef SLUICE_STAT_READ_H
#define SLUICE_STAT_READ_H

#include <stdbool.h>
#include "stat_load.h"

/* What carries the bytes: kinds that share a channel share a medium. */
enum medium {
	MEDIUM_PIPE,
	MEDIUM_SOCKET,
	MEDIUM_VM,
	MEDIUM_ARENA,
	MEDIUMS,
};

struct process {
	int tgid;
	int ppid;
	__u64 start_ns;
	__u64 exit_ns; /* 0 if alive */
	char comm[64]; /* printable */
	bool other; /* the threads that found no room in the map */
	bool exited; /* the processes that have ended */
	struct sluice_count kinds[SLUICE_KINDS][2];
	/* The longest that one thread of it slept, waiting for a medium to be readable or writable. */
	__u64 longest_sleep_ns[MEDIUMS][2];
	struct sluice_memory memory;
	int threads;
};

/* One end of one channel, for edges and for arenas. */
struct edge {
	int from; /* index of a process, -1: not among those counted */
	int to;
	enum medium medium;
	__u64 bytes;
	__u64 calls;
	bool shared; /* several writers and readers: split in proportion, not measured */
};

struct arena_peer {
	struct sluice_arena_key key;
	struct sluice_arena count;
	int process; /* index, -1 if it counted nothing else */
};

struct snapshot {
	struct process *processes;
	int num_processes;
	struct edge *edges; /* largest first */
	int num_edges;
	struct arena_peer *arenas;
	int num_arenas;
	struct sluice_lost lost;
	__u64 missed; /* calls that are not counted, */
	__u64 missed_costs; /* and faults and waits that are not */
	__u64 now_ns; /* CLOCK_BOOTTIME */
};

/* Returns 0 or a negative errno. Free with snapshot_free() in either case. */
int snapshot_read(struct snapshot *s, const struct counters *c);

void snapshot_free(struct snapshot *s);

/* Seconds from the first call to the end of the last one, at least a nanosecond. */
double process_span(const struct process *p, enum medium medium, enum sluice_dir dir);

/* Bytes of one medium and direction. */
__u64 process_bytes(const struct process *p, enum medium medium, enum sluice_dir dir);

/* Sum over the kinds of a medium. */
void process_sum(const struct process *p, enum medium medium, enum sluice_dir dir,
		 struct sluice_count *sum);

enum medium kind_medium(enum sluice_kind kind);
const char *kind_name(enum sluice_kind kind);
const char *medium_name(enum medium medium);

#endif /* SLUICE_STAT_READ_H */
