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
	double value, peer_value; /* 0: there is none */
	double ratio; /* of the two, or a median of ratios of neighbours in time */
	int met; /* 1, 0; -1 when the row has no goal */
};

struct row *row_add(const char *name, const char *unit, double value);
void row_peer(struct row *r, const char *peer, double value);
void row_goal(struct row *r, bool met, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

struct samples {
	double v[4096];
	unsigned int n;
};

void sample(struct samples *s, double v);
/* Both put the samples in order. */
double median(struct samples *s);
double most(struct samples *s); /* what 9 of 10 samples do not exceed */
double cpu_seconds(void); /* of this process, all threads */

struct crew_style;

/* Producers: children that publish until the channel is shut down, and die with their parent. */
struct crew {
	struct sluice_arena *a;
	struct sluice_channel *in;
	struct crew_style *style; /* shared with the producers */
	pid_t pid[16];
	unsigned int n;
};

struct crew_opts {
	const char *name;
	unsigned int producers;
	uint64_t bytes; /* of a batch */
	unsigned int tensors; /* that it may be divided into; 0 means 1 */
	bool fill; /* write every byte, else hand over what is there */
	unsigned int slots; /* batches that the arena has room for */
	unsigned int queue;
};

/* How the bytes of a batch are written. */
struct crew_style {
	unsigned int tensors; /* that it is divided into; 0 means 1 */
	uint64_t piece; /* longest single memcpy of a fill; 0 means an image */
};

void crew_start(struct crew *c, const struct crew_opts *o);
/* From the next batch that a producer begins; as many as the arena has room for are older. */
void crew_restyle(struct crew *c, const struct crew_style *style);
void crew_stop(struct crew *c);

struct sluice_arena *arena_huge(uint64_t bytes);
/* Zeroed, and in memory already. */
void *shared_new(size_t bytes);

/* The groups: bench_feed.c, bench_drain.c */
void bench_copies(void);
void bench_images(void);
void bench_small(void);
void bench_drain_copies(void);
void bench_doorbell(void);
void bench_register(void);

/* Only when they are named, to find out why: bench_try.c */
void try_register(void);
void try_wake(void);

#endif
