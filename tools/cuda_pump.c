// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * sluice pump --gpu: parcels as in pump_arena.c, which a feed copies to the device, where a kernel makes
 * the sums of all parts of a parcel at once.  The driver is looked up when it is asked for.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <sluice_cuda.h>

#include "pump_arena.h"

/* The kernel, as text that the driver compiles. */
asm(".pushsection .rodata\n"
    "cuda_sum_ptx: .incbin \"tools/cuda_sum.ptx\"\n"
    ".byte 0\n"
    ".popsection\n");
extern const char cuda_sum_ptx[] __attribute__((visibility("hidden")));

#define THREADS	     256
#define BLOCKS	     64 /* for one part, at most */
#define THREAD_BYTES 64 /* worth a thread */

struct piece {
	uint64_t at, bytes, word;
};

/* On the device. */
struct table {
	struct piece piece[PARCEL_MAX_PARTS];
	uint64_t sum[PARCEL_MAX_PARTS];
};

/* In host memory: what goes there, with sums of 0, and what comes back. */
struct tables {
	struct table to;
	uint64_t sum[PARCEL_MAX_PARTS];
};

#define CALLS(X)                     \
	X(cuDeviceGet)               \
	X(cuDevicePrimaryCtxRetain)  \
	X(cuDevicePrimaryCtxRelease) \
	X(cuCtxPushCurrent)          \
	X(cuCtxPopCurrent)           \
	X(cuGetErrorString)          \
	X(cuModuleLoadData)          \
	X(cuModuleUnload)            \
	X(cuModuleGetFunction)       \
	X(cuLaunchKernel)            \
	X(cuMemAlloc)                \
	X(cuMemFree)                 \
	X(cuMemHostRegister)         \
	X(cuMemHostUnregister)       \
	X(cuMemcpyHtoDAsync)         \
	X(cuMemcpyDtoHAsync)         \
	X(cuStreamCreate)            \
	X(cuStreamDestroy)           \
	X(cuStreamSynchronize)

/* cuda.h renames some of these to their newest form: the macro is expanded first, then quoted. */
#define QUOTE(x)  #x
#define FIELD(fn) __typeof__(fn) *fn;
#define NAMED(fn) {QUOTE(fn), offsetof(struct driver, fn)},

struct driver {
	CALLS(FIELD)
};

static const struct {
	const char *name;
	size_t offset;
} calls[] = {CALLS(NAMED)};

struct cuda_sums {
	struct driver cu;
	CUdevice device;
	bool retained, pushed, registered;
	CUmodule module;
	CUfunction kernel;
	CUstream stream;
	CUdeviceptr dev;
	struct tables *host;
	struct sluice_cuda *cuda;
	struct sluice_cuda_feed *feed;
};

/* Of the last failure, unless it was the arena's. */
static char sentence[400];

__attribute__((format(printf, 2, 3))) static int fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof(sentence), fmt, ap);
	va_end(ap);
	return err;
}

static int fail_cuda(int err)
{
	return fail(err, "%s", sluice_cuda_strerror());
}

static int check(const struct cuda_sums *s, CUresult r, const char *what)
{
	const char *text = NULL;

	if (r == CUDA_SUCCESS)
		return 0;
	if (s->cu.cuGetErrorString(r, &text) != CUDA_SUCCESS || !text)
		text = "an error that the driver cannot name";
	return fail(-EIO, "device %d: %s failed: %s", s->device, what, text);
}

static const char *gpu_sentence(struct carrier *c)
{
	return *sentence ? sentence : sluice_strerror();
}

/* ------------------------------------------------------------------ opening */

static int gpu_open(struct carrier *c, const struct pump_opts *o)
{
	struct sluice_cuda_probe found = {.sz = sizeof(found)};
	int ret = sluice_cuda_probe(&found);

	if (ret)
		return fail_cuda(ret);
	if (o->gpu >= found.devices)
		return fail(-ENXIO, "there is no CUDA device %llu: the driver finds %u",
			    (unsigned long long)o->gpu, found.devices);
	ret = arena_open(c, o);
	if (!ret) {
		struct arena_carrier *a = c->own;

		a->sums = calloc(1, sizeof(*a->sums));
		if (!a->sums)
			return fail(-ENOMEM, "no memory");
		a->sums->device = (CUdevice)o->gpu;
	}
	return ret;
}

