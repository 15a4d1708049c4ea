/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the suites ask of a device.  gpu_fake.c answers with the fake driver, gpu_real.cu with a GPU:
 * the same suites run on both.
 */
#ifndef TESTS_CUDA_GPU_H
#define TESTS_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Make the primary context of a device current on this thread. */
bool gpu_init(int device);
/* The same for a device that was made current before. */
void gpu_use(int device);
int gpu_devices(void);
bool gpu_is_fake(void);
void *gpu_alloc(size_t bytes);
void gpu_free(void *p);
struct CUstream_st *gpu_stream(void);
void gpu_stream_free(struct CUstream_st *s);
void gpu_sync(struct CUstream_st *s);
/* Kernels over the pattern of pattern_fill(). */
void gpu_fill(struct CUstream_st *s, void *dev, size_t bytes, uint64_t seed);
void gpu_check(struct CUstream_st *s, const void *dev, size_t bytes, uint64_t seed);
/* Words that did not match since gpu_init(), and rules that the fake driver saw broken. */
uint64_t gpu_bad(void);
/* Begin and end, without a result, to capture what is put on a stream into a graph. */
void gpu_capture(struct CUstream_st *s, bool on);
/* A kernel that takes this long. */
void gpu_busy(struct CUstream_st *s, unsigned int us);
/* One that runs until a word of registered host memory has this value. */
void gpu_hold(struct CUstream_st *s, const uint32_t *word, uint32_t value);

#ifdef __cplusplus
}
#endif

#endif
