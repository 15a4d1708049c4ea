// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Encoding is one walk over the object, which writes the structure and notes what has to be
 * copied.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

static int put_u8(struct plan *pl, uint8_t v)
{
	return plan_put(pl, &v, sizeof(v));
}

static int put_u32(struct plan *pl, uint32_t v)
{
	return plan_put(pl, &v, sizeof(v));
}

static int put_u64(struct plan *pl, uint64_t v)
{
	return plan_put(pl, &v, sizeof(v));
}

static int put_count(struct plan *pl, uint8_t op, Py_ssize_t n)
{
	if ((uint64_t)n > UINT32_MAX) {
		PyErr_Format(PyExc_OverflowError,
			     "a container of %zd items, at most %u are possible", n, UINT32_MAX);
		return -1;
	}
	return put_u8(pl, op) || put_u32(pl, n) ? -1 : 0;
}

/* ------------------------------------------------------------------ values */

static int encode(struct plan *pl, PyObject *o);

static int encode_far(struct plan *pl, uint8_t op, const void *p, uint64_t len)
{
	uint64_t off;

	if (plan_place(pl, p, len, WIRE_ALIGN_S, &off))
		return -1;
	return put_u8(pl, op) || put_u64(pl, off) || put_u64(pl, len) ? -1 : 0;
}

static int encode_pickle(struct plan *pl, PyObject *o)
{
	PyObject *pair, *data, *bufs, *owners;
	Py_ssize_t len, n;
	char *p;
	int rc;

	rc = plan_memo(pl, o);
	if (rc)
		return rc < 0 ? -1 : 0;
	pair = PyObject_CallMethod(pl->codec, "pickle", "(O)", o);
	if (!pair)
		return -1;
	rc = -1;
	if (!PyArg_ParseTuple(pair, "SO!O", &data, &PyList_Type, &bufs, &owners) ||
	    plan_keep(pl, owners) || PyBytes_AsStringAndSize(data, &p, &len) ||
	    put_count(pl, WIRE_PICKLE, len) || plan_put(pl, p, len))
		goto out;
	n = PyList_Size(bufs);
	if (put_u32(pl, n))
		goto out;
	for (Py_ssize_t i = 0; i < n; i++) {
		Py_buffer *b = plan_buffer(pl, PyList_GetItem(bufs, i), PyBUF_SIMPLE);
		uint64_t off;

		if (!b || plan_place(pl, b->buf, b->len, WIRE_ALIGN, &off) || put_u64(pl, off) ||
		    put_u64(pl, b->len) || put_u8(pl, b->readonly))
			goto out;
	}
	rc = 0;
out:
	Py_DECREF(pair);
	return rc;
}

static int encode_str(struct plan *pl, PyObject *o)
{
	Py_ssize_t len;
	const char *p = PyUnicode_AsUTF8AndSize(o, &len);

	if (!p) {
		/* a lone surrogate: pickle has its own way with it */
		if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
			return -1;
		PyErr_Clear();
		return encode_pickle(pl, o);
	}
	if (len < WIRE_INLINE)
		return put_count(pl, WIRE_STR, len) || plan_put(pl, p, len) ? -1 : 0;
	return plan_keep(pl, o) || encode_far(pl, WIRE_STR_FAR, p, len) ? -1 : 0;
}

static int encode_bytes(struct plan *pl, PyObject *o)
{
	Py_ssize_t len;
	char *p;

	if (PyBytes_AsStringAndSize(o, &p, &len))
		return -1;
	if (len < WIRE_INLINE)
		return put_count(pl, WIRE_BYTES, len) || plan_put(pl, p, len) ? -1 : 0;
	return plan_keep(pl, o) || encode_far(pl, WIRE_BYTES_FAR, p, len) ? -1 : 0;
}

static int encode_bytearray(struct plan *pl, PyObject *o)
{
	int rc = plan_memo(pl, o);
	Py_buffer *b;

	if (rc)
		return rc < 0 ? -1 : 0;
	b = plan_buffer(pl, o, PyBUF_SIMPLE);
	return b ? encode_far(pl, WIRE_BYTEARRAY, b->buf, b->len) : -1;
}

