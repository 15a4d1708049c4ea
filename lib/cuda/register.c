/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Registration of arena mappings with CUDA: once for each process, whoever attaches. */
#include <errno.h>
#include <stdlib.h>

#include "priv.h"

static struct cuda_reg *regs;
static pthread_mutex_t regs_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult chunk_register(const struct cuda_driver *cu, struct cuda_reg *r, char *addr,
			       uint64_t bytes, bool read_only)
{
	unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	struct cuda_chunk *chunk = &r->chunks[r->nchunks];
	CUresult ret;

	if (read_only)
		flags |= CU_MEMHOSTREGISTER_READ_ONLY;
	ret = cu->MemHostRegister(addr, bytes, flags);
	chunk->foreign = ret == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (chunk->foreign) {
		CUdeviceptr p;

		/* Somebody else's registration is as good if it covers the whole chunk. */
		ret = cu->MemHostGetDevicePointer(&p, addr, 0);
		if (ret == CUDA_SUCCESS)
			ret = cu->MemHostGetDevicePointer(&p, addr + bytes - 1, 0);
	}
	if (ret != CUDA_SUCCESS)
		return ret;
	chunk->addr = addr;
	chunk->bytes = bytes;
	r->nchunks++;
	if (chunk->foreign)
		r->foreign++;
	else
		r->ours++;
	return CUDA_SUCCESS;
}

static CUresult region_register(const struct cuda_driver *cu, struct cuda_reg *r, char *addr,
				uint64_t bytes, bool read_only)
{
	CUresult ret = CUDA_SUCCESS;

	for (uint64_t at = 0; at < bytes && ret == CUDA_SUCCESS; at += r->chunk_bytes) {
		uint64_t n = bytes - at < r->chunk_bytes ? bytes - at : r->chunk_bytes;

		ret = chunk_register(cu, r, addr + at, n, read_only);
	}
	return ret;
}

static void regions_unregister(const struct cuda_driver *cu, struct cuda_reg *r)
{
	/* With the context gone this fails, and there is nothing left to undo. */
	while (r->nchunks) {
		struct cuda_chunk *chunk = &r->chunks[--r->nchunks];

		if (!chunk->foreign)
			cu->MemHostUnregister(chunk->addr);
	}
}

static int registration_make(const struct cuda_driver *cu, struct cuda_reg *r)
{
	uint64_t start = cuda_now();
	int readable = 1;
	CUresult ret;

	if (r->read_only)
		cu->DeviceGetAttribute(&readable,
				       CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
				       r->device);
	if (!readable)
		return cuda_fail(EPERM,
				 "the arena is attached read-only, which device %d cannot "
				 "register: attach it read-write",
				 r->device);
	ret = region_register(cu, r, r->data, r->data_bytes, r->read_only);
	if (ret == CUDA_SUCCESS)
		ret = region_register(cu, r, r->control, r->control_bytes, false);
	if (ret != CUDA_SUCCESS) {
		uint32_t at = r->nchunks;

		regions_unregister(cu, r);
		return cuda_fail_result(
			cu, ret,
			"cannot register the arena (%llu bytes of data, chunk %u of at "
			"most %llu bytes)",
			(unsigned long long)r->data_bytes, at, (unsigned long long)r->chunk_bytes);
	}
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
		   uint64_t chunk_bytes)
{
	uint64_t n = (info->data_bytes - 1) / chunk_bytes + (info->control_bytes - 1) / chunk_bytes;
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
	r->chunk_bytes = chunk_bytes;
	r->device = device;
	r->ctx = ctx;
	ret = registration_make(cu, r);
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
		 uint64_t chunk_bytes)
{
	struct cuda_reg *r;
	int ret = 0;

	pthread_mutex_lock(&regs_lock);
	r = reg_find(info);
	if (!r)
		ret = reg_new(cu, &r, info, ctx, device, chunk_bytes);
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
		regions_unregister(cu, r);
		cu->CtxPopCurrent(&ctx);
	}
	if (r->primary)
		cu->DevicePrimaryCtxRelease(r->device);
	free(r);
out:
	pthread_mutex_unlock(&regs_lock);
}