static int driver_find(struct driver *cu)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!lib)
		return fail(-ENOENT, "no CUDA driver on this host: %s", dlerror());
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *fn = dlsym(lib, calls[i].name);

		if (!fn)
			return fail(-EPROTO, "the CUDA driver is too old: it has no %s",
				    calls[i].name);
		memcpy((char *)cu + calls[i].offset, &fn, sizeof(fn));
	}
	dlclose(lib);
	return 0;
}

static int kernel_load(struct cuda_sums *s)
{
	int ret = check(s, s->cu.cuModuleLoadData(&s->module, cuda_sum_ptx), "loading the kernel");

	if (!ret)
		ret = check(s, s->cu.cuModuleGetFunction(&s->kernel, s->module, "sluice_sum"),
			    "finding the kernel");
	return ret;
}

static int memory_get(struct cuda_sums *s)
{
	int ret;

	s->host = mmap(NULL, sizeof(*s->host), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);
	if (s->host == MAP_FAILED) {
		s->host = NULL;
		return fail(-ENOMEM, "no memory for a table");
	}
	ret = check(s, s->cu.cuMemHostRegister(s->host, sizeof(*s->host), 0),
		    "registering a table");
	if (ret)
		return ret;
	s->registered = true;
	ret = check(s, s->cu.cuMemAlloc(&s->dev, sizeof(struct table)), "allocating a table");
	if (!ret)
		ret = check(s, s->cu.cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING),
			    "creating a stream");
	return ret;
}

/* CUDA is started here and not before: the producers are forked. */
static int gpu_forked(struct carrier *c)
{
	struct arena_carrier *a = c->own;
	struct cuda_sums *s = a->sums;
	const struct sluice_cuda_opts gpu = {
		.sz = sizeof(gpu),
		.flags = SLUICE_CUDA_DEVICE | SLUICE_CUDA_CREATE_CONTEXT,
		.device = s->device,
	};
	CUcontext ctx;
	int ret;

	ret = driver_find(&s->cu);
	if (ret)
		return ret;
	ret = sluice_cuda_attach(&s->cuda, a->arena, &gpu);
	if (ret)
		return fail_cuda(ret);
	ret = check(s, s->cu.cuDevicePrimaryCtxRetain(&ctx, s->device), "getting the context");
	if (ret)
		return ret;
	s->retained = true;
	ret = check(s, s->cu.cuCtxPushCurrent(ctx), "making the context current");
	if (ret)
		return ret;
	s->pushed = true;
	ret = kernel_load(s);
	if (!ret)
		ret = memory_get(s);
	if (ret)
		return ret;
	ret = sluice_cuda_feed_open(&s->feed, s->cuda, a->channel, NULL);
	return ret ? fail_cuda(ret) : 0;
}

/* In a producer, of a later round perhaps: the parent's CUDA and what it said are not ours. */
static int gpu_join(struct carrier *c, unsigned int producer)
{
	((struct arena_carrier *)c->own)->sums = NULL;
	*sentence = '\0';
	return arena_join(c, producer);
}

static void sums_close(struct cuda_sums *s)
{
	CUcontext was;

	sluice_cuda_feed_close(s->feed);
	if (s->stream)
		s->cu.cuStreamDestroy(s->stream);
	if (s->dev)
		s->cu.cuMemFree(s->dev);
	if (s->registered)
		s->cu.cuMemHostUnregister(s->host);
	if (s->host)
		munmap(s->host, sizeof(*s->host));
	if (s->module)
		s->cu.cuModuleUnload(s->module);
	if (s->pushed)
		s->cu.cuCtxPopCurrent(&was);
	sluice_cuda_detach(s->cuda);
	if (s->retained)
		s->cu.cuDevicePrimaryCtxRelease(s->device);
	free(s);
}

static void gpu_close(struct carrier *c)
{
	struct arena_carrier *a = c->own;

	if (a && a->sums)
		sums_close(a->sums);
	arena_close(c);
}

/* ------------------------------------------------------------------ parcels */

static int index_find(const struct sluice_cuda_batch *b, unsigned int blobs, struct parcel *p)
{
	const char *name;

	for (unsigned int i = 0; i < blobs; i++)
		if (!sluice_cuda_batch_blob(b, i, &name, &p->index, &p->index_bytes) &&
		    !strcmp(name, INDEX_NAME))
			return 0;
	return -EBADMSG;
}

