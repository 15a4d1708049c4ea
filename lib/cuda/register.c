/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Registration of arena mappings with CUDA: once for each process, whoever attaches. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "priv.h"

static struct cuda_reg *regs;
static pthread_mutex_t regs_lock = PTHREAD_MUTEX_INITIALIZER;

/* Threads that register the chunks of one arena side by side. */
struct team {
	const struct cuda_driver *cu;
	struct cuda_reg *reg;
	_Atomic uint32_t next; /* chunk that nobody has begun with */
	_Atomic CUresult result; /* the first that failed */
	uint32_t failed; /* its chunk */
};

static CUresult chunk_register(const struct cuda_driver *cu, const struct cuda_reg *r,
			       struct cuda_chunk *chunk)
{
	unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	CUresult ret;

	if (r->read_only && chunk->addr != r->control)
		flags |= CU_MEMHOSTREGISTER_READ_ONLY;
	ret = cu->MemHostRegister(chunk->addr, chunk->bytes, flags);
	chunk->ours = ret == CUDA_SUCCESS;
	if (ret == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
		CUdeviceptr p;

		/* Somebody else's registration is as good if it covers the whole chunk. */
		ret = cu->MemHostGetDevicePointer(&p, chunk->addr, 0);
		if (ret == CUDA_SUCCESS)
			ret = cu->MemHostGetDevicePointer(&p, chunk->addr + chunk->bytes - 1, 0);
	}
	return ret;
}

static void team_work(struct team *t)
{
	while (atomic_load(&t->result) == CUDA_SUCCESS) {
		CUresult ok = CUDA_SUCCESS, ret;
		uint32_t i = atomic_fetch_add(&t->next, 1);

		if (i >= t->reg->nchunks)
			return;
		ret = chunk_register(t->cu, t->reg, &t->reg->chunks[i]);
		if (ret != CUDA_SUCCESS && atomic_compare_exchange_strong(&t->result, &ok, ret))
			t->failed = i;
	}
}

static void *team_member(void *arg)
{
	struct team *t = arg;

	if (t->cu->CtxPushCurrent(t->reg->ctx) == CUDA_SUCCESS) {
		CUcontext ctx;

		team_work(t);
		t->cu->CtxPopCurrent(&ctx);
	}
	return NULL;
}

/* The calling thread works, too: a thread that cannot be had only makes it slower. */
static void team_run(struct team *t, uint32_t threads)
{
	pthread_t ids[SLUICE_CUDA_MAX_THREADS];
	sigset_t all, was;
	uint32_t n = 0;

	/* Signals are for the caller's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	while (n + 1 < threads && n + 1 < t->reg->nchunks &&
	       !pthread_create(&ids[n], NULL, team_member, t))
		n++;
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	team_work(t);
	while (n)
		pthread_join(ids[--n], NULL);
}

static void region_divide(struct cuda_reg *r, char *addr, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += r->chunk_bytes) {
		struct cuda_chunk *chunk = &r->chunks[r->nchunks++];

		chunk->addr = addr + at;
		chunk->bytes = bytes - at < r->chunk_bytes ? bytes - at : r->chunk_bytes;
	}
}

static void chunks_unregister(const struct cuda_driver *cu, struct cuda_reg *r)
{
	/* With the context gone this fails, and there is nothing left to undo. */
	for (uint32_t i = r->nchunks; i-- > 0;)
		if (r->chunks[i].ours)
			cu->MemHostUnregister(r->chunks[i].addr);
}

static int registration_make(const struct cuda_driver *cu, struct cuda_reg *r, uint32_t threads)
{
	struct team team = {.cu = cu, .reg = r};
	uint64_t start = cuda_now();
	int readable = 1;

	if (r->read_only)
		cu->DeviceGetAttribute(&readable,
				       CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
				       r->device);
	if (!readable)
		return cuda_fail(EPERM,
				 "the arena is attached read-only, which device %d cannot "
				 "register: attach it read-write",
				 r->device);
	region_divide(r, r->data, r->data_bytes);
	region_divide(r, r->control, r->control_bytes);
	team_run(&team, threads);
	if (team.result != CUDA_SUCCESS) {
		chunks_unregister(cu, r);
		return cuda_fail_result(
			cu, team.result,
			"cannot register the arena (%llu bytes of data, chunk %u of at "
			"most %llu bytes)",
			(unsigned long long)r->data_bytes, team.failed,
			(unsigned long long)r->chunk_bytes);
	}
	for (uint32_t i = 0; i < r->nchunks; i++)
		r->ours += r->chunks[i].ours;
	r->foreign = r->nchunks - r->ours;
	r->ns = cuda_now() - start;
	return 0;
}

static struct cuda_reg *reg_find(const struct sluice_arena_info *info)
{
	struct cuda_reg *r;

	for (r = regs; r; r = r->next)
		if (r->data == info->data && r->data_bytes == info->data_bytes)
			return r;
	return NULL;
}

static int reg_new(const struct cuda_driver *cu, struct cuda_reg **out,
		   const struct sluice_arena_info *info, CUcontext ctx, CUdevice device,
		   const struct sluice_cuda_opts *o)
{
	uint64_t n = (info->data_bytes - 1) / o->chunk_bytes +
		     (info->control_bytes - 1) / o->chunk_bytes;
	CUcontext primary = NULL;
	struct cuda_reg *r;
	unsigned int flags;
	int active = 0;
	int ret;

	r = calloc(1, sizeof(*r) + (n + 2) * sizeof(r->chunks[0]));
	if (!r)
		return cuda_fail(ENOMEM, "no memory for %llu chunks", (unsigned long long)n + 2);
	r->data = info->data;
	r->data_bytes = info->data_bytes;
	r->control = info->control;
	r->control_bytes = info->control_bytes;
	r->read_only = info->role == SLUICE_ROLE_CONSUMER;
	r->chunk_bytes = o->chunk_bytes;
	r->device = device;
	r->ctx = ctx;
	ret = registration_make(cu, r, o->threads);
	if (ret) {
		free(r);
		return ret;
	}
	/* The registration dies with its context; a primary one can be made to outlive its user. */
	cu->DevicePrimaryCtxGetState(device, &flags, &active);
	if (active && cu->DevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
		r->primary = primary == ctx;
		if (!r->primary)
			cu->DevicePrimaryCtxRelease(device);
	}
	r->next = regs;
	regs = r;
	*out = r;
	return 0;
}

int cuda_reg_get(const struct cuda_driver *cu, struct cuda_reg **out,
		 const struct sluice_arena_info *info, CUcontext ctx, CUdevice device,
		 const struct sluice_cuda_opts *o)
{
	struct cuda_reg *r;
	int ret = 0;

	pthread_mutex_lock(&regs_lock);
	r = reg_find(info);
	if (!r)
		ret = reg_new(cu, &r, info, ctx, device, o);
	if (!ret) {
		r->refs++;
		*out = r;
	}
	pthread_mutex_unlock(&regs_lock);
	return ret;
}

void cuda_reg_put(const struct cuda_driver *cu, struct cuda_reg *r)
{
	struct cuda_reg **at;
	CUcontext ctx;

	pthread_mutex_lock(&regs_lock);
	if (--r->refs)
		goto out;
	for (at = &regs; *at != r; at = &(*at)->next)
		;
	*at = r->next;
	if (cu->CtxPushCurrent(r->ctx) == CUDA_SUCCESS) {
		chunks_unregister(cu, r);
		cu->CtxPopCurrent(&ctx);
	}
	if (r->primary)
		cu->DevicePrimaryCtxRelease(r->device);
	free(r);
out:
	pthread_mutex_unlock(&regs_lock);
}
