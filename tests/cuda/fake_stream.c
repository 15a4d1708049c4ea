// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Streams of the fake driver: a thread and a queue each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fake_priv.h"

#define POISON 0xa7
#define BOUNCE (256 << 10)

struct stream {
	struct ctx *ctx;
	unsigned int age;
	struct stream *next;
	pthread_t thread;
	struct op *head, **tail;
	bool busy; /* an operation has been taken off the queue */
	bool captured;
	bool ended; /* the caller has destroyed it: what is queued still runs */
	unsigned int seed;
};

/* One lock and one condition for everything that moves: it is a test. */
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool held;
static struct op *flying[4096]; /* copies asked for and not completed */

void fake_cuda_hold(bool hold)
{
	pthread_mutex_lock(&fake_lock);
	held = hold;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&fake_lock);
}

static bool is_copy(const struct op *op)
{
	return op->kind == OP_H2D || op->kind == OP_D2H;
}

bool fake_in_flight(uint64_t start, uint64_t end)
{
	for (size_t i = 0; i < sizeof(flying) / sizeof(flying[0]); i++) {
		const struct op *op = flying[i];

		if (op && ((op->host < end && start < op->host + op->n) ||
			   (op->device < end && start < op->device + op->n)))
			return true;
	}
	return false;
}

static void fly(const struct op *from, struct op *to)
{
	for (size_t i = 0; i < sizeof(flying) / sizeof(flying[0]); i++)
		if (flying[i] == from) {
			flying[i] = to;
			return;
		}
	fake_violation("more than %zu copies are in flight", sizeof(flying) / sizeof(flying[0]));
}

/* Over this thread's bounce buffer, hence nothing for the thread sanitizer, which would take all day. */
__attribute__((no_sanitize("thread"))) static uint64_t sum_bytes(const unsigned char *p, size_t n,
								 uint64_t sum)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, p + i, 8);
		sum = (sum ^ w) * 0x100000001b3ULL;
		sum ^= sum >> 29;
	}
	for (; i < n; i++)
		sum = (sum ^ p[i]) * 0x100000001b3ULL;
	return sum;
}

/* The caller's memory, without dying where there is none any more. */
static bool peek(void *to, uint64_t from, size_t n)
{
	struct iovec l = {to, n}, r = {(void *)(uintptr_t)from, n};

	return process_vm_readv(getpid(), &l, 1, &r, 1, 0) == (ssize_t)n;
}

static bool poke(uint64_t to, void *from, size_t n)
{
	struct iovec l = {from, n}, r = {(void *)(uintptr_t)to, n};

	return process_vm_writev(getpid(), &l, 1, &r, 1, 0) == (ssize_t)n;
}

static uint64_t sum_host(uint64_t at, uint64_t n)
{
	static __thread unsigned char bounce[BOUNCE];
	uint64_t sum = 0xcbf29ce484222325ULL;

	for (uint64_t done = 0; done < n; done += BOUNCE) {
		size_t now = n - done < BOUNCE ? n - done : BOUNCE;

		if (!peek(bounce, at + done, now)) {
			fake_violation("the memory of a copy is not mapped");
			return 0;
		}
		sum = sum_bytes(bounce, now, sum);
	}
	return sum;
}

static void poison_host(uint64_t at, uint64_t n)
{
	unsigned char *p = malloc(n);

	memset(p, POISON, n);
	if (!poke(at, p, n))
		fake_violation("the memory of a copy is not mapped or not writable");
	free(p);
}

/* ------------------------------------------------------------------ running operations */

/* With the lock held: lost contexts do nothing any more. */
static bool lost(const struct stream *s)
{
	return s->ctx->destroyed || s->ctx->sticky || s->age != s->ctx->age;
}

static void delay(struct stream *s)
{
	if (fake.delay_us)
		usleep(rand_r(&s->seed) % fake.delay_us);
}

static void copy_run(struct stream *s, struct op *op)
{
	pthread_mutex_lock(&fake_lock);
	while (held && !lost(s))
		pthread_cond_wait(&moved, &fake_lock);
	pthread_mutex_unlock(&fake_lock);
	delay(s);
	pthread_mutex_lock(&fake_lock);
	if (!lost(s)) {
		if (!fake_device_known(op->device, op->n))
			fake_violation("the device memory of a copy is not allocated");
		else if (op->kind == OP_H2D &&
			 !peek((void *)(uintptr_t)op->device, op->host, op->n))
			fake_violation("the source of a copy is not mapped");
	}
	pthread_mutex_unlock(&fake_lock);
	delay(s);
	if (lost(s))
		return;
	/* Whoever wrote there meanwhile had no right to. */
	if (sum_host(op->host, op->n) != op->sum)
		fake_violation("%s of a copy changed while it was in flight",
			       op->kind == OP_H2D ? "the source" : "the destination");
	if (op->kind == OP_H2D && op->n && fake.flip && --fake.flip == 0)
		((unsigned char *)(uintptr_t)op->device)[op->n / 2] ^= 1;
	if (op->kind == OP_D2H && !poke(op->host, (void *)(uintptr_t)op->device, op->n))
		fake_violation("the destination of a copy is not mapped or not writable");
}

