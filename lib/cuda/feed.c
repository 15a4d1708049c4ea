/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Host to device.  Every batch is one copy on the feed's stream into a device buffer (a slot) and
 * goes through these steps, all in stream order:
 *
 *   the copy stream waits for slot.passed    the caller's work on the buffer's previous batch
 *   copy
 *   record the group's event                 the caller's stream waits for this one
 *   a host function on the reap stream       gives the extent back while nobody calls us
 *   ...the caller's work...
 *   record slot.passed                       by sluice_cuda_batch_release()
 *
 * Small batches that are queued together form a group: one event tells about all their copies.
 * Their extents go back without a host function, which would cost more than the copy: by the next
 * call, or while that waits, and at the latest when their slot is used again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feed.h"
#include "nvtx.h"

#define DEPTH_DEFAULT 4
#define GROUP_BYTES   (256ULL << 10) /* a group is closed when it has this many bytes */
#define PROMPT_BYTES  (1ULL << 20) /* host functions and interrupts are worth their cost from here */

struct queue {
	struct sluice_cuda_batch *head, **tail;
};

struct sluice_cuda_feed {
	struct sluice_cuda *c;
	struct sluice_channel *ch;
	CUstream stream, reap;
	bool own_stream;
	uint32_t depth;
	uint32_t nfree;
	struct queue free, ready;
	struct queue flight; /* of copies that hold extents, in stream order, linked by .fly */
	uint32_t nready;
	struct cuda_tickets tickets;
	struct sluice_batch *stash; /* taken from the channel, no device memory for it yet */
	int err; /* from the channel, behind what is ready */
	char err_text[256];
	struct sluice_cuda_feed_stats st;
	struct sluice_cuda_batch slots[];
};

