// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../lib/util.h"
#include "fake_load.h"
#include "gpu.h"

struct fake_driver drv;

static _Atomic uint64_t bad;

void fake_load(void)
{
	char path[512], *slash;
	ssize_t n;
	void *lib;

	/* Once it is loaded from here, "libcuda.so.1" means this one. */
	n = readlink("/proc/self/exe", path, sizeof(path) - 64);
	CHECK(n > 0);
	path[n] = '\0';
	slash = strrchr(path, '/');
	strcpy(slash, "/driver/libcuda.so.1");
	lib = dlopen(path, RTLD_NOW);
	CHECK(lib);
#define LOAD(field, name) CHECK((drv.field = (__typeof__(drv.field))dlsym(lib, name)))
	LOAD(violations, "fake_cuda_violations");
	LOAD(fail, "fake_cuda_fail");
	LOAD(hold, "fake_cuda_hold");
	LOAD(memory, "fake_cuda_memory");
	LOAD(launch, "fake_cuda_launch");
	LOAD(fault, "fake_cuda_fault");
	LOAD(capture, "fake_cuda_capture");
	LOAD(context, "fake_cuda_context");
	LOAD(context_destroy, "fake_cuda_context_destroy");
	LOAD(primary_reset, "fake_cuda_primary_reset");
	LOAD(census, "fake_cuda_census");
	LOAD(init, "cuInit");
	LOAD(device_count, "cuDeviceGetCount");
	LOAD(primary_retain, "cuDevicePrimaryCtxRetain");
	LOAD(push_current, "cuCtxPushCurrent_v2");
	LOAD(pop_current, "cuCtxPopCurrent_v2");
	LOAD(mem_alloc, "cuMemAlloc_v2");
	LOAD(mem_free, "cuMemFree_v2");
	LOAD(host_register, "cuMemHostRegister_v2");
	LOAD(host_unregister, "cuMemHostUnregister");
	LOAD(stream_create, "cuStreamCreate");
	LOAD(stream_destroy, "cuStreamDestroy_v2");
	LOAD(stream_sync, "cuStreamSynchronize");
#undef LOAD
	CHECK_OK(drv.init(0));
}

static CUcontext contexts[8];

bool gpu_init(int device)
{
	fake_load();
	if (drv.primary_retain(&contexts[device], device))
		return false;
	gpu_use(device);
	return true;
}

void gpu_use(int device)
{
	static bool pushed;
	CUcontext was;

	if (pushed)
		CHECK_OK(drv.pop_current(&was));
	CHECK_OK(drv.push_current(contexts[device]));
	pushed = true;
}

int gpu_devices(void)
{
	int n = 0;

	fake_load();
	drv.device_count(&n);
	return n;
}

bool gpu_is_fake(void)
{
	return true;
}

void *gpu_alloc(size_t bytes)
{
	CUdeviceptr p;

	CHECK_OK(drv.mem_alloc(&p, bytes));
	return (void *)(uintptr_t)p;
}

void gpu_free(void *p)
{
	CHECK_OK(drv.mem_free((uintptr_t)p));
}

struct CUstream_st *gpu_stream(void)
{
	CUstream s;

	CHECK_OK(drv.stream_create(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

void gpu_stream_free(struct CUstream_st *s)
{
	CHECK_OK(drv.stream_destroy(s));
}

void gpu_sync(struct CUstream_st *s)
{
	CHECK_OK(drv.stream_sync(s));
}

void gpu_capture(struct CUstream_st *s, bool on)
{
	drv.capture(s, on);
}

struct kernel {
	void *dev;
	size_t bytes;
	uint64_t seed;
};

static void kernel_fill(void *arg)
{
	struct kernel *k = arg;

	pattern_fill(k->dev, k->bytes, k->seed);
	free(k);
}

static void kernel_check(void *arg)
{
	struct kernel *k = arg;

	bad += !pattern_is(k->dev, k->bytes, k->seed);
	free(k);
}

static void kernel_launch(CUstream s, void (*fn)(void *), void *dev, size_t bytes, uint64_t seed)
{
	struct kernel *k = malloc(sizeof(*k));

	*k = (struct kernel){dev, bytes, seed};
	CHECK_OK(drv.launch(s, fn, k));
}

void gpu_fill(struct CUstream_st *s, void *dev, size_t bytes, uint64_t seed)
{
	kernel_launch(s, kernel_fill, dev, bytes, seed);
}

void gpu_check(struct CUstream_st *s, const void *dev, size_t bytes, uint64_t seed)
{
	kernel_launch(s, kernel_check, (void *)dev, bytes, seed);
}

uint64_t gpu_bad(void)
{
	return bad + drv.violations();
}

static void kernel_busy(void *arg)
{
	usleep((uintptr_t)arg);
}

void gpu_busy(struct CUstream_st *s, unsigned int us)
{
	CHECK_OK(drv.launch(s, kernel_busy, (void *)(uintptr_t)us));
}

struct hold {
	const uint32_t *word;
	uint32_t value;
};

static void kernel_hold(void *arg)
{
	struct hold *h = arg;

	while (__atomic_load_n(h->word, __ATOMIC_ACQUIRE) != h->value)
		usleep(1);
	free(h);
}

void gpu_hold(struct CUstream_st *s, const uint32_t *word, uint32_t value)
{
	struct hold *h = malloc(sizeof(*h));

	*h = (struct hold){word, value};
	CHECK_OK(drv.launch(s, kernel_hold, h));
}