static int encode_int(struct plan *pl, PyObject *o)
{
	int over;
	long long v = PyLong_AsLongLongAndOverflow(o, &over);

	if (over)
		return encode_pickle(pl, o);
	if (v == -1 && PyErr_Occurred())
		return -1;
	return put_u8(pl, WIRE_INT) || plan_put(pl, &v, sizeof(v)) ? -1 : 0;
}

static bool span_of(PyObject *o, PyTypeObject *tp, struct span *sp)
{
	Py_ssize_t len;

	if (Py_TYPE(o) != tp)
		return false;
	if (tp == &PyUnicode_Type) {
		sp->p = PyUnicode_AsUTF8AndSize(o, &len);
		if (!sp->p) {
			PyErr_Clear();
			return false;
		}
	} else {
		sp->p = PyBytes_AsString(o);
		len = PyBytes_Size(o);
	}
	sp->len = len;
	return true;
}

/* 1: the sequence is all str or all bytes and is packed; 0: it is not; -1: exception. */
static int encode_strings(struct plan *pl, PyObject *seq, Py_ssize_t n, uint8_t container)
{
	PyObject *first = container == WIRE_LIST ? PyList_GetItem(seq, 0) : PyTuple_GetItem(seq, 0);
	PyTypeObject *tp = Py_TYPE(first);
	uint64_t total = 0, table = (n + 1) * sizeof(uint64_t);
	struct span *spans;
	struct item *it;
	PyObject *held;

	if (tp != &PyUnicode_Type && tp != &PyBytes_Type)
		return 0;
	held = container == WIRE_LIST ? PyList_AsTuple(seq) : PySequence_Tuple(seq);
	spans = malloc(n * sizeof(*spans));
	if (!held || !spans) {
		Py_XDECREF(held);
		free(spans);
		if (!PyErr_Occurred())
			PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		if (!span_of(PyTuple_GetItem(held, i), tp, &spans[i])) {
			Py_DECREF(held);
			free(spans);
			return 0;
		}
		total += spans[i].len;
	}
	if (plan_keep(pl, held)) {
		Py_DECREF(held);
		free(spans);
		return -1;
	}
	Py_DECREF(held);
	it = plan_item(pl, table + total, WIRE_ALIGN_S);
	if (!it) {
		free(spans);
		return -1;
	}
	it->spans = spans;
	it->nspans = n;
	return put_u8(pl, WIRE_STRINGS) ||
			       put_u8(pl, tp == &PyUnicode_Type ? WIRE_STR : WIRE_BYTES) ||
			       put_u8(pl, container) || put_u32(pl, n) || put_u64(pl, it->off) ||
			       put_u64(pl, it->off + table) || put_u64(pl, total)
		       ? -1
		       : 1;
}

#define STRINGS_MIN 4

static int encode_list(struct plan *pl, PyObject *o)
{
	Py_ssize_t n = PyList_Size(o);
	int rc = plan_memo(pl, o);

	if (rc)
		return rc < 0 ? -1 : 0;
	if (n >= STRINGS_MIN) {
		rc = encode_strings(pl, o, n, WIRE_LIST);
		if (rc)
			return rc < 0 ? -1 : 0;
	}
	if (put_count(pl, WIRE_LIST, n))
		return -1;
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *v = PyList_GetItem(o, i);

		if (!v)
			return -1;
		Py_INCREF(v);
		rc = encode(pl, v);
		Py_DECREF(v);
		if (rc)
			return -1;
	}
	return 0;
}

static int encode_items(struct plan *pl, PyObject *tuple, Py_ssize_t n)
{
	for (Py_ssize_t i = 0; i < n; i++)
		if (encode(pl, PyTuple_GetItem(tuple, i)))
			return -1;
	return 0;
}

static int encode_tuple(struct plan *pl, PyObject *o)
{
	Py_ssize_t n = PyTuple_Size(o);
	int rc;

	if (n >= STRINGS_MIN) {
		rc = encode_strings(pl, o, n, WIRE_TUPLE);
		if (rc)
			return rc < 0 ? -1 : 0;
	}
	return put_count(pl, WIRE_TUPLE, n) || encode_items(pl, o, n) ? -1 : 0;
}

