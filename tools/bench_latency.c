// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* There and back: a cache line, an eventfd, a batch; and the hand-off of a batch that is filled. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sluice.h>

#include "bench.h"

struct lines {
	_Alignas(256) _Atomic uint64_t ping;
	_Alignas(256) _Atomic uint64_t pong;
};

/* On one CPU a spinning side would keep the other one from answering. */
static const char *awake_missing(const struct bench_spec *spec)
{
	return spec->flags & BENCH_SLEEP || bench_cpus() > 1 ? NULL : "needs two CPUs";
}

static int line_init(struct bench_crew *c)
{
	c->priv = mmap(NULL, sizeof(struct lines), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c->priv == MAP_FAILED) {
		c->priv = NULL;
		return bench_fail(c, -errno, "mmap: %s", strerror(errno));
	}
	return 0;
}

/* Getting both sides to run is not what is measured: the clock starts with the first answer. */
static int bounce(struct bench_crew *c, int side, uint64_t n,
		  int (*run)(struct bench_crew *c, int side, uint64_t n))
{
	uint64_t start;
	int err;

	err = run(c, side, 1);
	if (err)
		return err;
	start = bench_now();
	err = run(c, side, n);
	if (side)
		c->sh->own_ns = bench_now() - start;
	return err;
}

static int line_bounce(struct bench_crew *c, int side, uint64_t n)
{
	struct lines *l = c->priv;

	for (; n; n--) {
		c->seq++;
		if (side)
			atomic_store_explicit(&l->ping, c->seq, memory_order_release);
		while (atomic_load_explicit(side ? &l->pong : &l->ping, memory_order_acquire) !=
		       c->seq)
			;
		if (!side)
			atomic_store_explicit(&l->pong, c->seq, memory_order_release);
	}
	return 0;
}

static int line_run(struct bench_crew *c, int side, uint64_t n)
{
	return bounce(c, side, n, line_bounce);
}

static void line_exit(struct bench_crew *c)
{
	if (c->priv)
		munmap(c->priv, sizeof(struct lines));
}

const struct bench_ops bench_line = {
	.name = "cache line",
	.missing = awake_missing,
	.init = line_init,
	.run = line_run,
	.exit = line_exit,
};

static int eventfd_init(struct bench_crew *c)
{
	int *fd = calloc(2, sizeof(*fd));

	if (!fd)
		return bench_fail(c, -ENOMEM, "out of memory");
	c->priv = fd;
	fd[0] = eventfd(0, EFD_CLOEXEC);
	fd[1] = eventfd(0, EFD_CLOEXEC);
	if (fd[0] < 0 || fd[1] < 0)
		return bench_fail(c, -errno, "eventfd: %s", strerror(errno));
	return 0;
}

static int eventfd_bounce(struct bench_crew *c, int side, uint64_t n)
{
	int *fd = c->priv;
	uint64_t v = 1;

	for (; n; n--) {
		if (side && write(fd[0], &v, sizeof(v)) < 0)
			return bench_fail(c, -errno, "eventfd write: %s", strerror(errno));
		if (read(fd[side], &v, sizeof(v)) < 0)
			return bench_fail(c, -errno, "eventfd read: %s", strerror(errno));
		v = 1;
		if (!side && write(fd[1], &v, sizeof(v)) < 0)
			return bench_fail(c, -errno, "eventfd write: %s", strerror(errno));
	}
	return 0;
}

static int eventfd_run(struct bench_crew *c, int side, uint64_t n)
{
	return bounce(c, side, n, eventfd_bounce);
}

static void eventfd_exit(struct bench_crew *c)
{
	int *fd = c->priv, i;

	for (i = 0; fd && i < 2; i++) {
		if (fd[i] >= 0)
			close(fd[i]);
	}
	free(fd);
}

const struct bench_ops bench_eventfd = {
	.name = "eventfd",
	.init = eventfd_init,
	.run = eventfd_run,
	.exit = eventfd_exit,
};

