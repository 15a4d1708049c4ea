// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Host to device: what arrives, in which order, and when extents and buffers go back. */
#include "suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWTH (32 * MIB) /* freed memory is kept back */
#else
#define GROWTH (2 * MIB)
#endif

FIXTURE(feed)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in;
	struct sluice_cuda *c;
	struct CUstream_st *s;
};

FIXTURE_SETUP(feed)
{
	self->a = arena_new(64 * MIB);
	ASSERT_NE(NULL, self->a);
	self->out = channel_new(self->a, "feed", 64, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_join(self->a, "feed", SLUICE_CHANNEL_CONSUME);
	/* Children are forked before CUDA starts. */
}

static void cuda_start(struct __test_metadata *_metadata, FIXTURE_DATA(feed) * self)
{
	ASSERT_TRUE(gpu_init(0));
	self->s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
}

FIXTURE_TEARDOWN(feed)
{
	const char *left;

	if (self->c) {
		gpu_sync(self->s);
		EXPECT_EQ(0, gpu_bad());
		EXPECT_EQ(0, sluice_cuda_detach(self->c));
	}
	sluice_channel_close(self->out);
	sluice_channel_close(self->in);
	left = arena_all_free(self->a);
	EXPECT_EQ(NULL, left)
	{
		TH_LOG("%s", left);
	}
	sluice_arena_detach(self->a);
}

static struct sluice_cuda_feed *feed_new(FIXTURE_DATA(feed) * self, uint32_t depth)
{
	struct sluice_cuda_feed_opts opts = {.sz = sizeof(opts), .depth = depth};
	struct sluice_cuda_feed *f = NULL;

	if (sluice_cuda_feed_open(&f, self->c, self->in, &opts))
		fprintf(stderr, "# %s\n", sluice_cuda_strerror());
	return f;
}

/* Check every tensor on the device: tensor i follows pattern tag + i.  The bytes, or -errno. */
static int64_t batch_check(struct sluice_cuda_batch *b, struct CUstream_st *s)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	int64_t bytes = 0;
	int ret = sluice_cuda_batch_info(b, &info);

	for (unsigned int i = 0; !ret && i < info.tensors; i++) {
		ret = sluice_cuda_batch_tensor(b, i, &t);
		if (ret || !t.bytes)
			continue;
		gpu_check(s, t.data, t.bytes, info.tag + i);
		bytes += t.bytes;
	}
	return ret ? ret : bytes;
}

static int batch_send_many(struct sluice_channel *ch, const uint64_t *sizes, unsigned int n,
			   uint64_t tag)
{
	static const struct sluice_dtype types[] = {SLUICE_U8, SLUICE_F16, SLUICE_F32, SLUICE_F64};
	struct sluice_batch_opts opts = {
		.sz = sizeof(opts),
		.tensors = n + 1,
		.timeout_ns = LONG_WAIT,
	};
	struct sluice_batch *b;
	char name[16];
	int ret;

	for (unsigned int i = 0; i < n; i++)
		opts.bytes += sizes[i];
	ret = sluice_batch_begin_opts(ch, &b, &opts);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < n; i++) {
		struct sluice_dtype d = types[(tag + i) % 4];
		int64_t shape[2] = {sizes[i] / (d.bits / 8), 1};
		void *p;

		/* Sizes are multiples of 8, so every type divides them. */
		snprintf(name, sizeof(name), "t%u", i);
		p = sluice_batch_tensor_add(b, name, d, 1 + i % 2, shape, NULL);
		if (!p)
			return -errno;
		if (sizes[i])
			pattern_fill(p, sizes[i], tag + i);
	}
	sluice_batch_tag(b, tag);
	return sluice_batch_publish(b);
}

