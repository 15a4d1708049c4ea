// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "pysluice.h"
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyTypeObject *channel_type;

struct py_channel {
	PyObject_HEAD PyObject *arena;
	struct arena_ref *ar;
	struct sluice_channel *ch;
	PyThread_type_lock lock; /* an endpoint is for one thread at a time */
	unsigned long owner; /* the thread that has it */
	bool closing; /* whoever has it shall give it up, and closes it */
	unsigned int gen;
	PyObject *named; /* the last message that take() got of an object in a producer's arena */
	struct sluice_channel_opts opts;
	char name[SLUICE_LABEL_LEN];
};

static bool closed(void)
{
	PyErr_SetString(PyExc_ValueError, "the channel is closed");
	return false;
}

/* Waits for another thread that is in the middle of a call, but not longer than asked. */
static bool channel_lock(struct py_channel *self, uint64_t deadline)
{
	while (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
		if (self->owner == PyThread_get_thread_ident()) {
			PyErr_SetString(
				PyExc_RuntimeError,
				"a signal handler cannot use the endpoint that it interrupted");
			return false;
		}
		if (deadline_passed(deadline)) {
			PyErr_SetString(PyExc_TimeoutError, "another thread uses the endpoint");
			return false;
		}
		Py_BEGIN_ALLOW_THREADS;
		usleep(200);
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals())
			return false;
	}
	self->owner = PyThread_get_thread_ident();
	return true;
}

static void channel_drop(struct py_channel *self)
{
	if (self->ch && self->gen == fork_gen)
		sluice_channel_close(self->ch);
	self->ch = NULL;
	arena_ref_put(self->ar);
	self->ar = NULL;
}

static void channel_leave(struct py_channel *self)
{
	if (self->closing)
		channel_drop(self);
	self->owner = 0;
	PyThread_release_lock(self->lock);
}

/*
 * Takes the lock of the endpoint, and opens an endpoint of its own in a forked child.  Returns
 * false with an exception.
 */
static bool channel_enter(struct py_channel *self, uint64_t deadline)
{
	struct arena_ref *ar;
	int rc;

	if (self->gen != fork_gen) {
		/* The lock may have been held by a thread that does not exist in the child. */
		self->lock = PyThread_allocate_lock();
		if (!self->lock) {
			PyErr_NoMemory();
			return false;
		}
		self->owner = 0;
	}
	if (!channel_lock(self, deadline))
		return false;
	if (self->ch && self->gen == fork_gen)
		return true;
	if (!self->ch) {
		closed();
		goto fail;
	}
	ar = arena_of(self->arena);
	if (!ar)
		goto fail;
	rc = sluice_channel_open(&self->ch, ar->a, self->name, &self->opts);
	if (rc) {
		raise_errno(rc);
		goto fail;
	}
	arena_ref_put(self->ar);
	self->ar = arena_ref_get(ar);
	self->gen = fork_gen;
	return true;
fail:
	channel_leave(self);
	return false;
}

PyObject *channel_new(PyObject *arena, const char *name, const struct sluice_channel_opts *opts,
		      bool create)
{
	struct arena_ref *ar = arena_of(arena);
	struct sluice_channel *ch;
	struct py_channel *self;
	int rc;

	if (!ar)
		return NULL;
	rc = create ? sluice_channel_create(&ch, ar->a, name, opts)
		    : sluice_channel_open(&ch, ar->a, name, opts);
	if (rc)
		return raise_errno(rc);
	self = PyObject_New(struct py_channel, channel_type);
	if (!self) {
		sluice_channel_close(ch);
		return NULL;
	}
	Py_INCREF(arena);
	self->arena = arena;
	self->ar = arena_ref_get(ar);
	self->ch = ch;
	self->owner = 0;
	self->closing = false;
	self->gen = fork_gen;
	self->named = NULL;
	self->opts = *opts;
	strncpy(self->name, name, sizeof(self->name) - 1);
	self->name[sizeof(self->name) - 1] = '\0';
	self->lock = PyThread_allocate_lock();
	if (!self->lock) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	return (PyObject *)self;
}

