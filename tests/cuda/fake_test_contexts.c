// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Contexts that are reset, and streams of contexts that are not the attachment's. */
#include "fake_load.h"
#include "suite.h"

FIXTURE(contexts)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in;
	struct sluice_cuda *c;
	struct CUstream_st *s;
};

FIXTURE_SETUP(contexts)
{
	self->a = arena_new(32 * MIB);
	ASSERT_NE(NULL, self->a);
	self->out = channel_new(self->a, "both", 16, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_join(self->a, "both", SLUICE_CHANNEL_CONSUME);
	setenv("FAKE_CUDA_DEVICES", "2", 1);
	setenv("FAKE_CUDA_DELAY_US", "2000", 1);
	ASSERT_TRUE(gpu_init(0));
	self->s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
}

FIXTURE_TEARDOWN(contexts)
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
	sluice_arena_detach(self->a);
}

/* A batch goes through the feed, by way of a stream that may be of any context. */
static void through(struct __test_metadata *_metadata, FIXTURE_DATA(contexts) * self,
		    struct sluice_cuda_feed *f, struct CUstream_st *s, uint64_t seed)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct sluice_cuda_batch *b;

	ASSERT_EQ(0, batch_send(self->out, 30000, seed, 0));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, s, 0));
	ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
	gpu_check(s, t.data, t.bytes, seed);
	EXPECT_EQ(0, sluice_cuda_batch_release(b, s));
}

/* No event of ours can be recorded there, so a release waits. */
TEST_F(contexts, a_stream_of_another_device)
{
	struct sluice_cuda_feed_opts o = {.sz = sizeof(o), .depth = 2};
	struct sluice_cuda_drain *d;
	struct sluice_cuda_feed *f;
	struct CUstream_st *other;
	void *dev = gpu_alloc(MIB), *to = gpu_alloc(MIB);
	struct sluice_batch *b;

	ASSERT_TRUE(gpu_init(1));
	other = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, &o));
	for (unsigned int i = 0; i < 6; i++)
		through(_metadata, self, f, other, i);
	sluice_cuda_feed_close(f);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->out, NULL));
	EXPECT_EQ(-EINVAL, submit_bytes(d, dev, MIB, other, NULL));
	EXPECT_EQ(-EAGAIN, sluice_channel_next(self->in, &b, 0));
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	ASSERT_EQ(0, batch_send(self->out, MIB, 1, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, 0));
	EXPECT_EQ(-EINVAL, sluice_cuda_copy(self->c, b, to, MIB, other));
	ASSERT_CUDA(0, sluice_cuda_copy(self->c, b, to, MIB, self->s));
	gpu_use(0);
	gpu_sync(self->s);
	gpu_free(dev);
	gpu_free(to);
}

/* What has become of the context of somebody's stream says nothing about ours. */
TEST_F(contexts, a_stream_whose_context_is_destroyed)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_drain *d;
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_batch *hb;
	struct CUstream_st *dead;
	CUcontext ctx, was;
	void *dev = gpu_alloc(MIB), *to = gpu_alloc(MIB);

	gpu_fill(self->s, dev, MIB, 0);
	ctx = drv.context(0);
	dead = gpu_stream();
	ASSERT_EQ(0, drv.pop_current(&was));
	drv.context_destroy(ctx);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(0, batch_send(self->out, 2 * MIB, i, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &hb, 0));
	drv.hold(true);
	EXPECT_GT(0, sluice_cuda_feed_next(f, &b, dead, 0));
	EXPECT_NE(NULL, arena_all_free(self->a));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_GT(0, sluice_cuda_batch_release(b, dead));
	EXPECT_NE(NULL, arena_all_free(self->a));
	drv.hold(false);
	EXPECT_GT(0, sluice_cuda_copy(self->c, hb, to, MIB, dead));
	sluice_batch_release(hb);
	/* The feed lost a buffer, and goes on. */
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	sluice_cuda_feed_close(f);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->out, NULL));
	drv.hold(true);
	ASSERT_CUDA(0, submit_bytes(d, dev, MIB, self->s, NULL));
	EXPECT_GT(0, sluice_cuda_drain_guard(d, dead));
	EXPECT_EQ(-EAGAIN, sluice_cuda_drain_flush(d, 0));
	drv.hold(false);
	EXPECT_GT(0, submit_bytes(d, dev, 5000, dead, NULL));
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	EXPECT_EQ(0, batch_recv(self->in, NULL, 0));
	gpu_sync(self->s);
	gpu_free(dev);
	gpu_free(to);
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	EXPECT_EQ(0, st.quarantined);
}

/* The primary context is reset under everything, and perhaps made again, at the same address. */
static void reset(struct __test_metadata *_metadata, FIXTURE_DATA(contexts) * self, bool again,
		  bool idle)
{
	struct fake_cuda_census before, after;
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_batch *hb;
	CUcontext ctx;
	void *to = gpu_alloc(MIB);

	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(0, batch_send(self->out, MIB, i, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &hb, 0));
	drv.hold(true);
	ASSERT_CUDA(0, sluice_cuda_copy(self->c, hb, to, MIB, self->s));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	if (idle) {
		drv.hold(false);
		gpu_sync(self->s);
		while (sluice_cuda_reap(self->c) > 0)
			usleep(1000);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
		for (int i = 0; i < 2; i++) {
			ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
			EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
		}
		gpu_sync(self->s);
		EXPECT_EQ(0, sluice_cuda_feed_pump(f));
	}
	drv.primary_reset(0);
	if (again)
		ASSERT_EQ(0, drv.primary_retain(&ctx, 0));
	drv.hold(false);
	if (!idle) {
		EXPECT_EQ(-ESHUTDOWN, sluice_cuda_feed_next(f, &b, self->s, 0));
		EXPECT_NE(NULL, strstr(sluice_cuda_strerror(), "device 0"));
	}
	drv.census(&before);
	sluice_cuda_feed_close(f);
	drv.census(&after);
	/* Its addresses may be those of others by now. */
	EXPECT_EQ(before.allocations, after.allocations);
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	EXPECT_EQ(0, st.quarantined);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	self->c = NULL;
	if (!again)
		return;
	/* A new attachment is a new beginning. */
	self->s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	through(_metadata, self, f, self->s, 9);
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
}

TEST_F(contexts, reset)
{
	reset(_metadata, self, false, false);
}

TEST_F(contexts, reset_and_made_again)
{
	reset(_metadata, self, true, false);
}

TEST_F(contexts, reset_and_made_again_with_nothing_in_flight)
{
	reset(_metadata, self, true, true);
}

TEST_HARNESS_MAIN
