// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a walk over an object leaves: its structure in a buffer, what has to be copied as a list.
 * Writing it is one copy of every payload byte into the extent, without the GIL.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *plan_type;

/* ------------------------------------------------------------------ writing the structure */

static int grow(void **p, size_t *cap, size_t need, size_t size)
{
	size_t want = *cap ? *cap : 64;
	void *q;

	while (want < need)
		want *= 2;
	if (want == *cap)
		return 0;
	q = realloc(*p, want * size);
	if (!q) {
		PyErr_NoMemory();
		return -1;
	}
	*p = q;
	*cap = want;
	return 0;
}

int plan_put(struct plan *pl, const void *data, size_t len)
{
	if (pl->len + len > pl->cap) {
		size_t cap = pl->cap;

		if (grow((void **)&pl->buf, &cap, pl->len + len, 1))
			return -1;
		pl->cap = cap;
	}
	memcpy(pl->buf + pl->len, data, len);
	pl->len += len;
	return 0;
}

int plan_keep(struct plan *pl, PyObject *o)
{
	return PyList_Append(pl->keep, o);
}

/* Room in the payload; NULL with an exception. */
struct item *plan_item(struct plan *pl, uint64_t len, uint64_t align)
{
	struct item *it;

	if (grow((void **)&pl->items, &pl->items_cap, pl->nitems + 1, sizeof(*it)))
		return NULL;
	it = &pl->items[pl->nitems++];
	memset(it, 0, sizeof(*it));
	pl->end = (pl->end + align - 1) & ~(align - 1);
	it->off = pl->end;
	it->len = len;
	pl->end += len;
	return it;
}

/* The offset at which @len bytes from @src will stand, which may be where they stand already. */
int plan_place(struct plan *pl, const void *src, uint64_t len, uint64_t align, uint64_t *off)
{
	const char *p = src;
	struct item *it;

	if (pl->base && p >= pl->base && p < pl->base + pl->used &&
	    len <= (uint64_t)(pl->base + pl->used - p)) {
		*off = p - pl->base;
		pl->placed += len;
		return 0;
	}
	it = plan_item(pl, len, align);
	if (!it)
		return -1;
	it->src = src;
	*off = it->off;
	return 0;
}

Py_buffer *plan_buffer(struct plan *pl, PyObject *o, int flags)
{
	Py_buffer *b;

	if (grow((void **)&pl->bufs, &pl->bufs_cap, pl->nbufs + 1, sizeof(*pl->bufs)))
		return NULL;
	b = malloc(sizeof(*b));
	if (!b) {
		PyErr_NoMemory();
		return NULL;
	}
	if (PyObject_GetBuffer(o, b, flags)) {
		free(b);
		return NULL;
	}
	pl->bufs[pl->nbufs++] = b;
	return b;
}

/* ------------------------------------------------------------------ memo */

static uint32_t *memo_slot(struct plan *pl, const void *key)
{
	uint32_t mask = pl->memo_cap - 1;
	uint32_t i = (uint32_t)(((uintptr_t)key >> 4) * 2654435761U) & mask;

	while (pl->memo_keys[i] && pl->memo_keys[i] != key)
		i = (i + 1) & mask;
	return &pl->memo_vals[i];
}

static int memo_grow(struct plan *pl)
{
	const void **keys = pl->memo_keys;
	uint32_t *vals = pl->memo_vals, cap = pl->memo_cap;

	pl->memo_cap = cap ? cap * 2 : 32;
	pl->memo_keys = calloc(pl->memo_cap, sizeof(*pl->memo_keys));
	pl->memo_vals = calloc(pl->memo_cap, sizeof(*pl->memo_vals));
	if (!pl->memo_keys || !pl->memo_vals) {
		free(pl->memo_keys);
		free(pl->memo_vals);
		pl->memo_keys = keys;
		pl->memo_vals = vals;
		pl->memo_cap = cap;
		PyErr_NoMemory();
		return -1;
	}
	for (uint32_t i = 0; i < cap; i++) {
		uint32_t *slot;

		if (!keys[i])
			continue;
		slot = memo_slot(pl, keys[i]);
		pl->memo_keys[slot - pl->memo_vals] = keys[i];
		*slot = vals[i];
	}
	free(keys);
	free(vals);
	return 0;
}

