// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "pysluice.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyTypeObject *arena_type;

struct py_arena {
	PyObject_HEAD struct arena_ref *ar;
};

/*
 * The usable arena of this process, or NULL with an exception.  In a forked child the first use
 * attaches it as a peer of its own over the inherited mapping.
 */
struct arena_ref *arena_of(PyObject *obj)
{
	struct py_arena *self = (struct py_arena *)obj;
	struct arena_ref *ar;
	int rc;

	if (!self->ar) {
		PyErr_SetString(PyExc_ValueError, "the arena is closed");
		return NULL;
	}
	if (self->ar->gen == fork_gen)
		return self->ar;
	ar = calloc(1, sizeof(*ar));
	if (!ar) {
		PyErr_NoMemory();
		return NULL;
	}
	ar->read_only = self->ar->read_only;
	rc = sluice_arena_reattach(&ar->a, self->ar->a);
	if (rc) {
		free(ar);
		raise_errno(rc);
		return NULL;
	}
	atomic_init(&ar->refs, 1);
	ar->gen = fork_gen;
	arena_ref_put(self->ar);
	self->ar = ar;
	return ar;
}

static PyObject *arena_wrap(PyTypeObject *tp, struct sluice_arena *a)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(tp, Py_tp_alloc);
	struct py_arena *self = (struct py_arena *)alloc(tp, 0);
	struct sluice_arena_info in = {.sz = sizeof(in)};

	if (self)
		self->ar = calloc(1, sizeof(*self->ar));
	if (!self || !self->ar) {
		sluice_arena_detach(a);
		Py_XDECREF((PyObject *)self);
		return PyErr_NoMemory();
	}
	atomic_init(&self->ar->refs, 1);
	self->ar->gen = fork_gen;
	self->ar->a = a;
	self->ar->read_only = !sluice_arena_info(a, &in) && in.role == SLUICE_ROLE_CONSUMER;
	return (PyObject *)self;
}

static PyObject *arena_create(PyTypeObject *tp, PyObject *args, PyObject *kw)
{
	static char *names[] = {"data_bytes", "block_bytes", "flags", "numa_node",
				"backend",    "label",	     NULL};
	struct sluice_arena_opts opts = {.sz = sizeof(opts)};
	struct sluice_arena *a;
	PyObject *bytes;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!|O&O&iIz", names, &PyLong_Type, &bytes,
					 u32_from, &opts.block_bytes, u32_from, &opts.flags,
					 &opts.numa_node, &opts.backend, &opts.label))
		return NULL;
	opts.data_bytes = PyLong_AsUnsignedLongLong(bytes);
	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = sluice_arena_create(&a, &opts);
	Py_END_ALLOW_THREADS;
	return rc ? raise_errno(rc) : arena_wrap(tp, a);
}

static PyObject *arena_attach(PyObject *cls, PyObject *args)
{
	struct sluice_attach_opts opts = {.sz = sizeof(opts)};
	int fd, data_fd = 0, consumer = 0, rc;
	struct sluice_arena *a;

	if (!PyArg_ParseTuple(args, "i|ip", &fd, &data_fd, &consumer))
		return NULL;
	opts.data_fd = data_fd > 0 ? data_fd : 0;
	opts.role = consumer ? SLUICE_ROLE_CONSUMER : SLUICE_ROLE_RW;
	Py_BEGIN_ALLOW_THREADS;
	rc = sluice_arena_attach(&a, fd, &opts);
	Py_END_ALLOW_THREADS;
	return rc ? raise_errno(rc) : arena_wrap((PyTypeObject *)cls, a);
}

/* Waits for a blocking socket where signal handlers can run; false with an exception. */
static bool sock_wait(int sock, short events)
{
	struct pollfd p = {.fd = sock, .events = events};
	int n, flags = fcntl(sock, F_GETFL);

	if (flags < 0 || flags & O_NONBLOCK)
		return true; /* whoever uses it next says what is wrong */
	do {
		Py_BEGIN_ALLOW_THREADS;
		n = poll(&p, 1, (int)(WAIT_SLICE_NS / 1000000));
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals())
			return false;
	} while (!n || (n < 0 && errno == EINTR));
	return true;
}

