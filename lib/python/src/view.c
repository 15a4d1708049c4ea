// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * View: typed memory of a batch.  Exports the buffer protocol and DLPack; both keep the batch, not
 * the View, so the extent lives exactly as long as the last storage over it.
 */
#include "pysluice.h"

#include <stdlib.h>
#include <string.h>

#include "dlpack_abi.h"

PyTypeObject *view_type;

struct view {
	PyObject_HEAD struct anchor *an;
	void *data;
	uint64_t bytes;
	bool readonly;
	struct view_shape sh;
	Py_ssize_t bshape[SLUICE_MAX_DIMS];
	Py_ssize_t bstrides[SLUICE_MAX_DIMS];
};

static const struct {
	uint8_t code;
	uint8_t bits;
	const char *format;
} formats[] = {
	{SLUICE_INT, 8, "b"},	    {SLUICE_INT, 16, "h"},	 {SLUICE_INT, 32, "i"},
	{SLUICE_INT, 64, "q"},	    {SLUICE_UINT, 8, "B"},	 {SLUICE_UINT, 16, "H"},
	{SLUICE_UINT, 32, "I"},	    {SLUICE_UINT, 64, "Q"},	 {SLUICE_FLOAT, 16, "e"},
	{SLUICE_FLOAT, 32, "f"},    {SLUICE_FLOAT, 64, "d"},	 {SLUICE_BOOL, 8, "?"},
	{SLUICE_COMPLEX, 64, "Zf"}, {SLUICE_COMPLEX, 128, "Zd"},
};

static const char *dtype_format(struct sluice_dtype dt)
{
	if (dt.lanes != 1)
		return NULL;
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (formats[i].code == dt.code && formats[i].bits == dt.bits)
			return formats[i].format;
	return NULL;
}

PyObject *view_new(struct anchor *an, void *data, uint64_t bytes, const struct view_shape *sh,
		   bool readonly)
{
	struct view *v = PyObject_New(struct view, view_type);
	Py_ssize_t item = sh->dtype.bits / 8;

	if (!v)
		return NULL;
	v->an = anchor_get(an);
	v->data = data;
	v->bytes = bytes;
	v->readonly = readonly || (an->ar && an->ar->read_only);
	v->sh = *sh;
	for (uint32_t i = 0; i < sh->ndim; i++) {
		v->bshape[i] = sh->shape[i];
		v->bstrides[i] = sh->strides[i] * item;
	}
	return (PyObject *)v;
}

PyObject *view_bytes(struct anchor *an, void *data, uint64_t len, bool readonly)
{
	struct view_shape sh = {.dtype = SLUICE_U8, .ndim = 1, .shape = {len}, .strides = {1}};

	return view_new(an, data, len, &sh, readonly);
}

/* Whether every element that shape and strides can name lies in @bytes. */
bool shape_fits(const struct view_shape *sh, uint64_t bytes)
{
	uint64_t item = sh->dtype.bits / 8, last = 0, step;
	bool empty = false;

	if (!item || sh->dtype.bits % 8)
		return false;
	for (uint32_t i = 0; i < sh->ndim; i++) {
		if (sh->shape[i] < 0 || sh->strides[i] < 0)
			return false;
		if (!sh->shape[i]) {
			empty = true;
			continue;
		}
		if (__builtin_mul_overflow((uint64_t)sh->shape[i] - 1, (uint64_t)sh->strides[i],
					   &step) ||
		    __builtin_add_overflow(last, step, &last))
			return false;
	}
	if (empty)
		return true;
	return !__builtin_mul_overflow(last, item, &last) && last <= bytes && item <= bytes - last;
}

static void view_dealloc(struct view *v)
{
	PyTypeObject *tp = Py_TYPE((PyObject *)v);

	anchor_put(v->an);
	PyObject_Free(v);
	Py_DECREF(tp);
}