static void channel_dealloc(struct py_channel *self)
{
	PyTypeObject *tp = Py_TYPE((PyObject *)self);

	channel_drop(self);
	if (self->lock && self->gen == fork_gen)
		PyThread_free_lock(self->lock);
	Py_XDECREF(self->named);
	Py_XDECREF(self->arena);
	PyObject_Free(self);
	Py_DECREF(tp);
}

static PyObject *channel_close(struct py_channel *self, PyObject *unused)
{
	if (self->gen != fork_gen || !self->ch) {
		self->ch = NULL;
		Py_RETURN_NONE;
	}
	/* A thread that waits notices within a slice; a signal handler's own thread when it is back. */
	self->closing = true;
	while (self->ch && self->owner != PyThread_get_thread_ident()) {
		if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
			channel_leave(self);
			break;
		}
		Py_BEGIN_ALLOW_THREADS;
		usleep(200);
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals())
			return NULL;
	}
	Py_RETURN_NONE;
}

/*
 * What a wait does between two slices: runs signal handlers, and gives up when a worker's parent
 * is gone, because nobody would ever end that wait.
 */
static bool wait_goes_on(const struct py_channel *self, int rc, uint64_t deadline, PyObject *alive)
{
	PyObject *r;

	if (rc != -EINTR && rc != -ETIMEDOUT && rc != -EAGAIN)
		return false;
	if (PyErr_CheckSignals())
		return false;
	if (self->closing)
		return closed();
	if (deadline_passed(deadline))
		return false;
	/* -EAGAIN: nothing was waited for yet. */
	if (alive == Py_None || rc == -EAGAIN)
		return true;
	r = PyObject_CallObject(alive, NULL);
	Py_XDECREF(r);
	return r;
}

static int next_wait(struct py_channel *self, struct sluice_batch **b, uint64_t deadline,
		     PyObject *alive)
{
	int rc = sluice_channel_next(self->ch, b, 0);

	while (rc && wait_goes_on(self, rc, deadline, alive)) {
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_channel_next(self->ch, b, deadline_slice(deadline));
		Py_END_ALLOW_THREADS;
	}
	return rc == -EINTR || rc == -EAGAIN ? -ETIMEDOUT : rc;
}

static PyObject *channel_next(struct py_channel *self, PyObject *args)
{
	PyObject *timeout = Py_None, *alive = Py_None, *out = NULL;
	struct sluice_batch *b;
	uint64_t deadline;
	int rc;

	if (!PyArg_ParseTuple(args, "|OO", &timeout, &alive) || deadline_from(timeout, &deadline))
		return NULL;
	if (!channel_enter(self, deadline))
		return NULL;
	rc = next_wait(self, &b, deadline, alive);
	if (!rc)
		out = batch_new_held(self->ar, b);
	else if (!PyErr_Occurred())
		raise_errno(rc);
	channel_leave(self);
	return out;
}

/*
 * The object in the next batch of a producer's arena, or NULL; without an exception if there will
 * be none.  taken: whether there was a batch, whatever became of the object.
 */
static PyObject *take_stored(struct py_channel *self, PyObject *codec, PyObject *alive, bool *taken)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct sluice_batch *b;
	PyObject *out = NULL;
	struct anchor *an;
	int rc;

	if (!channel_enter(self, SLUICE_FOREVER))
		return NULL;
	rc = next_wait(self, &b, SLUICE_FOREVER, alive);
	an = rc ? NULL : anchor_new(ANCHOR_BATCH, self->ar);
	channel_leave(self);
	if (rc)
		return NULL;
	*taken = true;
	if (!an) {
		sluice_batch_release(b);
		return PyErr_NoMemory();
	}
	an->batch = b;
	rc = sluice_batch_tensor(b, 0, &t);
	if (rc)
		raise_errno(rc);
	else if (strcmp(t.name, "py"))
		PyErr_Format(PyExc_ValueError, "the batch holds '%s', no Python object", t.name);
	else
		out = decode(an, t.data, t.bytes, codec);
	anchor_put(an);
	return out;
}

