// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Streams that are being captured into a graph: no copy may become a part of it. */
#include "suite.h"

FIXTURE(streams)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in, *back_out, *back_in;
	struct sluice_cuda *c;
	struct CUstream_st *s;
};

FIXTURE_SETUP(streams)
{
	self->a = arena_new(32 * MIB);
	ASSERT_NE(NULL, self->a);
	self->out = channel_new(self->a, "in", 16, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_join(self->a, "in", SLUICE_CHANNEL_CONSUME);
	self->back_out = channel_new(self->a, "back", 16, SLUICE_CHANNEL_PRODUCE);
	self->back_in = channel_join(self->a, "back", SLUICE_CHANNEL_CONSUME);
	ASSERT_TRUE(gpu_init(0));
	self->s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
}

FIXTURE_TEARDOWN(streams)
{
	const char *left;

	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, gpu_bad());
	left = arena_all_free(self->a);
	EXPECT_EQ(NULL, left)
	{
		TH_LOG("%s", left);
	}
	sluice_channel_close(self->out);
	sluice_channel_close(self->in);
	sluice_channel_close(self->back_out);
	sluice_channel_close(self->back_in);
	sluice_arena_detach(self->a);
}

/* The batch on the device is the one that was sent as number @seed. */
static void check(struct __test_metadata *_metadata, struct sluice_cuda_batch *b,
		  struct CUstream_st *s, uint64_t seed)
{
	struct sluice_tensor t = {.sz = sizeof(t)};

	ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
	gpu_check(s, t.data, t.bytes, seed);
}

TEST_F(streams, a_feed_and_a_captured_stream)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, batch_send(self->out, 300000, i, 0));
	gpu_capture(self->s, true);
	EXPECT_EQ(-EPERM, sluice_cuda_feed_next(f, &b, self->s, 0));
	gpu_capture(self->s, false);
	for (int i = 0; i < 2; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
		gpu_capture(self->s, true);
		EXPECT_EQ(-EPERM, sluice_cuda_batch_release(b, self->s));
		EXPECT_NE(NULL, strstr(sluice_cuda_strerror(), "captured"));
		gpu_capture(self->s, false);
		/* It is still ours. */
		check(_metadata, b, self->s, i);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
}

TEST_F(streams, a_copy_stream_that_is_captured)
{
	struct sluice_cuda_feed_opts fo = {.sz = sizeof(fo)};
	struct sluice_cuda_drain_opts dopts = {.sz = sizeof(dopts)};
	struct sluice_cuda_drain *d;
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_batch *hb;
	void *dev = gpu_alloc(MIB);
	uint64_t seed;

	fo.stream = dopts.stream = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, &fo));
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->back_out, &dopts));
	gpu_fill(self->s, dev, MIB, 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, batch_send(self->out, 5000, i, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &hb, 0));
	gpu_capture(fo.stream, true);
	EXPECT_EQ(-EPERM, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_EQ(-EPERM, sluice_cuda_feed_pump(f));
	EXPECT_EQ(-EPERM, submit_bytes(d, dev, MIB, self->s, NULL));
	EXPECT_EQ(-EPERM, submit_bytes(d, dev, MIB, fo.stream, NULL));
	EXPECT_EQ(-EPERM, sluice_cuda_drain_guard(d, self->s));
	EXPECT_EQ(-EPERM, sluice_cuda_copy(self->c, hb, dev, MIB, fo.stream));
	gpu_capture(fo.stream, false);
	sluice_batch_release(hb);
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	check(_metadata, b, self->s, 1);
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	ASSERT_CUDA(0, submit_bytes(d, dev, MIB, self->s, NULL));
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	EXPECT_EQ(0, batch_recv(self->back_in, &seed, 0));
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
	gpu_free(dev);
}

/* They would be others on every thread that uses the feed. */
TEST_F(streams, no_copies_on_the_stream_of_a_thread)
{
	struct CUstream_st *per_thread = (struct CUstream_st *)2;
	struct sluice_cuda_feed_opts fo = {.sz = sizeof(fo), .stream = per_thread};
	struct sluice_cuda_drain_opts dopts = {.sz = sizeof(dopts), .stream = per_thread};
	struct sluice_cuda_drain *d;
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	EXPECT_EQ(-EINVAL, sluice_cuda_feed_open(&f, self->c, self->in, &fo));
	EXPECT_EQ(-EINVAL, sluice_cuda_drain_open(&d, self->c, self->back_out, &dopts));
	EXPECT_NE(NULL, strstr(sluice_cuda_strerror(), "cudaStreamPerThread"));
	/* Work may be there, and on the default stream. */
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 6; i++) {
		struct CUstream_st *s = i % 2 ? per_thread : NULL;

		ASSERT_EQ(0, batch_send(self->out, 30000, i, 0));
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, s, 0));
		check(_metadata, b, s, i);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, s));
		gpu_sync(s);
	}
	sluice_cuda_feed_close(f);
}

TEST_HARNESS_MAIN
