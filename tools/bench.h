/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * sluice bench: what is measured, and how
 *
 * A crew is a few processes that do one thing (stream batches, bounce a cache line) when they are
 * told to, and sleep otherwise.  Crews that are compared are all started first and then take
 * turns, A B A B, so that whatever disturbs the machine disturbs each of them.
 */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define BENCH_MAX_SIDES	 9
#define BENCH_MAX_ROUNDS 64
#define BENCH_SOURCES	 4
#define BENCH_PASSES	 4 /* how often a slow consumer reads a batch */
#define BENCH_MIB	 (1024UL * 1024)

struct bench_crew;
struct bench_spec;

/**
 * struct bench_ops - what the processes of a crew do
 * @name: as it stands in the table
 * @missing: why this cannot run here ("not installed"), or NULL; NULL when it always can
 * @init: in the measuring process, before the crew is forked
 * @open: in each process of the crew
 * @run: in each process of the crew: @n operations
 * @exit: in the measuring process, after the crew is gone
 *
 * init, open and run return 0 or a negative errno, and say why with bench_fail().
 */
struct bench_ops {
	const char *name;
	const char *(*missing)(const struct bench_spec *spec);
	int (*init)(struct bench_crew *c);
	int (*open)(struct bench_crew *c, int side);
	int (*run)(struct bench_crew *c, int side, uint64_t n);
	void (*exit)(struct bench_crew *c);
};

enum bench_crew_flags {
	BENCH_READ = 1 << 0, /* the consumer reads every byte */
	BENCH_SLEEP = 1 << 1, /* waiting means sleeping at once */
	BENCH_PIN = 1 << 2, /* side i runs on the i-th CPU that is allowed */
	BENCH_SLOW = 1 << 3, /* the consumer is the bottleneck */
	BENCH_COUNT = 1 << 4, /* system calls of the steady phase are counted */
	BENCH_FIXED = 1 << 5, /* one round of .first operations, nothing is calibrated */
	BENCH_LATER = 1 << 6, /* memory that was touched before */
	BENCH_EVEN = 1 << 7, /* the number of operations is a multiple of .first */
	BENCH_FRESH = 1 << 8, /* each round has a crew of its own */
};

/**
 * struct bench_spec - one crew
 * @ops: what it does
 * @sides: number of processes; side 0 consumes
 * @flags: enum bench_crew_flags
 * @slots: batches that fit between the sides
 * @bytes: of a batch
 * @first: operations of the warm-up, from which the number for a round is computed
 * @round_us: length of a round where the command line's would not do; shorter ones are more
 */
struct bench_spec {
	const struct bench_ops *ops;
	int sides;
	unsigned int flags;
	unsigned int slots;
	uint64_t bytes;
	uint64_t first;
	unsigned int round_us;
};

/**
 * struct bench_sample - one round of one crew
 * @n: operations
 * @ns: from the first side's start to the last side's end, or what the crew timed itself
 * @cpu_ns: user and system time of all sides
 * @extra: whatever else the crew measured
 */
struct bench_sample {
	uint64_t n;
	double ns;
	double cpu_ns;
	double extra;
};

/* What the measuring process and the sides share. */
struct bench_side {
	sem_t go;
	uint64_t n;
	uint64_t start_ns;
	uint64_t end_ns;
	uint64_t cpu_ns;
	double extra; /* summed over all sides */
	int err;
	char why[256];
};

struct bench_shared {
	sem_t done;
	uint64_t own_ns; /* not 0: the crew timed itself */
	_Atomic uint32_t stop;
	_Atomic uint32_t finished;
	struct bench_side side[BENCH_MAX_SIDES];
};

/**
 * struct bench_crew - a crew that runs
 * @spec: what it is
 * @sh: shared by all its processes
 * @pid: of each side
 * @priv: of the ops: set by init, seen by each side in its own copy
 * @seq: of the next batch of this side
 */
struct bench_crew {
	const struct bench_spec *spec;
	struct bench_shared *sh;
	pid_t pid[BENCH_MAX_SIDES];
	void *priv;
	uint64_t seq;
	char why[256];
};