static int encode_dict_items(struct plan *pl, PyObject *o)
{
	Py_ssize_t n = PyDict_Size(o), pos = 0, seen = 0;
	PyObject *k, *v;
	int rc;

	if (put_count(pl, WIRE_DICT, n))
		return -1;
	while (PyDict_Next(o, &pos, &k, &v)) {
		Py_INCREF(k);
		Py_INCREF(v);
		rc = encode(pl, k) || encode(pl, v);
		Py_DECREF(k);
		Py_DECREF(v);
		if (rc)
			return -1;
		seen++;
	}
	if (seen != n || PyDict_Size(o) != n) {
		PyErr_SetString(PyExc_RuntimeError, "a dict changed while it was encoded");
		return -1;
	}
	return 0;
}

static int encode_dict(struct plan *pl, PyObject *o)
{
	int rc = plan_memo(pl, o);

	return rc ? (rc < 0 ? -1 : 0) : encode_dict_items(pl, o);
}

static int encode_class(struct plan *pl, PyTypeObject *tp)
{
	PyObject *num = PyDict_GetItemWithError(pl->classes, (PyObject *)tp), *data;
	Py_ssize_t len;
	char *p;
	int rc;

	if (num)
		return put_u32(pl, PyLong_AsUnsignedLong(num));
	if (PyErr_Occurred())
		return -1;
	num = PyLong_FromSsize_t(PyDict_Size(pl->classes));
	if (!num)
		return -1;
	rc = PyDict_SetItem(pl->classes, (PyObject *)tp, num) ||
	     put_u32(pl, PyLong_AsUnsignedLong(num));
	Py_DECREF(num);
	if (rc)
		return -1;
	data = PyObject_CallMethod(pl->codec, "dump_class", "O", tp);
	rc = !data || PyBytes_AsStringAndSize(data, &p, &len) || put_u32(pl, len) ||
	     plan_put(pl, p, len);
	Py_XDECREF(data);
	return rc ? -1 : 0;
}

static int encode_named(struct plan *pl, PyObject *o)
{
	Py_ssize_t n = PyTuple_Size(o);

	return put_u8(pl, WIRE_NAMED) || encode_class(pl, Py_TYPE(o)) || put_u32(pl, n) ||
			       encode_items(pl, o, n)
		       ? -1
		       : 0;
}

static int encode_object(struct plan *pl, PyObject *o)
{
	int rc = plan_memo(pl, o);
	PyObject *state;

	if (rc)
		return rc < 0 ? -1 : 0;
	state = PyObject_GetAttrString(o, "__dict__");
	if (!state)
		return -1;
	rc = put_u8(pl, WIRE_OBJECT) || encode_class(pl, Py_TYPE(o)) ||
	     encode_dict_items(pl, state);
	Py_DECREF(state);
	return rc ? -1 : 0;
}

static int put_dims(struct plan *pl, PyObject *dims)
{
	Py_ssize_t n = PyTuple_Size(dims);

	for (Py_ssize_t i = 0; i < n; i++) {
		long long v = PyLong_AsLongLong(PyTuple_GetItem(dims, i));

		if ((v == -1 && PyErr_Occurred()) || plan_put(pl, &v, sizeof(v)))
			return -1;
	}
	return 0;
}

/*
 * codec.tensor(t) answers None for pickle, or (address or writer, bytes, code, bits, shape,
 * strides, extra, owner): a callable writer copies the elements to the address that it is given.
 */
