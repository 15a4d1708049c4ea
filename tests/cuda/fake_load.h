/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The fake driver as the test sees it: the library that libsluice-cuda has loaded, too. */
#ifndef FAKE_LOAD_H
#define FAKE_LOAD_H

#include "fake_cuda.h"

struct fake_driver {
	__typeof__(fake_cuda_violations) *violations;
	__typeof__(fake_cuda_fail) *fail;
	__typeof__(fake_cuda_hold) *hold;
	__typeof__(fake_cuda_memory) *memory;
	__typeof__(fake_cuda_launch) *launch;
	__typeof__(fake_cuda_fault) *fault;
	__typeof__(fake_cuda_capture) *capture;
	__typeof__(fake_cuda_context) *context;
	__typeof__(fake_cuda_context_destroy) *context_destroy;
	__typeof__(fake_cuda_primary_reset) *primary_reset;
	__typeof__(fake_cuda_census) *census;
	__typeof__(cuInit) *init;
	__typeof__(cuDeviceGetCount) *device_count;
	__typeof__(cuDevicePrimaryCtxRetain) *primary_retain;
	__typeof__(cuCtxPushCurrent) *push_current;
	__typeof__(cuCtxPopCurrent) *pop_current;
	__typeof__(cuMemAlloc) *mem_alloc;
	__typeof__(cuMemFree) *mem_free;
	__typeof__(cuMemHostRegister) *host_register;
	__typeof__(cuMemHostUnregister) *host_unregister;
	__typeof__(cuStreamCreate) *stream_create;
	__typeof__(cuStreamDestroy) *stream_destroy;
	__typeof__(cuStreamSynchronize) *stream_sync;
};

extern struct fake_driver drv;

/* Load it into this process, after the environment was set. */
void fake_load(void);

#endif