static bool view_contiguous(const struct view *v, bool fortran)
{
	bool contiguous = true;
	int64_t want = 1;

	for (uint32_t k = 0; k < v->sh.ndim; k++) {
		uint32_t i = fortran ? k : v->sh.ndim - 1 - k;

		if (!v->sh.shape[i])
			return true;
		if (v->sh.shape[i] != 1 && v->sh.strides[i] != want)
			contiguous = false;
		want *= v->sh.shape[i];
	}
	return contiguous;
}

/* Whether the view is in the order that somebody asks for who does not look at strides, or does. */
static bool view_in_order(const struct view *v, int flags)
{
	bool c = view_contiguous(v, false), f = view_contiguous(v, true);

	if (flags & PyBUF_C_CONTIGUOUS & ~PyBUF_STRIDES)
		return c;
	if (flags & PyBUF_F_CONTIGUOUS & ~PyBUF_STRIDES)
		return f;
	if (flags & PyBUF_ANY_CONTIGUOUS & ~PyBUF_STRIDES)
		return c || f;
	return c || (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
}

static int view_getbuffer(struct view *v, Py_buffer *out, int flags)
{
	const char *format = dtype_format(v->sh.dtype);
	uint64_t count = 1;

	out->obj = NULL;
	if (!format) {
		PyErr_Format(PyExc_BufferError,
			     "dtype code %d of %d bits has no buffer format: use DLPack",
			     v->sh.dtype.code, v->sh.dtype.bits);
		return -1;
	}
	if ((flags & PyBUF_WRITABLE) && v->readonly) {
		PyErr_SetString(PyExc_BufferError, "the view is read-only");
		return -1;
	}
	if (!view_in_order(v, flags)) {
		PyErr_SetString(PyExc_BufferError, "the view is not contiguous");
		return -1;
	}
	for (uint32_t i = 0; i < v->sh.ndim; i++)
		count *= v->sh.shape[i];
	Py_INCREF((PyObject *)v);
	out->obj = (PyObject *)v;
	out->buf = v->data ? v->data : (void *)v;
	out->itemsize = v->sh.dtype.bits / 8;
	out->len = count * out->itemsize;
	out->readonly = v->readonly;
	out->ndim = v->sh.ndim;
	out->format = (flags & PyBUF_FORMAT) ? (char *)format : NULL;
	out->shape = (flags & PyBUF_ND) ? v->bshape : NULL;
	out->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? v->bstrides : NULL;
	out->suboffsets = NULL;
	out->internal = NULL;
	return 0;
}

/* ------------------------------------------------------------------ DLPack */

/* One allocation for both forms; the deleters use no Python and need no GIL. */
struct export
{
	union {
		struct dl_managed old;
		struct dl_managed_versioned new;
	} m;
	struct anchor *an;
	int64_t dims[2 * SLUICE_MAX_DIMS];
};

static void export_delete_old(struct dl_managed *m)
{
	struct export *ex = m->ctx;

	anchor_put(ex->an);
	free(ex);
}

static void export_delete_new(struct dl_managed_versioned *m)
{
	struct export *ex = m->ctx;

	anchor_put(ex->an);
	free(ex);
}

static struct export *export_new(struct anchor *an)
{
	struct export *ex = malloc(sizeof(*ex));

	if (!ex) {
		PyErr_NoMemory();
		return NULL;
	}
	memset(&ex->m, 0, sizeof(ex->m)); /* the dimensions are written by export_fill() */
	ex->an = anchor_get(an);
	return ex;
}

static void export_fill(struct export *ex, struct dl_tensor *t, void *data,
			const struct view_shape *sh, int device)
{
	t->data = data;
	t->device = (struct dl_device){.type = device};
	t->ndim = sh->ndim;
	t->dtype = (struct dl_dtype){sh->dtype.code, sh->dtype.bits, sh->dtype.lanes};
	t->shape = ex->dims;
	t->strides = ex->dims + sh->ndim;
	memcpy(t->shape, sh->shape, sh->ndim * sizeof(int64_t));
	memcpy(t->strides, sh->strides, sh->ndim * sizeof(int64_t));
}

static void capsule_drop_old(PyObject *cap)
{
	struct dl_managed *m;

	if (!PyCapsule_IsValid(cap, "dltensor"))
		return;
	m = PyCapsule_GetPointer(cap, "dltensor");
	m->deleter(m);
}

static void capsule_drop_new(PyObject *cap)
{
	struct dl_managed_versioned *m;

	if (!PyCapsule_IsValid(cap, "dltensor_versioned"))
		return;
	m = PyCapsule_GetPointer(cap, "dltensor_versioned");
	m->deleter(m);
}

static PyObject *capsule_old(struct anchor *an, void *data, const struct view_shape *sh, int device)
{
	struct export *ex = export_new(an);
	PyObject *cap;

	if (!ex)
		return NULL;
	export_fill(ex, &ex->m.old.t, data, sh, device);
	ex->m.old.ctx = ex;
	ex->m.old.deleter = export_delete_old;
	cap = PyCapsule_New(&ex->m.old, "dltensor", capsule_drop_old);
	if (!cap)
		export_delete_old(&ex->m.old);
	return cap;
}

int view_dlpack_new(struct anchor *an, void *data, const struct view_shape *sh, PyObject **out)
{
	*out = capsule_old(an, data, sh, DLPACK_CPU);
	return *out ? 0 : -1;
}

static PyObject *view_dlpack_versioned(struct view *v, int device)
{
	struct export *ex = export_new(v->an);
	PyObject *cap;

	if (!ex)
		return NULL;
	export_fill(ex, &ex->m.new.t, v->data, &v->sh, device);
	ex->m.new.version.major = DLPACK_MAJOR;
	ex->m.new.version.minor = DLPACK_MINOR;
	ex->m.new.flags = v->readonly ? DLPACK_FLAG_READ_ONLY : 0;
	ex->m.new.ctx = ex;
	ex->m.new.deleter = export_delete_new;
	cap = PyCapsule_New(&ex->m.new, "dltensor_versioned", capsule_drop_new);
	if (!cap)
		export_delete_new(&ex->m.new);
	return cap;
}

static PyObject *view_dlpack(struct view *v, PyObject *args, PyObject *kw)
{
	static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
	PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
	int type = DLPACK_CPU, id = 0, major = 0, minor = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|$OOOO", names, &stream, &version, &device,
					 &copy))
		return NULL;
	if (copy == Py_True) {
		PyErr_SetString(PyExc_BufferError, "a view exports its own memory only, no copy");
		return NULL;
	}
	if (device != Py_None && !PyArg_ParseTuple(device, "ii", &type, &id))
		return NULL;
	if (type != DLPACK_CPU && !(type == DLPACK_CUDA_HOST && v->an->ar && v->an->ar->pin)) {
		PyErr_Format(PyExc_BufferError,
			     "cannot export to DLPack device type %d: the memory is on the CPU%s",
			     type, type == DLPACK_CUDA_HOST ? " and not pinned" : "");
		return NULL;
	}
	if (version != Py_None && !PyArg_ParseTuple(version, "ii", &major, &minor))
		return NULL;
	if (major >= DLPACK_MAJOR)
		return view_dlpack_versioned(v, type);
	if (v->readonly) {
		PyErr_SetString(PyExc_BufferError, "DLPack before 1.0 cannot say read-only");
		return NULL;
	}
	return capsule_old(v->an, v->data, &v->sh, type);
}