/* 1: seen before, and the reference is written; 0: numbered now; -1: exception. */
int plan_memo(struct plan *pl, PyObject *o)
{
	char ref[1 + sizeof(uint32_t)] = {WIRE_REF};
	uint32_t *slot;

	if (2 * (pl->memo_n + 1) > pl->memo_cap && memo_grow(pl))
		return -1;
	slot = memo_slot(pl, o);
	if (pl->memo_keys[slot - pl->memo_vals]) {
		memcpy(ref + 1, slot, sizeof(*slot));
		return plan_put(pl, ref, sizeof(ref)) ? -1 : 1;
	}
	/* The address stays its own only as long as the object lives. */
	if (plan_keep(pl, o))
		return -1;
	pl->memo_keys[slot - pl->memo_vals] = o;
	*slot = pl->memo_n++;
	return 0;
}

void plan_memo_reset(struct plan *pl)
{
	memset(pl->memo_keys, 0, pl->memo_cap * sizeof(*pl->memo_keys));
	pl->memo_n = 0;
}

/* ------------------------------------------------------------------ the plan */

static void walk_end(struct plan *pl)
{
	free(pl->memo_keys);
	free(pl->memo_vals);
	pl->memo_keys = NULL;
	pl->memo_vals = NULL;
	Py_CLEAR(pl->codec);
	Py_CLEAR(pl->classes);
	Py_CLEAR(pl->kinds);
}

static void sources_drop(struct plan *pl)
{
	for (size_t i = 0; i < pl->nitems; i++) {
		free(pl->items[i].spans);
		Py_XDECREF(pl->items[i].call);
	}
	pl->nitems = 0;
	for (size_t i = 0; i < pl->nbufs; i++) {
		PyBuffer_Release(pl->bufs[i]);
		free(pl->bufs[i]);
	}
	pl->nbufs = 0;
	Py_CLEAR(pl->keep);
}

static void plan_dealloc(struct plan *pl)
{
	PyTypeObject *tp = Py_TYPE((PyObject *)pl);

	walk_end(pl);
	sources_drop(pl);
	free(pl->bufs);
	free(pl->items);
	free(pl->buf);
	free(pl->table);
	free(pl->settled);
	PyObject_Free(pl);
	Py_DECREF(tp);
}

struct plan *plan_new(PyObject *codec)
{
	struct plan *pl = PyObject_New(struct plan, plan_type);

	if (!pl)
		return NULL;
	memset((char *)pl + sizeof(PyObject), 0, sizeof(*pl) - sizeof(PyObject));
	pl->end = sizeof(struct wire_header);
	Py_INCREF(codec);
	pl->codec = codec;
	pl->keep = PyList_New(0);
	pl->classes = PyDict_New();
	pl->kinds = PyObject_GetAttrString(codec, "kinds");
	if (!pl->keep || !pl->classes || !pl->kinds) {
		Py_DECREF(pl);
		return NULL;
	}
	return pl;
}

void plan_finish(struct plan *pl)
{
	walk_end(pl);
	pl->structure = (pl->end + WIRE_ALIGN_S - 1) & ~(uint64_t)(WIRE_ALIGN_S - 1);
}

uint64_t plan_bytes(PyObject *obj)
{
	struct plan *pl = (struct plan *)obj;

	return pl->structure + pl->len;
}

static void item_copy(const struct item *it, char *base, bool past)
{
	char *dst = base + it->off;
	uint64_t *pos = (uint64_t *)dst, at = 0;

	if (it->src && past) {
		copy_past(dst, it->src, it->len);
		return;
	}
	if (it->src) {
		memcpy(dst, it->src, it->len);
		return;
	}
	if (!it->spans)
		return;
	dst += (it->nspans + 1) * sizeof(*pos);
	for (uint64_t i = 0; i < it->nspans; i++) {
		pos[i] = at;
		memcpy(dst + at, it->spans[i].p, it->spans[i].len);
		at += it->spans[i].len;
	}
	pos[it->nspans] = at;
}

