// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "memlimit.h"
#include "pysluice.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

PyTypeObject *retired_type;

/* Batches whose last view is gone, waiting for the GPU; dropping the object frees them. */
struct retired {
	PyObject_HEAD struct anchor *list;
	Py_ssize_t count;
};

static PyObject *retired_free(struct retired *self, PyObject *unused)
{
	struct anchor *an = self->list;

	self->list = NULL;
	while (an) {
		struct anchor *next = an->next;

		anchor_free(an);
		an = next;
	}
	Py_RETURN_NONE;
}

static void retired_dealloc(struct retired *self)
{
	PyTypeObject *tp = Py_TYPE((PyObject *)self);

	Py_XDECREF(retired_free(self, NULL));
	PyObject_Free(self);
	Py_DECREF(tp);
}

static PyObject *retired_count(struct retired *self, void *unused)
{
	return PyLong_FromSsize_t(self->count);
}

static PyMethodDef retired_methods[] = {
	{"free", (PyCFunction)retired_free, METH_NOARGS, "Give the extents back."},
	{NULL},
};

static PyGetSetDef retired_getset[] = {
	{"count", (getter)retired_count, NULL, "batches", NULL},
	{NULL},
};

static PyType_Slot retired_slots[] = {
	{Py_tp_dealloc, retired_dealloc},
	{Py_tp_methods, retired_methods},
	{Py_tp_getset, retired_getset},
	{0, NULL},
};

static PyType_Spec retired_spec = {
	.name = "sluice._sluice.Retired",
	.basicsize = sizeof(struct retired),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = retired_slots,
};

int retired_type_init(PyObject *mod)
{
	retired_type = (PyTypeObject *)PyType_FromSpec(&retired_spec);
	return module_add_type(mod, "Retired", retired_type);
}

static PyObject *py_retired_take(PyObject *mod, PyObject *unused)
{
	struct anchor *list = anchor_retired_take();
	struct retired *self;

	if (!list)
		Py_RETURN_NONE;
	self = PyObject_New(struct retired, retired_type);
	if (!self)
		return NULL; /* leaks the extents until the process ends: safer than reuse */
	self->list = list;
	self->count = 0;
	for (struct anchor *an = list; an; an = an->next)
		self->count++;
	return (PyObject *)self;
}

/* map_fd(fd, len, codec): decode an object that stands in a descriptor of its own. */
static PyObject *py_decode_fd(PyObject *mod, PyObject *args)
{
	unsigned long long len;
	struct anchor *an;
	PyObject *codec, *out;
	void *p;
	int fd;

	if (!PyArg_ParseTuple(args, "iKO", &fd, &len, &codec))
		return NULL;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return PyErr_SetFromErrno(PyExc_OSError);
	an = anchor_new(ANCHOR_MAP, NULL);
	if (!an) {
		munmap(p, len);
		return PyErr_NoMemory();
	}
	an->mem = p;
	an->len = len;
	out = decode(an, p, len, codec);
	anchor_put(an);
	return out;
}

/* write_fd(fd, plan): the other side of decode_fd(); the descriptor has plan.nbytes already. */
static PyObject *py_write_fd(PyObject *mod, PyObject *args)
{
	PyObject *plan;
	uint64_t len;
	void *p;
	int fd, rc;

	if (!PyArg_ParseTuple(args, "iO!", &fd, plan_type, &plan))
		return NULL;
	len = plan_bytes(plan);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return PyErr_SetFromErrno(PyExc_OSError);
	rc = plan_write(plan, p);
	munmap(p, len);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/*
 * fd_of(pid, fd): a duplicate of another process's descriptor.  pidfd_getfd() works for every kind
 * of file where ptrace is allowed; /proc only needs the same user, and a memfd can be opened there.
 */
static PyObject *py_fd_of(PyObject *mod, PyObject *args)
{
	int pid, fd, pidfd, got;
	char path[64];

	if (!PyArg_ParseTuple(args, "ii", &pid, &fd))
		return NULL;
	if (pid == getpid()) {
		got = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		goto out;
	}
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	got = -1;
	if (pidfd >= 0) {
		got = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
		close(pidfd);
	}
	if (got < 0) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
		got = open(path, O_RDWR | O_CLOEXEC);
	}
out:
	return got < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(got);
}

