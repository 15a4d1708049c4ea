// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Decoding reads the structure from a private copy, checks every offset and length against the
 * extent, and builds tensors, arrays and buffers over the extent itself.
 */
#include "pysluice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "wire.h"

struct reader {
	struct anchor *an;
	char *mem;
	uint64_t len;
	const char *p, *end;
	PyObject *codec;
	PyObject *memo;
	PyObject *classes;
};

static PyObject *damaged(const char *what)
{
	PyErr_Format(PyExc_ValueError, "the extent holds a damaged object: %s", what);
	return NULL;
}

static bool take(struct reader *r, void *out, uint64_t n)
{
	if ((uint64_t)(r->end - r->p) < n) {
		damaged("the structure ends early");
		return false;
	}
	memcpy(out, r->p, n);
	r->p += n;
	return true;
}

static bool take_u8(struct reader *r, uint8_t *v)
{
	return take(r, v, sizeof(*v));
}

static bool take_u32(struct reader *r, uint32_t *v)
{
	return take(r, v, sizeof(*v));
}

static bool take_u64(struct reader *r, uint64_t *v)
{
	return take(r, v, sizeof(*v));
}

/* A count of things of at least @size bytes each that are still to come. */
static bool take_count(struct reader *r, uint32_t *n, uint64_t size)
{
	if (!take_u32(r, n))
		return false;
	if (*n * size > (uint64_t)(r->end - r->p)) {
		damaged("a count is larger than the structure");
		return false;
	}
	return true;
}

static bool take_range(struct reader *r, uint64_t *off, uint64_t *len)
{
	if (!take_u64(r, off) || !take_u64(r, len))
		return false;
	if (*off > r->len || *len > r->len - *off) {
		damaged("a part lies outside the extent");
		return false;
	}
	return true;
}

static const char *take_inline(struct reader *r, uint32_t *n)
{
	const char *p;

	if (!take_count(r, n, 1))
		return NULL;
	p = r->p;
	r->p += *n;
	return p;
}

static PyObject *read_value(struct reader *r);

static PyObject *remember(struct reader *r, PyObject *o)
{
	/* Nothing comes that could refer to it. */
	if (!o || r->p == r->end)
		return o;
	if (!r->memo)
		r->memo = PyList_New(0);
	if (!r->memo || PyList_Append(r->memo, o))
		Py_CLEAR(o);
	return o;
}

static PyObject *read_ref(struct reader *r)
{
	PyObject *o;
	uint32_t n;

	if (!take_u32(r, &n))
		return NULL;
	if (!r->memo || n >= (uint64_t)PyList_Size(r->memo))
		return damaged("a reference to nothing");
	o = PyList_GetItem(r->memo, n);
	Py_INCREF(o);
	return o;
}

static PyObject *read_list(struct reader *r)
{
	PyObject *list;
	uint32_t n;

	if (!take_count(r, &n, 1))
		return NULL;
	list = remember(r, PyList_New(n));
	for (uint32_t i = 0; list && i < n; i++) {
		PyObject *v = read_value(r);

		if (!v)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, i, v);
	}
	return list;
}

static PyObject *read_tuple(struct reader *r)
{
	PyObject *t;
	uint32_t n;

	if (!take_count(r, &n, 1))
		return NULL;
	t = PyTuple_New(n);
	for (uint32_t i = 0; t && i < n; i++) {
		PyObject *v = read_value(r);

		if (!v)
			Py_CLEAR(t);
		else
			PyTuple_SetItem(t, i, v);
	}
	return t;
}

static int read_pairs(struct reader *r, PyObject *dict)
{
	uint32_t n;

	if (!take_count(r, &n, 2))
		return -1;
	for (uint32_t i = 0; i < n; i++) {
		PyObject *k = read_value(r), *v = k ? read_value(r) : NULL;
		int rc = v ? PyDict_SetItem(dict, k, v) : -1;

		Py_XDECREF(k);
		Py_XDECREF(v);
		if (rc)
			return -1;
	}
	return 0;
}

static PyObject *read_dict(struct reader *r)
{
	PyObject *d = remember(r, PyDict_New());

	if (d && read_pairs(r, d))
		Py_CLEAR(d);
	return d;
}

static PyObject *text(uint8_t kind, const char *p, uint64_t len)
{
	return kind == WIRE_STR ? PyUnicode_DecodeUTF8(p, len, NULL)
				: PyBytes_FromStringAndSize(p, len);
}

#define HEAP_KEEP_MAX (16UL << 20)

