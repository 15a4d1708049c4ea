/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A plan is an encoded object before its payload is copied: the structure, and the parts of the
 * payload with where each comes from.  encode.c walks the object, plan.c keeps and writes it.
 */
#ifndef PLAN_H
#define PLAN_H

#include "pysluice.h"
#include "wire.h"

struct span {
	const char *p;
	uint64_t len;
};

struct item {
	uint64_t off;
	uint64_t len;
	const void *src; /* memcpy */
	struct span *spans; /* or: a table of positions, then these one after another */
	uint64_t nspans;
	Py_buffer *gather; /* or: made contiguous */
	PyObject *call; /* or: call(address) writes it */
};

struct plan {
	PyObject_HEAD char *buf; /* the structure */
	uint64_t len, cap;
	struct item *items;
	size_t nitems, items_cap;
	Py_buffer **bufs;
	size_t nbufs, bufs_cap;
	uint64_t end; /* of the payload so far */
	uint64_t structure;
	char *settled; /* all of it, written already: nothing points anywhere any more */
	PyObject *keep; /* what the items point into */
	uint64_t *table; /* of encode_items(): table_n + 1 positions in the structure */
	uint64_t table_n;
	/* an extent that part of the payload stands in already */
	const char *base;
	uint64_t used;
	uint64_t placed; /* bytes found there */
	/* state of the walk */
	PyObject *codec;
	PyObject *classes; /* type -> number */
	PyObject *kinds; /* codec.kinds: type -> wire_class */
	const void **memo_keys; /* open addressing */
	uint32_t *memo_vals;
	uint32_t memo_n, memo_cap;
};

struct plan *plan_new(PyObject *codec);
void plan_finish(struct plan *pl); /* the walk is over */

/* -1 with an exception, like all that follow. */
int plan_put(struct plan *pl, const void *data, size_t len);
int plan_keep(struct plan *pl, PyObject *o);

/* The offset at which @len bytes from @src will stand, which may be where they stand already. */
int plan_place(struct plan *pl, const void *src, uint64_t len, uint64_t align, uint64_t *off);

/* Room in the payload; NULL with an exception. */
struct item *plan_item(struct plan *pl, uint64_t len, uint64_t align);

/* Released with the plan; NULL with an exception. */
Py_buffer *plan_buffer(struct plan *pl, PyObject *o, int flags);

/* 1: seen before, and the reference is written; 0: numbered now; -1: exception. */
int plan_memo(struct plan *pl, PyObject *o);
void plan_memo_reset(struct plan *pl);

#endif /* PLAN_H */