static PyObject *arena_send(PyObject *self, PyObject *args)
{
	struct arena_ref *ar = arena_of(self);
	int sock, consumer = 0, rc;

	if (!ar || !PyArg_ParseTuple(args, "i|p", &sock, &consumer))
		return NULL;
	arena_ref_get(ar);
	rc = sock_wait(sock, POLLOUT) ? 0 : -1;
	if (!rc) {
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_arena_send(ar->a, sock,
				       consumer ? SLUICE_ROLE_CONSUMER : SLUICE_ROLE_RW);
		Py_END_ALLOW_THREADS;
		if (rc < 0)
			raise_errno(rc);
	}
	arena_ref_put(ar);
	if (rc < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *arena_recv(PyObject *cls, PyObject *args)
{
	int sock, consumer = 0, rc;
	struct sluice_arena *a;

	if (!PyArg_ParseTuple(args, "i|p", &sock, &consumer) || !sock_wait(sock, POLLIN))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = sluice_arena_recv(&a, sock, consumer ? SLUICE_ROLE_CONSUMER : SLUICE_ROLE_RW);
	Py_END_ALLOW_THREADS;
	return rc ? raise_errno(rc) : arena_wrap((PyTypeObject *)cls, a);
}

static PyObject *arena_close(PyObject *obj, PyObject *unused)
{
	struct py_arena *self = (struct py_arena *)obj;
	struct arena_ref *ar = self->ar;

	self->ar = NULL;
	Py_BEGIN_ALLOW_THREADS;
	arena_ref_put(ar);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static void arena_dealloc(PyObject *obj)
{
	PyTypeObject *tp = Py_TYPE(obj);
	freefunc tp_free = (freefunc)PyType_GetSlot(tp, Py_tp_free);

	arena_ref_put(((struct py_arena *)obj)->ar);
	tp_free(obj);
	Py_DECREF(tp);
}

static PyObject *arena_fd(PyObject *self, PyObject *unused)
{
	struct arena_ref *ar = arena_of(self);

	return ar ? PyLong_FromLong(sluice_arena_fd(ar->a)) : NULL;
}

static PyObject *arena_data_fd(PyObject *self, PyObject *unused)
{
	struct arena_ref *ar = arena_of(self);

	return ar ? PyLong_FromLong(sluice_arena_data_fd(ar->a)) : NULL;
}

static PyObject *arena_info(PyObject *self, PyObject *unused)
{
	struct sluice_arena_info in = {.sz = sizeof(in)};
	struct arena_ref *ar = arena_of(self);
	int rc;

	if (!ar)
		return NULL;
	rc = sluice_arena_info(ar->a, &in);
	if (rc)
		return raise_errno(rc);
	return Py_BuildValue("{sK sI sI sK sK sK sK sK sK si sI sK sK sK sN}", "id",
			     (unsigned long long)in.id, "backend", in.backend, "role", in.role,
			     "control_bytes", (unsigned long long)in.control_bytes, "data_bytes",
			     (unsigned long long)in.data_bytes, "block_bytes",
			     (unsigned long long)in.block_bytes, "blocks",
			     (unsigned long long)in.blocks, "huge_bytes",
			     (unsigned long long)in.huge_bytes, "huge_page_bytes",
			     (unsigned long long)in.huge_page_bytes, "numa_node", in.numa_node,
			     "peers", in.peers, "peer_id", (unsigned long long)in.peer_id, "data",
			     (unsigned long long)(uintptr_t)in.data, "create_ns",
			     (unsigned long long)in.create_ns, "label", text_of(in.label));
}

static PyObject *arena_usage(PyObject *self, PyObject *unused)
{
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct arena_ref *ar = arena_of(self);
	int rc;

	if (!ar)
		return NULL;
	rc = sluice_arena_usage(ar->a, &u);
	if (rc)
		return raise_errno(rc);
	return Py_BuildValue("{sK sK sK sK sK sK sK sK sK}", "free_bytes",
			     (unsigned long long)u.free_bytes, "largest_free_bytes",
			     (unsigned long long)u.largest_free_bytes, "free_runs",
			     (unsigned long long)u.free_runs, "writing",
			     (unsigned long long)u.writing, "ready", (unsigned long long)u.ready,
			     "held", (unsigned long long)u.held, "parked",
			     (unsigned long long)u.parked, "shared", (unsigned long long)u.shared,
			     "reserved_bytes", (unsigned long long)u.reserved_bytes);
}

static PyObject *arena_peers(PyObject *self, PyObject *unused)
{
	struct arena_ref *ar = arena_of(self);
	struct sluice_peer_info *p;
	PyObject *list;
	int n;

	if (!ar)
		return NULL;
	p = calloc(SLUICE_MAX_PEERS, sizeof(*p));
	if (!p)
		return PyErr_NoMemory();
	p[0].sz = sizeof(*p);
	n = sluice_peer_list(ar->a, p, SLUICE_MAX_PEERS);
	if (n < 0) {
		free(p);
		return raise_errno(n);
	}
	list = PyList_New(0);
	for (int i = 0; list && i < n && i < SLUICE_MAX_PEERS; i++) {
		PyObject *d = Py_BuildValue("{sK sI sI sI sI sK sd sN}", "id",
					    (unsigned long long)p[i].id, "pid", p[i].pid, "state",
					    p[i].state, "role", p[i].role, "extents", p[i].extents,
					    "bytes", (unsigned long long)p[i].bytes, "oldest",
					    p[i].oldest_ns / 1e9, "comm", text_of(p[i].comm));

		if (!d || PyList_Append(list, d))
			Py_CLEAR(list);
		Py_XDECREF(d);
	}
	free(p);
	return list;
}

static PyObject *arena_event(PyObject *self, PyObject *args)
{
	struct sluice_event ev = {.sz = sizeof(ev)};
	struct arena_ref *ar = arena_of(self);
	PyObject *timeout = Py_None;
	uint64_t deadline;
	int rc;

	if (!ar || !PyArg_ParseTuple(args, "|O", &timeout) || deadline_from(timeout, &deadline))
		return NULL;
	arena_ref_get(ar);
	do {
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_event_next(ar->a, &ev, deadline_slice(deadline));
		Py_END_ALLOW_THREADS;
	} while ((rc == -EINTR || rc == -ETIMEDOUT || rc == -EAGAIN) && !PyErr_CheckSignals() &&
		 !deadline_passed(deadline));
	if (!PyErr_Occurred() && rc && rc != -ETIMEDOUT && rc != -EAGAIN && rc != -EINTR)
		raise_errno(rc);
	arena_ref_put(ar);
	if (PyErr_Occurred())
		return NULL;
	if (rc)
		Py_RETURN_NONE;
	return Py_BuildValue("{sI sI sK sK sK sK si si}", "type", ev.type, "pid", ev.pid, "peer_id",
			     (unsigned long long)ev.peer_id, "extents",
			     (unsigned long long)ev.extents, "bytes", (unsigned long long)ev.bytes,
			     "lost", (unsigned long long)ev.lost, "signal", ev.signal, "exit_code",
			     ev.exit_code);
}

static PyObject *arena_channel(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"name", "create", "capacity", "flags", NULL};
	struct sluice_channel_opts opts = {.sz = sizeof(opts)};
	const char *name;
	int create = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "s|pO&O&", names, &name, &create, u32_from,
					 &opts.capacity, u32_from, &opts.flags))
		return NULL;
	return channel_new(self, name, &opts, create);
}