TEST_F(feed, one_batch)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_tensor t = {.sz = sizeof(t)};

	cuda_start(_metadata, self);
	f = feed_new(self, 0);
	ASSERT_NE(NULL, f);
	EXPECT_EQ(-EAGAIN, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_EQ(-ETIMEDOUT, sluice_cuda_feed_next(f, &b, self->s, MSEC));
	ASSERT_EQ(0, batch_send(self->out, 100001, 3, 0));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
	ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
	EXPECT_STREQ("x", t.name);
	EXPECT_EQ(100001, t.shape[0]);
	EXPECT_EQ(1, t.strides[0]);
	EXPECT_EQ(100001, batch_check(b, self->s));
	EXPECT_EQ(-EINVAL, sluice_cuda_batch_tensor(b, 1, &t));
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	sluice_cuda_feed_close(f);
}

TEST_F(feed, random_sizes_and_types)
{
	const unsigned int rounds = scaled(300);
	uint64_t sizes[20], sent = 0;
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	int64_t got = 0, n;
	pid_t pid;

	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *out = channel_join(a, "feed", SLUICE_CHANNEL_PRODUCE);

		srand(7);
		for (unsigned int r = 0; r < rounds; r++) {
			unsigned int count = rand() % 20;

			for (unsigned int i = 0; i < count; i++)
				sizes[i] = rand() % 3 ? rand() % 5000 / 8 * 8
						      : rand() % 300000 / 8 * 8;
			CHECK_OK(batch_send_many(out, sizes, count, 1000 * r));
		}
		sluice_channel_close(out);
		sluice_arena_detach(a);
	}
	cuda_start(_metadata, self);
	f = feed_new(self, 6);
	ASSERT_NE(NULL, f);
	srand(7);
	for (unsigned int r = 0; r < rounds; r++) {
		struct sluice_batch_info info = {.sz = sizeof(info)};
		unsigned int count = rand() % 20;

		for (unsigned int i = 0; i < count; i++)
			sent += rand() % 3 ? rand() % 5000 / 8 * 8 : rand() % 300000 / 8 * 8;
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		ASSERT_CUDA(0, sluice_cuda_batch_info(b, &info));
		EXPECT_EQ(1000 * r, info.tag);
		EXPECT_EQ(count, info.tensors);
		n = batch_check(b, self->s);
		ASSERT_LE(0, n);
		got += n;
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	EXPECT_EQ(sent, got);
	EXPECT_EQ(0, child_wait(pid));
	sluice_cuda_feed_close(f);
}

TEST_F(feed, thousands_of_tensors_and_none)
{
	uint64_t *sizes = calloc(SLUICE_MAX_TENSORS, sizeof(*sizes));
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	uint64_t total = 0;

	for (unsigned int i = 0; i < SLUICE_MAX_TENSORS; i++)
		total += sizes[i] = i % 5 ? 8 * (i % 300) : 0;
	cuda_start(_metadata, self);
	f = feed_new(self, 2);
	ASSERT_NE(NULL, f);
	ASSERT_EQ(0, batch_send_many(self->out, sizes, SLUICE_MAX_TENSORS, 1));
	ASSERT_EQ(0, batch_send_many(self->out, sizes, 0, 2));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
	EXPECT_EQ(total, batch_check(b, self->s));
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
	ASSERT_CUDA(0, sluice_cuda_batch_info(b, &info));
	EXPECT_EQ(0, info.tensors);
	EXPECT_EQ(0, info.payload_bytes);
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	sluice_cuda_feed_close(f);
	free(sizes);
}

