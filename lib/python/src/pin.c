// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Registration of an arena with the GPU driver.  The context that was current at registration is
 * kept, because the last view may go away in a thread that has none.
 */
#include "pysluice.h"

#include <dlfcn.h>
#include <stdlib.h>

/* One registration of 512 GiB or more fails on current drivers. */
#define PIN_CHUNK (256ULL << 30)
/* CU_MEMHOSTREGISTER_PORTABLE: pinned for every context of the process. */
#define PIN_PORTABLE 1

struct gpu_pin {
	void *ctx;
	char *addr;
	size_t len;
};

static struct {
	int (*ctx_get)(void **ctx);
	int (*ctx_push)(void *ctx);
	int (*ctx_pop)(void **ctx);
	int (*reg)(void *addr, size_t len, unsigned int flags);
	int (*unreg)(void *addr);
} cu;

static bool cuda_load(void)
{
	void *lib;

	if (cu.unreg)
		return true;
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return false;
	cu.ctx_get = dlsym(lib, "cuCtxGetCurrent");
	cu.ctx_push = dlsym(lib, "cuCtxPushCurrent_v2");
	cu.ctx_pop = dlsym(lib, "cuCtxPopCurrent_v2");
	cu.reg = dlsym(lib, "cuMemHostRegister_v2");
	cu.unreg = dlsym(lib, "cuMemHostUnregister");
	if (!cu.ctx_get || !cu.ctx_push || !cu.ctx_pop || !cu.reg)
		cu.unreg = NULL;
	return cu.unreg;
}

static void pin_undo(char *addr, size_t len)
{
	for (size_t off = 0; off < len; off += PIN_CHUNK)
		cu.unreg(addr + off);
}

/* Sets a Python exception and returns NULL on failure. */
struct gpu_pin *gpu_pin_create(void *addr, size_t len)
{
	struct gpu_pin *pin;
	void *ctx = NULL;
	int rc;

	if (!cuda_load()) {
		PyErr_SetString(PyExc_RuntimeError,
				"cannot pin the arena: libcuda.so.1 cannot be loaded");
		return NULL;
	}
	if (cu.ctx_get(&ctx) || !ctx) {
		PyErr_SetString(PyExc_RuntimeError,
				"cannot pin the arena: no CUDA context is current in this thread");
		return NULL;
	}
	pin = calloc(1, sizeof(*pin));
	if (!pin) {
		PyErr_NoMemory();
		return NULL;
	}
	pin->ctx = ctx;
	pin->addr = addr;
	for (size_t off = 0; off < len; off += PIN_CHUNK) {
		size_t n = len - off < PIN_CHUNK ? len - off : PIN_CHUNK;

		Py_BEGIN_ALLOW_THREADS;
		rc = cu.reg(pin->addr + off, n, PIN_PORTABLE);
		Py_END_ALLOW_THREADS;
		if (rc) {
			pin_undo(pin->addr, off);
			free(pin);
			PyErr_Format(PyExc_RuntimeError,
				     "cannot pin %zu bytes of the arena at %p: CUDA error %d", n,
				     (char *)addr + off, rc);
			return NULL;
		}
	}
	pin->len = len;
	return pin;
}

void gpu_pin_destroy(struct gpu_pin *pin)
{
	void *old;

	if (!pin)
		return;
	if (!cu.ctx_push(pin->ctx)) {
		pin_undo(pin->addr, pin->len);
		cu.ctx_pop(&old);
	}
	free(pin);
}
