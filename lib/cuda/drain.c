/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Device to host.  A batch is queued before its bytes have arrived (sluice_batch_post()), and the
 * stream itself delivers it:
 *
 *   the egress stream waits for the caller's stream
 *   copies into the extent
 *   writes the completion word: consumers that are awake have the batch now
 *   record done
 *   a host function, on a stream of its own so that the next copy does not wait for it, rings
 *   consumers that sleep and ends the posting
 *
 * Where the device cannot write the word the host function does, on the egress stream.
 *
 * Small batches in quick succession go without a host function while no worker sleeps
 * (sluice_batch_quiet()): it would cost more than they do.  Their posting ends with the next call.  A
 * large batch always has one: it costs less than a tenth there, and a worker that comes to wait for
 * the batch may then sleep for as long as the GPU takes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nvtx.h"
#include "priv.h"

#define DEPTH_DEFAULT 16
#define QUIET_BYTES   (512ULL << 10) /* what is larger pays for host functions and interrupts */
#define QUIET_NS      50000ULL /* since the last batch, at most; slower ones can afford it */

/* A batch in flight. */
struct flight {
	struct cuda_ticket *ticket; /* NULL: the place is unused */
	CUevent done[2]; /* of a small batch, of a large one */
	bool large; /* which of them */
};

/* Where a tensor goes. */
struct target {
	void *to;
	uint64_t bytes;
};

struct sluice_cuda_drain {
	struct sluice_cuda *c;
	struct sluice_channel *ch;
	CUstream stream, wake;
	bool own_stream;
	bool gpu_signals, host_wakes;
	uint32_t depth;
	uint32_t head, count; /* of .flights in use, oldest first */
	CUevent submitted; /* recorded on the caller's stream */
	struct cuda_tickets tickets;
	struct target *targets;
	unsigned int targets_max;
	uint64_t submitted_ns;
	bool large; /* the batch that is submitted */
	bool quick; /* it is small, and not alone */
	struct sluice_cuda_drain_stats st;
	struct flight flights[];
};

/* ------------------------------------------------------------------ what is in flight */

static CUevent flight_event(const struct flight *f)
{
	return f->done[f->large];
}

static void flight_pop(struct sluice_cuda_drain *d)
{
	struct flight *f = &d->flights[d->head];

	cuda_ticket_put(&d->tickets, f->ticket);
	f->ticket = NULL;
	d->head = (d->head + 1) % d->depth;
	d->count--;
}

/*
 * The context failed: nobody knows what has arrived, and a failed copy may still be writing.  Those
 * batches leave the channel, and their extents are kept until the process leaves the arena.
 */
static void flights_withdraw(struct sluice_cuda_drain *d)
{
	while (d->count) {
		struct sluice_batch *b = cuda_ticket_take(d->flights[d->head].ticket);

		/* -EALREADY: the word had been written, so the bytes had arrived. */
		if (b && sluice_batch_unpost(b) == 0) {
			d->st.lost++;
			if (atomic_load(&d->c->health) == CUDA_GONE)
				sluice_batch_abort(b);
			else
				atomic_fetch_add(&d->c->quarantined, 1);
		}
		flight_pop(d);
	}
}

/* A failure for good takes back what is in flight; the errno comes back. */
static int drain_failed(struct sluice_cuda_drain *d, int ret)
{
	if (atomic_load(&d->c->health) != CUDA_HEALTHY)
		flights_withdraw(d);
	return ret;
}

static int drain_enter(struct sluice_cuda_drain *d)
{
	int entered = cuda_enter(d->c);

	if (entered < 0 && entered != -ECHILD)
		flights_withdraw(d);
	return entered;
}

/* The caller's stream, and the drain's own where that is one of the caller's, too. */
static int streams_check(struct sluice_cuda_drain *d, CUstream from)
{
	int ret = cuda_stream_check(d->c, from);

	return ret || d->own_stream ? ret : cuda_stream_check(d->c, d->stream);
}

/* Wait until no more than @left batches are in flight. */
static int flights_wait(struct sluice_cuda_drain *d, uint32_t left, uint64_t deadline)
{
	while (d->count) {
		struct flight *f = &d->flights[d->head];
		int ret;

		if (d->count > left)
			ret = cuda_event_wait(d->c, flight_event(f), f->large, deadline);
		else if ((ret = cuda_event_fired(d->c, flight_event(f))) == 0)
			return 0;
		if (ret < 0)
			return drain_failed(d, ret);
		ret = cuda_check(d->c);
		if (ret)
			return drain_failed(d, ret);
		cuda_ticket_settle(f->ticket);
		flight_pop(d);
	}
	return 0;
}