/*
 * The strings of one object are often freed when those of the next are there.  malloc returns what
 * is free at the end of its heap to the kernel, and gets it back page by page, until it has seen a
 * block of that size come and go: that costs several times what making the strings does.
 */
static void heap_keep(uint64_t bytes)
{
	static _Atomic(uint64_t) kept;
	void *volatile block;

	bytes = bytes < HEAP_KEEP_MAX ? bytes : HEAP_KEEP_MAX;
	if (bytes <= atomic_load_explicit(&kept, memory_order_relaxed))
		return;
	atomic_store_explicit(&kept, bytes, memory_order_relaxed);
	block = malloc(bytes);
	free(block);
}

static PyObject *read_strings(struct reader *r)
{
	uint64_t table, off, len, from, to = 0;
	uint8_t kind, container;
	PyObject *seq;
	uint32_t n;

	if (!take_u8(r, &kind) || !take_u8(r, &container) || !take_u32(r, &n) ||
	    !take_u64(r, &table) || !take_range(r, &off, &len))
		return NULL;
	if (table > r->len || (n + 1ULL) * sizeof(uint64_t) > r->len - table)
		return damaged("a string table lies outside the extent");
	heap_keep(2 * len); /* those that are freed, and the new */
	seq = container == WIRE_LIST ? remember(r, PyList_New(n)) : PyTuple_New(n);
	for (uint32_t i = 0; seq && i < n; i++) {
		PyObject *s;

		from = to;
		memcpy(&to, r->mem + table + (i + 1ULL) * sizeof(to), sizeof(to));
		if (to < from || to > len) {
			Py_DECREF(seq);
			return damaged("string positions are not in order");
		}
		s = text(kind, r->mem + off + from, to - from);
		if (!s)
			Py_CLEAR(seq);
		else if (container == WIRE_LIST)
			PyList_SetItem(seq, i, s);
		else
			PyTuple_SetItem(seq, i, s);
	}
	return seq;
}

static PyObject *read_pickle(struct reader *r)
{
	PyObject *bufs, *out = NULL;
	const char *data;
	uint32_t len, n;

	data = take_inline(r, &len);
	if (!data || !take_count(r, &n, 17))
		return NULL;
	bufs = PyList_New(n);
	for (uint32_t i = 0; bufs && i < n; i++) {
		uint64_t off, blen;
		uint8_t readonly;
		PyObject *v = NULL;

		if (take_range(r, &off, &blen) && take_u8(r, &readonly))
			v = view_bytes(r->an, r->mem + off, blen, readonly);
		if (!v)
			Py_CLEAR(bufs);
		else
			PyList_SetItem(bufs, i, v);
	}
	if (bufs)
		out = PyObject_CallMethod(r->codec, "unpickle", "y#O", data, (Py_ssize_t)len, bufs);
	Py_XDECREF(bufs);
	return remember(r, out);
}

/* Takes the capsule.  Most tensors are nothing but their memory: codec.plain_tensor is torch's own. */
static PyObject *make_tensor(PyObject *codec, PyObject *cap, uint32_t extra)
{
	static PyObject *name;
	PyObject *plain = NULL, *t;

	if (!extra) {
		if (!name)
			name = PyUnicode_InternFromString("plain_tensor");
		plain = name ? PyObject_GetAttr(codec, name) : NULL;
		if (!plain) {
			Py_DECREF(cap);
			return NULL;
		}
	}
	if (!plain || plain == Py_None) {
		Py_XDECREF(plain);
		return PyObject_CallMethod(codec, "make_tensor", "NI", cap, extra);
	}
	t = PyObject_CallFunctionObjArgs(plain, cap, NULL);
	Py_DECREF(plain);
	Py_DECREF(cap);
	return t;
}

static PyObject *read_tensor(struct reader *r)
{
	struct view_shape sh = {.dtype.lanes = 1};
	uint64_t off, len;
	PyObject *cap;
	uint32_t extra;
	uint8_t ndim;

	if (!take_u8(r, &sh.dtype.code) || !take_u8(r, &sh.dtype.bits) || !take_u8(r, &ndim) ||
	    !take_u32(r, &extra) || !take_range(r, &off, &len))
		return NULL;
	if (ndim > SLUICE_MAX_DIMS)
		return damaged("a tensor of too many dimensions");
	sh.ndim = ndim;
	if (!take(r, sh.shape, ndim * sizeof(int64_t)) ||
	    !take(r, sh.strides, ndim * sizeof(int64_t)))
		return NULL;
	if (!shape_fits(&sh, len))
		return damaged("a tensor reaches outside its part");
	if (view_dlpack_new(r->an, r->mem + off, &sh, &cap))
		return NULL;
	return remember(r, make_tensor(r->codec, cap, extra));
}