int bench_crew_start(struct bench_crew *c, const struct bench_spec *spec);
int bench_crew_run(struct bench_crew *c, uint64_t n, struct bench_sample *s);
int bench_crew_count(struct bench_crew *c, uint64_t n, struct bench_sample *s);
void bench_crew_stop(struct bench_crew *c);
/* Between two of these a traced side is in its steady phase. */
void bench_mark(void);
int bench_fail(struct bench_crew *c, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

uint64_t bench_now(void);
int bench_cpus(void);
int bench_compare(const void *a, const void *b);
double bench_median(const double *v, unsigned int n);

/* Private memory as a careful program would allocate it: faulted in, on huge pages if there are. */
void *bench_alloc(size_t bytes);
void bench_free(void *p, size_t bytes);
/* What a producer sends: BENCH_SOURCES buffers whose first and last words are the batch number. */
int bench_payload_init(struct bench_crew *c);
void *bench_payload(uint64_t seq);
bool bench_payload_ok(const void *p, uint64_t seq, bool all);
uint64_t bench_sum(const void *p, size_t bytes);

/* Peers and references, by file. */
extern const struct bench_ops bench_memcpy, bench_memset, bench_first_pass, bench_later_pass,
	bench_reader, bench_create, bench_footprint;
extern const struct bench_ops bench_pipe, bench_pipe_big, bench_unix, bench_readv, bench_shm_ring;
extern const struct bench_ops bench_zmq, bench_boost;
extern const struct bench_ops bench_line, bench_eventfd, bench_pingpong, bench_handoff;
extern const struct bench_ops bench_stream, bench_fanin;

enum bench_goal {
	BENCH_NO_GOAL,
	BENCH_RATIO_MIN,
	BENCH_RATIO_MAX,
	BENCH_VALUE_NEAR, /* 1 within the goal */
	BENCH_VALUE_MIN,
	BENCH_VALUE_MAX,
};

/**
 * struct bench_row - one row of the table
 * @name: for --row and for programs
 * @title: for people
 * @group: rows of one group are measured together, interleaved
 * @unit: of the value
 * @subject: what is measured
 * @peer: what it is compared with; NULL for none
 * @value: of one round, in @unit; @spec is the crew that @s came from
 * @kind: what @goal bounds
 * @goal: the bound
 */
struct bench_row {
	const char *name;
	const char *title;
	const char *group;
	const char *unit;
	const struct bench_spec *subject;
	const struct bench_spec *peer;
	double (*value)(const struct bench_sample *s, const struct bench_spec *spec);
	enum bench_goal kind;
	double goal;
};

extern const struct bench_row bench_rows[];
extern const unsigned int bench_nrows;

/**
 * struct bench_result - what was measured for a row
 * @row: the row
 * @value: median over the rounds
 * @peer_value: the same of the peer
 * @ratio: median of value / peer value of each round
 * @low: first quartile of the ratio, or of the value where there is no peer
 * @high: third quartile
 * @cpu_s_per_gb: CPU seconds of all sides for 1e9 bytes; 0 where no bytes are moved
 * @peer_cpu_s_per_gb: the same of the peer
 * @rounds: how many
 * @met: the goal is met
 * @skipped: why nothing was measured; "" if something was
 * @failed: @skipped is an error
 */
struct bench_result {
	const struct bench_row *row;
	double value;
	double peer_value;
	double ratio;
	double low;
	double high;
	double cpu_s_per_gb;
	double peer_cpu_s_per_gb;
	unsigned int rounds;
	bool met;
	bool failed;
	char skipped[256];
};

/* Where and when. */
struct bench_host {
	char machine[192];
	char kernel[160];
	char date[32];
	char command[256];
	double load;
};

/* The number of a result as its unit is best read: "12.3", "200,123". */
void bench_number(char *buf, size_t len, double v);
void bench_goal_text(char *buf, size_t len, const struct bench_row *row);
void bench_print(const struct bench_result *r, unsigned int n, const struct bench_host *host);
void bench_print_json(const struct bench_result *r, unsigned int n, const struct bench_host *host);
int bench_plot(const char *path, const struct bench_result *r, unsigned int n,
	       const struct bench_host *host);

#endif /* SLUICE_BENCH_H */
