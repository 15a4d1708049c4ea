/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the BPF programs count, shared with user space. The maps carry these types in their BTF, so
 * `bpftool map dump pinned /sys/fs/bpf/sluice/counts` prints the names below.
 *
 * Every end of a channel counts the bytes that crossed it once: a write into a pipe is SLUICE_OUT of
 * the writer, the read is SLUICE_IN of the reader; a splice from one pipe to another is both.
 */
#ifndef SLUICE_COUNTERS_H
#define SLUICE_COUNTERS_H

enum sluice_kind {
	SLUICE_PIPE = 0,
	SLUICE_FIFO = 1,
	SLUICE_SPLICE = 2,
	SLUICE_VMSPLICE = 3,
	SLUICE_TEE = 4,
	SLUICE_SENDFILE = 5,
	SLUICE_UNIX_STREAM = 6,
	SLUICE_UNIX_DGRAM = 7,
	SLUICE_UNIX_SEQPACKET = 8,
	SLUICE_PROCESS_VM = 9,
	SLUICE_ARENA_MEMFD = 10,
	SLUICE_ARENA_KMOD = 11,
};

#define SLUICE_KINDS 12

enum sluice_dir {
	SLUICE_OUT = 0,
	SLUICE_IN = 1,
};

/*
 * Threads that get no entry of their own. SLUICE_TID_OTHER: the map was full. SLUICE_TID_EXITED:
 * with fold_exited set, what ended threads counted is added up under the process, and what ended
 * processes counted under tgid 0; also what threads counted whose process finds no room.
 */
#define SLUICE_TID_OTHER  0
#define SLUICE_TID_EXITED (-1)

/* One thread, one direction, one kind. start_ns (since boot) tells a reused tgid from its former. */
struct sluice_count_key {
	__u64 start_ns;
	int tgid;
	int tid;
	enum sluice_kind kind;
	enum sluice_dir dir;
};

/* Bucket 0 holds calls that did not sleep, bucket n those that slept [2^(n-1), 2^n) us. */
#define SLUICE_HIST 28

struct sluice_count {
	__u64 bytes;
	__u64 calls;
	__u64 fails; /* calls that returned an error */
	__u64 time_ns; /* inside the calls, poll() and select() for readable ends included */
	__u64 slept_ns; /* the part of it that the thread was asleep */
	__u64 waits; /* calls that slept */
	__u64 first_ns; /* CLOCK_MONOTONIC when the first call began, */
	__u64 last_ns; /* and when the last one ended */
	__u64 slept_us_log2[SLUICE_HIST];
};

/*
 * One end of a pipe (dev and inode number of the pipe) or unix socket (of the receiving socket).
 * ino 0: the channel could not be told.
 */
struct sluice_end_key {
	__u64 ino;
	__u64 start_ns;
	__u32 dev;
	int tgid;
	enum sluice_kind kind;
	enum sluice_dir dir;
};

struct sluice_end {
	__u64 bytes;
	__u64 calls;
	__u64 slept_ns;
};

struct sluice_task_key {
	__u64 start_ns;
	int tgid;
	int pad;
};

struct sluice_task {
	char comm[16];
	int ppid;
	int threads_ended;
	__u64 exit_ns; /* since boot; 0: alive */
};

/* What shared mappings cost a process: the price of a naive shared-memory path. */
struct sluice_memory {
	__u64 faults;
	__u64 fault_ns;
	__u64 unmaps; /* munmap() calls that removed a shared mapping */
	__u64 unmap_bytes;
	__u64 unmap_ns;
};

/* One process at one arena; with fold_exited set, gone when it ends. */
struct sluice_arena_key {
	__u64 arena;
	__u64 start_ns;
	int tgid;
	enum sluice_kind kind;
};

struct sluice_arena {
	__u64 published_bytes;
	__u64 published;
	__u64 taken_bytes;
	__u64 taken;
	__u64 released_bytes;
	__u64 released;
	__u64 waits;
	__u64 wait_ns;
};

/* Events that found no room, by map: nothing is lost silently. */
struct sluice_lost {
	__u64 counts; /* went to SLUICE_TID_OTHER */
	__u64 ends; /* are in "counts" alone */
	__u64 tasks; /* a process whose name and parent are not known */
	__u64 memory;
	__u64 arenas;
	__u64 targets; /* a child of a traced process that is not traced */
	__u64 calls; /* calls whose time is not known */
	__u64 records; /* calls of which nothing could be noted when they began */
};

/* How the programs behave; written by user space into the pinned map "config". */
struct sluice_config {
	int fold_exited;
};

#endif /* SLUICE_COUNTERS_H */
