// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The fake driver's calls; what streams do is in fake_stream.c. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_priv.h"

#define MAX_DEVICES 8
#define MAX_REGS    256
#define MAX_ALLOCS  8192
/* Device addresses of host memory differ from the host's, so that mixing them up shows. */
#define HOST_SHIFT (1ULL << 46)

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_config fake = {.devices = 1, .delay_us = 200, .seed = 1, .memory = UINT64_MAX};
__thread bool fake_in_host_func;

static struct ctx primaries[MAX_DEVICES];
static unsigned int primary_refs[MAX_DEVICES];
static __thread struct ctx *stack[16];
static __thread unsigned int depth;
static _Atomic unsigned int violations;
static pid_t init_pid;

static struct {
	char name[48];
	unsigned int nth;
	CUresult code;
} fail;

static struct range regs[MAX_REGS], allocs[MAX_ALLOCS];
static unsigned int nregs, nallocs;
static int alloc_device[MAX_ALLOCS];
static _Atomic unsigned int nstreams, nevents;

void fake_violation(const char *fmt, ...)
{
	va_list ap;

	violations++;
	fprintf(stderr, "# fake driver: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
}

unsigned int fake_cuda_violations(void)
{
	return violations;
}

void fake_cuda_fail(const char *name, unsigned int nth, CUresult code)
{
	pthread_mutex_lock(&fake_lock);
	snprintf(fail.name, sizeof(fail.name), "%s", name);
	fail.nth = nth;
	fail.code = code;
	pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_memory(uint64_t bytes)
{
	fake.memory = bytes;
}

__attribute__((constructor)) static void config_read(void)
{
	const char *s;

	if ((s = getenv("FAKE_CUDA_DEVICES")))
		fake.devices = atoi(s);
	if ((s = getenv("FAKE_CUDA_DELAY_US")))
		fake.delay_us = atoi(s);
	if ((s = getenv("FAKE_CUDA_SEED")))
		fake.seed = atoi(s);
	if ((s = getenv("FAKE_CUDA_REG_LIMIT")))
		fake.reg_limit = strtoull(s, NULL, 0);
	if ((s = getenv("FAKE_CUDA_FLIP")))
		fake.flip = atoi(s);
	fake.old = getenv("FAKE_CUDA_OLD");
	fake.missing = getenv("FAKE_CUDA_MISSING");
	if ((s = getenv("FAKE_CUDA_FAIL"))) {
		int code = 0;

		if (sscanf(s, "%47[^:]:%u:%d", fail.name, &fail.nth, &code) != 3)
			fail.nth = 0;
		fail.code = code;
	}
}

/* ------------------------------------------------------------------ what every call does first */

static CUresult enter(const char *name)
{
	CUresult r = CUDA_SUCCESS;
	size_t n;

	if (fake_in_host_func)
		fake_violation("%s was called from a host function", name);
	if (getpid() != init_pid)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&fake_lock);
	/* "cuMemAlloc_v2" is known as cuMemAlloc. */
	n = strcspn(fail.name, "+");
	if (fail.nth && !strncmp(name, fail.name, n) && (!name[n] || name[n] == '_') &&
	    --fail.nth == 0) {
		r = fail.code;
		if (fail.name[n]) {
			memmove(fail.name, fail.name + n + 1, strlen(fail.name + n));
			fail.nth = 1;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return r;
}

static struct ctx *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static CUresult ctx_state(const struct ctx *c)
{
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (c->destroyed)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return c->sticky;
}

static CUresult enter_ctx(const char *name)
{
	CUresult r = enter(name);

	return r ? r : ctx_state(current());
}

CUresult fake_enter(const char *name)
{
	return enter_ctx(name);
}

struct ctx *fake_current(void)
{
	return current();
}

#define ENTER()                                \
	do {                                   \
		CUresult r_ = enter(__func__); \
		if (r_)                        \
			return r_;             \
	} while (0)
#define ENTER_CTX()                                \
	do {                                       \
		CUresult r_ = enter_ctx(__func__); \
		if (r_)                            \
			return r_;                 \
	} while (0)

/* ------------------------------------------------------------------ devices and contexts */

CUresult cuInit(unsigned int flags)
{
	init_pid = getpid();
	ENTER();
	return fake.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* Unlike all others, before cuInit() too. */
CUresult cuDriverGetVersion(int *version)
{
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult r, const char **name)
{
	static __thread char text[32];

	snprintf(text, sizeof(text), "FAKE_ERROR_%d", r);
	*name = text;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult r, const char **text)
{
	*text = "the fake driver says so";
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *n)
{
	ENTER();
	*n = fake.devices;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *d, int ordinal)
{
	ENTER();
	if (ordinal < 0 || ordinal >= fake.devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*d = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int n, CUdevice d)
{
	ENTER();
	snprintf(name, n, "fake device %d", d);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d)
{
	ENTER();
	*v = !fake.old;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice d)
{
	ENTER();
	if (primaries[d].destroyed) {
		primaries[d].null = NULL;
		primaries[d].age++;
		primaries[d].destroyed = false;
	}
	primaries[d].device = d;
	primary_refs[d]++;
	*ctx = (CUcontext)&primaries[d];
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice d)
{
	ENTER();
	if (!primary_refs[d])
		fake_violation("the primary context of device %d was released too often", d);
	else
		primary_refs[d]--;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active)
{
	ENTER();
	*flags = 0;
	*active = primary_refs[d] > 0;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	ENTER();
	*ctx = (CUcontext)current();
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
	ENTER();
	if (((struct ctx *)ctx)->destroyed)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	stack[depth++] = (struct ctx *)ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *ctx)
{
	ENTER();
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*ctx = (CUcontext)stack[--depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *d)
{
	ENTER_CTX();
	*d = current()->device;
	return CUDA_SUCCESS;
}

CUcontext fake_cuda_context(int device)
{
	struct ctx *c = calloc(1, sizeof(*c));

	c->device = device;
	stack[depth++] = c;
	return (CUcontext)c;
}

void fake_cuda_context_destroy(CUcontext ctx)
{
	struct ctx *c = (struct ctx *)ctx;

	/* Nothing of it moves any more when this returns: neither does a real one's. */
	c->destroyed = true;
	fake_streams_stop(c);
}

void fake_cuda_primary_reset(int device)
{
	fake_cuda_context_destroy((CUcontext)&primaries[device]);
	pthread_mutex_lock(&fake_lock);
	nregs = 0;
	pthread_mutex_unlock(&fake_lock);
}

/* ------------------------------------------------------------------ memory */

static struct range *range_find(struct range *r, unsigned int n, uint64_t at)
{
	for (unsigned int i = 0; i < n; i++)
		if (at >= r[i].start && at < r[i].end)
			return &r[i];
	return NULL;
}

/* Called with the lock held. */
bool fake_host_known(uint64_t at, uint64_t n)
{
	struct range *r = range_find(regs, nregs, at);

	return r && at + n <= r->end;
}

bool fake_device_known(uint64_t at, uint64_t n)
{
	struct range *r = range_find(allocs, nallocs, at);

	return r && at + n <= r->end;
}

static bool mapped_writable(uint64_t at)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char line[512], perms[8];
	bool yes = false;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) == 3 && at >= start &&
		    at < end)
			yes = perms[1] == 'w';
	if (f)
		fclose(f);
	return yes;
}

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned int flags)
{
	uint64_t at = (uintptr_t)p;
	CUresult r = CUDA_SUCCESS;

	ENTER_CTX();
	if (!bytes || (fake.reg_limit && bytes >= fake.reg_limit))
		return CUDA_ERROR_INVALID_VALUE;
	if (!(flags & CU_MEMHOSTREGISTER_READ_ONLY) && !mapped_writable(at))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_lock);
	for (unsigned int i = 0; i < nregs; i++)
		if (at < regs[i].end && regs[i].start < at + bytes)
			r = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (r == CUDA_SUCCESS && nregs == MAX_REGS)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS)
		regs[nregs++] = (struct range){at, at + bytes};
	pthread_mutex_unlock(&fake_lock);
	return r;
}

