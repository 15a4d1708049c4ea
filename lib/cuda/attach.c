/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "priv.h"

#define CHUNK_DEFAULT (64ULL << 30)
#define CHUNK_ALIGN   (2ULL << 20)
#define SPIN_NS	      20000
#define NAP_MIN_NS    50000
#define NAP_MAX_NS    1000000

static _Atomic unsigned int fork_gen;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void fork_child(void)
{
	atomic_fetch_add_explicit(&fork_gen, 1, memory_order_relaxed);
}

static void fork_watch(void)
{
	pthread_atfork(NULL, NULL, fork_child);
}

uint64_t cuda_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

uint64_t cuda_nap(uint64_t waited_ns)
{
	const uint64_t nap = waited_ns / 8;

	return nap < NAP_MIN_NS ? NAP_MIN_NS : nap > NAP_MAX_NS ? NAP_MAX_NS : nap;
}

uint64_t cuda_deadline(uint64_t timeout_ns)
{
	if (timeout_ns == 0 || timeout_ns & SLUICE_ABSTIME)
		return timeout_ns;
	timeout_ns += cuda_now();
	return timeout_ns & SLUICE_ABSTIME ? SLUICE_FOREVER : timeout_ns | SLUICE_ABSTIME;
}

int sluice_cuda_probe(struct sluice_cuda_probe *p)
{
	const struct cuda_driver *cu;
	struct sluice_cuda_probe found = {0};
	int n = 0, version = 0;
	int ret = 0;

	if (p && p->sz < sizeof(p->sz))
		return cuda_fail(EINVAL, "probe .sz is %zu", p->sz);
	cu = cuda_driver_get(&ret);
	if (!cu)
		return ret;
	cu->DriverGetVersion(&version);
	if (cu->DeviceGetCount(&n) != CUDA_SUCCESS || n == 0)
		return cuda_fail(ENODEV, "the CUDA driver finds no device");
	if (!p)
		return 0;
	found.sz = p->sz < sizeof(found) ? p->sz : sizeof(found);
	found.devices = n;
	found.driver_version = version;
	memcpy(p, &found, found.sz);
	return 0;
}

static int context_find(struct sluice_cuda *c, const struct sluice_cuda_opts *o)
{
	const struct cuda_driver *cu = c->cu;
	unsigned int flags;
	int active = 0;
	CUresult r;

	if (!(o->flags & SLUICE_CUDA_DEVICE)) {
		r = cu->CtxGetCurrent(&c->ctx);
		if (r == CUDA_SUCCESS && !c->ctx)
			return cuda_fail(ENOTCONN,
					 "no CUDA context is current on this thread: make one "
					 "current, or name a device");
		if (r == CUDA_SUCCESS)
			r = cu->CtxGetDevice(&c->device);
		if (r != CUDA_SUCCESS)
			return cuda_fail_result(cu, r, "the current CUDA context cannot be used");
		return 0;
	}
	r = cu->DeviceGet(&c->device, o->device);
	if (r == CUDA_ERROR_INVALID_DEVICE)
		return cuda_fail(ENXIO, "there is no CUDA device %d", o->device);
	if (r != CUDA_SUCCESS)
		return cuda_fail_result(cu, r, "cannot use device %d", o->device);
	r = cu->DevicePrimaryCtxGetState(c->device, &flags, &active);
	if (r == CUDA_SUCCESS && !active && !(o->flags & SLUICE_CUDA_CREATE_CONTEXT))
		return cuda_fail(ENOTCONN,
				 "device %d has no context in this process yet, and "
				 "SLUICE_CUDA_CREATE_CONTEXT was not asked for",
				 o->device);
	if (r == CUDA_SUCCESS)
		r = cu->DevicePrimaryCtxRetain(&c->ctx, c->device);
	if (r != CUDA_SUCCESS)
		return cuda_fail_result(cu, r, "cannot use the context of device %d", o->device);
	c->retained = true;
	return 0;
}

static int opts_take(struct sluice_cuda_opts *to, const struct sluice_cuda_opts *from)
{
	memset(to, 0, sizeof(*to));
	if (from) {
		if (from->sz < sizeof(from->sz))
			return cuda_fail(EINVAL, "options .sz is %zu", from->sz);
		memcpy(to, from, from->sz < sizeof(*to) ? from->sz : sizeof(*to));
	}
	if (to->flags & ~(SLUICE_CUDA_DEVICE | SLUICE_CUDA_CREATE_CONTEXT))
		return cuda_fail(EINVAL, "flags 0x%x are not known", to->flags);
	if (to->flags == SLUICE_CUDA_CREATE_CONTEXT)
		return cuda_fail(EINVAL, "SLUICE_CUDA_CREATE_CONTEXT needs SLUICE_CUDA_DEVICE: a "
					 "context is never created on a device that was not named");
	if (to->chunk_bytes % CHUNK_ALIGN)
		return cuda_fail(EINVAL, "chunk_bytes %llu is not a multiple of %llu",
				 (unsigned long long)to->chunk_bytes, CHUNK_ALIGN);
	if (!to->chunk_bytes)
		to->chunk_bytes = CHUNK_DEFAULT;
	if (to->threads > SLUICE_CUDA_MAX_THREADS)
		return cuda_fail(EINVAL, "%u threads are above %u", to->threads,
				 SLUICE_CUDA_MAX_THREADS);
	return 0;
}