/* A buffer that was made for small batches grows, and the earlier batches are not disturbed. */
TEST_F(feed, buffers_grow)
{
	struct sluice_cuda_feed_opts opts = {.sz = sizeof(opts), .depth = 2, .buffer_bytes = 4096};
	struct sluice_cuda_feed_stats st = {.sz = sizeof(st)};
	static const uint64_t sizes[] = {4096, 100, 2 * MIB + 8, 50000, 12 * MIB, 8};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	cuda_start(_metadata, self);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, &opts));
	for (unsigned int i = 0; i < ARRAY_SIZE(sizes); i++)
		ASSERT_EQ(0, batch_send(self->out, sizes[i], i, 0));
	for (unsigned int i = 0; i < ARRAY_SIZE(sizes); i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		gpu_busy(self->s, 500);
		EXPECT_EQ(sizes[i], batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	ASSERT_EQ(0, sluice_cuda_feed_stats(f, &st));
	EXPECT_EQ(ARRAY_SIZE(sizes), st.batches);
	EXPECT_LE(3, st.grown);
	sluice_cuda_feed_close(f);
}

/* The caller works on the copy stream: then no event tells when a buffer is out of use. */
TEST_F(feed, buffers_grow_under_work_on_the_copy_stream)
{
	struct sluice_cuda_feed_opts opts = {.sz = sizeof(opts), .depth = 1};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	cuda_start(_metadata, self);
	opts.stream = self->s;
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, &opts));
	for (unsigned int i = 0; i < 6; i++) {
		ASSERT_EQ(0, batch_send(self->out, (i + 1) * 300000, i, 0));
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		gpu_busy(self->s, 20000);
		EXPECT_EQ((i + 1) * 300000, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	sluice_cuda_feed_close(f);
}

static int blob_send(struct sluice_channel *ch, uint64_t len, uint64_t tag)
{
	struct sluice_batch *b;
	int64_t shape = 1000;
	void *p;
	int ret;

	ret = sluice_batch_begin(ch, &b, 1000 + 2 * len + 64, LONG_WAIT);
	if (ret)
		return ret;
	p = sluice_batch_bytes_add(b, "before", NULL, len);
	if (!p)
		return -errno;
	pattern_fill(p, len, 100);
	pattern_fill(sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, &shape, NULL), 1000, tag);
	p = sluice_batch_bytes_add(b, "after", NULL, len);
	if (!p)
		return -errno;
	pattern_fill(p, len, 101);
	sluice_batch_tag(b, tag);
	return sluice_batch_publish(b);
}

TEST_F(feed, metadata_stays_readable)
{
	static const uint64_t lens[] = {0, 10, 30000, 200000};
	struct sluice_cuda_feed_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	const void *data;
	const char *name;
	uint64_t len;

	cuda_start(_metadata, self);
	f = feed_new(self, 2);
	ASSERT_NE(NULL, f);
	for (unsigned int i = 0; i < ARRAY_SIZE(lens); i++)
		ASSERT_EQ(0, blob_send(self->out, lens[i], i));
	for (unsigned int i = 0; i < ARRAY_SIZE(lens); i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		EXPECT_EQ(1000, batch_check(b, self->s));
		gpu_sync(self->s);
		ASSERT_CUDA(0, sluice_cuda_batch_blob(b, 0, &name, &data, &len));
		EXPECT_STREQ("before", name);
		EXPECT_EQ(lens[i], len);
		EXPECT_TRUE(pattern_is(data, len, 100));
		ASSERT_CUDA(0, sluice_cuda_batch_blob(b, 1, &name, &data, &len));
		EXPECT_STREQ("after", name);
		EXPECT_TRUE(pattern_is(data, len, 101));
		EXPECT_EQ(-EINVAL, sluice_cuda_batch_blob(b, 2, &name, &data, &len));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	ASSERT_EQ(0, sluice_cuda_feed_stats(f, &st));
	/* Blobs that stand before or behind the tensors do not go over the bus. */
	EXPECT_EQ(1000 * ARRAY_SIZE(lens), st.bytes);
	sluice_cuda_feed_close(f);
}

TEST_F(feed, all_buffers_are_with_the_caller)
{
	struct sluice_cuda_batch *b[3], *more;
	struct sluice_cuda_feed *f;

	cuda_start(_metadata, self);
	f = feed_new(self, 3);
	ASSERT_NE(NULL, f);
	for (unsigned int i = 0; i < 5; i++)
		ASSERT_EQ(0, batch_send(self->out, 5000, i, 0));
	for (unsigned int i = 0; i < 3; i++)
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b[i], self->s, 0));
	EXPECT_EQ(-EBUSY, sluice_cuda_feed_next(f, &more, self->s, 0));
	/* In any order: */
	EXPECT_EQ(0, sluice_cuda_batch_release(b[1], self->s));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b[1], self->s, 0));
	EXPECT_EQ(5000, batch_check(b[1], self->s));
	EXPECT_EQ(5000, batch_check(b[0], self->s));
	EXPECT_EQ(5000, batch_check(b[2], self->s));
	for (unsigned int i = 0; i < 3; i++)
		EXPECT_EQ(0, sluice_cuda_batch_release(b[i], self->s));
	EXPECT_EQ(-EINVAL, sluice_cuda_batch_release(b[0], self->s));
	sluice_cuda_feed_close(f);
}