/* What the index says of each part, as far as the part bears it.  Return: the bytes of the largest. */
static uint64_t table_fill(struct table *t, unsigned int *n, const struct parcel *p)
{
	const char *at = p->index;
	uint64_t left = p->index_bytes, most = 0;
	char name[PARCEL_INDEX_BYTES];
	struct part part;

	memset(t, 0, sizeof(*t));
	for (*n = 0; *n < p->parts && *n < PARCEL_MAX_PARTS; ++*n) {
		struct sluice_tensor view = {.sz = sizeof(view)};
		struct piece *piece = &t->piece[*n];

		if (!parcel_record(&at, &left, &part, name) ||
		    sluice_cuda_batch_tensor(p->from, *n, &view))
			break;
		/* Words at odd addresses would cost the context. */
		if ((uintptr_t)view.data % 8)
			break;
		piece->at = (uintptr_t)view.data;
		piece->bytes = part.bytes < view.bytes ? part.bytes : view.bytes;
		piece->word = part.offset / 8;
		if (piece->bytes > most)
			most = piece->bytes;
	}
	return most;
}

static int sums_make(struct cuda_sums *s, unsigned int n, uint64_t most)
{
	CUdeviceptr pieces = s->dev, sums = s->dev + offsetof(struct table, sum);
	void *params[] = {&pieces, &sums};
	uint64_t blocks = 1 + most / (THREADS * THREAD_BYTES);
	int ret;

	if (!most) {
		memset(s->host->sum, 0, sizeof(s->host->sum));
		return 0;
	}
	if (blocks > BLOCKS)
		blocks = BLOCKS;
	ret = check(s,
		    s->cu.cuMemcpyHtoDAsync(s->dev, &s->host->to, sizeof(s->host->to), s->stream),
		    "copying a table");
	if (!ret)
		ret = check(s,
			    s->cu.cuLaunchKernel(s->kernel, (unsigned int)blocks, n, 1, THREADS, 1,
						 1, 0, s->stream, params, NULL),
			    "starting the kernel");
	if (!ret)
		ret = check(s,
			    s->cu.cuMemcpyDtoHAsync(s->host->sum, sums, sizeof(s->host->sum),
						    s->stream),
			    "copying the sums");
	return ret ? ret : check(s, s->cu.cuStreamSynchronize(s->stream), "the kernel");
}

static int gpu_next(struct carrier *c, struct parcel *p, uint64_t timeout_ns)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct cuda_sums *s = ((struct arena_carrier *)c->own)->sums;
	struct sluice_cuda_batch *b;
	unsigned int n;
	uint64_t most;
	int ret;

	ret = sluice_cuda_feed_next(s->feed, &b, s->stream, timeout_ns);
	if (ret)
		return fail_cuda(ret);
	p->from = b;
	sluice_cuda_batch_info(b, &info);
	p->parts = info.tensors;
	ret = index_find(b, info.blobs, p);
	if (!ret) {
		most = table_fill(&s->host->to, &n, p);
		ret = sums_make(s, n, most);
	}
	if (ret)
		sluice_cuda_batch_release(b, s->stream);
	return ret;
}

static int gpu_data(struct carrier *c, const struct parcel *p, unsigned int part, const void **data,
		    uint64_t *bytes)
{
	struct sluice_tensor view = {.sz = sizeof(view)};
	int ret = sluice_cuda_batch_tensor(p->from, part, &view);

	*data = NULL;
	*bytes = ret ? 0 : view.bytes;
	return ret;
}

/* A part that the table does not have has a sum of 0: its file is found damaged. */
static int gpu_sum(struct carrier *c, const struct parcel *p, unsigned int part, uint64_t *sum)
{
	const struct cuda_sums *s = ((struct arena_carrier *)c->own)->sums;

	if (part >= PARCEL_MAX_PARTS)
		return -EBADMSG;
	*sum = s->host->sum[part];
	return 0;
}

static void gpu_release(struct carrier *c, struct parcel *p)
{
	sluice_cuda_batch_release(p->from, ((struct arena_carrier *)c->own)->sums->stream);
}

const struct carrier_ops carrier_gpu = {
	.name = "gpu",
	.open = gpu_open,
	.forked = gpu_forked,
	.join = gpu_join,
	.begin = arena_begin,
	.part = arena_part,
	.send = arena_send,
	.leave = arena_close,
	.next = gpu_next,
	.data = gpu_data,
	.sum = gpu_sum,
	.release = gpu_release,
	.close = gpu_close,
	.sentence = gpu_sentence,
};
