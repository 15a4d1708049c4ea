/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A CUDA driver for hosts without a GPU: device memory is host memory, streams are threads, copies
 * take a random time.  It checks what a real driver cannot: that nobody touches the memory of a
 * copy in flight.  These functions are its own; everything else is looked up as in libcuda.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Environment, read when the library is loaded:
 *	FAKE_CUDA_DEVICES	number of devices (1); 0 makes cuInit() fail with NO_DEVICE
 *	FAKE_CUDA_DELAY_US	longest time that a copy takes (200)
 *	FAKE_CUDA_SEED		of the random delays (1)
 *	FAKE_CUDA_MISSING	a function that cuGetProcAddress() does not find
 *	FAKE_CUDA_FAIL		NAME:NTH:CODE as fake_cuda_fail()
 *	FAKE_CUDA_REG_LIMIT	registrations of this size and more are refused
 *	FAKE_CUDA_FLIP		a bit of the nth copy to the device arrives wrong
 *	FAKE_CUDA_OLD		no stream memory operations, no read-only registration
 */

/* How often a rule was broken so far; each was reported on stderr. */
unsigned int fake_cuda_violations(void);
/*
 * The call of this name that is the nth from now on returns code; nth 0 forgets.  Of "A+B" that call of
 * A fails, and the first of B behind it.
 */
void fake_cuda_fail(const char *name, unsigned int nth, CUresult code);
/* Keep copies from starting, or let them go on. */
void fake_cuda_hold(bool hold);
/* Device memory that may still be allocated, on all devices together. */
void fake_cuda_memory(uint64_t bytes);
/* A kernel: fn(arg) runs on the stream's thread. */
CUresult fake_cuda_launch(CUstream s, void (*fn)(void *arg), void *arg);
/* A kernel that faults: the context is lost when the stream gets there. */
CUresult fake_cuda_fault(CUstream s);
/* Begin and end to capture what is put on a stream. */
void fake_cuda_capture(CUstream s, bool on);
/* A context of its own, made current. */
CUcontext fake_cuda_context(int device);
void fake_cuda_context_destroy(CUcontext ctx);
/* The primary context is gone with everything in it, until it is retained again. */
void fake_cuda_primary_reset(int device);
/* What is alive now, to find leaks. */
struct fake_cuda_census {
	unsigned int streams, events, allocations, registrations, primaries;
	uint64_t allocated;
};
void fake_cuda_census(struct fake_cuda_census *c);

#endif