/* A message of a queue, copied out of its extent. */
struct message {
	uint64_t tag;
	uint64_t len;
	void *data;
	char small[256];
};

static bool message_grow(struct message *m)
{
	if (!posix_memalign(&m->data, 256, m->len ? m->len : 1))
		return true;
	m->data = NULL;
	PyErr_NoMemory();
	return false;
}

static bool message_copy(struct message *m, struct sluice_batch *b)
{
	struct sluice_batch_info in = {.sz = sizeof(in)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	int rc = sluice_batch_info(b, &in);

	m->data = NULL;
	if (!rc)
		rc = sluice_batch_tensor(b, 0, &t);
	if (rc) {
		raise_errno(rc);
		return false;
	}
	if (strcmp(t.name, "py")) {
		PyErr_Format(PyExc_ValueError, "the batch holds '%s', no Python object", t.name);
		return false;
	}
	m->tag = in.tag;
	m->len = t.bytes;
	if (m->len > sizeof(m->small) || m->tag == WIRE_TAG_INLINE) {
		if (!message_grow(m))
			return false;
	}
	if (m->len)
		memcpy(m->data ? m->data : m->small, t.data, m->len);
	return true;
}

/* Its memory goes to what is decoded. */
static PyObject *message_decode(struct message *m, PyObject *codec)
{
	struct anchor *an;
	PyObject *out;

	if (!m->data) {
		if (!message_grow(m))
			return NULL;
		memcpy(m->data, m->small, m->len);
	}
	an = anchor_new(ANCHOR_HEAP, NULL);
	if (!an) {
		free(m->data);
		return PyErr_NoMemory();
	}
	an->mem = m->data;
	an->len = m->len;
	out = decode(an, an->mem, an->len, codec);
	anchor_put(an);
	return out;
}

/* An exception that says nothing about the object: a signal came, or memory or files ran out. */
static bool may_try_again(void)
{
	return !PyErr_ExceptionMatches(PyExc_Exception) ||
	       PyErr_ExceptionMatches(PyExc_MemoryError);
}

/* The exception stays; without memory even for this the message is lost. */
static void owe(PyObject *owed, PyObject *key)
{
	PyObject *type, *value, *trace;

	PyErr_Fetch(&type, &value, &trace);
	PyList_Append(owed, key);
	PyErr_Clear();
	PyErr_Restore(type, value, trace);
}

static PyObject *decode_bytes(PyObject *bytes, PyObject *codec)
{
	struct message m = {.len = (uint64_t)PyBytes_Size(bytes)};

	if (!message_grow(&m))
		return NULL;
	memcpy(m.data, PyBytes_AsString(bytes), m.len);
	return message_decode(&m, codec);
}

/* queue.NAME(message, its value) */
static PyObject *ask(PyObject *queue, const char *name, PyObject *key, PyObject *codec)
{
	PyObject *value = decode_bytes(key, codec), *out;

	if (!value)
		return NULL;
	out = PyObject_CallMethod(queue, name, "OO", key, value);
	Py_DECREF(value);
	return out;
}

/* What take() gets, taken apart by hand: the format of a nested tuple costs as much as the batch. */
struct take_args {
	PyObject *timeout, *known, *codec, *alive, *empty, *owed, *queue;
};

static bool take_parse(PyObject *args, struct take_args *t)
{
	PyObject *how = PyTuple_Size(args) == 3 ? PyTuple_GetItem(args, 1) : NULL;

	if (!how || !PyTuple_Check(how) || PyTuple_Size(how) != 5 ||
	    !PyDict_Check(PyTuple_GetItem(how, 0)) || !PyList_Check(PyTuple_GetItem(how, 4))) {
		PyErr_SetString(PyExc_TypeError, "take(timeout, (dict, codec, alive, empty, list), "
						 "queue)");
		return false;
	}
	t->timeout = PyTuple_GetItem(args, 0);
	t->known = PyTuple_GetItem(how, 0);
	t->codec = PyTuple_GetItem(how, 1);
	t->alive = PyTuple_GetItem(how, 2);
	t->empty = PyTuple_GetItem(how, 3);
	t->owed = PyTuple_GetItem(how, 4);
	t->queue = PyTuple_GetItem(args, 2);
	return true;
}

/*
 * The object that a message means which stands in a producer's arena; known maps messages to that
 * arena's channel, queue._source(message, its value) finds the channel of others.  Between the
 * message and its batch nothing may get lost, or the next message would find this batch: what is
 * interrupted there is owed, and the next take() begins with it.
 */
static PyObject *take_named(const struct take_args *t, PyObject *key)
{
	PyObject *source = PyDict_GetItemWithError(t->known, key), *out = NULL;
	bool taken = false, again = false;

	if (source)
		Py_INCREF(source);
	else if (!PyErr_Occurred())
		source = ask(t->queue, "_source", key, t->codec);
	if (!source) {
		again = may_try_again();
	} else if (!PyObject_TypeCheck(source, channel_type)) {
		PyErr_SetString(PyExc_TypeError, "the source of a message is no channel");
	} else {
		out = take_stored((struct py_channel *)source, t->codec, t->alive, &taken);
		again = !out && !taken && PyErr_Occurred();
	}
	Py_XDECREF(source);
	if (again)
		owe(t->owed, key);
	else if (!out && !PyErr_Occurred())
		out = ask(t->queue, "_no_more", key, t->codec); /* raises */
	return out;
}

/* The message that was interrupted longest ago; NULL without an exception if there is none. */
static PyObject *owed_first(PyObject *owed)
{
	PyObject *key = PyList_Size(owed) > 0 ? PyList_GetItem(owed, 0) : NULL;

	Py_XINCREF(key);
	if (key && PyList_SetSlice(owed, 0, 1, NULL))
		Py_CLEAR(key);
	return key;
}

/* The message as bytes: mostly the same as the last, whose hash is known. */
static PyObject *message_key(struct py_channel *self, const struct message *m)
{
	const char *data = m->data ? m->data : m->small;
	PyObject *last = self->named;

	if (!last || (uint64_t)PyBytes_Size(last) != m->len ||
	    memcmp(PyBytes_AsString(last), data, m->len)) {
		self->named = PyBytes_FromStringAndSize(data, (Py_ssize_t)m->len);
		Py_XDECREF(last);
	}
	Py_XINCREF(self->named);
	return self->named;
}

/*
 * take(timeout, (known, codec, alive, empty, owed), queue): the next object of a queue.  A message
 * names the arena in which a large object stands.  queue._take_spilled(value of the message)
 * answers for those in files.  empty is raised when the time is over.
 */
static PyObject *channel_take(struct py_channel *self, PyObject *args)
{
	PyObject *key, *out = NULL;
	struct take_args t;
	struct sluice_batch *b;
	struct message m;
	uint64_t deadline;
	bool copied;
	int rc;

	if (!take_parse(args, &t) || deadline_from(t.timeout, &deadline))
		return NULL;
	key = owed_first(t.owed);
	if (key) {
		out = take_named(&t, key);
		Py_DECREF(key);
		return out;
	}
	if (PyErr_Occurred())
		return NULL;
	if (!channel_enter(self, deadline)) {
		/* The time may be over while another thread still waits for the next. */
		if (PyErr_ExceptionMatches(PyExc_TimeoutError))
			PyErr_SetObject(t.empty, NULL);
		return NULL;
	}
	rc = next_wait(self, &b, deadline, t.alive);
	channel_leave(self);
	if (rc == -ETIMEDOUT && !PyErr_Occurred())
		PyErr_SetObject(t.empty, NULL);
	if (rc)
		return PyErr_Occurred() ? NULL : raise_errno(rc);
	copied = message_copy(&m, b);
	sluice_batch_release(b);
	if (!copied)
		return NULL;
	if (m.tag == WIRE_TAG_STORED) {
		key = message_key(self, &m);
		free(m.data);
		if (key)
			out = take_named(&t, key);
		Py_XDECREF(key);
		return out;
	}
	out = message_decode(&m, t.codec);
	if (out && m.tag != WIRE_TAG_INLINE) {
		PyObject *value = out;

		out = PyObject_CallMethod(t.queue, "_take_spilled", "(O)", value);
		Py_DECREF(value);
	}
	return out;
}

static int begin_wait(struct py_channel *self, struct sluice_batch **b, struct sluice_batch_opts *o,
		      uint64_t deadline, PyObject *alive)
{
	int rc;

	o->timeout_ns = 0;
	rc = sluice_batch_begin_opts(self->ch, b, o);
	while (rc && wait_goes_on(self, rc, deadline, alive)) {
		o->timeout_ns = deadline_slice(deadline);
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_batch_begin_opts(self->ch, b, o);
		Py_END_ALLOW_THREADS;
	}
	if (rc && !PyErr_Occurred())
		raise_errno(rc == -EINTR ? -ETIMEDOUT : rc);
	return rc;
}

static int publish_wait(struct py_channel *self, struct sluice_batch *b, uint64_t deadline,
			PyObject *alive)
{
	int rc = sluice_batch_publish_timeout(b, 0);

	while (rc && wait_goes_on(self, rc, deadline, alive)) {
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_batch_publish_timeout(b, deadline_slice(deadline));
		Py_END_ALLOW_THREADS;
	}
	if (rc && !PyErr_Occurred())
		raise_errno(rc == -EINTR ? -ETIMEDOUT : rc);
	return rc;
}

bool channel_is_open(PyObject *channel)
{
	struct py_channel *self = (struct py_channel *)channel;

	return (self->ch && self->gen == fork_gen && !self->closing) || closed();
}

/*
 * Publishing needs the endpoint for itself only when it has to sleep.  Another thread may have it
 * for as long as it waits for room, and its consumer may be waiting for this very batch: so that
 * thread is not waited for.
 */
static int publish_slice(struct py_channel *self, struct sluice_batch *b, uint64_t deadline)
{
	int rc;

	if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
		self->owner = PyThread_get_thread_ident();
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_batch_publish_timeout(b, deadline_slice(deadline));
		Py_END_ALLOW_THREADS;
		channel_leave(self);
		return rc;
	}
	Py_BEGIN_ALLOW_THREADS;
	usleep(200);
	Py_END_ALLOW_THREADS;
	return self->ch ? sluice_batch_publish_timeout(b, 0) : -EAGAIN;
}