/* With the context current: register, and learn how the GPU can reach the control region. */
static int attach_here(struct sluice_cuda *c, const struct sluice_arena_info *info,
		       const struct sluice_cuda_opts *o)
{
	const struct cuda_driver *cu = c->cu;
	CUdeviceptr control;
	int can = 0;
	int ret;

	ret = cuda_reg_get(cu, &c->reg, info, c->ctx, c->device, o);
	if (ret)
		return ret;
	cu->DeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, c->device);
	if (can && cu->MemHostGetDevicePointer(&control, info->control, 0) == CUDA_SUCCESS) {
		c->control_shift = control - (uintptr_t)info->control;
		c->stream_writes = true;
	}
	return 0;
}

int sluice_cuda_attach(struct sluice_cuda **out, struct sluice_arena *a,
		       const struct sluice_cuda_opts *opts)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_cuda_opts o;
	struct sluice_cuda *c;
	int entered, ret;

	ret = opts_take(&o, opts);
	if (ret)
		return ret;
	ret = sluice_arena_info(a, &info);
	if (ret)
		return cuda_fail_core(ret);
	c = calloc(1, sizeof(*c));
	if (!c)
		return cuda_fail(ENOMEM, "no memory for a handle");
	pthread_once(&fork_once, fork_watch);
	c->fork_gen = atomic_load_explicit(&fork_gen, memory_order_relaxed);
	c->arena = a;
	c->cu = cuda_driver_get(&ret);
	if (!c->cu)
		goto err_free;
	ret = context_find(c, &o);
	if (ret)
		goto err_free;
	entered = cuda_enter(c);
	ret = entered;
	if (entered >= 0) {
		ret = attach_here(c, &info, &o);
		cuda_leave(c, entered);
	}
	if (ret)
		goto err_context;
	pthread_mutex_init(&c->lock, NULL);
	*out = c;
	return 0;

err_context:
	if (c->retained)
		c->cu->DevicePrimaryCtxRelease(c->device);
err_free:
	free(c);
	return ret;
}

int sluice_cuda_detach(struct sluice_cuda *c)
{
	unsigned int users;

	if (!c)
		return 0;
	if (c->fork_gen != atomic_load_explicit(&fork_gen, memory_order_relaxed))
		return cuda_fail(ECHILD, "this handle is from before fork(): only the parent can "
					 "detach it");
	users = atomic_load(&c->users);
	if (users)
		return cuda_fail(EBUSY, "%u feeds and drains are still open", users);
	cuda_direct_drain(c);
	cuda_reg_put(c->cu, c->reg);
	if (c->retained)
		c->cu->DevicePrimaryCtxRelease(c->device);
	pthread_mutex_destroy(&c->lock);
	free(c);
	return 0;
}

int sluice_cuda_stats(struct sluice_cuda *c, struct sluice_cuda_stats *st)
{
	struct sluice_cuda_stats s = {0};

	if (st->sz < sizeof(st->sz))
		return cuda_fail(EINVAL, "stats .sz is %zu", st->sz);
	s.sz = st->sz < sizeof(s) ? st->sz : sizeof(s);
	s.registered_bytes = c->reg->data_bytes + c->reg->control_bytes;
	s.register_ns = c->reg->ns;
	s.chunks = c->reg->ours;
	s.foreign = c->reg->foreign;
	s.device = c->device;
	s.stream_writes = c->stream_writes;
	s.h2d_copies = atomic_load_explicit(&c->h2d_copies, memory_order_relaxed);
	s.h2d_bytes = atomic_load_explicit(&c->h2d_bytes, memory_order_relaxed);
	s.d2h_copies = atomic_load_explicit(&c->d2h_copies, memory_order_relaxed);
	s.d2h_bytes = atomic_load_explicit(&c->d2h_bytes, memory_order_relaxed);
	s.quarantined = atomic_load_explicit(&c->quarantined, memory_order_relaxed);
	pthread_mutex_lock(&c->lock);
	s.held = c->held;
	pthread_mutex_unlock(&c->lock);
	memcpy(st, &s, s.sz);
	return 0;
}