/* Two channels of one arena; by side, what that side sends on and what it receives from. */
struct link {
	struct sluice_arena *a;
	struct sluice_channel *tx, *rx;
	struct sluice_batch *b; /* to be sent next */
	struct sluice_batch *filled[2];
};

static int lib_fail(struct bench_crew *c, int err)
{
	return bench_fail(c, err, "sluice: %s", sluice_strerror());
}

static int link_init(struct bench_crew *c, uint64_t data_bytes)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = data_bytes,
		.label = "bench",
	};
	struct link *l = calloc(1, sizeof(*l));
	int err;

	if (!l)
		return bench_fail(c, -ENOMEM, "out of memory");
	c->priv = l;
	err = sluice_arena_create(&l->a, &opts);
	if (!err)
		err = sluice_channel_create(&l->tx, l->a, "there", NULL);
	if (!err)
		err = sluice_channel_create(&l->rx, l->a, "back", NULL);
	return err < 0 ? lib_fail(c, err) : 0;
}

static void link_exit(struct bench_crew *c)
{
	struct link *l = c->priv;

	if (!l)
		return;
	sluice_channel_close(l->tx);
	sluice_channel_close(l->rx);
	sluice_arena_detach(l->a);
	free(l);
}

static int link_open(struct bench_crew *c, int side)
{
	struct sluice_channel_opts tx = {
		.sz = sizeof(tx),
		.flags = SLUICE_CHANNEL_PRODUCE,
		.spin_ns = 1000000000,
	};
	struct sluice_channel_opts rx = {
		.sz = sizeof(rx),
		.flags = SLUICE_CHANNEL_CONSUME,
		.spin_ns = 1000000000,
	};
	struct link *l = c->priv;
	int err;

	if (c->spec->flags & BENCH_SLEEP) {
		tx.flags |= SLUICE_CHANNEL_NO_SPIN;
		rx.flags |= SLUICE_CHANNEL_NO_SPIN;
		tx.spin_ns = rx.spin_ns = 0;
	}
	err = sluice_arena_reattach(&l->a, l->a);
	if (!err)
		err = sluice_channel_open(&l->tx, l->a, side ? "there" : "back", &tx);
	if (!err)
		err = sluice_channel_open(&l->rx, l->a, side ? "back" : "there", &rx);
	return err < 0 ? lib_fail(c, err) : 0;
}

static int pingpong_init(struct bench_crew *c)
{
	return link_init(c, 2 * BENCH_MIB);
}

/* A batch of one number.  What is sent next is ready before the other side answers. */
static int number_begin(struct bench_crew *c, struct link *l, uint64_t number)
{
	int64_t shape[] = {1};
	uint64_t *p;
	int err;

	err = sluice_batch_begin(l->tx, &l->b, sizeof(*p), SLUICE_FOREVER);
	if (err < 0)
		return lib_fail(c, err);
	p = sluice_batch_tensor_add(l->b, "n", SLUICE_I64, 1, shape, NULL);
	if (!p)
		return lib_fail(c, -errno);
	*p = number;
	return 0;
}

static int number_check(struct bench_crew *c, struct sluice_batch *b, uint64_t number)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	int err = sluice_batch_tensor(b, 0, &t);

	if (err < 0)
		return lib_fail(c, err);
	if (t.bytes != sizeof(number) || *(uint64_t *)t.data != number)
		return bench_fail(c, -EBADMSG, "sluice: not the number %llu",
				  (unsigned long long)number);
	sluice_batch_release(b);
	return 0;
}