/* An error with an exception.  At first without a look at signals: mostly there is room. */
int channel_publish(PyObject *channel, struct sluice_batch *b, uint64_t deadline, PyObject *alive)
{
	struct py_channel *self = (struct py_channel *)channel;
	int rc;

	if (!channel_is_open(channel))
		return -EINVAL;
	rc = sluice_batch_publish_timeout(b, 0);
	while (rc && wait_goes_on(self, rc, deadline, alive)) {
		rc = publish_slice(self, b, deadline);
	}
	if (rc && !PyErr_Occurred())
		raise_errno(rc == -EINTR ? -ETIMEDOUT : rc);
	return rc;
}

static PyObject *channel_begin(struct py_channel *self, PyObject *args)
{
	struct sluice_batch_opts o = {.sz = sizeof(o)};
	PyObject *timeout = Py_None, *alive = Py_None, *out = NULL;
	struct sluice_batch *b;
	unsigned long long bytes;
	uint64_t deadline;

	if (!PyArg_ParseTuple(args, "K|IOO", &bytes, &o.tensors, &timeout, &alive) ||
	    deadline_from(timeout, &deadline))
		return NULL;
	o.bytes = bytes;
	if (!channel_enter(self, deadline))
		return NULL;
	if (!begin_wait(self, &b, &o, deadline, alive))
		out = batch_new_writing(self->ar, (PyObject *)self, b);
	channel_leave(self);
	return out;
}