static int encode_tensor(struct plan *pl, PyObject *o)
{
	PyObject *d, *src, *shape, *strides, *owner;
	unsigned long long bytes;
	unsigned int extra;
	struct item *it;
	int code, bits, rc;
	uint64_t off;

	d = PyObject_CallMethod(pl->codec, "tensor", "O", o);
	if (!d)
		return -1;
	if (d == Py_None) {
		Py_DECREF(d);
		return encode_pickle(pl, o);
	}
	rc = plan_memo(pl, o);
	if (rc) {
		Py_DECREF(d);
		return rc < 0 ? -1 : 0;
	}
	rc = -1;
	if (!PyArg_ParseTuple(d, "OKiiO!O!IO", &src, &bytes, &code, &bits, &PyTuple_Type, &shape,
			      &PyTuple_Type, &strides, &extra, &owner) ||
	    plan_keep(pl, owner))
		goto out;
	if (PyTuple_Size(shape) > SLUICE_MAX_DIMS || PyTuple_Size(shape) != PyTuple_Size(strides)) {
		PyErr_Format(PyExc_TypeError, "a tensor of %zd dimensions, at most %d are possible",
			     PyTuple_Size(shape), SLUICE_MAX_DIMS);
		goto out;
	}
	if (PyLong_Check(src)) {
		void *p = PyLong_AsVoidPtr(src);

		if ((!p && PyErr_Occurred()) || plan_place(pl, p, bytes, WIRE_ALIGN, &off))
			goto out;
	} else {
		it = plan_item(pl, bytes, WIRE_ALIGN);
		if (!it)
			goto out;
		Py_INCREF(src);
		it->call = src;
		off = it->off;
	}
	rc = put_u8(pl, WIRE_TENSOR) || put_u8(pl, code) || put_u8(pl, bits) ||
	     put_u8(pl, PyTuple_Size(shape)) || put_u32(pl, extra) || put_u64(pl, off) ||
	     put_u64(pl, bytes) || put_dims(pl, shape) || put_dims(pl, strides);
out:
	Py_DECREF(d);
	return rc ? -1 : 0;
}

/* codec.array(a) answers the dtype as a string, or None for pickle. */
static int encode_array(struct plan *pl, PyObject *o)
{
	PyObject *fmt = PyObject_CallMethod(pl->codec, "array", "O", o);
	const char *dtype;
	Py_ssize_t dlen;
	struct item *it;
	Py_buffer *b;
	uint64_t off;
	int rc;

	if (!fmt)
		return -1;
	if (fmt == Py_None) {
		Py_DECREF(fmt);
		return encode_pickle(pl, o);
	}
	rc = plan_memo(pl, o);
	if (rc) {
		Py_DECREF(fmt);
		return rc < 0 ? -1 : 0;
	}
	rc = -1;
	dtype = PyUnicode_AsUTF8AndSize(fmt, &dlen);
	b = plan_buffer(pl, o, PyBUF_STRIDED_RO);
	if (!dtype || dlen > 255 || !b)
		goto out;
	if (PyBuffer_IsContiguous(b, 'C')) {
		if (plan_place(pl, b->buf, b->len, WIRE_ALIGN, &off))
			goto out;
	} else {
		it = plan_item(pl, b->len, WIRE_ALIGN);
		if (!it)
			goto out;
		it->gather = b;
		off = it->off;
	}
	rc = put_u8(pl, WIRE_ARRAY) || put_u8(pl, dlen) || plan_put(pl, dtype, dlen) ||
	     put_u8(pl, b->ndim) || put_u64(pl, off) || put_u64(pl, b->len);
	for (int i = 0; !rc && i < b->ndim; i++)
		rc = put_u64(pl, b->shape[i]);
out:
	Py_DECREF(fmt);
	return rc ? -1 : 0;
}

static int classify(struct plan *pl, PyTypeObject *tp)
{
	PyObject *k = PyDict_GetItemWithError(pl->kinds, (PyObject *)tp);
	long v;

	if (k)
		return PyLong_AsLong(k);
	if (PyErr_Occurred())
		return -1;
	k = PyObject_CallMethod(pl->codec, "classify", "O", tp);
	if (!k)
		return -1;
	v = PyLong_AsLong(k);
	Py_DECREF(k);
	return v;
}