/* The same until none is, even if events cannot be asked. */
static int flights_end(struct sluice_cuda_drain *d)
{
	int ret = flights_wait(d, 0, SLUICE_FOREVER);

	if (!ret || atomic_load(&d->c->health) != CUDA_HEALTHY)
		return ret;
	if (d->c->cu->StreamSynchronize(d->stream) != CUDA_SUCCESS) {
		atomic_store(&d->c->health, CUDA_STICKY);
		return drain_failed(d, ret);
	}
	while (d->count) {
		cuda_ticket_settle(d->flights[d->head].ticket);
		flight_pop(d);
	}
	return 0;
}

/* ------------------------------------------------------------------ opening and closing */

static int opts_take(struct sluice_cuda_drain_opts *to, const struct sluice_cuda_drain_opts *from)
{
	memset(to, 0, sizeof(*to));
	if (from) {
		if (from->sz < sizeof(from->sz))
			return cuda_fail(EINVAL, "options .sz is %zu", from->sz);
		memcpy(to, from, from->sz < sizeof(*to) ? from->sz : sizeof(*to));
	}
	if (to->flags & ~(SLUICE_CUDA_DRAIN_HOST_SIGNAL | SLUICE_CUDA_DRAIN_NO_WAKE))
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

static int drain_init(struct sluice_cuda_drain *d)
{
	const struct cuda_driver *cu = d->c->cu;
	CUresult r = CUDA_SUCCESS;

	if (d->own_stream)
		r = cu->StreamCreate(&d->stream, CU_STREAM_NON_BLOCKING);
	if (r == CUDA_SUCCESS)
		r = cu->StreamCreate(&d->wake, CU_STREAM_NON_BLOCKING);
	if (r == CUDA_SUCCESS)
		r = cu->EventCreate(&d->submitted, CU_EVENT_DISABLE_TIMING);
	for (uint32_t i = 0; i < 2 * d->depth && r == CUDA_SUCCESS; i++)
		r = cu->EventCreate(&d->flights[i / 2].done[i % 2], cuda_event_flags(i % 2));
	if (r != CUDA_SUCCESS)
		return cuda_broken(d->c, r, "cannot create the streams and events of a drain");
	return 0;
}

static void drain_destroy(struct sluice_cuda_drain *d, bool alive)
{
	const struct cuda_driver *cu = d->c->cu;

	for (uint32_t i = 0; alive && i < 2 * d->depth; i++)
		if (d->flights[i / 2].done[i % 2])
			cu->EventDestroy(d->flights[i / 2].done[i % 2]);
	if (alive && d->submitted)
		cu->EventDestroy(d->submitted);
	if (alive && d->wake)
		cu->StreamDestroy(d->wake);
	if (alive && d->own_stream && d->stream)
		cu->StreamDestroy(d->stream);
	cuda_tickets_free(&d->tickets, alive);
	free(d->targets);
	atomic_fetch_sub(&d->c->users, 1);
	free(d);
}

int sluice_cuda_drain_open(struct sluice_cuda_drain **out, struct sluice_cuda *c,
			   struct sluice_channel *ch, const struct sluice_cuda_drain_opts *opts)
{
	struct sluice_cuda_drain_opts o;
	struct sluice_cuda_drain *d;
	int entered, ret;

	ret = opts_take(&o, opts);
	if (ret)
		return ret;
	if (c->reg->read_only)
		return cuda_fail(EPERM,
				 "a drain writes into the arena, which is attached read-only");
	entered = cuda_enter(c);
	if (entered < 0)
		return entered;
	d = calloc(1, sizeof(*d) + o.depth * sizeof(d->flights[0]));
	if (!d) {
		ret = cuda_fail(ENOMEM, "no memory for a drain of depth %u", o.depth);
		goto out;
	}
	d->c = c;
	d->ch = ch;
	d->depth = o.depth;
	d->stream = o.stream;
	d->own_stream = !o.stream;
	d->gpu_signals = c->stream_writes && !(o.flags & SLUICE_CUDA_DRAIN_HOST_SIGNAL);
	d->host_wakes = !d->gpu_signals || !(o.flags & SLUICE_CUDA_DRAIN_NO_WAKE);
	d->tickets.done = sluice_batch_posted;
	atomic_fetch_add(&c->users, 1);
	ret = drain_init(d);
	if (ret)
		drain_destroy(d, true);
	else
		*out = d;
out:
	cuda_leave(c, entered);
	return ret;
}

/* ------------------------------------------------------------------ submitting */

static int tensor_check(struct sluice_cuda_drain *d, const struct sluice_tensor *t, unsigned int i)
{
	CUdeviceptr p = (uintptr_t)t->data;
	int device = -1;
	CUresult r;

	if (!p)
		return 0;
	r = d->c->cu->PointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	if (r != CUDA_SUCCESS)
		return cuda_fail(EINVAL, "tensor %u: %p is not memory that CUDA knows", i, t->data);
	if (device != d->c->device)
		return cuda_fail(EXDEV, "tensor %u is on device %d and the drain on device %d", i,
				 device, d->c->device);
	return 0;
}

/* Elements from the first to the last in memory; false when that does not fit 63 bits. */
static bool tensor_bytes(const struct sluice_tensor *t, uint64_t *bytes)
{
	uint64_t last = 0, count = 1;

	for (uint32_t k = t->ndim; k-- > 0;) {
		uint64_t n = t->shape[k], step = t->strides ? (uint64_t)t->strides[k] : count;
		uint64_t reach;

		if (t->shape[k] <= 0) {
			*bytes = 0;
			return t->shape[k] == 0;
		}
		if (__builtin_mul_overflow(n - 1, step, &reach) ||
		    __builtin_add_overflow(last, reach, &last) ||
		    __builtin_mul_overflow(count, n, &count))
			return false;
	}
	return !__builtin_mul_overflow(last + 1, t->dtype.bits / 8 * t->dtype.lanes, bytes) &&
	       *bytes <= INT64_MAX;
}

static int targets_room(struct sluice_cuda_drain *d, unsigned int n)
{
	struct target *p;

	if (n <= d->targets_max)
		return 0;
	if (n > SLUICE_MAX_TENSORS)
		return cuda_fail(EINVAL, "%u tensors are above the limit of %u", n,
				 SLUICE_MAX_TENSORS);
	p = realloc(d->targets, n * sizeof(*p));
	if (!p)
		return cuda_fail(ENOMEM, "no memory for %u tensors", n);
	d->targets = p;
	d->targets_max = n;
	return 0;
}

static int batch_measure(struct sluice_cuda_drain *d, const struct sluice_tensor *t, unsigned int n,
			 const struct sluice_cuda_submit_opts *o, uint64_t *total)
{
	int ret;

	ret = targets_room(d, n);
	if (ret)
		return ret;
	*total = 0;
	for (unsigned int i = 0; i < n; i++) {
		struct target *to = &d->targets[i];

		if (t[i].ndim > SLUICE_MAX_DIMS || !tensor_bytes(&t[i], &to->bytes))
			return cuda_fail(EINVAL, "tensor %u: its shape is not possible", i);
		ret = to->bytes ? tensor_check(d, &t[i], i) : 0;
		if (ret)
			return ret;
		*total += to->bytes;
	}
	for (uint32_t i = 0; i < o->nblobs; i++)
		*total += o->blobs[i].len;
	return 0;
}

static int batch_describe(struct sluice_cuda_drain *d, struct sluice_batch *b,
			  const struct sluice_tensor *t, unsigned int n,
			  const struct sluice_cuda_submit_opts *o)
{
	int ret;

	for (unsigned int i = 0; i < n; i++) {
		d->targets[i].to = sluice_batch_tensor_add(b, t[i].name, t[i].dtype, t[i].ndim,
							   t[i].shape, t[i].strides);
		if (!d->targets[i].to)
			return cuda_fail_core(-errno);
	}
	for (uint32_t i = 0; i < o->nblobs; i++)
		if (!sluice_batch_bytes_add(b, o->blobs[i].name, o->blobs[i].data, o->blobs[i].len))
			return cuda_fail_core(-errno);
	ret = sluice_batch_tag(b, o->tag);
	return ret ? cuda_fail_core(ret) : 0;
}

/* Everything that the egress stream does for a batch. */
static CUresult stream_fill(struct sluice_cuda_drain *d, struct flight *f,
			    const struct sluice_tensor *t, unsigned int n, CUstream from,
			    uint64_t *word, uint64_t value, bool quiet)
{
	const struct cuda_driver *cu = d->c->cu;
	CUresult r = CUDA_SUCCESS;

	if (from != d->stream) {
		r = cu->EventRecord(d->submitted, from);
		if (r == CUDA_SUCCESS)
			r = cu->StreamWaitEvent(d->stream, d->submitted, CU_EVENT_WAIT_DEFAULT);
	}
	for (unsigned int i = 0; i < n && r == CUDA_SUCCESS; i++)
		if (d->targets[i].bytes)
			r = cuda_copy_out(d->c, d->targets[i].to, (uintptr_t)t[i].data,
					  d->targets[i].bytes, d->stream);
	if (r != CUDA_SUCCESS)
		return r;
	if (!d->gpu_signals) {
		r = cuda_ticket_arm(d->c, f->ticket, NULL, d->stream);
		return r == CUDA_SUCCESS ? cu->EventRecord(flight_event(f), d->stream) : r;
	}
	/* The default write is ordered behind the copies, for the CPU as well. */
	r = cu->StreamWriteValue64(d->stream, (uintptr_t)word + d->c->control_shift, value,
				   CU_STREAM_WRITE_VALUE_DEFAULT);
	if (r == CUDA_SUCCESS)
		r = cu->EventRecord(flight_event(f), d->stream);
	if (r != CUDA_SUCCESS || !d->host_wakes)
		return r;
	if (quiet) {
		d->st.quiet++;
		return CUDA_SUCCESS;
	}
	return cuda_ticket_arm(d->c, f->ticket, flight_event(f), d->wake);
}

/* Queue the batch and start its copies.  The batch is gone in any case. */
static int batch_start(struct sluice_cuda_drain *d, struct sluice_batch *b,
		       const struct sluice_tensor *t, unsigned int n, CUstream from,
		       uint64_t deadline)
{
	struct flight *f = &d->flights[(d->head + d->count) % d->depth];
	uint64_t *word, value;
	bool ended, quiet;
	CUresult r;
	int ret;

	f->large = d->large;
	f->ticket = cuda_ticket_get(&d->tickets, b);
	if (!f->ticket) {
		sluice_batch_abort(b);
		return cuda_fail(ENOMEM, "no memory to remember a copy");
	}
	ret = sluice_batch_post(b, &word, &value, deadline);
	if (ret) {
		cuda_fail_core(ret);
		cuda_ticket_take(f->ticket);
		cuda_ticket_put(&d->tickets, f->ticket);
		sluice_batch_abort(b);
		return ret;
	}
	/* Or the GPU would write to an address that it does not know. */
	if (!cuda_reg_has(d->c->reg, word)) {
		cuda_ticket_take(f->ticket);
		cuda_ticket_put(&d->tickets, f->ticket);
		sluice_batch_unpost(b);
		sluice_batch_abort(b);
		return cuda_fail_elsewhere();
	}
	d->count++;
	quiet = d->gpu_signals && d->host_wakes && d->quick && sluice_batch_quiet(b);
	r = stream_fill(d, f, t, n, from, word, value, quiet);
	if (r == CUDA_SUCCESS)
		return 0;
	/* Some of it may be under way: nothing is taken back before that has ended. */
	ret = cuda_broken_by(d->c, r, "cannot copy tensors from the device");
	ended = d->c->cu->StreamSynchronize(d->stream) == CUDA_SUCCESS;
	if (atomic_load(&d->c->health) == CUDA_HEALTHY && ended) {
		b = cuda_ticket_take(f->ticket);
		if (b && sluice_batch_unpost(b) == 0)
			sluice_batch_abort(b);
		else
			ret = 0; /* what failed came behind the delivery */
		d->count--;
		cuda_ticket_put(&d->tickets, f->ticket);
		f->ticket = NULL;
		return ret;
	}
	/* Its event may never have been recorded and would say that it has arrived. */
	if (!ended && atomic_load(&d->c->health) == CUDA_HEALTHY)
		atomic_store(&d->c->health, CUDA_STICKY);
	return drain_failed(d, ret);
}

int sluice_cuda_drain_submit(struct sluice_cuda_drain *d, const struct sluice_tensor *tensors,
			     unsigned int n, struct CUstream_st *stream,
			     const struct sluice_cuda_submit_opts *opts)
{
	struct sluice_cuda_submit_opts o = {.timeout_ns = SLUICE_FOREVER};
	struct sluice_batch_opts room = {.sz = sizeof(room)};
	struct sluice_batch *b;
	uint64_t deadline, start;
	int entered, ret;

	if (opts) {
		if (opts->sz < sizeof(opts->sz))
			return cuda_fail(EINVAL, "options .sz is %zu", opts->sz);
		o.timeout_ns = 0;
		memcpy(&o, opts, opts->sz < sizeof(o) ? opts->sz : sizeof(o));
	}
	if (n && tensors[0].sz != sizeof(tensors[0]))
		return cuda_fail(EINVAL, "tensors[0].sz is %zu and not %zu", tensors[0].sz,
				 sizeof(tensors[0]));
	deadline = cuda_deadline(o.timeout_ns);
	entered = drain_enter(d);
	if (entered < 0)
		return entered;
	start = cuda_now();
	if (d->count == d->depth)
		d->st.waits++;
	ret = streams_check(d, stream);
	if (!ret)
		ret = flights_wait(d, d->depth - 1, deadline);
	d->st.wait_ns += cuda_now() - start;
	if (!ret)
		ret = batch_measure(d, tensors, n, &o, &room.bytes);
	if (ret)
		goto out;
	d->large = room.bytes > QUIET_BYTES;
	d->quick = !d->large && start - d->submitted_ns < QUIET_NS;
	d->submitted_ns = start;
	cuda_range_begin("publish");
	room.tensors = n + o.nblobs;
	room.align = o.align;
	room.timeout_ns = deadline;
	ret = sluice_batch_begin_opts(d->ch, &b, &room);
	if (ret) {
		cuda_fail_core(ret);
		goto out_range;
	}
	ret = batch_describe(d, b, tensors, n, &o);
	if (ret) {
		sluice_batch_abort(b);
		goto out_range;
	}
	cuda_range_begin("copy out");
	ret = batch_start(d, b, tensors, n, stream, deadline);
	cuda_range_end();
	if (!ret) {
		d->st.batches++;
		d->st.bytes += room.bytes;
	}
out_range:
	cuda_range_end();
out:
	cuda_leave(d->c, entered);
	return ret;
}

int sluice_cuda_drain_guard(struct sluice_cuda_drain *d, struct CUstream_st *stream)
{
	int entered = drain_enter(d);
	CUresult r;
	int ret;

	if (entered < 0)
		return entered;
	ret = streams_check(d, stream);
	if (ret)
		goto out;
	r = d->c->cu->EventRecord(d->submitted, d->stream);
	if (r == CUDA_SUCCESS)
		r = d->c->cu->StreamWaitEvent(stream, d->submitted, CU_EVENT_WAIT_DEFAULT);
	if (r != CUDA_SUCCESS)
		ret = drain_failed(d, cuda_broken_by(d->c, r, "cannot make the stream wait"));
out:
	cuda_leave(d->c, entered);
	return ret;
}

int sluice_cuda_drain_flush(struct sluice_cuda_drain *d, uint64_t timeout_ns)
{
	int entered = drain_enter(d);
	int ret;

	if (entered < 0)
		return entered;
	cuda_range_begin("wait");
	ret = flights_wait(d, 0, cuda_deadline(timeout_ns));
	cuda_range_end();
	cuda_leave(d->c, entered);
	return ret;
}

int sluice_cuda_drain_stats(struct sluice_cuda_drain *d, struct sluice_cuda_drain_stats *st)
{
	if (st->sz < sizeof(st->sz))
		return cuda_fail(EINVAL, "stats .sz is %zu", st->sz);
	d->st.pending = d->count;
	d->st.sz = st->sz < sizeof(d->st) ? st->sz : sizeof(d->st);
	memcpy(st, &d->st, d->st.sz);
	return 0;
}

int sluice_cuda_drain_close(struct sluice_cuda_drain *d)
{
	struct sluice_cuda *c;
	int entered, ret;
	bool alive;

	if (!d)
		return 0;
	c = d->c;
	entered = drain_enter(d);
	if (entered == -ECHILD)
		return entered;
	ret = entered < 0 ? entered : flights_end(d);
	alive = atomic_load(&c->health) == CUDA_HEALTHY;
	/* Host functions that had nothing left to do may still be on their way. */
	if (alive && c->cu->StreamSynchronize(d->wake) != CUDA_SUCCESS)
		alive = false;
	/* An earlier call has reported the loss, if there was one: say it again. */
	if (!ret && d->st.lost)
		ret = cuda_fail(EIO, "%llu batches were lost", (unsigned long long)d->st.lost);
	drain_destroy(d, alive);
	cuda_leave(c, entered);
	return ret;
}
