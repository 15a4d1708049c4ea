// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The one kernel of the program, tools/cuda_sum.ptx, as the fake driver runs it. */
#include <stdlib.h>
#include <string.h>

#include "../../tools/pump_sum.h"
#include "fake_priv.h"

#define NAME "sluice_sum"

static char module, function;

CUresult cuModuleLoadData(CUmodule *m, const void *image)
{
	CUresult r = fake_enter(__func__);

	if (r)
		return r;
	if (!strstr(image, ".entry " NAME "("))
		return CUDA_ERROR_INVALID_PTX;
	*m = (CUmodule)&module;
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule m)
{
	return fake_enter(__func__);
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	CUresult r = fake_enter(__func__);

	if (r)
		return r;
	if (m != (CUmodule)&module || strcmp(name, NAME))
		return CUDA_ERROR_NOT_FOUND;
	*f = (CUfunction)&function;
	return CUDA_SUCCESS;
}

struct piece {
	uint64_t at, bytes, word;
};

struct launch {
	const struct piece *pieces;
	uint64_t *sums;
	unsigned int n;
};

static void sum_run(void *arg)
{
	struct launch *l = arg;

	for (unsigned int i = 0; i < l->n; i++) {
		const struct piece *p = &l->pieces[i];
		bool known;

		if (!p->bytes)
			continue;
		pthread_mutex_lock(&fake_lock);
		known = fake_device_known(p->at, p->bytes) && !(p->at % 8);
		pthread_mutex_unlock(&fake_lock);
		if (known)
			l->sums[i] += sum_add((void *)(uintptr_t)p->at, p->bytes, p->word);
		else
			fake_violation("a kernel reads what is not allocated or not aligned");
	}
	free(l);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
			unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
			CUstream s, void **params, void **extra)
{
	CUresult r = fake_enter(__func__);
	struct launch *l;

	if (r)
		return r;
	if (f != (CUfunction)&function || !gx || gy - 1 >= 65535 || gz != 1 || !bx || bx > 1024 ||
	    bx % 32 || by != 1 || bz != 1)
		return CUDA_ERROR_INVALID_VALUE;
	l = malloc(sizeof(*l));
	l->pieces = (void *)(uintptr_t) * (CUdeviceptr *)params[0];
	l->sums = (void *)(uintptr_t) * (CUdeviceptr *)params[1];
	l->n = gy;
	return fake_push(fake_current(), (struct stream *)s,
			 (struct op){.kind = OP_KERNEL, .fn = sum_run, .arg = l});
}