static void queue_init(struct queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

static void queue_add(struct queue *q, struct sluice_cuda_batch *s)
{
	s->next = NULL;
	*q->tail = s;
	q->tail = &s->next;
}

static struct sluice_cuda_batch *queue_take(struct queue *q)
{
	struct sluice_cuda_batch *s = q->head;

	q->head = s->next;
	if (!q->head)
		q->tail = &q->head;
	return s;
}

static void slot_free(struct sluice_cuda_feed *f, struct sluice_cuda_batch *s)
{
	queue_add(&f->free, s);
	f->nfree++;
}

/* ---- slots */

static int slot_create(struct sluice_cuda_feed *f, struct sluice_cuda_batch *s)
{
	const struct cuda_driver *cu = f->c->cu;
	CUresult r = CUDA_SUCCESS;

	s->feed = f;
	for (int large = 0; large < 2 && r == CUDA_SUCCESS; large++)
		r = cu->EventCreate(&s->copied[large], cuda_event_flags(large));
	if (r == CUDA_SUCCESS)
		r = cu->EventCreate(&s->passed, cuda_event_flags(false));
	if (r != CUDA_SUCCESS)
		return cuda_broken(f->c, r, "cannot create an event");
	slot_free(f, s);
	return 0;
}

static CUevent group_event(const struct sluice_cuda_batch *group)
{
	return group->copied[group->large];
}

/*
 * Record the event of a group, or, if that failed, try again: later on the stream is as good.  Until it
 * is recorded the event tells of an earlier copy.
 */
static int group_follow(struct sluice_cuda_batch *group)
{
	struct sluice_cuda_feed *f = group->feed;
	CUresult r;

	if (group->recorded)
		return 0;
	r = f->c->cu->EventRecord(group_event(group), f->stream);
	if (r != CUDA_SUCCESS)
		return cuda_broken(f->c, r, "cannot follow a copy to the device");
	group->recorded = true;
	return 0;
}

/*
 * Give back the extents whose copies are complete, unless a host function was quicker; with @upto up
 * to that slot, whose copy the caller knows to be complete.
 */
static int feed_reap(struct sluice_cuda_feed *f, const struct sluice_cuda_batch *upto)
{
	const struct sluice_cuda_batch *fired = upto ? upto->group : NULL;
	bool past = !upto;

	while (f->flight.head) {
		struct sluice_cuda_batch *s = f->flight.head;

		if (past && s->group != fired) {
			int ret = group_follow(s->group);

			if (!ret)
				ret = cuda_event_fired(f->c, group_event(s->group));
			if (ret <= 0)
				return ret;
			fired = s->group;
		}
		past |= s == upto;
		cuda_ticket_settle(s->ticket);
		cuda_ticket_put(&f->tickets, s->ticket);
		s->ticket = NULL;
		f->st.held--;
		f->flight.head = s->fly;
		if (!s->fly)
			f->flight.tail = &f->flight.head;
	}
	return cuda_check(f->c);
}

static int slot_wait_copied(struct sluice_cuda_batch *s)
{
	struct sluice_cuda_feed *f = s->feed;
	uint64_t start;
	int ret;

	if (!s->ticket)
		return 0;
	ret = group_follow(s->group);
	if (ret)
		return ret;
	ret = cuda_event_fired(f->c, group_event(s->group));
	if (!ret) {
		start = cuda_now();
		ret = cuda_event_wait(f->c, group_event(s->group), s->group->large, SLUICE_FOREVER);
		f->st.stalls++;
		f->st.stall_ns += cuda_now() - start;
	}
	if (ret < 0)
		return ret;
	return feed_reap(f, s);
}

/* Free the buffer and get a larger one. */
static int slot_grow(struct sluice_cuda_batch *s, uint64_t bytes)
{
	struct sluice_cuda_feed *f = s->feed;
	const uint64_t unit = bytes > (1 << 20) ? 2ULL << 20 : 64ULL << 10;
	CUresult r;
	int ret;

	ret = cuda_event_wait(f->c, s->passed, false, SLUICE_FOREVER);
	if (!ret)
		ret = cuda_check(f->c);
	if (ret)
		return ret;
	s->has_passed = false;
	if (s->dev) {
		/* Work on the copy stream itself is followed by no event. */
		r = f->own_stream ? CUDA_SUCCESS : f->c->cu->StreamSynchronize(f->stream);
		if (r != CUDA_SUCCESS)
			return cuda_broken(f->c, r, "cannot wait for the copy stream");
		f->c->cu->MemFree(s->dev);
		f->st.device_bytes -= s->dev_bytes;
		s->dev = 0;
		s->dev_bytes = 0;
	}
	bytes = (bytes + unit - 1) / unit * unit;
	r = f->c->cu->MemAlloc(&s->dev, bytes);
	if (r != CUDA_SUCCESS) {
		s->dev = 0;
		if (r != CUDA_ERROR_OUT_OF_MEMORY)
			return cuda_broken(f->c, r, "cannot allocate a device buffer");
		return cuda_fail_result(
			f->c->cu, r,
			"no device memory for a buffer of %llu bytes (the feed's %u buffers "
			"have %llu bytes so far)",
			(unsigned long long)bytes, f->depth,
			(unsigned long long)f->st.device_bytes);
	}
	s->dev_bytes = bytes;
	f->st.device_bytes += bytes;
	f->st.grown++;
	return 0;
}

/* Put the copy of @b on the stream.  On failure the batch is still the caller's. */
static int slot_fill(struct sluice_cuda_batch *s, struct sluice_batch *b, uint64_t *bytes)
{
	struct sluice_cuda_feed *f = s->feed;
	uint64_t first, end;
	CUresult r = CUDA_SUCCESS;
	int ret;

	ret = slot_wait_copied(s);
	if (!ret)
		ret = cuda_manifest_take(s, b, &first, &end);
	if (ret)
		return ret;
	s->first = first;
	*bytes = end - first;
	if (*bytes && !cuda_reg_has(f->c->reg, s->info.payload)) {
		ret = cuda_fail_elsewhere();
		goto err;
	}
	if (*bytes > s->dev_bytes) {
		ret = slot_grow(s, *bytes);
		if (ret)
			goto err;
	}
	ret = -ENOMEM;
	s->ticket = cuda_ticket_get(&f->tickets, b);
	if (!s->ticket) {
		cuda_fail(ENOMEM, "no memory to remember a copy");
		goto err;
	}
	cuda_range_begin("copy in");
	if (s->has_passed)
		r = f->c->cu->StreamWaitEvent(f->stream, s->passed, CU_EVENT_WAIT_DEFAULT);
	if (r == CUDA_SUCCESS)
		r = cuda_copy_in(f->c, s->dev, (char *)s->info.payload + first, *bytes, f->stream);
	cuda_range_end();
	if (r != CUDA_SUCCESS) {
		ret = cuda_broken(f->c, r, "cannot copy a batch to the device");
		cuda_ticket_take(s->ticket);
		cuda_ticket_put(&f->tickets, s->ticket);
		s->ticket = NULL;
		goto err;
	}
	s->has_passed = false;
	s->state = SLOT_COPIED;
	s->info.payload_bytes = *bytes;
	f->st.held++;
	f->st.batches++;
	f->st.bytes += *bytes;
	return 0;

err:
	sluice_batch_release(s->kept);
	s->kept = NULL;
	return ret;
}

/* ---- pulling batches from the channel */

/* Keep an error until everything that is ready has been handed out. */
static void err_keep(struct sluice_cuda_feed *f, int err)
{
	f->err = err;
	snprintf(f->err_text, sizeof(f->err_text), "%s", sluice_cuda_strerror());
}

/*
 * What small copies hold goes back only by a call of ours, and the producer may be waiting for just
 * that: as long as there are any, wait in naps.
 */
static int channel_next(struct sluice_cuda_feed *f, struct sluice_batch **b, uint64_t deadline)
{
	uint64_t start = 0, now, until;
	int ret;

	while (deadline && f->flight.head) {
		now = cuda_now();
		start = start ? start : now;
		until = (now + cuda_nap(now - start)) | SLUICE_ABSTIME;
		if (until >= deadline)
			break;
		ret = sluice_channel_next(f->ch, b, until);
		if (ret != -ETIMEDOUT)
			goto out;
		ret = feed_reap(f, NULL);
		if (ret)
			return ret;
	}
	ret = sluice_channel_next(f->ch, b, deadline);
out:
	return ret && ret != -EAGAIN ? cuda_fail_core(ret) : ret;
}

static struct sluice_batch *batch_pull(struct sluice_cuda_feed *f, uint64_t deadline, int *err)
{
	struct sluice_batch *b = f->stash;

	f->stash = NULL;
	if (b)
		return b;
	if (f->err) {
		*err = cuda_fail(-f->err, "%s", f->err_text);
		f->err = 0;
		return NULL;
	}
	*err = channel_next(f, &b, deadline);
	return *err ? NULL : b;
}

/*
 * One group: small batches until there are no more, or one large batch.  Waits until @deadline for
 * the first.  Return: how many copies were started, or a negative errno if none was.
 */
static int group_start(struct sluice_cuda_feed *f, uint64_t deadline)
{
	struct sluice_cuda_batch *members = f->free.head, *last = NULL, *s;
	uint64_t bytes = 0, n;
	struct sluice_batch *b;
	int count = 0, ret = 0;

	while (f->free.head && bytes < GROUP_BYTES) {
		b = batch_pull(f, count ? 0 : deadline, &ret);
		if (!b)
			break;
		ret = slot_fill(f->free.head, b, &n);
		if (ret) {
			f->stash = b;
			break;
		}
		last = queue_take(&f->free);
		f->nfree--;
		queue_add(&f->ready, last);
		f->nready++;
		if (!count++)
			members = last;
		bytes += n;
	}
	if (!count)
		return ret;
	if (ret && ret != -EAGAIN && !f->stash)
		err_keep(f, ret);
	last->recorded = false;
	last->large = bytes >= PROMPT_BYTES;
	for (s = members; s; s = s->next) {
		s->group = last;
		s->fly = NULL;
		*f->flight.tail = s;
		f->flight.tail = &s->fly;
	}
	ret = group_follow(last);
	if (!ret && last->ticket && last->large) {
		CUresult r = cuda_ticket_arm(f->c, last->ticket, group_event(last), f->reap);

		if (r != CUDA_SUCCESS)
			ret = cuda_broken(f->c, r, "cannot follow a copy to the device");
	}
	if (ret)
		return ret;
	return count;
}

/*
 * Start whatever can be started without waiting.  An error is kept for when everything that is
 * ready has been handed out.
 */
static void feed_ahead(struct sluice_cuda_feed *f)
{
	int ret = 1;

	while (ret > 0 && !f->err && f->free.head) {
		if (f->free.head->ticket)
			return;
		ret = group_start(f, 0);
	}
	if (ret < 0 && ret != -EAGAIN && !f->stash)
		err_keep(f, ret);
}

/* So far ahead that it pays to wait until there are buffers for a whole group of small batches. */
static bool far_ahead(const struct sluice_cuda_feed *f)
{
	return f->nready > f->depth / 2 && f->nfree < f->depth / 8;
}

/* ---- the public calls */

static int opts_take(struct sluice_cuda_feed_opts *to, const struct sluice_cuda_feed_opts *from)
{
	memset(to, 0, sizeof(*to));
	if (from) {
		if (from->sz < sizeof(from->sz))
			return cuda_fail(EINVAL, "options .sz is %zu", from->sz);
		memcpy(to, from, from->sz < sizeof(*to) ? from->sz : sizeof(*to));
	}
	if (to->flags)
		return cuda_fail(EINVAL, "flags 0x%x are not known", to->flags);
	if (!to->depth)
		to->depth = DEPTH_DEFAULT;
	if (to->depth > SLUICE_CUDA_MAX_DEPTH)
		return cuda_fail(EINVAL, "depth %u is above %u", to->depth, SLUICE_CUDA_MAX_DEPTH);
	if (to->stream == CU_STREAM_PER_THREAD)
		return cuda_fail(EINVAL, "cudaStreamPerThread is another stream on every thread: "
					 "copies need one of their own");
	return 0;
}

static int feed_init(struct sluice_cuda_feed *f, const struct sluice_cuda_feed_opts *o)
{
	CUresult r = CUDA_SUCCESS;
	int ret;

	if (f->own_stream)
		r = f->c->cu->StreamCreate(&f->stream, CU_STREAM_NON_BLOCKING);
	if (r == CUDA_SUCCESS)
		r = f->c->cu->StreamCreate(&f->reap, CU_STREAM_NON_BLOCKING);
	if (r != CUDA_SUCCESS)
		return cuda_broken(f->c, r, "cannot create a stream");
	for (uint32_t i = 0; i < f->depth; i++) {
		ret = slot_create(f, &f->slots[i]);
		if (!ret && o->buffer_bytes)
			ret = slot_grow(&f->slots[i], o->buffer_bytes);
		if (ret)
			return ret;
	}
	return 0;
}

static void feed_destroy(struct sluice_cuda_feed *f, bool alive)
{
	const struct cuda_driver *cu = f->c->cu;

	for (uint32_t i = 0; i < f->depth; i++) {
		struct sluice_cuda_batch *s = &f->slots[i];

		sluice_batch_release(s->kept);
		cuda_manifest_free(s);
		if (!alive)
			continue;
		if (s->has_passed)
			cuda_event_wait(f->c, s->passed, false, SLUICE_FOREVER);
		if (s->dev)
			cu->MemFree(s->dev);
		for (int large = 0; large < 2; large++)
			if (s->copied[large])
				cu->EventDestroy(s->copied[large]);
		if (s->passed)
			cu->EventDestroy(s->passed);
	}
	if (alive && f->own_stream && f->stream)
		cu->StreamDestroy(f->stream);
	if (alive && f->reap)
		cu->StreamDestroy(f->reap);
	atomic_fetch_sub(&f->c->users, 1);
	free(f);
}

int sluice_cuda_feed_open(struct sluice_cuda_feed **out, struct sluice_cuda *c,
			  struct sluice_channel *ch, const struct sluice_cuda_feed_opts *opts)
{
	struct sluice_cuda_feed_opts o;
	struct sluice_cuda_feed *f;
	int entered, ret;

	ret = opts_take(&o, opts);
	if (ret)
		return ret;
	entered = cuda_enter(c);
	if (entered < 0)
		return entered;
	f = calloc(1, sizeof(*f) + o.depth * sizeof(f->slots[0]));
	if (!f) {
		ret = cuda_fail(ENOMEM, "no memory for a feed of depth %u", o.depth);
		goto out;
	}
	f->c = c;
	f->ch = ch;
	f->depth = o.depth;
	f->stream = o.stream;
	f->own_stream = !o.stream;
	f->tickets.done = sluice_batch_release;
	queue_init(&f->free);
	queue_init(&f->ready);
	queue_init(&f->flight);
	atomic_fetch_add(&c->users, 1);
	ret = feed_init(f, &o);
	if (ret)
		feed_destroy(f, true);
	else
		*out = f;
out:
	cuda_leave(c, entered);
	return ret;
}

static int batch_hand_out(struct sluice_cuda_feed *f, struct sluice_cuda_batch **out,
			  CUstream stream)
{
	struct sluice_cuda_batch *s = f->ready.head;
	CUresult r = CUDA_SUCCESS;
	int ret = 0;

	/* Without a ticket the copy is known to be complete. */
	if (s->ticket)
		ret = group_follow(s->group);
	if (ret)
		return ret;
	if (s->ticket && stream != f->stream)
		r = f->c->cu->StreamWaitEvent(stream, group_event(s->group), CU_EVENT_WAIT_DEFAULT);
	if (r != CUDA_SUCCESS)
		return cuda_broken_by(f->c, r, "cannot make the stream wait for a copy");
	queue_take(&f->ready);
	f->nready--;
	s->state = SLOT_OUT;
	*out = s;
	return 0;
}

static int batch_wait(struct sluice_cuda_feed *f, uint64_t timeout_ns)
{
	uint64_t start;
	int ret;

	if (!f->free.head && f->st.lost)
		return cuda_fail(
			EBUSY,
			"of %u device buffers the caller has %u, and %u are lost to failed "
			"releases",
			f->depth, f->depth - f->st.lost, f->st.lost);
	if (!f->free.head)
		return cuda_fail(EBUSY, "all %u device buffers are with the caller: release one",
				 f->depth);
	start = cuda_now();
	cuda_range_begin("wait");
	ret = group_start(f, cuda_deadline(timeout_ns));
	cuda_range_end();
	if (ret == -EAGAIN)
		cuda_fail_core(ret);
	f->st.waits++;
	f->st.wait_ns += cuda_now() - start;
	return ret < 0 ? ret : 0;
}

static int feed_enter(struct sluice_cuda_feed *f)
{
	int entered = cuda_enter(f->c);
	int ret;

	if (entered < 0 || f->own_stream)
		return entered;
	ret = cuda_stream_check(f->c, f->stream);
	if (ret)
		cuda_leave(f->c, entered);
	return ret ? ret : entered;
}

int sluice_cuda_feed_next(struct sluice_cuda_feed *f, struct sluice_cuda_batch **out,
			  struct CUstream_st *stream, uint64_t timeout_ns)
{
	int entered = feed_enter(f);
	int ret;

	if (entered < 0)
		return entered;
	ret = feed_reap(f, NULL);
	if (!ret && !f->nready)
		ret = batch_wait(f, timeout_ns);
	if (!ret)
		ret = batch_hand_out(f, out, stream);
	if (!ret && !far_ahead(f))
		feed_ahead(f);
	cuda_leave(f->c, entered);
	return ret;
}

int sluice_cuda_feed_pump(struct sluice_cuda_feed *f)
{
	int entered = feed_enter(f);
	int ret;

	if (entered < 0)
		return entered;
	ret = feed_reap(f, NULL);
	if (!ret)
		feed_ahead(f);
	cuda_leave(f->c, entered);
	return ret ? ret : (int)f->nready;
}

int sluice_cuda_batch_release(struct sluice_cuda_batch *s, struct CUstream_st *stream)
{
	struct sluice_cuda_feed *f;
	int entered;
	CUresult r;
	int ret = 0;

	if (!s)
		return 0;
	f = s->feed;
	if (s->state != SLOT_OUT)
		return cuda_fail(EINVAL, "this device batch was released already");
	entered = cuda_enter(f->c);
	if (entered >= 0 && stream != f->stream)
		ret = cuda_stream_check(f->c, stream);
	if (ret) {
		cuda_leave(f->c, entered);
		return ret;
	}
	sluice_batch_release(s->kept);
	s->kept = NULL;
	s->state = SLOT_FREE;
	if (entered < 0)
		return entered;
	if (stream != f->stream) {
		r = f->c->cu->EventRecord(s->passed, stream);
		s->has_passed = r == CUDA_SUCCESS;
		/* What cannot be followed can be waited for. */
		if (r != CUDA_SUCCESS && f->c->cu->StreamSynchronize(stream) != CUDA_SUCCESS)
			ret = cuda_broken_by(f->c, r, "cannot follow the stream of a release");
	}
	if (!ret)
		slot_free(f, s);
	else
		f->st.lost++;
	cuda_leave(f->c, entered);
	return ret;
}

int sluice_cuda_feed_stats(struct sluice_cuda_feed *f, struct sluice_cuda_feed_stats *st)
{
	if (st->sz < sizeof(st->sz))
		return cuda_fail(EINVAL, "stats .sz is %zu", st->sz);
	f->st.ready = f->nready;
	f->st.sz = st->sz < sizeof(f->st) ? st->sz : sizeof(f->st);
	memcpy(st, &f->st, f->st.sz);
	return 0;
}

void sluice_cuda_feed_close(struct sluice_cuda_feed *f)
{
	struct sluice_cuda *c;
	bool quiet = false, known, alive;
	int entered;

	if (!f)
		return;
	c = f->c;
	entered = cuda_enter(c);
	if (entered == -ECHILD)
		return;
	/* In a context that was made again our buffers may be somebody else's: ask for an event of ours. */
	if (entered >= 0)
		cuda_event_fired(c, f->slots[0].passed);
	if (entered >= 0 && atomic_load(&c->health) == CUDA_HEALTHY) {
		CUresult r = c->cu->StreamSynchronize(f->stream);

		if (r == CUDA_SUCCESS)
			r = c->cu->StreamSynchronize(f->reap);
		quiet = r == CUDA_SUCCESS;
		if (!quiet)
			cuda_broken(c, r, "a copy failed");
		/* Where a stream cannot be waited for, its events may still tell. */
		while (!quiet && f->flight.head && !slot_wait_copied(f->flight.head))
			;
	}
	known = quiet || !f->flight.head || atomic_load(&c->health) == CUDA_GONE;
	alive = entered >= 0 && known && atomic_load(&c->health) == CUDA_HEALTHY;
	for (struct sluice_cuda_batch *s = f->flight.head; s; s = s->fly) {
		/* What may still be read is not given back. */
		if (known)
			cuda_ticket_settle(s->ticket);
		else if (cuda_ticket_take(s->ticket))
			atomic_fetch_add(&c->quarantined, 1);
		cuda_ticket_put(&f->tickets, s->ticket);
	}
	cuda_tickets_free(&f->tickets, quiet || atomic_load(&c->health) == CUDA_GONE);
	sluice_batch_release(f->stash);
	feed_destroy(f, alive);
	cuda_leave(c, entered);
}