static PyObject *read_array(struct reader *r)
{
	PyObject *view, *dims;
	uint8_t dlen, ndim;
	char dtype[256];
	uint64_t off, len;

	if (!take_u8(r, &dlen) || !take(r, dtype, dlen) || !take_u8(r, &ndim) ||
	    !take_range(r, &off, &len))
		return NULL;
	dims = PyTuple_New(ndim);
	for (uint8_t i = 0; dims && i < ndim; i++) {
		int64_t d;

		if (!take(r, &d, sizeof(d)))
			Py_CLEAR(dims);
		else
			PyTuple_SetItem(dims, i, PyLong_FromLongLong(d));
	}
	if (!dims)
		return NULL;
	view = view_bytes(r->an, r->mem + off, len, false);
	if (!view) {
		Py_DECREF(dims);
		return NULL;
	}
	/* NumPy itself checks the shape against the size of the buffer. */
	return remember(r, PyObject_CallMethod(r->codec, "make_array", "Ns#N", view, dtype,
					       (Py_ssize_t)dlen, dims));
}

static PyObject *read_class(struct reader *r)
{
	const char *data;
	PyObject *cls;
	uint32_t n, len;

	if (!take_u32(r, &n))
		return NULL;
	if (!r->classes)
		r->classes = PyList_New(0);
	if (!r->classes)
		return NULL;
	if (n > (uint64_t)PyList_Size(r->classes))
		return damaged("a class that was not named");
	if (n == (uint64_t)PyList_Size(r->classes)) {
		data = take_inline(r, &len);
		cls = data ? PyObject_CallMethod(r->codec, "load_class", "y#", data,
						 (Py_ssize_t)len)
			   : NULL;
		if (!cls || PyList_Append(r->classes, cls)) {
			Py_XDECREF(cls);
			return NULL;
		}
		return cls;
	}
	cls = PyList_GetItem(r->classes, n);
	Py_INCREF(cls);
	return cls;
}

static PyObject *read_named(struct reader *r)
{
	PyObject *cls = read_class(r), *items, *out = NULL;

	if (!cls)
		return NULL;
	items = read_tuple(r);
	if (items)
		out = PyObject_CallMethod((PyObject *)&PyTuple_Type, "__new__", "OO", cls, items);
	Py_XDECREF(items);
	Py_DECREF(cls);
	return out;
}

static PyObject *read_object(struct reader *r)
{
	PyObject *cls, *o, *state;
	uint8_t op;

	/* Numbered before its class is read, as the encoder does. */
	cls = read_class(r);
	if (!cls)
		return NULL;
	o = remember(r, PyObject_CallMethod((PyObject *)&PyBaseObject_Type, "__new__", "O", cls));
	Py_DECREF(cls);
	if (!o)
		return NULL;
	state = PyObject_GetAttrString(o, "__dict__");
	if (!state || !PyDict_Check(state) || !take_u8(r, &op) || read_pairs(r, state))
		Py_CLEAR(o);
	Py_XDECREF(state);
	return o;
}

static PyObject *read_text(struct reader *r, uint8_t kind)
{
	uint32_t n;
	const char *p = take_inline(r, &n);

	return p ? text(kind, p, n) : NULL;
}

#define HUGE_BYTES (4 << 20)
#define HUGE_PAGE  (2UL << 20)