CUresult cuMemHostUnregister(void *p)
{
	uint64_t at = (uintptr_t)p;
	CUresult r = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;

	ENTER_CTX();
	pthread_mutex_lock(&fake_lock);
	for (unsigned int i = 0; i < nregs; i++) {
		if (regs[i].start != at)
			continue;
		if (fake_in_flight(regs[i].start, regs[i].end))
			fake_violation("memory was unregistered with a copy in flight");
		regs[i] = regs[--nregs];
		r = CUDA_SUCCESS;
		break;
	}
	pthread_mutex_unlock(&fake_lock);
	return r;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *d, void *p, unsigned int flags)
{
	bool known;

	ENTER_CTX();
	pthread_mutex_lock(&fake_lock);
	known = fake_host_known((uintptr_t)p, 1);
	pthread_mutex_unlock(&fake_lock);
	*d = (uintptr_t)p + HOST_SHIFT;
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAlloc(CUdeviceptr *d, size_t bytes)
{
	CUresult r = CUDA_SUCCESS;
	void *p;

	ENTER_CTX();
	p = bytes ? malloc(bytes) : NULL;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memset(p, 0xee, bytes);
	pthread_mutex_lock(&fake_lock);
	if (bytes > fake.memory || nallocs == MAX_ALLOCS)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS) {
		if (fake.memory != UINT64_MAX)
			fake.memory -= bytes;
		alloc_device[nallocs] = current()->device;
		allocs[nallocs++] = (struct range){(uintptr_t)p, (uintptr_t)p + bytes};
		*d = (uintptr_t)p;
	} else {
		free(p);
	}
	pthread_mutex_unlock(&fake_lock);
	return r;
}

