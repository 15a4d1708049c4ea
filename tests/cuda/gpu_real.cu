// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "gpu.h"

#define CHECK_CUDA(call)                                                                           \
	do {                                                                                       \
		cudaError_t r_ = (call);                                                           \
		if (r_ != cudaSuccess) {                                                           \
			fprintf(stderr, "# %s:%d: %s: %s\n", __FILE__, __LINE__, #call,            \
				cudaGetErrorString(r_));                                           \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

#define MAX_DEVICES 16

static unsigned long long *bad[MAX_DEVICES]; /* mismatches, counted on each device */

/* The pattern of tests/lib/util.c. */
__device__ static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x7fb5d329728ea185ULL;
	x ^= x >> 27;
	x *= 0x81dadef4bc2dd44dULL;
	return x ^ x >> 33;
}

__device__ static unsigned char pattern_byte(uint64_t seed, uint64_t at)
{
	return mix(seed * 0x9e3779b97f4a7c15ULL + at / 8 + 1) >> at % 8 * 8;
}

__global__ static void kernel_fill(unsigned char *p, uint64_t n, uint64_t seed)
{
	const uint64_t step = (uint64_t)gridDim.x * blockDim.x;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		p[i] = pattern_byte(seed, i);
}

__global__ static void kernel_check(const unsigned char *p, uint64_t n, uint64_t seed,
				    unsigned long long *wrong)
{
	const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
	unsigned long long mine = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		mine += p[i] != pattern_byte(seed, i);
	if (mine)
		atomicAdd(wrong, mine);
}

__device__ static uint64_t timer(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

__global__ static void kernel_busy(uint64_t ns)
{
	const uint64_t start = timer();

	while (timer() - start < ns)
		;
}

__global__ static void kernel_hold(const volatile uint32_t *word, uint32_t value)
{
	while (*word != value)
		;
}

static unsigned int blocks(size_t bytes)
{
	const size_t n = bytes / 1024 + 1;

	return n < 1024 ? n : 1024;
}

static int current(void)
{
	int device;

	CHECK_CUDA(cudaGetDevice(&device));
	return device;
}

bool gpu_init(int device)
{
	if (cudaSetDevice(device) != cudaSuccess)
		return false;
	if (!bad[device]) {
		CHECK_CUDA(cudaMalloc((void **)&bad[device], sizeof(*bad[device])));
		CHECK_CUDA(cudaMemset(bad[device], 0, sizeof(*bad[device])));
	}
	return true;
}

void gpu_use(int device)
{
	CHECK_CUDA(cudaSetDevice(device));
}

int gpu_devices(void)
{
	int n = 0;

	return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

bool gpu_is_fake(void)
{
	return false;
}

void *gpu_alloc(size_t bytes)
{
	void *p;

	CHECK_CUDA(cudaMalloc(&p, bytes));
	return p;
}

void gpu_free(void *p)
{
	CHECK_CUDA(cudaFree(p));
}

struct CUstream_st *gpu_stream(void)
{
	cudaStream_t s;

	CHECK_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	return s;
}

void gpu_stream_free(struct CUstream_st *s)
{
	CHECK_CUDA(cudaStreamDestroy(s));
}

void gpu_capture(struct CUstream_st *s, bool on)
{
	cudaGraph_t graph = NULL;

	if (on) {
		CHECK_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
		return;
	}
	/* What was refused may have made it invalid. */
	cudaStreamEndCapture(s, &graph);
	if (graph)
		CHECK_CUDA(cudaGraphDestroy(graph));
	cudaGetLastError();
}

void gpu_sync(struct CUstream_st *s)
{
	CHECK_CUDA(cudaStreamSynchronize(s));
}

void gpu_fill(struct CUstream_st *s, void *dev, size_t bytes, uint64_t seed)
{
	kernel_fill<<<blocks(bytes), 256, 0, s>>>((unsigned char *)dev, bytes, seed);
	CHECK_CUDA(cudaGetLastError());
}

void gpu_check(struct CUstream_st *s, const void *dev, size_t bytes, uint64_t seed)
{
	kernel_check<<<blocks(bytes), 256, 0, s>>>((const unsigned char *)dev, bytes, seed,
						   bad[current()]);
	CHECK_CUDA(cudaGetLastError());
}

uint64_t gpu_bad(void)
{
	uint64_t sum = 0;
	int was = current();

	for (int i = 0; i < MAX_DEVICES; i++) {
		unsigned long long n = 0;

		if (!bad[i])
			continue;
		CHECK_CUDA(cudaSetDevice(i));
		CHECK_CUDA(cudaMemcpy(&n, bad[i], sizeof(n), cudaMemcpyDeviceToHost));
		sum += n;
	}
	CHECK_CUDA(cudaSetDevice(was));
	return sum;
}

void gpu_busy(struct CUstream_st *s, unsigned int us)
{
	kernel_busy<<<1, 1, 0, s>>>(us * 1000ULL);
	CHECK_CUDA(cudaGetLastError());
}

void gpu_hold(struct CUstream_st *s, const uint32_t *word, uint32_t value)
{
	kernel_hold<<<1, 1, 0, s>>>(word, value);
	CHECK_CUDA(cudaGetLastError());
}
