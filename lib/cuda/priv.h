/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the files of libsluice-cuda share. */
#ifndef SLUICE_CUDA_PRIV_H
#define SLUICE_CUDA_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <sluice_cuda.h>
#pragma GCC visibility pop

#include "driver.h"

#define ARRAY_SIZE(x) (sizeof(x) / sizeof((x)[0]))

/* ---- error.c */

/* Record the calling thread's sentence and return -err. */
int cuda_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));
/* The same with CUDA's own words behind it; the errno follows from @r. */
int cuda_fail_result(const struct cuda_driver *cu, CUresult r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), cold));
/* The last call into libsluice failed with @ret: its sentence becomes ours. */
int cuda_fail_core(int ret) __attribute__((cold));

/* A batch lies in an arena that is not the attachment's, or in another mapping of it. */
int cuda_fail_elsewhere(void) __attribute__((cold));

/* ---- register.c */

/* Data and control region of one arena mapping, registered once for the whole process. */
struct cuda_reg {
	struct cuda_reg *next;
	unsigned int refs;
	bool primary; /* .device's primary context is held, because the registration lives in it */
	CUcontext ctx;
	CUdevice device;
	char *data;
	uint64_t data_bytes;
	char *control;
	uint64_t control_bytes;
	uint64_t chunk_bytes;
	uint64_t ns;
	uint32_t ours;
	uint32_t foreign;
	bool read_only;
	uint32_t nchunks;
	struct cuda_chunk {
		char *addr;
		uint64_t bytes;
		bool ours; /* else somebody else had registered it */
	} chunks[];
};

/* Called with a context current; takes a reference that cuda_reg_put() gives back. */
int cuda_reg_get(const struct cuda_driver *cu, struct cuda_reg **out,
		 const struct sluice_arena_info *info, CUcontext ctx, CUdevice device,
		 const struct sluice_cuda_opts *o);
void cuda_reg_put(const struct cuda_driver *cu, struct cuda_reg *r);

static inline bool cuda_reg_has(const struct cuda_reg *r, const void *p)
{
	return (uintptr_t)p - (uintptr_t)r->data < r->data_bytes ||
	       (uintptr_t)p - (uintptr_t)r->control < r->control_bytes;
}

/* ---- attach.c */

enum cuda_health {
	CUDA_HEALTHY,
	CUDA_STICKY, /* a kernel failed: whether a copy has completed can no longer be known */
	CUDA_GONE, /* the context was destroyed: every copy is over */
};

struct sluice_cuda {
	const struct cuda_driver *cu;
	struct sluice_arena *arena;
	struct cuda_reg *reg;
	CUcontext ctx;
	CUdevice device;
	bool retained;
	bool stream_writes;
	unsigned int fork_gen;
	ptrdiff_t control_shift; /* from a host address in the control region to the device's */
	_Atomic enum cuda_health health;
	_Atomic unsigned int users; /* open feeds and drains */
	_Atomic uint64_t h2d_copies, h2d_bytes, d2h_copies, d2h_bytes, quarantined;
	pthread_mutex_t lock; /* the list of direct copies */
	struct cuda_direct *direct;
	struct cuda_direct *spare;
	uint32_t held;
};

/*
 * Make the handle's context current unless it is.  Return: whether cuda_leave() must undo that, or
 * a negative errno (-ECHILD, -EIO, -ESHUTDOWN).
 */
int cuda_enter(struct sluice_cuda *c);
void cuda_leave(struct sluice_cuda *c, int entered);

/* 0 as long as nothing is known against the context, else the error that says what. */
int cuda_check(const struct sluice_cuda *c);

/* A CUDA call failed: find out what that means for the handle, record the sentence. */
int cuda_broken(struct sluice_cuda *c, CUresult r, const char *what);
/*
 * The same for a call that named a stream of the caller's: that may be of another context, and what
 * became of it says nothing about ours.
 */
int cuda_broken_by(struct sluice_cuda *c, CUresult r, const char *what);

/*
 * -EPERM for a stream that is being captured: what is put on it is not done, but kept for a graph,
 * and done again by every launch of that.  A stream that waits for it is captured as well.
 */
int cuda_stream_check(struct sluice_cuda *c, CUstream s);

/*
 * An event that a copy was recorded on.  Return: 1 when it has fired (or the context is gone and
 * with it the copy), 0 when not, or a negative errno.
 */
int cuda_event_fired(struct sluice_cuda *c, CUevent ev);
/*
 * How an event is made: one that the host can sleep on interrupts a CPU whenever it fires, awaited or
 * not, which takes longer than a small copy.
 */
static inline unsigned int cuda_event_flags(bool interrupts)
{
	return CU_EVENT_DISABLE_TIMING | (interrupts ? CU_EVENT_BLOCKING_SYNC : 0);
}

/* Wait for it: @deadline is absolute, 0 does not wait. */
int cuda_event_wait(struct sluice_cuda *c, CUevent ev, bool interrupts, uint64_t deadline);

uint64_t cuda_now(void);
/* How long to sleep between two looks: what is waited in vain is an eighth, but at least 50 us. */
uint64_t cuda_nap(uint64_t waited_ns);
/* The library's timeout as 0, SLUICE_FOREVER or CLOCK_MONOTONIC | SLUICE_ABSTIME. */
uint64_t cuda_deadline(uint64_t timeout_ns);

/* ---- copy.c */

/* One DMA, or as few as the chunks of the registration allow. */
CUresult cuda_copy_in(struct sluice_cuda *c, CUdeviceptr dst, const void *src, uint64_t n,
		      CUstream s);
CUresult cuda_copy_out(struct sluice_cuda *c, void *dst, CUdeviceptr src, uint64_t n, CUstream s);
/* Wait for all direct copies and free the list. */
void cuda_direct_drain(struct sluice_cuda *c);

/* ---- ticket.c */

/*
 * What a copy holds, and who gives it back: a host function, or whoever finds that the copy's event
 * has fired.  Whichever exchanges .batch for NULL does it.
 */
struct cuda_ticket {
	_Atomic(struct sluice_batch *) batch;
	_Atomic bool armed; /* a host function will still come and look */
	void (*done)(struct sluice_batch *b);
	struct cuda_ticket *next;
};

struct cuda_tickets {
	struct cuda_ticket *idle;
	void (*done)(struct sluice_batch *b);
};

struct cuda_ticket *cuda_ticket_get(struct cuda_tickets *p, struct sluice_batch *b);
/* Have a host function on @s settle the ticket after @ev (or right behind what is on @s). */
CUresult cuda_ticket_arm(struct sluice_cuda *c, struct cuda_ticket *t, CUevent ev, CUstream s);
/* Return: whether this call was the one that did it. */
bool cuda_ticket_settle(struct cuda_ticket *t);
/* The batch back, unsettled; NULL when it was settled. */
struct sluice_batch *cuda_ticket_take(struct cuda_ticket *t);
/* Keep it for reuse once no host function can see it any more. */
void cuda_ticket_put(struct cuda_tickets *p, struct cuda_ticket *t);
/* @quiet: no host function can run any more; those that never ran keep their memory otherwise. */
void cuda_tickets_free(struct cuda_tickets *p, bool quiet);

#endif