/* One object, one extent, one descriptor.  The endpoint is entered. */
static int put_plan(struct py_channel *self, PyObject *plan, uint64_t tag, uint64_t deadline,
		    PyObject *alive)
{
	struct sluice_batch_opts o = {.sz = sizeof(o), .tensors = 1};
	struct sluice_batch *b;
	int64_t len;
	void *dst;
	int rc;

	o.bytes = plan_bytes(plan);
	len = o.bytes;
	rc = begin_wait(self, &b, &o, deadline, alive);
	if (rc)
		return rc;
	dst = sluice_batch_tensor_add(b, "py", SLUICE_U8, 1, &len, NULL);
	if (!dst) {
		raise_errno(errno);
		rc = -1;
	} else if (plan_write(plan, dst)) {
		rc = -1;
	} else {
		sluice_batch_tag(b, tag);
		rc = publish_wait(self, b, deadline, alive);
	}
	if (rc)
		sluice_batch_abort(b);
	return rc;
}

static bool put(struct py_channel *self, PyObject *plan, uint64_t tag, uint64_t deadline,
		PyObject *alive)
{
	int rc;

	if (!channel_enter(self, deadline))
		return false;
	rc = put_plan(self, plan, tag, deadline, alive);
	channel_leave(self);
	return !rc;
}

