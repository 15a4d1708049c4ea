// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Batches streamed through an arena: one producer or many, fast or slow consumer, for long. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sluice.h>

#include "bench.h"

/* Manifest and alignment of one batch, rounded up to what an allocation is rounded up to. */
#define OVERHEAD (64 * 1024)

struct link {
	struct sluice_arena *a;
	struct sluice_channel *ch;
	uint64_t next[BENCH_MAX_SIDES]; /* number of the next batch, by producer */
	uint64_t got[BENCH_MAX_SIDES];
};

static int lib_fail(struct bench_crew *c, int err)
{
	return bench_fail(c, err, "sluice: %s", sluice_strerror());
}

static int stream_init(struct bench_crew *c)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = c->spec->slots * (c->spec->bytes + OVERHEAD),
		.label = "bench",
	};
	struct sluice_channel_opts ch = {.sz = sizeof(ch), .capacity = c->spec->slots};
	struct link *l = calloc(1, sizeof(*l));
	int err;

	if (!l)
		return bench_fail(c, -ENOMEM, "out of memory");
	c->priv = l;
	err = sluice_arena_create(&l->a, &opts);
	if (!err)
		err = sluice_channel_create(&l->ch, l->a, "stream", &ch);
	return err < 0 ? lib_fail(c, err) : bench_payload_init(c);
}

static void stream_exit(struct bench_crew *c)
{
	struct link *l = c->priv;

	if (!l)
		return;
	sluice_channel_close(l->ch);
	sluice_arena_detach(l->a);
	free(l);
}

static int stream_open(struct bench_crew *c, int side)
{
	struct sluice_channel_opts opts = {
		.sz = sizeof(opts),
		.flags = side ? SLUICE_CHANNEL_PRODUCE : SLUICE_CHANNEL_CONSUME,
	};
	struct link *l = c->priv;
	int err;

	if (c->spec->flags & BENCH_SLEEP)
		opts.flags |= SLUICE_CHANNEL_NO_SPIN;
	err = sluice_arena_reattach(&l->a, l->a);
	if (!err)
		err = sluice_channel_open(&l->ch, l->a, "stream", &opts);
	return err < 0 ? lib_fail(c, err) : 0;
}

static int send_one(struct bench_crew *c, int side)
{
	int64_t shape[] = {(int64_t)c->spec->bytes};
	struct link *l = c->priv;
	struct sluice_batch *b;
	void *p;
	int err;

	err = sluice_batch_begin(l->ch, &b, c->spec->bytes, SLUICE_FOREVER);
	if (err < 0)
		return lib_fail(c, err);
	p = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, shape, NULL);
	if (!p)
		return lib_fail(c, -errno);
	memcpy(p, bench_payload(c->seq), c->spec->bytes);
	sluice_batch_tag(b, (uint64_t)side);
	err = sluice_batch_publish(b);
	if (err < 0)
		return lib_fail(c, err);
	c->seq++;
	return 0;
}

/* Returns the producer, 0 if nothing came in time, or a negative errno. */
static int recv_one(struct bench_crew *c, uint64_t timeout_ns)
{
	int passes = c->spec->flags & BENCH_SLOW ? BENCH_PASSES : 1, from, err;
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	bool all = c->spec->flags & BENCH_READ;
	struct link *l = c->priv;
	struct sluice_batch *b;
	bool ok;

	err = sluice_channel_next(l->ch, &b, timeout_ns);
	if (err == -ETIMEDOUT || err == -EAGAIN)
		return 0;
	if (err < 0)
		return lib_fail(c, err);
	sluice_batch_info(b, &info);
	err = sluice_batch_tensor(b, 0, &t);
	if (err < 0)
		return lib_fail(c, err);
	ok = info.tag >= 1 && info.tag < (uint64_t)c->spec->sides && t.bytes == c->spec->bytes;
	from = ok ? (int)info.tag : 0;
	while (ok && passes--)
		ok = bench_payload_ok(t.data, l->next[from], all);
	if (!ok)
		return bench_fail(c, -EBADMSG, "sluice: batch %llu of producer %d is damaged",
				  (unsigned long long)l->next[from], from);
	l->next[from]++;
	l->got[from]++;
	sluice_batch_release(b);
	return from;
}

