// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "pysluice.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

/* None waits for ever, 0 and below do not wait, anything else is seconds from now. */
int deadline_from(PyObject *timeout, uint64_t *deadline)
{
	double s;

	if (!timeout || timeout == Py_None) {
		*deadline = SLUICE_FOREVER;
		return 0;
	}
	s = PyFloat_AsDouble(timeout);
	if (s == -1.0 && PyErr_Occurred())
		return -1;
	if (s != s) {
		PyErr_SetString(PyExc_ValueError, "timeout is not a number");
		return -1;
	}
	if (s <= 0)
		*deadline = 0;
	else if (s > 1e9)
		*deadline = SLUICE_FOREVER;
	else
		*deadline = now_ns() + (uint64_t)(s * 1e9);
	return 0;
}

bool deadline_passed(uint64_t deadline)
{
	return !deadline || (deadline != SLUICE_FOREVER && now_ns() >= deadline);
}

/*
 * A wait ends with a signal, but one that arrives just before the wait begins would go unnoticed:
 * so no single wait is longer than a slice.
 */
uint64_t deadline_slice(uint64_t deadline)
{
	uint64_t slice;

	if (!deadline)
		return 0;
	slice = now_ns() + WAIT_SLICE_NS;
	return (deadline < slice ? deadline : slice) | SLUICE_ABSTIME;
}

/* OSError chooses its subclass by errno: TimeoutError, PermissionError, BrokenPipeError, ... */
PyObject *raise_errno(int err)
{
	const char *msg = sluice_strerror();
	PyObject *exc;

	err = err < 0 ? -err : err;
	if (err == EAGAIN)
		err = ETIMEDOUT;
	if (!*msg)
		msg = strerror(err);
	exc = PyObject_CallFunction(PyExc_OSError, "iN", err, text_of(msg));
	if (exc) {
		PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
		Py_DECREF(exc);
	}
	return NULL;
}

PyObject *text_of(const char *s)
{
	return PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "replace");
}

int u32_from(PyObject *o, void *to)
{
	unsigned long v = PyLong_AsUnsignedLong(o);

	if (v == (unsigned long)-1 && PyErr_Occurred())
		return 0;
	if (v > UINT32_MAX) {
		PyErr_Format(PyExc_OverflowError, "%R is above the limit of %lu", o,
			     (unsigned long)UINT32_MAX);
		return 0;
	}
	*(uint32_t *)to = (uint32_t)v;
	return 1;
}
