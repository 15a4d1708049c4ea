// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Joining tensors by copying them one after another: what torch.stack() and torch.cat() of
 * contiguous rows come to.  A graph batch has thousands of tensors, so they are asked in C.
 */
#include "pysluice.h"

#include <stdlib.h>
#include <string.h>

struct part {
	const void *p;
	size_t len;
};

enum {
	N_DTYPE,
	N_LAYOUT,
	N_IS_CPU,
	N_REQUIRES_GRAD,
	N_SHAPE,
	N_IS_CONTIGUOUS,
	N_IS_NEG,
	N_HAS_NAMES,
	N_DATA_PTR,
	N_COUNT,
};

static PyObject *names[N_COUNT];

int join_init(void)
{
	static const char *const text[N_COUNT] = {
		"dtype",	 "layout", "is_cpu",	"requires_grad", "shape",
		"is_contiguous", "is_neg", "has_names", "data_ptr",
	};

	for (int i = 0; i < N_COUNT; i++) {
		names[i] = PyUnicode_InternFromString(text[i]);
		if (!names[i])
			return -1;
	}
	return 0;
}

/* Whether o has that very object as an attribute; -1 with an exception, like all of these. */
static int is(PyObject *o, int name, PyObject *want)
{
	PyObject *v = PyObject_GetAttr(o, names[name]);

	Py_XDECREF(v);
	return v ? v == want : -1;
}

static int says(PyObject *o, int name, bool want)
{
	PyObject *v = PyObject_CallMethodObjArgs(o, names[name], NULL);

	Py_XDECREF(v);
	return v ? v == (want ? Py_True : Py_False) : -1;
}

/*
 * Whether two shapes are the same but for one dimension (-1: in all); the number of elements, and
 * the size of that dimension.
 */
static int fits(PyObject *shape, PyObject *first, Py_ssize_t but, uint64_t *count, uint64_t *size)
{
	Py_ssize_t n = PyTuple_Size(shape);

	if (n != PyTuple_Size(first))
		return n < 0 || PyErr_Occurred() ? -1 : 0;
	*count = 1;
	*size = 1;
	for (Py_ssize_t i = 0; i < n; i++) {
		long long a = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
		long long b = PyLong_AsLongLong(PyTuple_GetItem(first, i));

		if ((a == -1 || b == -1) && PyErr_Occurred())
			return -1;
		if (i == but)
			*size = a;
		else if (a != b)
			return 0;
		*count *= a;
	}
	return 1;
}

struct look {
	PyTypeObject *type;
	PyObject *strided;
	PyObject *dtype;
	PyObject *shape;
	Py_ssize_t but;
	uint64_t item;
	bool rows; /* so far every tensor is one row of memory */
	uint64_t total;
};

static int look_at(struct look *l, PyObject *t, struct part *part)
{
	PyObject *shape, *ptr;
	uint64_t count, size;
	int rc;

	if (Py_TYPE(t) != l->type)
		return 0;
	rc = is(t, N_DTYPE, l->dtype);
	if (rc == 1)
		rc = is(t, N_LAYOUT, l->strided);
	if (rc == 1)
		rc = is(t, N_IS_CPU, Py_True);
	if (rc == 1)
		rc = is(t, N_REQUIRES_GRAD, Py_False);
	if (rc != 1)
		return rc;
	shape = PyObject_GetAttr(t, names[N_SHAPE]);
	if (!shape)
		return -1;
	rc = fits(shape, l->shape, l->but, &count, &size);
	Py_DECREF(shape);
	if (rc != 1)
		return rc;
	l->total += size;
	if (!l->rows)
		return 1;
	/* With the negative bit its memory is not what it is; names would be lost. */
	rc = says(t, N_IS_CONTIGUOUS, true);
	if (rc == 1)
		rc = says(t, N_IS_NEG, false);
	if (rc == 1)
		rc = says(t, N_HAS_NAMES, false);
	if (rc < 0)
		return -1;
	l->rows = rc;
	if (!l->rows)
		return 1;
	ptr = PyObject_CallMethodObjArgs(t, names[N_DATA_PTR], NULL);
	part->p = ptr ? PyLong_AsVoidPtr(ptr) : NULL;
	part->len = count * l->item;
	Py_XDECREF(ptr);
	/* Zeros that are known to be zeros have no memory. */
	if (!part->p && part->len)
		l->rows = false;
	return PyErr_Occurred() ? -1 : 1;
}

/*
 * join_look(tensors, dim or -1 to stack, want_rows, item bytes, type, strided, dtype, shape): None
 * if the tensors are not all plain ones of that dtype and of that shape (but for dim), else (size
 * of the joined dimension, rows or None).  copy_parts() takes the rows.
 */
PyObject *py_join_look(PyObject *mod, PyObject *args)
{
	PyObject *seq, *type, *out = NULL;
	unsigned long long item;
	struct part *parts;
	struct look l = {0};
	Py_ssize_t n;
	int want, rc = 1;

	if (!PyArg_ParseTuple(args, "OnpKOOOO!", &seq, &l.but, &want, &item, &type, &l.strided,
			      &l.dtype, &PyTuple_Type, &l.shape))
		return NULL;
	l.type = (PyTypeObject *)type;
	l.item = item;
	l.rows = want;
	seq = PySequence_Tuple(seq);
	if (!seq)
		return NULL;
	n = PyTuple_Size(seq);
	parts = malloc((n ? n : 1) * sizeof(*parts));
	if (!parts)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; parts && rc == 1 && i < n; i++)
		rc = look_at(&l, PyTuple_GetItem(seq, i), &parts[i]);
	if (parts && !rc)
		out = Py_BuildValue("");
	else if (parts && rc == 1 && l.rows)
		out = Py_BuildValue("Ky#", (unsigned long long)l.total, (char *)parts,
				    n * (Py_ssize_t)sizeof(*parts));
	else if (parts && rc == 1)
		out = Py_BuildValue("KO", (unsigned long long)l.total, Py_None);
	free(parts);
	Py_DECREF(seq);
	return out;
}

/*
 * copy_parts(to, rows): the parts one after another, past the caches.  False, and nothing copied,
 * if one of them stands where they go.  Whoever calls keeps all of it alive.
 */
PyObject *py_copy_parts(PyObject *mod, PyObject *args)
{
	unsigned long long to, total = 0;
	const struct part *parts;
	Py_ssize_t n;
	char *dst;

	if (!PyArg_ParseTuple(args, "Ky#", &to, (const char **)&parts, &n))
		return NULL;
	n /= sizeof(*parts);
	for (Py_ssize_t i = 0; i < n; i++)
		total += parts[i].len;
	for (Py_ssize_t i = 0; i < n; i++) {
		uintptr_t p = (uintptr_t)parts[i].p;

		if (p < to + total && to < p + parts[i].len)
			Py_RETURN_FALSE;
	}
	dst = (char *)(uintptr_t)to;
	Py_BEGIN_ALLOW_THREADS;
	for (Py_ssize_t i = 0; i < n; i++) {
		copy_past(dst, parts[i].p, parts[i].len);
		dst += parts[i].len;
	}
	Py_END_ALLOW_THREADS;
	Py_RETURN_TRUE;
}
