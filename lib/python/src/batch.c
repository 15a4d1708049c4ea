// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "pysluice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *batch_type;

struct py_batch {
	PyObject_HEAD struct arena_ref *ar;
	PyObject *channel; /* that it was begun on: what is being written needs the endpoint */
	struct sluice_batch *writing; /* until published or aborted */
	struct anchor *held; /* until released */
	struct anchor *pieces; /* while writing: of memory that was handed out by piece() */
	unsigned int gen;
};

static struct py_batch *batch_alloc(struct arena_ref *ar)
{
	struct py_batch *self = PyObject_New(struct py_batch, batch_type);

	if (!self)
		return NULL;
	self->ar = arena_ref_get(ar);
	self->channel = NULL;
	self->writing = NULL;
	self->held = NULL;
	self->pieces = NULL;
	self->gen = fork_gen;
	return self;
}

static bool batch_hold(struct py_batch *self, struct sluice_batch *b)
{
	if (self->pieces) {
		/* What was built in it holds it from now on, beside this object. */
		self->held = self->pieces;
		self->pieces = NULL;
		self->held->kind = ANCHOR_BATCH;
	} else {
		self->held = anchor_new(ANCHOR_BATCH, self->ar);
	}
	if (!self->held) {
		PyErr_NoMemory();
		return false;
	}
	self->held->batch = b;
	return true;
}

PyObject *batch_new_held(struct arena_ref *ar, struct sluice_batch *b)
{
	struct py_batch *self = batch_alloc(ar);

	if (!self || !batch_hold(self, b)) {
		sluice_batch_release(b);
		Py_CLEAR(self);
	}
	return (PyObject *)self;
}

PyObject *batch_new_writing(struct arena_ref *ar, PyObject *channel, struct sluice_batch *b)
{
	struct py_batch *self = batch_alloc(ar);

	if (!self) {
		sluice_batch_abort(b);
		return NULL;
	}
	Py_INCREF(channel);
	self->channel = channel;
	self->writing = b;
	return (PyObject *)self;
}

static void batch_drop(struct py_batch *self)
{
	struct sluice_batch *writing = self->writing;
	struct anchor *held = self->held, *pieces = self->pieces;

	self->writing = NULL;
	self->held = NULL;
	self->pieces = NULL;
	if (writing && self->gen == fork_gen)
		sluice_batch_abort(writing);
	anchor_put(held);
	anchor_put(pieces);
}

static void batch_dealloc(struct py_batch *self)
{
	PyTypeObject *tp = Py_TYPE((PyObject *)self);

	batch_drop(self);
	Py_XDECREF(self->channel);
	arena_ref_put(self->ar);
	PyObject_Free(self);
	Py_DECREF(tp);
}

static struct sluice_batch *batch_held(struct py_batch *self)
{
	if (self->held && self->gen == fork_gen)
		return self->held->batch;
	if (self->held)
		PyErr_SetString(PyExc_ValueError, "the batch belongs to the parent process");
	else if (self->writing)
		PyErr_SetString(PyExc_ValueError, "the batch is still being written");
	else
		PyErr_SetString(PyExc_ValueError, "the batch is released");
	return NULL;
}

struct sluice_batch *batch_held_of(PyObject *batch)
{
	return batch_held((struct py_batch *)batch);
}

PyObject *batch_again(PyObject *batch)
{
	struct py_batch *self = (struct py_batch *)batch, *again;

	if (!batch_held(self))
		return NULL;
	again = batch_alloc(self->ar);
	if (again)
		again->held = anchor_get(self->held);
	return (PyObject *)again;
}

static struct sluice_batch *batch_writing(struct py_batch *self)
{
	if (self->writing && self->gen == fork_gen)
		return self->writing;
	PyErr_SetString(PyExc_ValueError, "the batch is not being written any more");
	return NULL;
}

/* ------------------------------------------------------------------ writing */