static int stream_some(struct bench_crew *c, int side, uint64_t n)
{
	int err = 0;

	for (; n && err >= 0; n--)
		err = side ? send_one(c, side) : recv_one(c, SLUICE_FOREVER);
	return err < 0 ? err : 0;
}

/* When system calls are counted, the first and the last quarter are not steady. */
static int stream_run(struct bench_crew *c, int side, uint64_t n)
{
	int err;

	if (!(c->spec->flags & BENCH_COUNT) || n < 4)
		return stream_some(c, side, n);
	err = stream_some(c, side, n / 4);
	bench_mark();
	if (!err)
		err = stream_some(c, side, n / 2);
	bench_mark();
	return err ? err : stream_some(c, side, n - n / 4 - n / 2);
}

const struct bench_ops bench_stream = {
	.name = "sluice",
	.init = stream_init,
	.open = stream_open,
	.run = stream_run,
	.exit = stream_exit,
};

static int fanin_produce(struct bench_crew *c, int side)
{
	int err = 0;

	while (!err && !atomic_load_explicit(&c->sh->stop, memory_order_relaxed))
		err = send_one(c, side);
	atomic_fetch_add(&c->sh->finished, 1);
	return err;
}

/*
 * Producers send as fast as they can; the clock stops at the consumer's n-th batch.  .extra is the
 * share of the producer that came off worst, 1 being its fair share.
 */
static int fanin_consume(struct bench_crew *c, uint64_t n)
{
	uint64_t start = bench_now(), i, worst = UINT64_MAX;
	unsigned int producers = (unsigned int)c->spec->sides - 1;
	struct link *l = c->priv;
	int side, from = 0;

	memset(l->got, 0, sizeof(l->got));
	for (i = 0; i < n && from >= 0; i++)
		from = recv_one(c, SLUICE_FOREVER);
	c->sh->own_ns = bench_now() - start;
	for (side = 1; side < c->spec->sides; side++)
		worst = l->got[side] < worst ? l->got[side] : worst;
	c->sh->side[0].extra = (double)worst * producers / (double)n;
	atomic_store(&c->sh->stop, 1);
	while (from >= 0 && atomic_load(&c->sh->finished) < producers)
		from = recv_one(c, 1000000);
	while (from > 0)
		from = recv_one(c, 0);
	return from < 0 ? from : 0;
}

static int fanin_run(struct bench_crew *c, int side, uint64_t n)
{
	return side ? fanin_produce(c, side) : fanin_consume(c, n);
}

const struct bench_ops bench_fanin = {
	.name = "sluice",
	.init = stream_init,
	.open = stream_open,
	.run = fanin_run,
	.exit = stream_exit,
};

/* Private memory of this process, in KiB, as the page tables say it. */
static double private_kib(void)
{
	char line[256];
	long kib = 0;
	FILE *f = fopen("/proc/self/smaps_rollup", "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "Anonymous: %ld", &kib) == 1)
			break;
	}
	if (f)
		fclose(f);
	return (double)kib;
}

/* .extra: KiB that this side and the arena hold more after n batches than after a thousand. */
static int footprint_run(struct bench_crew *c, int side, uint64_t n)
{
	struct sluice_arena_usage usage = {.sz = sizeof(usage)};
	struct link *l = c->priv;
	double kib;
	int err;

	/* Whatever is made at the first sleep of a side, or to read /proc, is there before we count. */
	private_kib();
	if (side)
		usleep(20000);
	err = stream_some(c, side, 1);
	if (!side)
		usleep(20000);
	if (!err)
		err = stream_some(c, side, 999);
	if (err)
		return err;
	kib = private_kib();
	err = stream_some(c, side, n);
	if (err)
		return err;
	c->sh->side[side].extra = private_kib() - kib;
	if (side)
		return 0;
	/* The consumer ends last, with everything released. */
	err = sluice_arena_usage(l->a, &usage);
	if (err < 0)
		return lib_fail(c, err);
	c->sh->side[side].extra += (double)usage.reserved_bytes / 1024;
	return 0;
}

const struct bench_ops bench_footprint = {
	.name = "sluice",
	.init = stream_init,
	.open = stream_open,
	.run = footprint_run,
	.exit = stream_exit,
};
