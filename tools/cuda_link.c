// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "cuda_link.h"

#include <errno.h>
#include <sluice_cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#define ARENA_BYTES (256 << 20)
#define BATCH_BYTES (16 << 20)
#define BATCHES	    16
#define WARM	    4 /* batches before the clock starts: buffers are there, both copies are queued */
#define TIMEOUT_NS  5000000000ULL

struct path {
	struct sluice_arena *arena;
	struct sluice_channel *in, *out; /* two ends of one channel: we are both sides of it */
	struct sluice_cuda *cuda;
	struct sluice_cuda_feed *feed;
	struct sluice_cuda_drain *drain;
};

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int path_open(struct path *p)
{
	const struct sluice_arena_opts arena = {
		.sz = sizeof(arena),
		.data_bytes = ARENA_BYTES,
		.label = "doctor",
	};
	const struct sluice_channel_opts in = {.sz = sizeof(in), .flags = SLUICE_CHANNEL_CONSUME};
	const struct sluice_channel_opts out = {.sz = sizeof(out), .flags = SLUICE_CHANNEL_PRODUCE};
	int ret;

	ret = sluice_arena_create(&p->arena, &arena);
	if (!ret)
		ret = sluice_channel_create(&p->in, p->arena, "link", &in);
	if (!ret)
		ret = sluice_channel_open(&p->out, p->arena, "link", &out);
	return ret;
}

static int path_attach(struct path *p, double *register_rate)
{
	const struct sluice_cuda_opts gpu = {
		.sz = sizeof(gpu),
		.flags = SLUICE_CUDA_DEVICE | SLUICE_CUDA_CREATE_CONTEXT,
	};
	/* Two buffers: a batch is handed out when the copy of the one before the last is complete. */
	const struct sluice_cuda_feed_opts feed = {
		.sz = sizeof(feed),
		.depth = 2,
		.buffer_bytes = BATCH_BYTES,
	};
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	int ret;

	ret = sluice_cuda_attach(&p->cuda, p->arena, &gpu);
	if (!ret)
		ret = sluice_cuda_stats(p->cuda, &st);
	if (!ret && st.register_ns)
		*register_rate = (double)st.registered_bytes / (double)st.register_ns * 1e9;
	return ret ? ret : sluice_cuda_feed_open(&p->feed, p->cuda, p->in, &feed);
}

static int batch_publish(struct path *p)
{
	const int64_t shape = BATCH_BYTES;
	struct sluice_batch *b;
	int ret;

	ret = sluice_batch_begin(p->out, &b, BATCH_BYTES, TIMEOUT_NS);
	if (ret)
		return ret;
	ret = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, &shape, NULL) ? 0 : -ENOSPC;
	if (!ret)
		ret = sluice_batch_publish_timeout(b, TIMEOUT_NS);
	if (ret)
		sluice_batch_abort(b);
	return ret;
}

static int batches_in(struct path *p, double *rate, bool *ours)
{
	double start = 0;

	for (int i = 0; i < BATCHES; i++) {
		struct sluice_cuda_batch *b;
		int ret = batch_publish(p);

		*ours = !ret;
		if (!ret)
			ret = sluice_cuda_feed_next(p->feed, &b, NULL, TIMEOUT_NS);
		if (!ret)
			ret = sluice_cuda_batch_release(b, NULL);
		if (ret)
			return ret;
		if (i == WARM)
			start = seconds();
	}
	*rate = (double)(BATCHES - 1 - WARM) * BATCH_BYTES / (seconds() - start);
	return 0;
}

/* Take what has arrived back, so that its extents are free for the next. */
static int arrived_release(struct path *p, uint64_t timeout_ns)
{
	struct sluice_batch *b;
	int ret = sluice_channel_next(p->in, &b, timeout_ns);

	if (!ret)
		sluice_batch_release(b);
	return ret;
}

/* @b: any batch on the device */
static int batches_out(struct path *p, const struct sluice_cuda_batch *b, double *rate, bool *cuda)
{
	const struct sluice_cuda_submit_opts opts = {.sz = sizeof(opts), .timeout_ns = TIMEOUT_NS};
	struct sluice_tensor t = {.sz = sizeof(t)};
	double start = 0;
	int ret;

	ret = sluice_cuda_batch_tensor(b, 0, &t);
	for (int i = 0; !ret && i < BATCHES; i++) {
		*cuda = true;
		ret = sluice_cuda_drain_submit(p->drain, &t, 1, NULL, &opts);
		/* Two are under way: one copies while the host is busy with the other. */
		if (!ret && i > 0) {
			*cuda = false;
			ret = arrived_release(p, TIMEOUT_NS);
		}
		if (i == WARM)
			start = seconds();
	}
	if (ret)
		return ret;
	*rate = (double)(BATCHES - 1 - WARM) * BATCH_BYTES / (seconds() - start);
	*cuda = false;
	return arrived_release(p, TIMEOUT_NS);
}

static int rates_measure(struct path *p, struct cuda_link *l, bool *cuda)
{
	const struct sluice_cuda_drain_opts drain = {.sz = sizeof(drain), .depth = 2};
	struct sluice_cuda_batch *b;
	int ret;

	ret = batches_in(p, &l->in_rate, cuda);
	if (!ret)
		ret = batch_publish(p);
	if (ret)
		return ret;
	*cuda = true;
	ret = sluice_cuda_feed_next(p->feed, &b, NULL, TIMEOUT_NS);
	if (ret)
		return ret;
	ret = sluice_cuda_drain_open(&p->drain, p->cuda, p->out, &drain);
	if (!ret)
		ret = batches_out(p, b, &l->out_rate, cuda);
	sluice_cuda_batch_release(b, NULL);
	return ret;
}

int cuda_link_measure(struct cuda_link *l, char *why, size_t why_bytes)
{
	struct path p = {0};
	bool cuda = false; /* whose sentence it is */
	int ret;

	*l = (struct cuda_link){0};
	ret = path_open(&p);
	if (!ret) {
		cuda = true;
		ret = path_attach(&p, &l->register_rate);
	}
	if (!ret)
		ret = rates_measure(&p, l, &cuda);
	if (ret)
		snprintf(why, why_bytes, "%s", cuda ? sluice_cuda_strerror() : sluice_strerror());
	sluice_cuda_drain_close(p.drain);
	sluice_cuda_feed_close(p.feed);
	sluice_cuda_detach(p.cuda);
	sluice_channel_close(p.out);
	sluice_channel_close(p.in);
	sluice_arena_detach(p.arena);
	return ret;
}