CUresult cuMemFree(CUdeviceptr d)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	ENTER_CTX();
	pthread_mutex_lock(&fake_lock);
	for (unsigned int i = 0; i < nallocs; i++) {
		if (allocs[i].start != d)
			continue;
		if (fake_in_flight(allocs[i].start, allocs[i].end))
			fake_violation("device memory was freed with a copy in flight");
		if (fake.memory != UINT64_MAX)
			fake.memory += allocs[i].end - allocs[i].start;
		alloc_device[i] = alloc_device[nallocs - 1];
		allocs[i] = allocs[--nallocs];
		free((void *)(uintptr_t)d);
		r = CUDA_SUCCESS;
		break;
	}
	pthread_mutex_unlock(&fake_lock);
	return r;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute a, CUdeviceptr p)
{
	struct range *r;

	ENTER();
	pthread_mutex_lock(&fake_lock);
	r = range_find(allocs, nallocs, p);
	if (r)
		*(int *)data = alloc_device[r - allocs];
	pthread_mutex_unlock(&fake_lock);
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------ streams and events */

static CUresult push(CUstream s, struct op op)
{
	return fake_push(current(), (struct stream *)s, op);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t n, CUstream s)
{
	ENTER_CTX();
	return push(s, (struct op){.kind = OP_H2D, .device = dst, .host = (uintptr_t)src, .n = n});
}

CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t n, CUstream s)
{
	ENTER_CTX();
	return push(s, (struct op){.kind = OP_D2H, .device = src, .host = (uintptr_t)dst, .n = n});
}

CUresult cuStreamCreate(CUstream *s, unsigned int flags)
{
	ENTER_CTX();
	*s = (CUstream)fake_stream_new(current());
	nstreams++;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s)
{
	ENTER_CTX();
	fake_stream_end((struct stream *)s);
	nstreams--;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s)
{
	ENTER_CTX();
	return fake_stream_idle(current(), (struct stream *)s, false);
}

CUresult cuStreamSynchronize(CUstream s)
{
	ENTER_CTX();
	return fake_stream_idle(current(), (struct stream *)s, true);
}

CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status)
{
	ENTER_CTX();
	*status = fake_stream_captured((struct stream *)s) ? CU_STREAM_CAPTURE_STATUS_ACTIVE
							   : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags)
{
	struct event *ev = (struct event *)e;

	ENTER_CTX();
	if (fake_stream_captured((struct stream *)s))
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	return push(s, (struct op){.kind = OP_WAIT, .event = ev, .n = ev->recorded});
}

CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr at, cuuint64_t v, unsigned int flags)
{
	bool known;

	ENTER_CTX();
	pthread_mutex_lock(&fake_lock);
	known = fake_host_known(at - HOST_SHIFT, 8);
	pthread_mutex_unlock(&fake_lock);
	if (!known)
		fake_violation("a stream writes to memory that is not registered");
	return push(s, (struct op){.kind = OP_WRITE, .host = at - HOST_SHIFT, .n = v});
}

CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *arg)
{
	ENTER_CTX();
	return push(s, (struct op){.kind = OP_HOST, .fn = fn, .arg = arg});
}

CUresult cuEventCreate(CUevent *e, unsigned int flags)
{
	struct event *ev;

	ENTER_CTX();
	ev = calloc(1, sizeof(*ev));
	ev->ctx = current();
	ev->age = ev->ctx->age;
	nevents++;
	*e = (CUevent)ev;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent e)
{
	ENTER_CTX();
	/* Streams may still wait for it, as with the real one: its memory stays. */
	nevents--;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream s)
{
	struct event *ev = (struct event *)e;
	CUresult r;

	ENTER_CTX();
	if (ev->age != ev->ctx->age)
		return CUDA_ERROR_INVALID_HANDLE;
	/* Only if it comes to that: */
	r = push(s, (struct op){.kind = OP_RECORD, .event = ev, .n = ev->recorded + 1});
	ev->recorded += r == CUDA_SUCCESS;
	return r;
}

CUresult cuEventQuery(CUevent e)
{
	struct event *ev = (struct event *)e;
	CUresult r;

	ENTER();
	r = ctx_state(ev->ctx);
	if (!r && ev->age != ev->ctx->age)
		r = CUDA_ERROR_INVALID_HANDLE;
	if (r)
		return r;
	return ev->fired >= ev->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent e)
{
	ENTER();
	return fake_event_wait((struct event *)e);
}

CUresult fake_cuda_launch(CUstream s, void (*fn)(void *arg), void *arg)
{
	return push(s, (struct op){.kind = OP_KERNEL, .fn = fn, .arg = arg});
}

CUresult fake_cuda_fault(CUstream s)
{
	return push(s, (struct op){.kind = OP_FAULT});
}

void fake_cuda_census(struct fake_cuda_census *c)
{
	memset(c, 0, sizeof(*c));
	pthread_mutex_lock(&fake_lock);
	c->streams = nstreams;
	c->events = nevents;
	c->allocations = nallocs;
	c->registrations = nregs;
	for (unsigned int i = 0; i < nallocs; i++)
		c->allocated += allocs[i].end - allocs[i].start;
	for (unsigned int i = 0; i < MAX_DEVICES; i++)
		c->primaries += primary_refs[i];
	pthread_mutex_unlock(&fake_lock);
}

/* ------------------------------------------------------------------ looking up */

static const struct {
	const char *name;
	void *fn;
} calls[] = {
#define CALL(f)       \
	{             \
#f, f \
	}
	CALL(cuInit),
	CALL(cuDriverGetVersion),
	CALL(cuGetErrorName),
	CALL(cuGetErrorString),
	CALL(cuDeviceGet),
	CALL(cuDeviceGetCount),
	CALL(cuDeviceGetName),
	CALL(cuDeviceGetAttribute),
	CALL(cuDevicePrimaryCtxRetain),
	CALL(cuDevicePrimaryCtxRelease),
	CALL(cuDevicePrimaryCtxGetState),
	CALL(cuCtxGetCurrent),
	CALL(cuCtxPushCurrent),
	CALL(cuCtxPopCurrent),
	CALL(cuCtxGetDevice),
	CALL(cuMemHostRegister),
	CALL(cuMemHostUnregister),
	CALL(cuMemHostGetDevicePointer),
	CALL(cuMemAlloc),
	CALL(cuMemFree),
	CALL(cuMemcpyHtoDAsync),
	CALL(cuMemcpyDtoHAsync),
	CALL(cuPointerGetAttribute),
	CALL(cuStreamCreate),
	CALL(cuStreamDestroy),
	CALL(cuStreamQuery),
	CALL(cuStreamSynchronize),
	CALL(cuStreamIsCapturing),
	CALL(cuStreamWaitEvent),
	CALL(cuStreamWriteValue64),
	CALL(cuLaunchHostFunc),
	CALL(cuEventCreate),
	CALL(cuEventDestroy),
	CALL(cuEventRecord),
	CALL(cuEventQuery),
	CALL(cuEventSynchronize),
#undef CALL
};

CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	*fn = NULL;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!strcmp(name, calls[i].name) && !(fake.missing && !strcmp(name, fake.missing)))
			*fn = calls[i].fn;
	return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
