// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* One arena, registered once, and two devices; each has channels of its own. */
#include "suite.h"

#define DEVICES 2

FIXTURE(two)
{
	struct sluice_arena *a;
	struct {
		struct sluice_channel *out, *in;
		struct sluice_cuda *c;
		struct CUstream_st *s;
	} dev[DEVICES];
};

FIXTURE_SETUP(two)
{
	static const char *const name[DEVICES] = {"first", "second"};

	if (gpu_is_fake())
		setenv("FAKE_CUDA_DEVICES", "2", 1);
	if (gpu_devices() < DEVICES)
		return;
	self->a = arena_new(64 * MIB);
	ASSERT_NE(NULL, self->a);
	for (int i = 0; i < DEVICES; i++) {
		struct sluice_cuda_opts opts = {
			.sz = sizeof(opts),
			.flags = SLUICE_CUDA_DEVICE,
			.device = i,
		};

		self->dev[i].out = channel_new(self->a, name[i], 8, SLUICE_CHANNEL_PRODUCE);
		self->dev[i].in = channel_join(self->a, name[i], SLUICE_CHANNEL_CONSUME);
		ASSERT_TRUE(gpu_init(i));
		self->dev[i].s = gpu_stream();
		ASSERT_CUDA(0, sluice_cuda_attach(&self->dev[i].c, self->a, &opts));
	}
}

/* The setup cannot skip: the test would run nevertheless. */
#define NEEDS_TWO(self)                                                       \
	do {                                                                  \
		if (!(self)->a)                                               \
			SKIP(return, "this host has fewer than two devices"); \
	} while (0)

FIXTURE_TEARDOWN(two)
{
	const char *left;

	if (!self->a)
		return;
	for (int i = 0; i < DEVICES; i++) {
		EXPECT_EQ(0, sluice_cuda_detach(self->dev[i].c));
		sluice_channel_close(self->dev[i].out);
		sluice_channel_close(self->dev[i].in);
	}
	EXPECT_EQ(0, gpu_bad());
	left = arena_all_free(self->a);
	EXPECT_EQ(NULL, left)
	{
		TH_LOG("%s", left);
	}
	sluice_arena_detach(self->a);
}

/* A batch for the feed of a device, through it, and checked there. */
static int through(FIXTURE_DATA(two) * self, int i, struct sluice_cuda_feed *f, size_t bytes,
		   uint64_t seed)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct sluice_cuda_batch *b;
	int ret;

	ret = batch_send(self->dev[i].out, bytes, seed, LONG_WAIT);
	/* Whatever device is current, the feed knows its own. */
	if (!ret)
		ret = sluice_cuda_feed_next(f, &b, self->dev[i].s, LONG_WAIT);
	if (ret)
		return ret;
	ret = sluice_cuda_batch_tensor(b, 0, &t);
	gpu_use(i);
	if (!ret)
		gpu_check(self->dev[i].s, t.data, t.bytes, seed);
	if (!ret && t.bytes != bytes)
		ret = -EBADMSG;
	return sluice_cuda_batch_release(b, self->dev[i].s) ?: ret;
}

TEST_F(two, feeds)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_feed *f[DEVICES];

	NEEDS_TWO(self);
	for (int i = 0; i < DEVICES; i++)
		ASSERT_CUDA(0, sluice_cuda_feed_open(&f[i], self->dev[i].c, self->dev[i].in, NULL));
	for (unsigned int k = 0; k < scaled(100); k++)
		ASSERT_CUDA(0, through(self, k % 2, f[k % 2], 1000 * (k + 1), k));
	for (int i = 0; i < DEVICES; i++) {
		gpu_use(i);
		gpu_sync(self->dev[i].s);
		ASSERT_EQ(0, sluice_cuda_stats(self->dev[i].c, &st));
		EXPECT_EQ(i, st.device);
		EXPECT_EQ(2, st.chunks);
		sluice_cuda_feed_close(f[i]);
	}
	/* The device that registered the arena leaves first. */
	EXPECT_EQ(0, sluice_cuda_detach(self->dev[0].c));
	self->dev[0].c = NULL;
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f[1], self->dev[1].c, self->dev[1].in, NULL));
	EXPECT_EQ(0, through(self, 1, f[1], 5000, 1));
	gpu_sync(self->dev[1].s);
	sluice_cuda_feed_close(f[1]);
}

static int submit(FIXTURE_DATA(two) * self, int i, struct sluice_cuda_drain *d, void *dev,
		  int64_t bytes, uint64_t seed)
{
	const struct sluice_cuda_submit_opts opts = {
		.sz = sizeof(opts),
		.tag = seed,
		.timeout_ns = LONG_WAIT,
	};

	return submit_bytes(d, dev, bytes, self->dev[i].s, &opts);
}

TEST_F(two, drains)
{
	struct sluice_cuda_drain *d[DEVICES];
	void *dev[DEVICES];
	uint64_t seed;

	NEEDS_TWO(self);
	for (int i = 0; i < DEVICES; i++) {
		gpu_use(i);
		dev[i] = gpu_alloc(MIB);
		ASSERT_CUDA(0,
			    sluice_cuda_drain_open(&d[i], self->dev[i].c, self->dev[i].out, NULL));
	}
	for (unsigned int k = 0; k < scaled(100); k++) {
		const int i = k % 2;

		gpu_use(i);
		gpu_fill(self->dev[i].s, dev[i], 1000 * (k + 1), k);
		/* Whatever device is current, the drain knows its own. */
		gpu_use(!i);
		ASSERT_CUDA(0, submit(self, i, d[i], dev[i], 1000 * (k + 1), k));
		ASSERT_EQ(0, batch_recv(self->dev[i].in, &seed, LONG_WAIT));
		EXPECT_EQ(k, seed);
	}
	EXPECT_EQ(-EXDEV, submit(self, 0, d[0], dev[1], 1000, 0));
	EXPECT_NE(NULL, strstr(sluice_cuda_strerror(), "tensor 0 is on device 1"));
	for (int i = 0; i < DEVICES; i++) {
		EXPECT_EQ(0, sluice_cuda_drain_close(d[i]));
		gpu_use(i);
		gpu_free(dev[i]);
	}
}

/* What one device has got goes on to the other, by way of the host. */
TEST_F(two, from_one_to_the_other)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_cuda_drain *d;

	NEEDS_TWO(self);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->dev[0].c, self->dev[1].out, NULL));
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->dev[1].c, self->dev[1].in, NULL));
	for (unsigned int k = 0; k < scaled(20); k++) {
		const size_t bytes = 30000 + k;
		void *dev;

		gpu_use(0);
		dev = gpu_alloc(bytes);
		gpu_fill(self->dev[0].s, dev, bytes, k);
		ASSERT_CUDA(0, submit(self, 0, d, dev, bytes, k));
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->dev[1].s, LONG_WAIT));
		ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
		gpu_use(1);
		gpu_check(self->dev[1].s, t.data, t.bytes, k);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->dev[1].s));
		EXPECT_EQ(bytes, t.bytes);
		gpu_use(0);
		ASSERT_CUDA(0, sluice_cuda_drain_flush(d, LONG_WAIT));
		gpu_free(dev);
	}
	gpu_use(1);
	gpu_sync(self->dev[1].s);
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
}

TEST_HARNESS_MAIN
