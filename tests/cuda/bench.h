/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the files of the measurements on a GPU share. */
#ifndef TESTS_CUDA_BENCH_H
#define TESTS_CUDA_BENCH_H

#include <cuda_runtime_api.h>

#include <sluice_cuda.h>

#include "../lib/util.h"
#include "gpu.h"

#define IMAGE_BYTES (12 * MIB)
#define IMAGES	    32
#define BATCH_BYTES (IMAGES * IMAGE_BYTES) /* 403 MB */
#define REPEATS	    5

#define CHECK_CUDA(call)                                                                \
	do {                                                                            \
		cudaError_t r_ = (call);                                                \
		if (r_ != cudaSuccess) {                                                \
			fprintf(stderr, "# %s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
				cudaGetErrorString(r_));                                \
			_exit(1);                                                       \
		}                                                                       \
	} while (0)

/* For calls of libsluice-cuda: its sentence. */
#define CHECK_SLUICE(call)                                                                         \
	do {                                                                                       \
		long ret_ = (call);                                                                \
		if (ret_ < 0) {                                                                    \
			fprintf(stderr, "# %s:%d: %s: %ld, %s\n", __FILE__, __LINE__, #call, ret_, \
				sluice_cuda_strerror());                                           \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* One line of the table.  Each group of rows runs in a process of its own, rows are shared memory. */
struct row {
	char name[64];
	char unit[24];
	char peer[96];
	char goal[96];
	double value, peer_value, ratio; /* 0: there is none */
	int met; /* 1, 0; -1 when the row has no goal */
};

struct row *row_add(const char *name, const char *unit, double value);
void row_peer(struct row *r, const char *peer, double value);
void row_goal(struct row *r, bool met, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Among the rows of the groups that have run; 0 when it has not. */
double row_value(const char *name);

struct samples {
	double v[4096];
	unsigned int n;
};

void sample(struct samples *s, double v);
double median(struct samples *s);
double cpu_seconds(void); /* of this process, all threads */

/* Producers: children that publish until the channel is shut down, and die with their parent. */
struct crew {
	struct sluice_arena *a;
	struct sluice_channel *in;
	pid_t pid[16];
	unsigned int n;
};

struct crew_opts {
	const char *name;
	unsigned int producers;
	uint64_t bytes; /* of a batch */
	unsigned int tensors; /* that it is divided into */
	bool fill; /* write every byte, else hand over what is there */
	uint64_t piece; /* longest single memcpy of a fill; 0 means an image */
	unsigned int slots; /* batches that the arena has room for */
	unsigned int queue;
};

void crew_start(struct crew *c, const struct crew_opts *o);
void crew_stop(struct crew *c);

struct sluice_arena *arena_huge(uint64_t bytes);

/* The groups: bench_feed.c, bench_drain.c */
void bench_copies(void);
void bench_images(void);
void bench_small(void);
void bench_idle(void);
void bench_drain_copies(void);
void bench_doorbell(void);
void bench_register(void);

/* Only when they are named, to find out why: bench_try.c */
void try_register(void);
void try_wake(void);

#endif