/* Large extents go back while nobody calls the library: a waiting producer gets on. */
TEST_F(feed, extents_go_back_by_themselves)
{
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	uint64_t until = now_ns() + LONG_WAIT;

	cuda_start(_metadata, self);
	f = feed_new(self, 2);
	ASSERT_NE(NULL, f);
	ASSERT_EQ(0, batch_send(self->out, 8 * MIB, 1, 0));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	do {
		usleep(1000);
		ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	} while (u.held && now_ns() < until);
	EXPECT_EQ(0, u.held);
	EXPECT_EQ(8 * MIB, batch_check(b, self->s));
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	sluice_cuda_feed_close(f);
}

/* What small copies hold goes back while the feed waits for a producer that waits for room. */
TEST_F(feed, an_arena_with_room_for_two_batches)
{
	static const uint64_t waits[] = {SLUICE_FOREVER, LONG_WAIT, INT64_MAX};
	const unsigned int rounds = scaled(40);
	struct sluice_cuda_feed_opts o = {.sz = sizeof(o), .depth = 2};
	struct sluice_arena *a = arena_new(MIB);
	struct sluice_cuda_batch *b;
	struct sluice_channel *in;
	struct sluice_cuda_feed *f;
	struct sluice_cuda *c;
	pid_t pid;

	ASSERT_NE(NULL, a);
	in = channel_new(a, "tight", 8, SLUICE_CHANNEL_CONSUME);
	CHILD(pid) {
		struct sluice_arena *mine = arena_child(a);
		struct sluice_channel *out = channel_join(mine, "tight", SLUICE_CHANNEL_PRODUCE);

		for (unsigned int i = 0; i < rounds; i++)
			CHECK_OK(batch_send(out, 400 * KIB, i, LONG_WAIT));
		sluice_channel_close(out);
		sluice_arena_detach(mine);
	}
	cuda_start(_metadata, self);
	ASSERT_CUDA(0, sluice_cuda_attach(&c, a, NULL));
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, c, in, &o));
	for (unsigned int i = 0; i < rounds; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, waits[i % 3]));
		EXPECT_EQ(400 * KIB, batch_check(b, self->s));
		gpu_busy(self->s, 2000); /* the next copy into the buffer waits for it */
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(c));
	EXPECT_EQ(0, child_wait(pid));
	EXPECT_EQ(NULL, arena_all_free(a));
	sluice_channel_close(in);
	sluice_arena_detach(a);
}

/* A buffer is not written again before the stream of its release has got past its use. */
TEST_F(feed, buffers_wait_for_the_stream)
{
	struct CUstream_st *other;
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	cuda_start(_metadata, self);
	other = gpu_stream();
	for (uint32_t depth = 1; depth <= 2; depth++) {
		f = feed_new(self, depth);
		ASSERT_NE(NULL, f);
		for (unsigned int i = 0; i < scaled(60); i++) {
			struct CUstream_st *s = i % 3 ? self->s : other;

			ASSERT_EQ(0, batch_send(self->out, 40000, i, LONG_WAIT));
			ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, s, LONG_WAIT));
			gpu_busy(s, 300);
			EXPECT_EQ(40000, batch_check(b, s));
			EXPECT_EQ(0, sluice_cuda_batch_release(b, s));
		}
		gpu_sync(other);
		sluice_cuda_feed_close(f);
	}
	gpu_stream_free(other);
}