/* A private copy.  Faulting in its pages one by one would take longer than the copy itself. */
static PyObject *bytes_large(const char *p, uint64_t len)
{
	PyObject *o = PyBytes_FromStringAndSize(NULL, len);
	uintptr_t from, to;
	char *dst;

	if (!o)
		return NULL;
	dst = PyBytes_AsString(o);
	from = ((uintptr_t)dst + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	to = ((uintptr_t)dst + len) & ~(HUGE_PAGE - 1);
	Py_BEGIN_ALLOW_THREADS;
	madvise((void *)from, to - from, MADV_HUGEPAGE);
	memcpy(dst, p, len);
	Py_END_ALLOW_THREADS;
	return o;
}

static PyObject *read_text_far(struct reader *r, uint8_t kind)
{
	uint64_t off, len;

	if (!take_range(r, &off, &len))
		return NULL;
	if (kind == WIRE_BYTES && len >= HUGE_BYTES)
		return bytes_large(r->mem + off, len);
	return text(kind, r->mem + off, len);
}

static PyObject *read_bytearray(struct reader *r)
{
	uint64_t off, len;

	if (!take_range(r, &off, &len))
		return NULL;
	return remember(r, PyByteArray_FromStringAndSize(r->mem + off, len));
}

static PyObject *read_op(struct reader *r, uint8_t op)
{
	long long i;
	double d;

	switch (op) {
	case WIRE_NONE:
		Py_RETURN_NONE;
	case WIRE_TRUE:
		Py_RETURN_TRUE;
	case WIRE_FALSE:
		Py_RETURN_FALSE;
	case WIRE_INT:
		return take(r, &i, sizeof(i)) ? PyLong_FromLongLong(i) : NULL;
	case WIRE_FLOAT:
		return take(r, &d, sizeof(d)) ? PyFloat_FromDouble(d) : NULL;
	case WIRE_STR:
	case WIRE_BYTES:
		return read_text(r, op);
	case WIRE_STR_FAR:
		return read_text_far(r, WIRE_STR);
	case WIRE_BYTES_FAR:
		return read_text_far(r, WIRE_BYTES);
	case WIRE_BYTEARRAY:
		return read_bytearray(r);
	case WIRE_LIST:
		return read_list(r);
	case WIRE_TUPLE:
		return read_tuple(r);
	case WIRE_DICT:
		return read_dict(r);
	case WIRE_STRINGS:
		return read_strings(r);
	case WIRE_REF:
		return read_ref(r);
	case WIRE_PICKLE:
		return read_pickle(r);
	case WIRE_TENSOR:
		return read_tensor(r);
	case WIRE_ARRAY:
		return read_array(r);
	case WIRE_NAMED:
		return read_named(r);
	case WIRE_OBJECT:
		return read_object(r);
	}
	return damaged("an unknown kind of value");
}

static PyObject *read_value(struct reader *r)
{
	PyObject *o;
	uint8_t op;

	if (!take_u8(r, &op) || Py_EnterRecursiveCall(" while decoding an object"))
		return NULL;
	o = read_op(r, op);
	Py_LeaveRecursiveCall();
	return o;
}

static bool header_read(const char *mem, uint64_t len, struct wire_header *h)
{
	if (len < sizeof(*h)) {
		damaged("it is shorter than its header");
		return false;
	}
	memcpy(h, mem, sizeof(*h));
	if (h->magic != WIRE_MAGIC) {
		damaged("no such format");
		return false;
	}
	if (h->structure > len || h->structure_len > len - h->structure) {
		damaged("the structure lies outside the extent");
		return false;
	}
	return true;
}

static PyObject *decode_part(struct anchor *an, const char *mem, uint64_t len, uint64_t from,
			     uint64_t n, PyObject *codec)
{
	struct reader r = {.an = an, .mem = (char *)mem, .len = len, .codec = codec};
	char small[512], *copy = small;
	PyObject *out;

	if (n > sizeof(small))
		copy = malloc(n);
	if (!copy)
		return PyErr_NoMemory();
	memcpy(copy, mem + from, n);
	r.p = copy;
	r.end = copy + n;
	out = read_value(&r);
	Py_XDECREF(r.memo);
	Py_XDECREF(r.classes);
	if (copy != small)
		free(copy);
	return out;
}

PyObject *decode(struct anchor *an, const char *mem, uint64_t len, PyObject *codec)
{
	struct wire_header h;

	if (!header_read(mem, len, &h))
		return NULL;
	return decode_part(an, mem, len, h.structure, h.structure_len, codec);
}

/* The number of items of encode_items(), or -1 with an exception. */
Py_ssize_t decode_count(const char *mem, uint64_t len)
{
	struct wire_header h;

	if (!header_read(mem, len, &h))
		return -1;
	if (h.items >= (len - sizeof(h)) / sizeof(uint64_t)) {
		damaged("the table of items lies outside the extent");
		return -1;
	}
	return h.items;
}

PyObject *decode_item(struct anchor *an, const char *mem, uint64_t len, uint64_t i, PyObject *codec)
{
	struct wire_header h;
	uint64_t pos[2];

	if (!header_read(mem, len, &h))
		return NULL;
	memcpy(pos, mem + sizeof(h) + i * sizeof(*pos), sizeof(pos));
	if (pos[0] > pos[1] || pos[1] > h.structure_len)
		return damaged("an item lies outside the structure");
	return decode_part(an, mem, len, h.structure + pos[0], pos[1] - pos[0], codec);
}