static int pingpong_bounce(struct bench_crew *c, int side, uint64_t n)
{
	struct link *l = c->priv;
	struct sluice_batch *in;
	int err = 0;

	if (!l->b)
		err = number_begin(c, l, c->seq);
	for (; n && !err; n--) {
		if (side && (err = sluice_batch_publish(l->b)) < 0)
			return lib_fail(c, err);
		if (side)
			err = number_begin(c, l, c->seq + 1);
		if (err)
			return err;
		err = sluice_channel_next(l->rx, &in, SLUICE_FOREVER);
		if (err < 0)
			return lib_fail(c, err);
		if (!side && (err = sluice_batch_publish(l->b)) < 0)
			return lib_fail(c, err);
		err = number_check(c, in, c->seq++);
		if (!err && !side)
			err = number_begin(c, l, c->seq);
	}
	return err;
}

static int pingpong_run(struct bench_crew *c, int side, uint64_t n)
{
	return bounce(c, side, n, pingpong_bounce);
}

const struct bench_ops bench_pingpong = {
	.name = "sluice",
	.missing = awake_missing,
	.init = pingpong_init,
	.open = link_open,
	.run = pingpong_run,
	.exit = link_exit,
};

/* Hand-offs of one batch before it is the other one's turn: many more than the channel holds. */
#define HANDOFF_TURN 2000

static const uint64_t handoff_bytes[2] = {12 * BENCH_MIB, 1024 * BENCH_MIB};

static int handoff_init(struct bench_crew *c)
{
	return link_init(c, handoff_bytes[0] + handoff_bytes[1] + 4 * BENCH_MIB);
}

/* Both are filled once and then handed over again and again, as a cached sample would be. */
static int handoff_open(struct bench_crew *c, int side)
{
	int err = link_open(c, side), i;
	struct link *l = c->priv;

	for (i = 0; side && !err && i < 2; i++) {
		int64_t shape[] = {(int64_t)handoff_bytes[i]};
		void *p;

		err = sluice_batch_begin(l->tx, &l->filled[i], handoff_bytes[i], SLUICE_FOREVER);
		if (err < 0)
			return lib_fail(c, err);
		p = sluice_batch_tensor_add(l->filled[i], "x", SLUICE_U8, 1, shape, NULL);
		if (!p)
			return lib_fail(c, -errno);
		memset(p, 1 + i, handoff_bytes[i]);
		err = sluice_batch_seal(l->filled[i]);
		if (err < 0)
			return lib_fail(c, err);
	}
	return err;
}

static int handoff_take(struct bench_crew *c, struct link *l, int which)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct sluice_batch *b;
	const char *first;
	int err;

	err = sluice_channel_next(l->rx, &b, SLUICE_FOREVER);
	if (!err)
		err = sluice_batch_tensor(b, 0, &t);
	if (err < 0)
		return lib_fail(c, err);
	first = t.data;
	if (t.bytes != handoff_bytes[which] || *first != 1 + which ||
	    first[t.bytes - 1] != 1 + which)
		return bench_fail(c, -EBADMSG, "sluice: not the batch that was handed over");
	sluice_batch_release(b);
	return 0;
}

/* .extra: the time that the large batch took; the small one took the rest. */
static int handoff_run(struct bench_crew *c, int side, uint64_t n)
{
	uint64_t start, spent[2] = {0};
	struct link *l = c->priv;
	int turn, i, err = 0;

	for (turn = 0; turn < (int)(n / HANDOFF_TURN) && !err; turn++) {
		start = bench_now();
		for (i = 0; i < HANDOFF_TURN && !err; i++) {
			if (!side)
				err = handoff_take(c, l, turn % 2);
			else if ((err = sluice_batch_share(l->filled[turn % 2], l->tx,
							   SLUICE_FOREVER)) < 0)
				err = lib_fail(c, err);
		}
		spent[turn % 2] += bench_now() - start;
	}
	if (!side) {
		c->sh->own_ns = spent[0] + spent[1];
		c->sh->side[0].extra = (double)spent[1];
	}
	return err;
}

const struct bench_ops bench_handoff = {
	.name = "sluice",
	.init = handoff_init,
	.open = handoff_open,
	.run = handoff_run,
	.exit = link_exit,
};