TEST_F(feed, end_of_stream_comes_behind_the_batches)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	cuda_start(_metadata, self);
	f = feed_new(self, 4);
	ASSERT_NE(NULL, f);
	for (unsigned int i = 0; i < 3; i++)
		ASSERT_EQ(0, batch_send(self->out, 5000, i, 0));
	sluice_channel_shutdown(self->out);
	for (unsigned int i = 0; i < 3; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		EXPECT_EQ(5000, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	EXPECT_EQ(-ENODATA, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
	EXPECT_STREQ("channel feed: end of the stream", sluice_cuda_strerror());
	EXPECT_EQ(-ENODATA, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
	sluice_cuda_feed_close(f);
}

TEST_F(feed, closed_with_batches_ahead)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	uint64_t seed;

	cuda_start(_metadata, self);
	f = feed_new(self, 4);
	ASSERT_NE(NULL, f);
	for (unsigned int i = 0; i < 10; i++)
		ASSERT_EQ(0, batch_send(self->out, 300000, i, 0));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_EQ(-EBUSY, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	sluice_cuda_feed_close(f);
	/* What the feed had not taken is still there. */
	ASSERT_EQ(0, batch_recv(self->in, &seed, 0));
	EXPECT_EQ(4, seed);
	while (!batch_recv(self->in, &seed, 0))
		;
}

TEST_F(feed, pump_copies_ahead)
{
	struct sluice_cuda_feed_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	cuda_start(_metadata, self);
	f = feed_new(self, 4);
	ASSERT_NE(NULL, f);
	EXPECT_EQ(0, sluice_cuda_feed_pump(f));
	for (unsigned int i = 0; i < 6; i++)
		ASSERT_EQ(0, batch_send(self->out, 300000, i, 0));
	EXPECT_EQ(4, sluice_cuda_feed_pump(f));
	for (unsigned int i = 0; i < 6; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
		EXPECT_EQ(300000, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	ASSERT_EQ(0, sluice_cuda_feed_stats(f, &st));
	EXPECT_EQ(6, st.batches);
	EXPECT_EQ(1800000, st.bytes);
	sluice_cuda_feed_close(f);
}

TEST_F(feed, direct_copies)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct CUstream_st *streams[3];
	struct sluice_batch *b;
	void *dev[12];

	cuda_start(_metadata, self);
	for (unsigned int i = 0; i < 3; i++)
		streams[i] = gpu_stream();
	for (unsigned int i = 0; i < 12; i++) {
		dev[i] = gpu_alloc(100000);
		ASSERT_EQ(0, batch_send(self->out, 100000, i, 0));
		ASSERT_EQ(0, sluice_channel_next(self->in, &b, 0));
		EXPECT_EQ(-ENOSPC, sluice_cuda_copy(self->c, b, dev[i], 99999, streams[i % 3]));
		ASSERT_CUDA(0, sluice_cuda_copy(self->c, b, dev[i], 100000, streams[i % 3]));
		gpu_check(streams[i % 3], dev[i], 100000, i);
	}
	for (unsigned int i = 0; i < 3; i++)
		gpu_sync(streams[i]);
	EXPECT_EQ(0, sluice_cuda_reap(self->c));
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	EXPECT_EQ(12, st.h2d_copies);
	EXPECT_EQ(1200000, st.h2d_bytes);
	EXPECT_EQ(0, st.held);
	for (unsigned int i = 0; i < 12; i++)
		gpu_free(dev[i]);
	for (unsigned int i = 0; i < 3; i++)
		gpu_stream_free(streams[i]);
}

/* Detaching waits for copies: the extent is not given back under a DMA. */
TEST_F(feed, detached_with_a_direct_copy_in_flight)
{
	struct sluice_batch *b;
	void *dev;

	cuda_start(_metadata, self);
	dev = gpu_alloc(4 * MIB);
	ASSERT_EQ(0, batch_send(self->out, 4 * MIB, 1, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, 0));
	gpu_busy(self->s, 20000);
	ASSERT_CUDA(0, sluice_cuda_copy(self->c, b, dev, 4 * MIB, self->s));
	ASSERT_CUDA(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(NULL, arena_all_free(self->a));
	gpu_check(self->s, dev, 4 * MIB, 1);
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	gpu_sync(self->s);
	gpu_free(dev);
}

/* @start: opened once for each of them; NULL when they need not wait */
static void producers_run(struct sluice_arena *inherited, unsigned int n, unsigned int batches,
			  pid_t *pid, struct gate *start)
{
	struct gate joined;

	gate_init(&joined);
	for (unsigned int p = 0; p < n; p++) {
		CHILD(pid[p]) {
			struct sluice_arena *a = arena_child(inherited);
			struct sluice_channel *out =
				channel_join(a, "feed", SLUICE_CHANNEL_PRODUCE);

			gate_open(&joined);
			if (start)
				gate_pass(start);
			for (unsigned int i = 0; i < batches; i++)
				CHECK_OK(batch_send(out, 1000 + random_u64() % 200000,
						    p * 1000000ULL + i, LONG_WAIT));
			sluice_channel_close(out);
			sluice_arena_detach(a);
		}
	}
	/* Or the channel would end with the first that leaves. */
	for (unsigned int p = 0; p < n; p++)
		gate_pass(&joined);
}

TEST_F(feed, several_producers_keep_their_order)
{
	const unsigned int batches = scaled(200);
	uint64_t next[4] = {0};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	pid_t pid[4];

	producers_run(self->a, 4, batches, pid, NULL);
	cuda_start(_metadata, self);
	f = feed_new(self, 8);
	ASSERT_NE(NULL, f);
	for (unsigned int i = 0; i < 4 * batches; i++) {
		struct sluice_batch_info info = {.sz = sizeof(info)};

		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		ASSERT_CUDA(0, sluice_cuda_batch_info(b, &info));
		ASSERT_EQ(next[info.tag / 1000000]++, info.tag % 1000000);
		EXPECT_LT(0, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	for (unsigned int p = 0; p < 4; p++)
		EXPECT_EQ(0, child_wait(pid[p]));
	sluice_cuda_feed_close(f);
}

TEST_F(feed, producers_are_killed)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	unsigned int killed = 0, got = 0;
	pid_t pid[8];
	int ret;

	producers_run(self->a, 8, 1000000, pid, NULL);
	sluice_channel_close(self->out);
	self->out = NULL;
	cuda_start(_metadata, self);
	f = feed_new(self, 4);
	ASSERT_NE(NULL, f);
	for (;;) {
		if (killed < 8 && got == 20 * (killed + 1))
			child_kill(pid[killed++]);
		ret = sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT);
		if (ret)
			break;
		got++;
		EXPECT_LT(0, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	EXPECT_EQ(8, killed);
	EXPECT_EQ(-EOWNERDEAD, ret);
	sluice_cuda_feed_close(f);
}

/* The consumer dies with copies in flight: another takes over, and the arena is whole. */
TEST_F(feed, consumer_is_killed)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct gate busy;
	pid_t pid[2], consumer;

	gate_init(&busy);
	producers_run(self->a, 2, 1000000, pid, NULL);
	sluice_channel_close(self->out);
	self->out = NULL;
	CHILD(consumer) {
		FIXTURE_DATA(feed) mine = {.a = arena_child(self->a)};

		mine.in = channel_join(mine.a, "feed", SLUICE_CHANNEL_CONSUME);
		CHECK(gpu_init(0));
		mine.s = gpu_stream();
		CHECK_OK(sluice_cuda_attach(&mine.c, mine.a, NULL));
		f = feed_new(&mine, 8);
		CHECK(f);
		for (unsigned int i = 0;; i++) {
			CHECK_OK(sluice_cuda_feed_next(f, &b, mine.s, LONG_WAIT));
			CHECK_OK(sluice_cuda_batch_release(b, mine.s));
			if (i == 20)
				gate_open(&busy);
		}
	}
	gate_pass(&busy);
	child_kill(consumer);
	cuda_start(_metadata, self);
	f = feed_new(self, 8);
	ASSERT_NE(NULL, f);
	for (int i = 0; i < 50; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		EXPECT_LT(0, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	child_kill(pid[0]);
	child_kill(pid[1]);
	while (!sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT))
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	sluice_cuda_feed_close(f);
}

TEST_F(feed, two_consumers_share_a_channel)
{
	const unsigned int batches = scaled(300);
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	pid_t producer[2], consumer;
	struct gate start, ready;
	unsigned int got = 0;

	gate_init(&start);
	gate_init(&ready);
	producers_run(self->a, 2, batches, producer, &start);
	CHILD(consumer) {
		FIXTURE_DATA(feed) mine = {.a = arena_child(self->a)};

		mine.in = channel_join(mine.a, "feed", SLUICE_CHANNEL_CONSUME);
		CHECK(gpu_init(0));
		mine.s = gpu_stream();
		CHECK_OK(sluice_cuda_attach(&mine.c, mine.a, NULL));
		f = feed_new(&mine, 4);
		CHECK(f);
		gate_open(&ready);
		while (!sluice_cuda_feed_next(f, &b, mine.s, LONG_WAIT)) {
			CHECK(batch_check(b, mine.s) > 0);
			CHECK_OK(sluice_cuda_batch_release(b, mine.s));
			got++;
		}
		gpu_sync(mine.s);
		CHECK(gpu_bad() == 0);
		CHECK(got > 0);
		sluice_cuda_feed_close(f);
		CHECK_OK(sluice_cuda_detach(mine.c));
		sluice_channel_close(mine.in);
		sluice_arena_detach(mine.a);
	}
	sluice_channel_close(self->out);
	self->out = NULL;
	cuda_start(_metadata, self);
	f = feed_new(self, 4);
	ASSERT_NE(NULL, f);
	gate_pass(&ready);
	gate_open(&start);
	gate_open(&start);
	while (!sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT)) {
		EXPECT_LT(0, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
		got++;
	}
	EXPECT_LT(0, got);
	EXPECT_EQ(0, child_wait(consumer));
	EXPECT_EQ(0, child_wait(producer[0]));
	EXPECT_EQ(0, child_wait(producer[1]));
	sluice_cuda_feed_close(f);
}

TEST_F_TIMEOUT(feed, many_small_batches_do_not_grow, 200)
{
	/* On a GPU a million; threads that play GPU are slower. */
	const unsigned int total = gpu_is_fake() ? scaled(8000) : scaled(1000000);
	uint64_t before = 0, fds = 0;
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct gate joined;
	pid_t pid;

	gate_init(&joined);
	if (gpu_is_fake())
		setenv("FAKE_CUDA_DELAY_US", "0", 1);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *out = channel_join(a, "feed", SLUICE_CHANNEL_PRODUCE);

		gate_open(&joined);
		for (unsigned int i = 0; i < total; i++)
			CHECK_OK(batch_send(out, 256, i, LONG_WAIT));
		sluice_channel_close(out);
		sluice_arena_detach(a);
	}
	gate_pass(&joined);
	sluice_channel_close(self->out);
	self->out = NULL;
	cuda_start(_metadata, self);
	f = feed_new(self, 32);
	ASSERT_NE(NULL, f);
	for (unsigned int i = 0; i < total; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		if (i % 64 == 0)
			EXPECT_EQ(256, batch_check(b, self->s));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
		if (i == total / 4) {
			before = resident_bytes();
			fds = open_fds();
		}
	}
	/* A ring or two may be opened at the first sleep. */
	EXPECT_GE(fds + 4, open_fds());
	EXPECT_GE(before + GROWTH, resident_bytes());
	EXPECT_EQ(0, child_wait(pid));
	sluice_cuda_feed_close(f);
}

TEST_HARNESS_MAIN