#define GIL_KEEP_BYTES 32768

int plan_write(PyObject *obj, void *base)
{
	struct plan *pl = (struct plan *)obj;
	struct wire_header h = {
		.magic = WIRE_MAGIC,
		.items = pl->table_n,
		.structure = pl->structure,
		.structure_len = pl->len,
	};
	PyThreadState *ts = NULL;

	if (pl->settled) {
		memcpy(base, pl->settled, plan_bytes(obj));
		return 0;
	}
	for (size_t i = 0; i < pl->nitems; i++) {
		struct item *it = &pl->items[i];
		char *dst = (char *)base + it->off;
		PyObject *r;

		if (it->gather) {
			if (PyBuffer_ToContiguous(dst, it->gather, it->len, 'C'))
				return -1;
		} else if (it->call) {
			r = PyObject_CallFunction(it->call, "K",
						  (unsigned long long)(uintptr_t)dst);
			if (!r)
				return -1;
			Py_DECREF(r);
		}
	}
	if (pl->end > GIL_KEEP_BYTES)
		ts = PyEval_SaveThread();
	for (size_t i = 0; i < pl->nitems; i++)
		item_copy(&pl->items[i], base, pl->end >= COPY_PAST_BYTES);
	if (pl->table)
		memcpy((char *)base + sizeof(h), pl->table, (pl->table_n + 1) * sizeof(*pl->table));
	memcpy((char *)base + pl->structure, pl->buf, pl->len);
	memcpy(base, &h, sizeof(h));
	if (ts)
		PyEval_RestoreThread(ts);
	return 0;
}

/*
 * settle(): copy the payload now, for a plan that is written when its caller has gone on: a tensor
 * may have other memory by then, and what it had may be gone.
 */
static PyObject *plan_settle(PyObject *obj, PyObject *unused)
{
	struct plan *pl = (struct plan *)obj;
	char *mem;

	if (pl->settled)
		Py_RETURN_NONE;
	mem = calloc(1, plan_bytes(obj));
	if (!mem)
		return PyErr_NoMemory();
	if (plan_write(obj, mem)) {
		free(mem);
		return NULL;
	}
	pl->settled = mem;
	sources_drop(pl);
	Py_RETURN_NONE;
}

static PyMethodDef plan_methods[] = {
	{"settle", plan_settle, METH_NOARGS, "Copy the payload now; the object may go or change."},
	{NULL},
};

static PyObject *plan_get_nbytes(struct plan *pl, void *unused)
{
	return PyLong_FromUnsignedLongLong(plan_bytes((PyObject *)pl));
}

/* Bytes outside the structure: whether there is anything that views will point to. */
static PyObject *plan_get_payload(struct plan *pl, void *unused)
{
	return PyLong_FromUnsignedLongLong(pl->end - sizeof(struct wire_header));
}

static PyObject *plan_get_placed(struct plan *pl, void *unused)
{
	return PyLong_FromUnsignedLongLong(pl->placed);
}

static PyGetSetDef plan_getset[] = {
	{"nbytes", (getter)plan_get_nbytes, NULL, "size of the extent that it needs", NULL},
	{"placed", (getter)plan_get_placed, NULL, "bytes that stand in the extent already", NULL},
	{"payload", (getter)plan_get_payload, NULL, "of which outside the structure", NULL},
	{NULL},
};

static PyType_Slot plan_slots[] = {
	{Py_tp_dealloc, plan_dealloc},
	{Py_tp_getset, plan_getset},
	{Py_tp_methods, plan_methods},
	{Py_tp_doc, "An encoded object, before its payload is copied."},
	{0, NULL},
};

static PyType_Spec plan_spec = {
	.name = "sluice._sluice.Plan",
	.basicsize = sizeof(struct plan),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = plan_slots,
};

int plan_type_init(PyObject *mod)
{
	plan_type = (PyTypeObject *)PyType_FromSpec(&plan_spec);
	return module_add_type(mod, "Plan", plan_type);
}