static PyObject *view_dlpack_device(struct view *v, PyObject *unused)
{
	return Py_BuildValue("(ii)", DLPACK_CPU, 0);
}

/* ------------------------------------------------------------------ attributes */

static PyObject *dims_tuple(const int64_t *d, uint32_t n)
{
	PyObject *t = PyTuple_New(n);

	for (uint32_t i = 0; t && i < n; i++) {
		PyObject *o = PyLong_FromLongLong(d[i]);

		if (!o)
			Py_CLEAR(t);
		else
			PyTuple_SetItem(t, i, o);
	}
	return t;
}

static PyObject *view_get_shape(struct view *v, void *unused)
{
	return dims_tuple(v->sh.shape, v->sh.ndim);
}

static PyObject *view_get_strides(struct view *v, void *unused)
{
	return dims_tuple(v->sh.strides, v->sh.ndim);
}

static PyObject *view_get_dtype(struct view *v, void *unused)
{
	return Py_BuildValue("(ii)", v->sh.dtype.code, v->sh.dtype.bits);
}

static PyObject *view_get_nbytes(struct view *v, void *unused)
{
	return PyLong_FromUnsignedLongLong(v->bytes);
}

static PyObject *view_get_ptr(struct view *v, void *unused)
{
	return PyLong_FromVoidPtr(v->data);
}