/* put(plan, tag, timeout, alive) */
static PyObject *channel_put(struct py_channel *self, PyObject *args)
{
	PyObject *plan, *timeout = Py_None, *alive = Py_None;
	unsigned long long tag = 0;
	uint64_t deadline;

	if (!PyArg_ParseTuple(args, "O!|KOO", plan_type, &plan, &tag, &timeout, &alive) ||
	    deadline_from(timeout, &deadline) || !put(self, plan, tag, deadline, alive))
		return NULL;
	Py_RETURN_NONE;
}

static bool share(struct py_channel *self, struct sluice_batch *b, uint64_t deadline,
		  PyObject *alive)
{
	int rc;

	sluice_batch_retain(b); /* the object may be released while the GIL is away */
	if (!channel_enter(self, deadline)) {
		sluice_batch_release(b);
		return false;
	}
	rc = sluice_batch_share(b, self->ch, 0);
	while (rc && wait_goes_on(self, rc, deadline, alive)) {
		Py_BEGIN_ALLOW_THREADS;
		rc = sluice_batch_share(b, self->ch, deadline_slice(deadline));
		Py_END_ALLOW_THREADS;
	}
	sluice_batch_release(b);
	channel_leave(self);
	if (rc && !PyErr_Occurred())
		raise_errno(rc == -EINTR ? -ETIMEDOUT : rc);
	return !rc;
}

/* share(batch, timeout, alive): queue a reference to a batch that this process holds. */
static PyObject *channel_share(struct py_channel *self, PyObject *args)
{
	PyObject *batch, *timeout = Py_None, *alive = Py_None;
	struct sluice_batch *b;
	uint64_t deadline;

	if (!PyArg_ParseTuple(args, "O!|OO", batch_type, &batch, &timeout, &alive) ||
	    deadline_from(timeout, &deadline))
		return NULL;
	b = batch_held_of(batch);
	if (!b || !share(self, b, deadline, alive))
		return NULL;
	Py_RETURN_NONE;
}

/*
 * The batch that a message announced, which is out already: published if it is being written, else
 * shared on the channel.  Whatever interrupts that, it has to follow: then it is left in late.
 */
static PyObject *follow(PyObject *batch, PyObject *channel, PyObject *alive, PyObject *late)
{
	PyObject *type, *value, *trace, *entry;
	bool done;

	if (channel == Py_None)
		done = !batch_publish_to(batch, SLUICE_FOREVER, alive);
	else
		done = share((struct py_channel *)channel, batch_held_of(batch), SLUICE_FOREVER,
			     alive);
	if (done)
		Py_RETURN_NONE;
	PyErr_Fetch(&type, &value, &trace);
	entry = Py_BuildValue("(OO)", batch, channel);
	if (entry)
		PyList_Append(late, entry);
	Py_XDECREF(entry);
	PyErr_Clear();
	PyErr_Restore(type, value, trace);
	return NULL;
}