static void op_run(struct stream *s, struct op *op)
{
	switch (op->kind) {
	case OP_H2D:
	case OP_D2H:
		copy_run(s, op);
		break;
	case OP_WAIT:
		pthread_mutex_lock(&fake_lock);
		while (op->event->fired < op->n && !lost(s))
			pthread_cond_wait(&moved, &fake_lock);
		pthread_mutex_unlock(&fake_lock);
		break;
	case OP_RECORD:
		op->event->fired = op->n;
		break;
	case OP_WRITE:
		__atomic_store_n((uint64_t *)(uintptr_t)op->host, op->n, __ATOMIC_SEQ_CST);
		break;
	case OP_HOST:
		fake_in_host_func = true;
		op->fn(op->arg);
		fake_in_host_func = false;
		break;
	case OP_KERNEL:
		op->fn(op->arg);
		break;
	case OP_FAULT:
		s->ctx->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
		break;
	}
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;
	struct op *op;

	pthread_mutex_lock(&fake_lock);
	for (;;) {
		while (!s->head && !s->ended && !lost(s))
			pthread_cond_wait(&moved, &fake_lock);
		op = s->head;
		if (!op)
			break;
		s->head = op->next;
		if (!s->head)
			s->tail = &s->head;
		s->busy = true;
		pthread_mutex_unlock(&fake_lock);
		if (!lost(s))
			op_run(s, op);
		pthread_mutex_lock(&fake_lock);
		if (is_copy(op))
			fly(op, NULL);
		s->busy = false;
		free(op);
		pthread_cond_broadcast(&moved);
	}
	s->ended = true;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&fake_lock);
	return NULL;
}

/* ------------------------------------------------------------------ from the calls */

struct stream *fake_stream_new(struct ctx *c)
{
	struct stream *s = calloc(1, sizeof(*s));

	s->ctx = c;
	s->age = c->age;
	s->tail = &s->head;
	pthread_mutex_lock(&fake_lock);
	s->seed = fake.seed++;
	s->next = c->streams;
	c->streams = s;
	pthread_mutex_unlock(&fake_lock);
	pthread_create(&s->thread, NULL, stream_main, s);
	pthread_detach(s->thread);
	return s;
}

void fake_stream_end(struct stream *s)
{
	pthread_mutex_lock(&fake_lock);
	s->ended = true;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&fake_lock);
}

static bool idle(const struct stream *s)
{
	return !s->head && !s->busy;
}

void fake_streams_stop(struct ctx *c)
{
	pthread_mutex_lock(&fake_lock);
	pthread_cond_broadcast(&moved);
	for (struct stream *s = c->streams; s; s = s->next)
		while (!idle(s))
			pthread_cond_wait(&moved, &fake_lock);
	pthread_mutex_unlock(&fake_lock);
}

static struct stream *resolve(struct ctx *c, struct stream *s)
{
	if ((uintptr_t)s > (uintptr_t)CU_STREAM_PER_THREAD)
		return s;
	if (!c->null)
		c->null = fake_stream_new(c);
	return c->null;
}

void fake_cuda_capture(CUstream s, bool on)
{
	((struct stream *)s)->captured = on;
}

bool fake_stream_captured(const struct stream *s)
{
	return (uintptr_t)s > (uintptr_t)CU_STREAM_PER_THREAD && s->captured;
}

CUresult fake_push(struct ctx *c, struct stream *s, struct op from)
{
	struct op *op;

	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	s = resolve(c, s);
	if (s->age != s->ctx->age)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->ctx->destroyed)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (from.kind == OP_RECORD && from.event->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	op = malloc(sizeof(*op));
	*op = from;
	if (op->kind == OP_D2H)
		poison_host(op->host, op->n);
	if (is_copy(op))
		op->sum = sum_host(op->host, op->n);
	pthread_mutex_lock(&fake_lock);
	if (s->ended && !lost(s))
		fake_violation("work was put on a stream that was destroyed");
	if (s->captured)
		fake_violation("work became part of a graph");
	if (is_copy(op)) {
		if (!fake_host_known(op->host, op->n))
			fake_violation("the host memory of a copy is not in one registration");
		fly(NULL, op);
	}
	op->next = NULL;
	*s->tail = op;
	s->tail = &op->next;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&fake_lock);
	return CUDA_SUCCESS;
}

CUresult fake_stream_idle(struct ctx *c, struct stream *s, bool wait)
{
	CUresult r = CUDA_SUCCESS;

	s = resolve(c, s);
	if (s->age != s->ctx->age)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&fake_lock);
	while (wait && !idle(s) && !lost(s))
		pthread_cond_wait(&moved, &fake_lock);
	if (s->ctx->sticky)
		r = s->ctx->sticky;
	else if (s->ctx->destroyed)
		r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else if (!idle(s))
		r = CUDA_ERROR_NOT_READY;
	pthread_mutex_unlock(&fake_lock);
	return r;
}

CUresult fake_event_wait(struct event *ev)
{
	CUresult r;

	pthread_mutex_lock(&fake_lock);
	while (ev->fired < ev->recorded && !ev->ctx->destroyed && !ev->ctx->sticky)
		pthread_cond_wait(&moved, &fake_lock);
	r = ev->ctx->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : ev->ctx->sticky;
	pthread_mutex_unlock(&fake_lock);
	return r;
}