/* _open(token): a read-only reference to a batch that another peer holds. */
static PyObject *arena_open(PyObject *self, PyObject *args)
{
	struct arena_ref *ar = arena_of(self);
	unsigned long long token;
	struct sluice_batch *b;
	int rc;

	if (!ar || !PyArg_ParseTuple(args, "K", &token))
		return NULL;
	rc = sluice_batch_open(ar->a, &b, token);
	return rc ? raise_errno(rc) : batch_new_held(ar, b);
}

static PyObject *arena_pin(PyObject *self, PyObject *unused)
{
	struct sluice_arena_info in = {.sz = sizeof(in)};
	struct arena_ref *ar = arena_of(self);
	struct gpu_pin *pin;

	if (!ar)
		return NULL;
	if (ar->pin)
		Py_RETURN_NONE;
	sluice_arena_info(ar->a, &in);
	arena_ref_get(ar); /* another thread may close it meanwhile */
	pin = gpu_pin_create(in.data, in.data_bytes);
	if (pin) {
		ar->pin = pin;
		ar->retire = true;
	}
	arena_ref_put(ar);
	if (!pin)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *arena_retire(PyObject *self, PyObject *on)
{
	struct arena_ref *ar = arena_of(self);

	if (!ar)
		return NULL;
	ar->retire = PyObject_IsTrue(on);
	Py_RETURN_NONE;
}

static PyObject *arena_get_pinned(PyObject *obj, void *unused)
{
	struct arena_ref *ar = ((struct py_arena *)obj)->ar;

	return PyBool_FromLong(ar && ar->gen == fork_gen && ar->pin);
}

static PyObject *arena_get_closed(PyObject *obj, void *unused)
{
	return PyBool_FromLong(!((struct py_arena *)obj)->ar);
}

static PyMethodDef arena_methods[] = {
	{"attach", arena_attach, METH_VARARGS | METH_CLASS,
	 "attach(fd, data_fd=0, consumer=False)"},
	{"recv", arena_recv, METH_VARARGS | METH_CLASS, "recv(sock_fd, consumer=False)"},
	{"send", arena_send, METH_VARARGS, "send(sock_fd, consumer=False)"},
	{"close", arena_close, METH_NOARGS, "Let go; detaches when the last view is gone."},
	{"fd", arena_fd, METH_NOARGS, "Descriptor of the control region."},
	{"data_fd", arena_data_fd, METH_NOARGS, "Descriptor of the data region, or below 0."},
	{"info", arena_info, METH_NOARGS, "Facts about the arena."},
	{"usage", arena_usage, METH_NOARGS, "How full the arena is."},
	{"peers", arena_peers, METH_NOARGS, "Who is attached and what they hold."},
	{"event", arena_event, METH_VARARGS, "event(timeout=None): next event or None."},
	{"_channel", (PyCFunction)(void (*)(void))arena_channel, METH_VARARGS | METH_KEYWORDS, ""},
	{"_open", arena_open, METH_VARARGS, ""},
	{"_pin", arena_pin, METH_NOARGS, "Register with the GPU of the current context."},
	{"_retire", arena_retire, METH_O, "Queue releases for retired_take()."},
	{NULL},
};

static PyGetSetDef arena_getset[] = {
	{"pinned", arena_get_pinned, NULL, "whether it is registered with the GPU", NULL},
	{"closed", arena_get_closed, NULL, "whether close() was called", NULL},
	{NULL},
};

static PyType_Slot arena_slots[] = {
	{Py_tp_new, arena_create},
	{Py_tp_dealloc, arena_dealloc},
	{Py_tp_methods, arena_methods},
	{Py_tp_getset, arena_getset},
	{0, NULL},
};

static PyType_Spec arena_spec = {
	.name = "sluice._sluice.Arena",
	.basicsize = sizeof(struct py_arena),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = arena_slots,
};

int arena_type_init(PyObject *mod)
{
	arena_type = (PyTypeObject *)PyType_FromSpec(&arena_spec);
	return module_add_type(mod, "Arena", arena_type);
}