int cuda_check(const struct sluice_cuda *c)
{
	switch (atomic_load_explicit(&c->health, memory_order_relaxed)) {
	case CUDA_STICKY:
		return cuda_fail(EIO, "the CUDA context of device %d has failed before", c->device);
	case CUDA_GONE:
		return cuda_fail(ESHUTDOWN, "the CUDA context of device %d is gone", c->device);
	default:
		return 0;
	}
}

int cuda_enter(struct sluice_cuda *c)
{
	CUcontext now;
	CUresult r;
	int ret;

	if (c->fork_gen != atomic_load_explicit(&fork_gen, memory_order_relaxed))
		return cuda_fail(ECHILD,
				 "this handle is from before fork(): CUDA does not survive that, "
				 "attach in the process that uses the device");
	ret = cuda_check(c);
	if (ret)
		return ret;
	r = c->cu->CtxGetCurrent(&now);
	if (r == CUDA_SUCCESS && now == c->ctx)
		return 0;
	r = c->cu->CtxPushCurrent(c->ctx);
	if (r != CUDA_SUCCESS)
		return cuda_broken(c, r, "cannot make the CUDA context current");
	return 1;
}

void cuda_leave(struct sluice_cuda *c, int entered)
{
	CUcontext was;

	if (entered > 0)
		c->cu->CtxPopCurrent(&was);
}

static enum cuda_health health_of(CUresult r)
{
	switch (r) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return CUDA_GONE;
	case CUDA_SUCCESS:
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_NOT_READY:
	case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ... CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
		return CUDA_HEALTHY;
	default:
		return CUDA_STICKY;
	}
}

int cuda_broken_by(struct sluice_cuda *c, CUresult r, const char *what)
{
	enum cuda_health health = CUDA_HEALTHY;

	/* A context that failed says so on every later call, this harmless one included. */
	if (r != CUDA_ERROR_OUT_OF_MEMORY)
		health = health_of(c->cu->StreamQuery(CU_STREAM_PER_THREAD));
	if (health != CUDA_HEALTHY)
		atomic_store_explicit(&c->health, health, memory_order_relaxed);
	return cuda_fail_result(c->cu, r, "device %d: %s", c->device, what);
}

int cuda_broken(struct sluice_cuda *c, CUresult r, const char *what)
{
	if (health_of(r) != CUDA_GONE)
		return cuda_broken_by(c, r, what);
	atomic_store_explicit(&c->health, CUDA_GONE, memory_order_relaxed);
	return cuda_fail_result(c->cu, r, "device %d: %s", c->device, what);
}

/* 1 when the context is gone and the copy with it, else a negative errno. */
static int event_broken(struct sluice_cuda *c, CUresult r)
{
	int ret;

	/* An event of ours is not known any more: its context was reset, and made again. */
	if (r == CUDA_ERROR_INVALID_HANDLE)
		r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	ret = cuda_broken(c, r, "a copy failed");
	return atomic_load_explicit(&c->health, memory_order_relaxed) == CUDA_GONE ? 1 : ret;
}

int cuda_stream_check(struct sluice_cuda *c, CUstream s)
{
	CUstreamCaptureStatus st = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = c->cu->StreamIsCapturing(s, &st);

	if (st == CU_STREAM_CAPTURE_STATUS_NONE && r != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return 0; /* what else is wrong with it, its use will tell */
	return cuda_fail(EPERM, "the stream is being captured into a graph, of which no copy of a "
				"batch can be a part");
}

int cuda_event_fired(struct sluice_cuda *c, CUevent ev)
{
	CUresult r = c->cu->EventQuery(ev);

	if (r == CUDA_SUCCESS)
		return 1;
	if (r == CUDA_ERROR_NOT_READY)
		return 0;
	return event_broken(c, r);
}

int cuda_event_wait(struct sluice_cuda *c, CUevent ev, bool interrupts, uint64_t deadline)
{
	/* A DMA of a small batch takes less than a sleep and a wake-up do. */
	const uint64_t start = cuda_now();
	uint64_t now;
	CUresult r;
	int ret;

	for (;;) {
		ret = cuda_event_fired(c, ev);
		if (ret)
			return ret < 0 ? ret : 0;
		if (!deadline)
			return cuda_fail(EAGAIN, "a copy is still in flight");
		now = cuda_now();
		if (deadline != SLUICE_FOREVER && now >= (deadline & ~SLUICE_ABSTIME))
			return cuda_fail(ETIMEDOUT, "a copy did not complete in time");
		if (now < start + SPIN_NS)
			continue;
		if (interrupts && deadline == SLUICE_FOREVER)
			break;
		nanosleep(&(struct timespec){.tv_nsec = (long)cuda_nap(now - start)}, NULL);
	}
	r = c->cu->EventSynchronize(ev);
	if (r == CUDA_SUCCESS)
		return 0;
	ret = event_broken(c, r);
	return ret < 0 ? ret : 0;
}