static int encode_other(struct plan *pl, PyObject *o)
{
	switch (classify(pl, Py_TYPE(o))) {
	case CLASS_PICKLE:
		return encode_pickle(pl, o);
	case CLASS_NAMEDTUPLE:
		return encode_named(pl, o);
	case CLASS_OBJECT:
		return encode_object(pl, o);
	case CLASS_TENSOR:
		return encode_tensor(pl, o);
	case CLASS_ARRAY:
		return encode_array(pl, o);
	}
	if (!PyErr_Occurred())
		PyErr_SetString(PyExc_SystemError, "codec.classify() answered nonsense");
	return -1;
}

static int encode(struct plan *pl, PyObject *o)
{
	PyTypeObject *tp = Py_TYPE(o);
	double d;
	int rc;

	if (o == Py_None)
		return put_u8(pl, WIRE_NONE);
	if (o == Py_True || o == Py_False)
		return put_u8(pl, o == Py_True ? WIRE_TRUE : WIRE_FALSE);
	if (tp == &PyLong_Type)
		return encode_int(pl, o);
	if (tp == &PyUnicode_Type)
		return encode_str(pl, o);
	if (tp == &PyFloat_Type) {
		d = PyFloat_AsDouble(o);
		return put_u8(pl, WIRE_FLOAT) || plan_put(pl, &d, sizeof(d)) ? -1 : 0;
	}
	if (tp == &PyBytes_Type)
		return encode_bytes(pl, o);
	if (tp == &PyByteArray_Type)
		return encode_bytearray(pl, o);
	if (Py_EnterRecursiveCall(" while encoding an object"))
		return -1;
	if (tp == &PyList_Type)
		rc = encode_list(pl, o);
	else if (tp == &PyTuple_Type)
		rc = encode_tuple(pl, o);
	else if (tp == &PyDict_Type)
		rc = encode_dict(pl, o);
	else
		rc = encode_other(pl, o);
	Py_LeaveRecursiveCall();
	return rc;
}

/* ------------------------------------------------------------------ entries */

/* encode(obj, codec, base=0, used=0): [base, base + used) stands in the extent already. */
PyObject *py_encode(PyObject *mod, PyObject *args)
{
	unsigned long long base = 0, used = 0;
	PyObject *obj, *codec;
	struct plan *pl;

	if (!PyArg_ParseTuple(args, "OO|KK", &obj, &codec, &base, &used))
		return NULL;
	pl = plan_new(codec);
	if (!pl)
		return NULL;
	pl->base = (const char *)(uintptr_t)base;
	pl->used = used;
	if (used > pl->end)
		pl->end = used;
	if (encode(pl, obj)) {
		Py_DECREF(pl);
		return NULL;
	}
	plan_finish(pl);
	return (PyObject *)pl;
}

/*
 * encode_items(seq, codec): every item stands for itself, and a table at the beginning of the
 * payload says where, so that one of them can be read without the others.
 */
PyObject *py_encode_items(PyObject *mod, PyObject *args)
{
	uint64_t table = sizeof(struct wire_header), *pos = NULL;
	PyObject *seq, *codec, *held = NULL;
	struct plan *pl;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "OO", &seq, &codec))
		return NULL;
	pl = plan_new(codec);
	if (!pl)
		return NULL;
	held = PySequence_Tuple(seq);
	if (!held || plan_keep(pl, held))
		goto fail;
	n = PyTuple_Size(held);
	pos = malloc((n + 1) * sizeof(*pos));
	if (!pos) {
		PyErr_NoMemory();
		goto fail;
	}
	pl->end = table + (n + 1) * sizeof(*pos);
	for (Py_ssize_t i = 0; i < n; i++) {
		pos[i] = pl->len;
		if (encode(pl, PyTuple_GetItem(held, i)))
			goto fail;
		if (pl->memo_n)
			plan_memo_reset(pl);
		if (PyDict_Size(pl->classes))
			PyDict_Clear(pl->classes);
	}
	pos[n] = pl->len;
	Py_DECREF(held);
	plan_finish(pl);
	pl->table = pos;
	pl->table_n = n;
	return (PyObject *)pl;
fail:
	free(pos);
	Py_XDECREF(held);
	Py_DECREF(pl);
	return NULL;
}