static PyObject *view_get_readonly(struct view *v, void *unused)
{
	return PyBool_FromLong(v->readonly);
}

/* cast((code, bits), shape, strides): the same bytes as a tensor. */
static PyObject *view_cast(struct view *v, PyObject *args)
{
	struct view_shape sh = {.dtype.lanes = 1};
	PyObject *shape, *strides;
	int code, bits;

	if (!PyArg_ParseTuple(args, "(ii)O!O!", &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type,
			      &strides))
		return NULL;
	sh.dtype.code = code;
	sh.dtype.bits = bits;
	if (PyTuple_Size(shape) > SLUICE_MAX_DIMS || PyTuple_Size(shape) != PyTuple_Size(strides)) {
		PyErr_SetString(PyExc_ValueError, "shape and strides do not match");
		return NULL;
	}
	sh.ndim = PyTuple_Size(shape);
	for (uint32_t i = 0; i < sh.ndim; i++) {
		sh.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
		sh.strides[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
	}
	if (PyErr_Occurred())
		return NULL;
	if (!shape_fits(&sh, v->bytes)) {
		PyErr_Format(PyExc_ValueError, "the shape does not fit %llu bytes",
			     (unsigned long long)v->bytes);
		return NULL;
	}
	return view_new(v->an, v->data, v->bytes, &sh, v->readonly);
}

static PyObject *view_repr(struct view *v)
{
	PyObject *shape = view_get_shape(v, NULL), *r;

	if (!shape)
		return NULL;
	r = PyUnicode_FromFormat("<sluice.View dtype=(%d, %d) shape=%R>", v->sh.dtype.code,
				 v->sh.dtype.bits, shape);
	Py_DECREF(shape);
	return r;
}

static PyMethodDef view_methods[] = {
	{"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_VARARGS | METH_KEYWORDS,
	 "DLPack capsule over the memory; max_version >= (1, 0) gives the versioned form."},
	{"cast", (PyCFunction)view_cast, METH_VARARGS, "cast((code, bits), shape, strides)"},
	{"__dlpack_device__", (PyCFunction)view_dlpack_device, METH_NOARGS, "(kDLCPU, 0)"},
	{NULL},
};

static PyGetSetDef view_getset[] = {
	{"shape", (getter)view_get_shape, NULL, "extents", NULL},
	{"strides", (getter)view_get_strides, NULL, "strides in elements", NULL},
	{"dtype", (getter)view_get_dtype, NULL, "(DLPack type code, bits)", NULL},
	{"nbytes", (getter)view_get_nbytes, NULL, "size in bytes", NULL},
	{"ptr", (getter)view_get_ptr, NULL, "address in this process", NULL},
	{"readonly", (getter)view_get_readonly, NULL, "whether writing is refused", NULL},
	{NULL},
};

static PyType_Slot view_slots[] = {
	{Py_tp_dealloc, view_dealloc},
	{Py_tp_repr, view_repr},
	{Py_tp_methods, view_methods},
	{Py_tp_getset, view_getset},
	{Py_bf_getbuffer, view_getbuffer},
	{Py_tp_doc, "Typed memory of a batch: buffer protocol and DLPack."},
	{0, NULL},
};

static PyType_Spec view_spec = {
	.name = "sluice._sluice.View",
	.basicsize = sizeof(struct view),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = view_slots,
};

int view_type_init(PyObject *mod)
{
	view_type = (PyTypeObject *)PyType_FromSpec(&view_spec);
	return module_add_type(mod, "View", view_type);
}