static int dims_parse(PyObject *seq, int64_t *out, uint32_t *n)
{
	Py_ssize_t len = PySequence_Size(seq);

	if (len < 0)
		return -1;
	if (len > SLUICE_MAX_DIMS) {
		PyErr_Format(PyExc_ValueError, "%zd dimensions, at most %d are possible", len,
			     SLUICE_MAX_DIMS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < len; i++) {
		PyObject *o = PySequence_GetItem(seq, i);

		out[i] = o ? PyLong_AsLongLong(o) : -1;
		Py_XDECREF(o);
		if (out[i] < 0) {
			if (!PyErr_Occurred())
				PyErr_SetString(PyExc_ValueError, "a dimension is negative");
			return -1;
		}
	}
	*n = len;
	return 0;
}

static PyObject *batch_add(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_writing(self);
	PyObject *shape, *strides = Py_None, *view;
	struct view_shape sh = {.dtype.lanes = 1};
	uint64_t bytes = 0, last = 1;
	struct anchor *an;
	const char *name;
	int code, bits;
	uint32_t n;
	void *p;

	if (!b || !PyArg_ParseTuple(args, "s(ii)O|O", &name, &code, &bits, &shape, &strides) ||
	    dims_parse(shape, sh.shape, &sh.ndim))
		return NULL;
	if (code < 0 || code > UINT8_MAX || bits < 0 || bits > UINT8_MAX)
		return PyErr_Format(PyExc_ValueError, "dtype (%d, %d): both are 0 to %d", code,
				    bits, UINT8_MAX);
	sh.dtype.code = (uint8_t)code;
	sh.dtype.bits = (uint8_t)bits;
	if (strides != Py_None) {
		if (dims_parse(strides, sh.strides, &n))
			return NULL;
		if (n != sh.ndim) {
			PyErr_Format(PyExc_ValueError, "%d strides for %d dimensions", (int)n,
				     (int)sh.ndim);
			return NULL;
		}
	} else {
		for (uint32_t i = sh.ndim; i-- > 0;) {
			sh.strides[i] = last;
			last *= sh.shape[i] ? sh.shape[i] : 1;
		}
	}
	p = sluice_batch_tensor_add(b, name, sh.dtype, sh.ndim, sh.shape, sh.strides);
	if (!p)
		return raise_errno(errno);
	bytes = 1;
	for (uint32_t i = 0; i < sh.ndim; i++) {
		bytes += (sh.shape[i] - 1) * sh.strides[i];
		if (!sh.shape[i]) {
			bytes = 0;
			break;
		}
	}
	an = anchor_new(ANCHOR_ARENA, self->ar);
	if (!an)
		return PyErr_NoMemory();
	view = view_new(an, p, bytes * sh.dtype.bits / 8, &sh, false);
	anchor_put(an);
	return view;
}

static PyObject *batch_add_bytes(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_writing(self);
	const char *name;
	Py_buffer buf;
	void *p;

	if (!b || !PyArg_ParseTuple(args, "sy*", &name, &buf))
		return NULL;
	p = sluice_batch_bytes_add(b, name, buf.buf, buf.len);
	PyBuffer_Release(&buf);
	if (!p)
		return raise_errno(errno);
	Py_RETURN_NONE;
}

static PyObject *batch_set_tag(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_writing(self);
	unsigned long long tag;

	if (!b || !PyArg_ParseTuple(args, "K", &tag))
		return NULL;
	sluice_batch_tag(b, tag);
	Py_RETURN_NONE;
}

int batch_publish_to(PyObject *batch, uint64_t deadline, PyObject *alive)
{
	struct py_batch *self = (struct py_batch *)batch;
	struct sluice_batch *b = batch_writing(self);
	int rc;

	if (!b)
		return -EINVAL;
	/* Nobody else may publish it while the GIL is away. */
	self->writing = NULL;
	rc = channel_publish(self->channel, b, deadline, alive);
	if (rc)
		self->writing = b;
	return rc;
}

static PyObject *batch_publish(PyObject *self, PyObject *args)
{
	PyObject *timeout = Py_None, *alive = Py_None;
	uint64_t deadline;

	if (!PyArg_ParseTuple(args, "|OO", &timeout, &alive) || deadline_from(timeout, &deadline) ||
	    batch_publish_to(self, deadline, alive))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *batch_seal(struct py_batch *self, PyObject *unused)
{
	struct sluice_batch *b = batch_writing(self);
	int rc;

	if (!b || !channel_is_open(self->channel))
		return NULL;
	rc = sluice_batch_seal(b);
	if (rc)
		return raise_errno(rc);
	self->writing = NULL;
	if (!batch_hold(self, b)) {
		sluice_batch_release(b);
		return NULL;
	}
	Py_RETURN_NONE;
}

/*
 * piece(address, len): bytes of the extent being written.  After seal() they keep the batch as its
 * held object does; with publish() and release() whoever has them must not use them any more.
 */
static PyObject *batch_piece(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_writing(self);
	unsigned long long addr, len;

	if (!b || !PyArg_ParseTuple(args, "KK", &addr, &len))
		return NULL;
	if (!self->pieces) {
		self->pieces = anchor_new(ANCHOR_ARENA, self->ar);
		if (!self->pieces)
			return PyErr_NoMemory();
	}
	return view_bytes(self->pieces, (void *)(uintptr_t)addr, len, false);
}

static PyObject *batch_get_pieces(struct py_batch *self, void *unused)
{
	return PyBool_FromLong(self->pieces && atomic_load(&self->pieces->refs) > 1);
}

/* write(plan): the whole batch is one object. */
static PyObject *batch_write(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_writing(self);
	PyObject *plan;
	int64_t len;
	void *dst;

	if (!b || !PyArg_ParseTuple(args, "O!", plan_type, &plan))
		return NULL;
	len = plan_bytes(plan);
	dst = sluice_batch_tensor_add(b, "py", SLUICE_U8, 1, &len, NULL);
	if (!dst)
		return raise_errno(errno);
	if (plan_write(plan, dst))
		return NULL;
	Py_RETURN_NONE;
}

/* write_plan(view_ptr, plan): copies a plan to where it was planned for. */
static PyObject *batch_write_plan(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_writing(self);
	unsigned long long ptr;
	PyObject *plan;

	if (!b || !PyArg_ParseTuple(args, "KO!", &ptr, plan_type, &plan))
		return NULL;
	if (plan_write(plan, (void *)(uintptr_t)ptr))
		return NULL;
	Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ reading */

static PyObject *batch_info(struct py_batch *self, PyObject *unused)
{
	struct sluice_batch_info in = {.sz = sizeof(in)};
	struct sluice_batch *b = batch_held(self);
	int rc;

	if (!b)
		return NULL;
	rc = sluice_batch_info(b, &in);
	if (rc)
		return raise_errno(rc);
	return Py_BuildValue("{sI sI sK sK sK sK sK sK sK}", "tensors", in.tensors, "blobs",
			     in.blobs, "payload", (unsigned long long)(uintptr_t)in.payload,
			     "payload_bytes", (unsigned long long)in.payload_bytes,
			     "payload_offset", (unsigned long long)in.payload_offset,
			     "extent_bytes", (unsigned long long)in.extent_bytes, "producer",
			     (unsigned long long)in.producer, "sequence",
			     (unsigned long long)in.sequence, "tag", (unsigned long long)in.tag);
}

static PyObject *batch_tensor(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_held(self);
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct view_shape sh;
	PyObject *view;
	unsigned int i;
	int rc;

	if (!b || !PyArg_ParseTuple(args, "I", &i))
		return NULL;
	rc = sluice_batch_tensor(b, i, &t);
	if (rc)
		return raise_errno(rc);
	sh.dtype = t.dtype;
	sh.ndim = t.ndim;
	memcpy(sh.shape, t.shape, t.ndim * sizeof(*sh.shape));
	memcpy(sh.strides, t.strides, t.ndim * sizeof(*sh.strides));
	view = view_new(self->held, t.data, t.bytes, &sh, false);
	return view ? Py_BuildValue("(sN)", t.name, view) : NULL;
}

static PyObject *batch_blob(struct py_batch *self, PyObject *args)
{
	struct sluice_batch *b = batch_held(self);
	const void *data;
	const char *name;
	uint64_t len;
	int rc;

	if (!b || !PyArg_ParseTuple(args, "s", &name))
		return NULL;
	rc = sluice_batch_bytes(b, name, &data, &len);
	if (rc == -ENOENT)
		return PyErr_Format(PyExc_KeyError, "the batch has no blob '%s'", name);
	if (rc)
		return raise_errno(rc);
	return PyBytes_FromStringAndSize(data, len);
}

static PyObject *batch_blob_names(struct py_batch *self, PyObject *unused)
{
	struct sluice_batch_info in = {.sz = sizeof(in)};
	struct sluice_batch *b = batch_held(self);
	PyObject *list;

	if (!b)
		return NULL;
	sluice_batch_info(b, &in);
	list = PyList_New(0);
	for (unsigned int i = 0; list && i < in.blobs; i++) {
		const char *name = NULL;
		const void *data;
		PyObject *o;
		uint64_t len;

		if (sluice_batch_blob(b, i, &name, &data, &len))
			break;
		o = PyUnicode_FromString(name);
		if (!o || PyList_Append(list, o))
			Py_CLEAR(list);
		Py_XDECREF(o);
	}
	return list;
}

static bool batch_object(struct py_batch *self, struct sluice_tensor *t)
{
	struct sluice_batch *b = batch_held(self);
	int rc;

	if (!b)
		return false;
	rc = sluice_batch_tensor(b, 0, t);
	if (rc) {
		raise_errno(rc);
		return false;
	}
	if (strcmp(t->name, "py")) {
		PyErr_Format(PyExc_ValueError, "the batch holds '%s', no Python object", t->name);
		return false;
	}
	return true;
}

/* decode(codec, private): private copies a small message out and frees its extent at once. */
static PyObject *batch_decode(struct py_batch *self, PyObject *args)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct anchor *an;
	PyObject *codec, *out;
	int private = 0;

	if (!PyArg_ParseTuple(args, "O|p", &codec, &private) || !batch_object(self, &t))
		return NULL;
	if (!private)
		return decode(self->held, t.data, t.bytes, codec);
	an = anchor_new(ANCHOR_HEAP, NULL);
	if (!an || posix_memalign(&an->mem, 256, t.bytes ? t.bytes : 1)) {
		free(an);
		return PyErr_NoMemory();
	}
	memcpy(an->mem, t.data, t.bytes);
	an->len = t.bytes;
	batch_drop(self);
	out = decode(an, an->mem, an->len, codec);
	anchor_put(an);
	return out;
}

static PyObject *batch_count(struct py_batch *self, PyObject *unused)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	Py_ssize_t n;

	if (!batch_object(self, &t))
		return NULL;
	n = decode_count(t.data, t.bytes);
	return n < 0 ? NULL : PyLong_FromSsize_t(n);
}

static PyObject *batch_item(struct py_batch *self, PyObject *args)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	Py_ssize_t i, n;
	PyObject *codec;

	if (!PyArg_ParseTuple(args, "nO", &i, &codec) || !batch_object(self, &t))
		return NULL;
	n = decode_count(t.data, t.bytes);
	if (n < 0)
		return NULL;
	if (i < 0 || i >= n) {
		PyErr_Format(PyExc_IndexError, "item %zd of %zd", i, n);
		return NULL;
	}
	return decode_item(self->held, t.data, t.bytes, i, codec);
}