/* view_at(addr, len): bytes of somebody else, who keeps them alive. */
static PyObject *py_view_at(PyObject *mod, PyObject *args)
{
	unsigned long long addr, len;
	struct anchor *an;
	PyObject *v;

	if (!PyArg_ParseTuple(args, "KK", &addr, &len))
		return NULL;
	an = anchor_new(ANCHOR_HEAP, NULL);
	if (!an)
		return PyErr_NoMemory();
	v = view_bytes(an, (void *)(uintptr_t)addr, len, false);
	anchor_put(an);
	return v;
}

static PyObject *py_memory_free(PyObject *mod, PyObject *unused)
{
	uint64_t n;

	Py_BEGIN_ALLOW_THREADS;
	n = sluice_memlimit_free();
	Py_END_ALLOW_THREADS;
	return PyLong_FromUnsignedLongLong(n);
}

static PyObject *py_version(PyObject *mod, PyObject *unused)
{
	return PyUnicode_FromString(sluice_version());
}

static PyObject *py_fork_gen(PyObject *mod, PyObject *unused)
{
	return PyLong_FromUnsignedLong(fork_gen);
}

static void fork_child(void)
{
	fork_gen++;
	anchor_retired_take(); /* the parent's */
}

int module_add_type(PyObject *mod, const char *name, PyTypeObject *tp)
{
	if (!tp)
		return -1;
	Py_INCREF((PyObject *)tp); /* one for the module, one for the static pointer */
	return PyModule_AddObject(mod, name, (PyObject *)tp);
}

static PyMethodDef methods[] = {
	{"encode", py_encode, METH_VARARGS, "encode(obj, codec, base=0, cap=0, used=0): a Plan"},
	{"encode_items", py_encode_items, METH_VARARGS, "encode_items(seq, codec): a Plan"},
	{"decode_fd", py_decode_fd, METH_VARARGS, "decode_fd(fd, len, codec)"},
	{"write_fd", py_write_fd, METH_VARARGS, "write_fd(fd, plan)"},
	{"retired_take", py_retired_take, METH_NOARGS, "Batches that wait for the GPU, or None."},
	{"fd_of", py_fd_of, METH_VARARGS, "fd_of(pid, fd): a duplicate of it"},
	{"view_at", py_view_at, METH_VARARGS, "view_at(address, len): a View that keeps nothing"},
	{"copy_parts", py_copy_parts, METH_VARARGS,
	 "copy_parts(to, rows): one after another; rows are pairs of an address and a length"},
	{"join_look", py_join_look, METH_VARARGS,
	 "join_look(tensors, dim, rows, item, type, strided, dtype, shape): how they are joined"},
	{"memory_free", py_memory_free, METH_NOARGS,
	 "Bytes free within all that limits this process: the machine, nodes, control groups."},
	{"version", py_version, METH_NOARGS, "Of the library."},
	{"fork_generation", py_fork_gen, METH_NOARGS, "Forks between the first import and here."},
	{NULL},
};

static struct PyModuleDef def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "sluice._sluice",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit__sluice(void);

PyMODINIT_FUNC PyInit__sluice(void)
{
	PyObject *mod = PyModule_Create(&def);

	if (!mod)
		return NULL;
	if (view_type_init(mod) || plan_type_init(mod) || arena_type_init(mod) || join_init() ||
	    channel_type_init(mod) || batch_type_init(mod) || retired_type_init(mod) ||
	    PyModule_AddIntConstant(mod, "COPY_PAST_BYTES", COPY_PAST_BYTES) ||
	    pthread_atfork(NULL, NULL, fork_child)) {
		Py_DECREF(mod);
		return NULL;
	}
	return mod;
}