/* What follow() takes; a batch that is shared is held by an object of our own meanwhile. */
static PyObject *follower(PyObject *batch, PyObject *channel)
{
	if (!PyObject_TypeCheck(batch, batch_type) ||
	    (channel != Py_None && !PyObject_TypeCheck(channel, channel_type))) {
		PyErr_SetString(PyExc_TypeError, "a batch, and a channel or None");
		return NULL;
	}
	if (channel != Py_None)
		return batch_again(batch);
	Py_INCREF(batch);
	return batch;
}

/*
 * announce(plan, tag, timeout, alive, batch, channel, late): put() here, then the batch there.  No
 * signal handler runs in between.
 */
static PyObject *channel_announce(struct py_channel *self, PyObject *args)
{
	PyObject *plan, *timeout, *alive, *batch, *channel, *late, *out = NULL;
	unsigned long long tag;
	uint64_t deadline;

	if (!PyArg_ParseTuple(args, "O!KOOOOO!", plan_type, &plan, &tag, &timeout, &alive, &batch,
			      &channel, &PyList_Type, &late) ||
	    deadline_from(timeout, &deadline))
		return NULL;
	batch = follower(batch, channel);
	if (batch && put(self, plan, tag, deadline, alive))
		out = follow(batch, channel, alive, late);
	Py_XDECREF(batch);
	return out;
}

/*
 * share_both(note, timeout, alive, batch, channel, late): share() here, then the batch there.  What
 * is put again and again needs no message of its own each time.
 */
static PyObject *channel_share_both(struct py_channel *self, PyObject *args)
{
	PyObject *note, *timeout, *alive, *batch, *channel, *late, *out = NULL;
	struct sluice_batch *n;
	uint64_t deadline;

	if (!PyArg_ParseTuple(args, "O!OOOOO!", batch_type, &note, &timeout, &alive, &batch,
			      &channel, &PyList_Type, &late) ||
	    deadline_from(timeout, &deadline))
		return NULL;
	n = batch_held_of(note);
	batch = n ? follower(batch, channel) : NULL;
	if (batch && share(self, n, deadline, alive))
		out = follow(batch, channel, alive, late);
	Py_XDECREF(batch);
	return out;
}

static PyObject *channel_shutdown(struct py_channel *self, PyObject *unused)
{
	int rc;

	if (!channel_enter(self, SLUICE_FOREVER))
		return NULL;
	rc = sluice_channel_shutdown(self->ch);
	channel_leave(self);
	if (rc)
		return raise_errno(rc);
	Py_RETURN_NONE;
}

static PyObject *stats_dict(const struct sluice_channel_stats *s)
{
	return Py_BuildValue(
		"{sK sK sK sK sK sd sK sd sK sK sK sK sI sI sI sI}", "published",
		(unsigned long long)s->published, "published_bytes",
		(unsigned long long)s->published_bytes, "consumed", (unsigned long long)s->consumed,
		"consumed_bytes", (unsigned long long)s->consumed_bytes, "space_waits",
		(unsigned long long)s->space_waits, "space_wait", s->space_wait_ns / 1e9,
		"batch_waits", (unsigned long long)s->batch_waits, "batch_wait",
		s->batch_wait_ns / 1e9, "spins", (unsigned long long)s->spins, "sleeps",
		(unsigned long long)s->sleeps, "doorbells", (unsigned long long)s->doorbells,
		"doorbells_suppressed", (unsigned long long)s->doorbells_suppressed, "queued",
		s->queued, "capacity", s->capacity, "producers", s->producers, "consumers",
		s->consumers);
}

static PyObject *channel_stats(struct py_channel *self, PyObject *unused)
{
	struct sluice_channel_stats st = {.sz = sizeof(st)};
	int rc;

	if (!channel_enter(self, SLUICE_FOREVER))
		return NULL;
	rc = sluice_channel_stats(self->ch, &st);
	channel_leave(self);
	return rc ? raise_errno(rc) : stats_dict(&st);
}