static PyObject *batch_token(struct py_batch *self, PyObject *unused)
{
	struct sluice_batch *b = batch_held(self);
	uint64_t token;
	int rc;

	if (!b)
		return NULL;
	rc = sluice_batch_token(b, &token);
	return rc ? raise_errno(rc) : PyLong_FromUnsignedLongLong(token);
}

static PyObject *batch_release(struct py_batch *self, PyObject *unused)
{
	batch_drop(self);
	Py_RETURN_NONE;
}

static PyObject *batch_get_tag(struct py_batch *self, void *unused)
{
	struct sluice_batch_info in = {.sz = sizeof(in)};
	struct sluice_batch *b = batch_held(self);

	if (!b)
		return NULL;
	sluice_batch_info(b, &in);
	return PyLong_FromUnsignedLongLong(in.tag);
}

static PyObject *batch_get_state(struct py_batch *self, void *unused)
{
	return PyUnicode_FromString(self->writing ? "writing" : self->held ? "held" : "released");
}

static PyMethodDef batch_methods[] = {
	{"add", (PyCFunction)batch_add, METH_VARARGS,
	 "add(name, (code, bits), shape, strides=None): a View to write to."},
	{"add_bytes", (PyCFunction)batch_add_bytes, METH_VARARGS, "add_bytes(name, data)"},
	{"set_tag", (PyCFunction)batch_set_tag, METH_VARARGS, "Attach a number."},
	{"publish", (PyCFunction)batch_publish, METH_VARARGS, "publish(timeout=None, alive=None)"},
	{"seal", (PyCFunction)batch_seal, METH_NOARGS, "Finish writing and hold the batch."},
	{"write", (PyCFunction)batch_write, METH_VARARGS, "write(plan): one object"},
	{"write_plan", (PyCFunction)batch_write_plan, METH_VARARGS, "write_plan(ptr, plan)"},
	{"info", (PyCFunction)batch_info, METH_NOARGS, "Facts about the batch."},
	{"tensor_at", (PyCFunction)batch_tensor, METH_VARARGS, "(name, View) of tensor i."},
	{"blob", (PyCFunction)batch_blob, METH_VARARGS, "Bytes of a blob by name."},
	{"blob_names", (PyCFunction)batch_blob_names, METH_NOARGS, "Names of the blobs."},
	{"decode", (PyCFunction)batch_decode, METH_VARARGS, "decode(codec, private=False)"},
	{"count", (PyCFunction)batch_count, METH_NOARGS, "Items of encode_items()."},
	{"item", (PyCFunction)batch_item, METH_VARARGS, "item(i, codec): one of them"},
	{"piece", (PyCFunction)batch_piece, METH_VARARGS, "piece(address, len): a View of it"},
	{"token", (PyCFunction)batch_token, METH_NOARGS, "Names the batch for Arena._open()."},
	{"release", (PyCFunction)batch_release, METH_NOARGS, "Let go, or give up writing."},
	{NULL},
};

static PyGetSetDef batch_getset[] = {
	{"tag", (getter)batch_get_tag, NULL, "number attached by the producer", NULL},
	{"pieces", (getter)batch_get_pieces, NULL, "whether what piece() gave is in use", NULL},
	{"state", (getter)batch_get_state, NULL, "writing, held or released", NULL},
	{NULL},
};

static PyType_Slot batch_slots[] = {
	{Py_tp_dealloc, batch_dealloc},
	{Py_tp_methods, batch_methods},
	{Py_tp_getset, batch_getset},
	{Py_tp_doc, "One extent: being written, or held."},
	{0, NULL},
};

static PyType_Spec batch_spec = {
	.name = "sluice._sluice.Batch",
	.basicsize = sizeof(struct py_batch),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = batch_slots,
};

int batch_type_init(PyObject *mod)
{
	batch_type = (PyTypeObject *)PyType_FromSpec(&batch_spec);
	return module_add_type(mod, "Batch", batch_type);
}
