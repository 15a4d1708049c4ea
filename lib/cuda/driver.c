/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "priv.h"

static struct cuda_driver table;
static _Atomic(const struct cuda_driver *) loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t starter; /* whose driver it is; written before .loaded */

static const struct {
	const char *name;
	size_t offset;
	int version;
} symbols[] = {
#define SYMBOL(n, v) {"cu" #n, offsetof(struct cuda_driver, n), v},
	SLUICE_CUDA_DRIVER(SYMBOL)
#undef SYMBOL
};

static int table_fill(PFN_cuGetProcAddress_v12000 lookup)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void **slot = (void **)((char *)&table + symbols[i].offset);
		CUdriverProcAddressQueryResult why;
		CUresult r;

		r = lookup(symbols[i].name, slot, symbols[i].version,
			   CU_GET_PROC_ADDRESS_LEGACY_STREAM, &why);
		if (r != CUDA_SUCCESS || !*slot)
			return cuda_fail(EPROTO,
					 "the CUDA driver is too old: it has no %s of CUDA %d.%d",
					 symbols[i].name, symbols[i].version / 1000,
					 symbols[i].version % 1000 / 10);
	}
	return 0;
}

static int driver_load(void)
{
	PFN_cuGetProcAddress_v12000 lookup;
	CUresult r;
	void *lib;
	int ret;

	/* Never closed again: the driver keeps threads and an atexit handler. */
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib)
		return cuda_fail(ENOENT, "no CUDA driver on this host: %s", dlerror());
	lookup = (PFN_cuGetProcAddress_v12000)dlsym(lib, "cuGetProcAddress_v2");
	if (!lookup)
		return cuda_fail(EPROTO,
				 "the CUDA driver is too old: it has no cuGetProcAddress of "
				 "CUDA 12.0");
	ret = table_fill(lookup);
	if (ret)
		return ret;
	r = table.Init(0);
	if (r == CUDA_ERROR_NOT_INITIALIZED)
		return cuda_fail(ECHILD,
				 "the CUDA driver does not start: somebody started it in this "
				 "process before fork(), which it does not survive");
	if (r == CUDA_ERROR_NO_DEVICE)
		return cuda_fail(ENODEV, "the CUDA driver finds no device");
	if (r != CUDA_SUCCESS)
		return cuda_fail_result(&table, r, "the CUDA driver does not start");
	return 0;
}

const struct cuda_driver *cuda_driver_get(int *err)
{
	const struct cuda_driver *d = atomic_load_explicit(&loaded, memory_order_acquire);

	if (d && getpid() != starter) {
		*err = cuda_fail(ECHILD,
				 "CUDA was started in this process before fork(), which it does "
				 "not survive: start it in the process that uses the device");
		return NULL;
	}
	if (d)
		return d;
	pthread_mutex_lock(&load_lock);
	d = atomic_load_explicit(&loaded, memory_order_acquire);
	if (!d) {
		*err = driver_load();
		if (!*err) {
			d = &table;
			starter = getpid();
			atomic_store_explicit(&loaded, d, memory_order_release);
		}
	}
	pthread_mutex_unlock(&load_lock);
	return d;
}