/* Of the whole channel, all endpoints together; the endpoint may be waiting in another thread. */
static PyObject *channel_totals(struct py_channel *self, PyObject *unused)
{
	struct arena_ref *ar = arena_of(self->arena);
	struct sluice_channel_info *info;
	PyObject *out = NULL;
	int n;

	if (!ar)
		return NULL;
	info = calloc(SLUICE_MAX_CHANNELS, sizeof(*info));
	if (!info)
		return PyErr_NoMemory();
	info[0].sz = sizeof(*info);
	n = sluice_channel_list(ar->a, info, SLUICE_MAX_CHANNELS);
	for (int i = 0; i < n && i < SLUICE_MAX_CHANNELS && !out; i++)
		if (!strcmp(info[i].name, self->name))
			out = stats_dict(&info[i].stats);
	free(info);
	if (!out && !PyErr_Occurred())
		return raise_errno(n < 0 ? n : -ENOENT);
	return out;
}

static PyObject *channel_get_name(struct py_channel *self, void *unused)
{
	return PyUnicode_FromString(self->name);
}

static PyObject *channel_get_arena(struct py_channel *self, void *unused)
{
	Py_INCREF(self->arena);
	return self->arena;
}

static PyObject *channel_get_closed(struct py_channel *self, void *unused)
{
	return PyBool_FromLong(!self->ch);
}

static PyObject *channel_get_flags(struct py_channel *self, void *unused)
{
	return PyLong_FromLong(self->opts.flags);
}

static PyMethodDef channel_methods[] = {
	{"next", (PyCFunction)channel_next, METH_VARARGS,
	 "next(timeout=None, alive=None): the next batch; alive() is called while waiting."},
	{"begin", (PyCFunction)channel_begin, METH_VARARGS,
	 "begin(nbytes, tensors=0, timeout=None): a batch to write."},
	{"put", (PyCFunction)channel_put, METH_VARARGS,
	 "put(plan, tag=0, timeout=None, alive=None)"},
	{"share", (PyCFunction)channel_share, METH_VARARGS,
	 "share(batch, timeout=None, alive=None): queue a reference to a held batch."},
	{"take", (PyCFunction)channel_take, METH_VARARGS,
	 "take(timeout, (known, codec, alive, empty, owed), queue): the next object of a queue"},
	{"announce", (PyCFunction)channel_announce, METH_VARARGS,
	 "announce(plan, tag, timeout, alive, batch, channel, late): put here, the batch there"},
	{"share_both", (PyCFunction)channel_share_both, METH_VARARGS,
	 "share_both(note, timeout, alive, batch, channel, late): share here, and there"},
	{"shutdown", (PyCFunction)channel_shutdown, METH_NOARGS, "End the stream for everybody."},
	{"close", (PyCFunction)channel_close, METH_NOARGS, "Close this endpoint."},
	{"stats", (PyCFunction)channel_stats, METH_NOARGS, "Counters of this endpoint."},
	{"totals", (PyCFunction)channel_totals, METH_NOARGS, "Counters of the whole channel."},
	{NULL},
};

static PyGetSetDef channel_getset[] = {
	{"name", (getter)channel_get_name, NULL, "of the channel", NULL},
	{"arena", (getter)channel_get_arena, NULL, "of the channel", NULL},
	{"closed", (getter)channel_get_closed, NULL, "whether close() was called", NULL},
	{"flags", (getter)channel_get_flags, NULL, "of this endpoint", NULL},
	{NULL},
};

static PyType_Slot channel_slots[] = {
	{Py_tp_dealloc, channel_dealloc},
	{Py_tp_methods, channel_methods},
	{Py_tp_getset, channel_getset},
	{Py_tp_doc, "One endpoint of a channel."},
	{0, NULL},
};

static PyType_Spec channel_spec = {
	.name = "sluice._sluice.Channel",
	.basicsize = sizeof(struct py_channel),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = channel_slots,
};

int channel_type_init(PyObject *mod)
{
	channel_type = (PyTypeObject *)PyType_FromSpec(&channel_spec);
	return module_add_type(mod, "Channel", channel_type);
}
