/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The extension module sluice._sluice.  One binary for Python 3.9 and newer: the buffer protocol
 * joined the limited API with 3.11, but its symbols and struct Py_buffer are the same in 3.9 and
 * 3.10, so the headers are asked for 3.11 and nothing else that is newer than 3.9 is used
 * (tests/python/test_abi.py holds the list).
 */
#ifndef PYSLUICE_H
#define PYSLUICE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "copy.h"
#include "sluice.h"

/* Grows by one in the child of every fork(): a handle of another generation is the parent's. */
extern unsigned int fork_gen;

/*
 * An arena attached by this process, shared by the Python object and by everything that points
 * into the mapping.  The last reference detaches, so no close() can unmap memory under a tensor.
 */
struct arena_ref {
	atomic_int refs;
	unsigned int gen;
	struct sluice_arena *a;
	struct gpu_pin *pin; /* registered with the GPU: releases wait for copies */
	bool retire; /* releases are queued for retired_take() */
	bool read_only; /* attached as a consumer: writing to the data region is a fault */
};

struct arena_ref *arena_ref_get(struct arena_ref *ar);
void arena_ref_put(struct arena_ref *ar);

/*
 * What keeps memory valid: a view, a buffer, a DLPack capsule or a storage of another library
 * holds one reference.  The last one gives the memory back, from any thread, without the GIL.
 */
enum anchor_kind {
	ANCHOR_BATCH, /* a held batch */
	ANCHOR_ARENA, /* only the mapping: memory of a batch that is being written */
	ANCHOR_HEAP, /* private copy */
	ANCHOR_MAP, /* a mapping of its own */
};

struct anchor {
	atomic_int refs;
	unsigned int gen;
	enum anchor_kind kind;
	uint64_t id; /* address range key of record_stream() */
	struct arena_ref *ar;
	struct sluice_batch *batch;
	void *mem;
	size_t len;
	struct anchor *next;
};

struct anchor *anchor_new(enum anchor_kind kind, struct arena_ref *ar);
struct anchor *anchor_get(struct anchor *an);
void anchor_put(struct anchor *an);
struct anchor *anchor_retired_take(void);
void anchor_free(struct anchor *an);

/* join.c */
int join_init(void);
PyObject *py_join_look(PyObject *mod, PyObject *args);
PyObject *py_copy_parts(PyObject *mod, PyObject *args);

/* pin.c */
struct gpu_pin *gpu_pin_create(void *addr, size_t len);
void gpu_pin_destroy(struct gpu_pin *pin);

/* view.c */
struct view_shape {
	struct sluice_dtype dtype;
	uint32_t ndim;
	int64_t shape[SLUICE_MAX_DIMS];
	int64_t strides[SLUICE_MAX_DIMS]; /* elements */
};

bool shape_fits(const struct view_shape *sh, uint64_t bytes);
PyObject *view_new(struct anchor *an, void *data, uint64_t bytes, const struct view_shape *sh,
		   bool readonly);
PyObject *view_bytes(struct anchor *an, void *data, uint64_t len, bool readonly);
int view_dlpack_new(struct anchor *an, void *data, const struct view_shape *sh, PyObject **out);

/* plan.c, encode.c */
struct plan;

uint64_t plan_bytes(PyObject *plan);
int plan_write(PyObject *plan, void *base); /* -1 with an exception */
PyObject *py_encode(PyObject *mod, PyObject *args);
PyObject *py_encode_items(PyObject *mod, PyObject *args);

/* decode.c */
PyObject *decode(struct anchor *an, const char *mem, uint64_t len, PyObject *codec);
Py_ssize_t decode_count(const char *mem, uint64_t len);
PyObject *decode_item(struct anchor *an, const char *mem, uint64_t len, uint64_t i,
		      PyObject *codec);

/* batch.c */
PyObject *batch_new_held(struct arena_ref *ar, struct sluice_batch *b);
PyObject *batch_new_writing(struct arena_ref *ar, PyObject *channel, struct sluice_batch *b);

struct sluice_batch *batch_held_of(PyObject *batch); /* NULL with an exception */
PyObject *batch_again(PyObject *batch); /* another object that holds the same */
int batch_publish_to(PyObject *batch, uint64_t deadline, PyObject *alive);

/* channel.c */
PyObject *channel_new(PyObject *arena, const char *name, const struct sluice_channel_opts *opts,
		      bool create);

bool channel_is_open(PyObject *channel); /* false with an exception */
int channel_publish(PyObject *channel, struct sluice_batch *b, uint64_t deadline, PyObject *alive);

/* arena.c */
struct arena_ref *arena_of(PyObject *arena);

/* wait.c */
#define WAIT_SLICE_NS 500000000ULL

int deadline_from(PyObject *timeout, uint64_t *deadline);
bool deadline_passed(uint64_t deadline);
uint64_t deadline_slice(uint64_t deadline);
PyObject *raise_errno(int err);

/* A name or sentence that another process may have had its hands in: of any bytes. */
PyObject *text_of(const char *s);

/* "O&" into a uint32_t: "I" forgets the upper bits without a word. */
int u32_from(PyObject *o, void *to);

extern PyTypeObject *arena_type, *channel_type, *batch_type, *view_type, *plan_type, *retired_type;

int module_add_type(PyObject *mod, const char *name, PyTypeObject *tp);
int arena_type_init(PyObject *mod);
int channel_type_init(PyObject *mod);
int batch_type_init(PyObject *mod);
int view_type_init(PyObject *mod);
int plan_type_init(PyObject *mod);
int retired_type_init(PyObject *mod);

#endif /* PYSLUICE_H */
