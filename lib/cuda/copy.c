/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#include <errno.h>
#include <stdlib.h>

#include "nvtx.h"
#include "priv.h"

/* A copy of sluice_cuda_copy() in flight. */
struct cuda_direct {
	struct cuda_direct *next;
	struct sluice_batch *batch;
	CUevent copied;
};

/* How much of [p, p + n) lies in the same registration as p. */
static uint64_t span(const struct cuda_reg *r, const char *p, uint64_t n)
{
	uint64_t left = r->chunk_bytes - (uint64_t)(p - r->data) % r->chunk_bytes;

	return n < left ? n : left;
}

CUresult cuda_copy_in(struct sluice_cuda *c, CUdeviceptr dst, const void *src, uint64_t n,
		      CUstream s)
{
	const char *p = src;
	CUresult r = CUDA_SUCCESS;

	atomic_fetch_add_explicit(&c->h2d_copies, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->h2d_bytes, n, memory_order_relaxed);
	while (n && r == CUDA_SUCCESS) {
		uint64_t now = span(c->reg, p, n);

		r = c->cu->MemcpyHtoDAsync(dst, p, now, s);
		dst += now;
		p += now;
		n -= now;
	}
	return r;
}

CUresult cuda_copy_out(struct sluice_cuda *c, void *dst, CUdeviceptr src, uint64_t n, CUstream s)
{
	CUresult r = CUDA_SUCCESS;
	char *p = dst;

	atomic_fetch_add_explicit(&c->d2h_copies, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->d2h_bytes, n, memory_order_relaxed);
	while (n && r == CUDA_SUCCESS) {
		uint64_t now = span(c->reg, p, n);

		r = c->cu->MemcpyDtoHAsync(p, src, now, s);
		src += now;
		p += now;
		n -= now;
	}
	return r;
}

/* With the lock held and the context current: release what has completed.  Return: what has not. */
static int direct_reap(struct sluice_cuda *c)
{
	struct cuda_direct **at = &c->direct, *d;
	int fired;

	while ((d = *at)) {
		fired = cuda_event_fired(c, d->copied);
		if (fired < 0)
			return fired;
		if (!fired) {
			at = &d->next;
			continue;
		}
		*at = d->next;
		sluice_batch_release(d->batch);
		c->held--;
		d->next = c->spare;
		c->spare = d;
	}
	return c->held;
}

static struct cuda_direct *direct_new(struct sluice_cuda *c, int *err)
{
	struct cuda_direct *d = c->spare;
	CUresult r;

	if (d) {
		c->spare = d->next;
		return d;
	}
	d = calloc(1, sizeof(*d));
	if (!d) {
		*err = cuda_fail(ENOMEM, "no memory to remember a copy");
		return NULL;
	}
	r = c->cu->EventCreate(&d->copied, cuda_event_flags(false));
	if (r != CUDA_SUCCESS) {
		*err = cuda_broken(c, r, "cannot create an event");
		free(d);
		return NULL;
	}
	return d;
}

static int direct_start(struct sluice_cuda *c, struct sluice_batch *b, CUdeviceptr dst,
			const struct sluice_batch_info *info, CUstream stream)
{
	struct cuda_direct *d;
	CUresult r;
	int ret;

	d = direct_new(c, &ret);
	if (!d)
		return ret;
	r = cuda_copy_in(c, dst, info->payload, info->payload_bytes, stream);
	if (r == CUDA_SUCCESS)
		r = c->cu->EventRecord(d->copied, stream);
	if (r != CUDA_SUCCESS) {
		ret = cuda_broken_by(c, r, "cannot copy a batch to the device");
		/*
		 * Part of it may be on the way: the caller gets the batch back when that has ended.
		 * If it cannot be waited for, a reference that nobody drops keeps the extent.
		 */
		if (c->cu->StreamSynchronize(stream) != CUDA_SUCCESS &&
		    atomic_load(&c->health) != CUDA_GONE) {
			sluice_batch_retain(b);
			atomic_fetch_add(&c->quarantined, 1);
		}
		d->next = c->spare;
		c->spare = d;
		return ret;
	}
	d->batch = b;
	d->next = c->direct;
	c->direct = d;
	c->held++;
	return 0;
}

int sluice_cuda_copy(struct sluice_cuda *c, struct sluice_batch *b, void *dst, uint64_t dst_bytes,
		     struct CUstream_st *stream)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	int entered, ret;

	ret = sluice_batch_info(b, &info);
	if (ret)
		return cuda_fail_core(ret);
	if (info.payload_bytes > dst_bytes)
		return cuda_fail(ENOSPC, "the batch has %llu bytes and the destination %llu",
				 (unsigned long long)info.payload_bytes,
				 (unsigned long long)dst_bytes);
	if (info.payload_bytes && !cuda_reg_has(c->reg, info.payload))
		return cuda_fail_elsewhere();
	entered = cuda_enter(c);
	if (entered < 0)
		return entered;
	cuda_range_begin("copy in");
	pthread_mutex_lock(&c->lock);
	ret = cuda_stream_check(c, stream);
	if (!ret)
		ret = direct_reap(c);
	if (ret >= 0)
		ret = direct_start(c, b, (uintptr_t)dst, &info, stream);
	pthread_mutex_unlock(&c->lock);
	cuda_range_end();
	cuda_leave(c, entered);
	return ret;
}

int sluice_cuda_reap(struct sluice_cuda *c)
{
	int entered = cuda_enter(c);
	int ret;

	if (entered < 0)
		return entered;
	pthread_mutex_lock(&c->lock);
	ret = direct_reap(c);
	pthread_mutex_unlock(&c->lock);
	cuda_leave(c, entered);
	return ret;
}

void cuda_direct_drain(struct sluice_cuda *c)
{
	int entered = cuda_enter(c);
	struct cuda_direct *d;

	while ((d = c->direct)) {
		int ret = entered < 0 ? entered
				      : cuda_event_wait(c, d->copied, false, SLUICE_FOREVER);

		c->direct = d->next;
		if (!ret || atomic_load(&c->health) == CUDA_GONE)
			sluice_batch_release(d->batch);
		else
			atomic_fetch_add(&c->quarantined, 1);
		c->held--;
		d->next = c->spare;
		c->spare = d;
	}
	while ((d = c->spare)) {
		c->spare = d->next;
		if (entered >= 0)
			c->cu->EventDestroy(d->copied);
		free(d);
	}
	if (entered >= 0)
		cuda_leave(c, entered);
}
