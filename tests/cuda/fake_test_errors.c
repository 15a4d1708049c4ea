// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What can go wrong, made to go wrong by the fake driver. */
#include "fake_load.h"
#include "suite.h"

FIXTURE(errors)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in, *back_out, *back_in;
	struct sluice_cuda *c;
	struct CUstream_st *s;
};

FIXTURE_SETUP(errors)
{
	self->a = arena_new(32 * MIB);
	ASSERT_NE(NULL, self->a);
	self->out = channel_new(self->a, "in", 16, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_join(self->a, "in", SLUICE_CHANNEL_CONSUME);
	self->back_out = channel_new(self->a, "back", 16, SLUICE_CHANNEL_PRODUCE);
	self->back_in = channel_join(self->a, "back", SLUICE_CHANNEL_CONSUME);
}

FIXTURE_TEARDOWN(errors)
{
	sluice_channel_close(self->out);
	sluice_channel_close(self->in);
	sluice_channel_close(self->back_out);
	sluice_channel_close(self->back_in);
	sluice_arena_detach(self->a);
}

#define NOTHING_LEFT(self)                                     \
	do {                                                   \
		const char *left_ = arena_all_free((self)->a); \
		EXPECT_EQ(NULL, left_)                         \
		{                                              \
			TH_LOG("%s", left_);                   \
		}                                              \
	} while (0)

static const struct sluice_cuda_opts create = {
	.sz = sizeof(create),
	.flags = SLUICE_CUDA_DEVICE | SLUICE_CUDA_CREATE_CONTEXT,
};

static bool sentence_has(const char *what)
{
	if (strstr(sluice_cuda_strerror(), what))
		return true;
	fprintf(stderr, "# \"%s\" is not in \"%s\"\n", what, sluice_cuda_strerror());
	return false;
}

/* ------------------------------------------------------------------ attaching */

TEST_F(errors, no_context_is_made_unasked)
{
	struct sluice_cuda_opts o = {.sz = sizeof(o), .flags = SLUICE_CUDA_DEVICE};
	struct fake_cuda_census census;

	fake_load();
	EXPECT_EQ(-ENOTCONN, sluice_cuda_attach(&self->c, self->a, NULL));
	EXPECT_TRUE(sentence_has("no CUDA context is current"));
	EXPECT_EQ(-ENOTCONN, sluice_cuda_attach(&self->c, self->a, &o));
	EXPECT_TRUE(sentence_has("SLUICE_CUDA_CREATE_CONTEXT"));
	o.flags = SLUICE_CUDA_CREATE_CONTEXT;
	EXPECT_EQ(-EINVAL, sluice_cuda_attach(&self->c, self->a, &o));
	o.flags = SLUICE_CUDA_DEVICE | SLUICE_CUDA_CREATE_CONTEXT;
	o.device = 3;
	EXPECT_EQ(-ENXIO, sluice_cuda_attach(&self->c, self->a, &o));
	EXPECT_TRUE(sentence_has("no CUDA device 3"));
	drv.census(&census);
	EXPECT_EQ(0, census.primaries);
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, &create));
	drv.census(&census);
	EXPECT_LT(0, census.primaries);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	drv.census(&census);
	EXPECT_EQ(0, census.primaries);
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, no_device)
{
	struct sluice_cuda_probe p = {.sz = sizeof(p)};

	ASSERT_TRUE(gpu_init(0));
	drv.fail("cuInit", 1, CUDA_ERROR_NO_DEVICE);
	EXPECT_EQ(-ENODEV, sluice_cuda_attach(&self->c, self->a, &create));
	EXPECT_TRUE(sentence_has("finds no device"));
	/* It may be there the next time. */
	ASSERT_CUDA(0, sluice_cuda_probe(&p));
	EXPECT_EQ(1, p.devices);
	EXPECT_LT(11000, p.driver_version);
	drv.fail("cuDeviceGetCount", 1, CUDA_ERROR_NO_DEVICE);
	EXPECT_EQ(-ENODEV, sluice_cuda_probe(&p));
}

TEST_F(errors, the_driver_is_too_old)
{
	setenv("FAKE_CUDA_MISSING", "cuLaunchHostFunc", 1);
	fake_load();
	EXPECT_EQ(-EPROTO, sluice_cuda_attach(&self->c, self->a, &create));
	EXPECT_TRUE(sentence_has("cuLaunchHostFunc of CUDA 10.0"));
}

TEST_F(errors, registering_twice_is_harmless)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct fake_cuda_census census;
	struct sluice_cuda *c[3];

	ASSERT_TRUE(gpu_init(0));
	for (int i = 0; i < 3; i++)
		ASSERT_CUDA(0, sluice_cuda_attach(&c[i], self->a, i ? NULL : &create));
	drv.census(&census);
	EXPECT_EQ(2, census.registrations);
	ASSERT_EQ(0, sluice_cuda_stats(c[2], &st));
	EXPECT_EQ(2, st.chunks);
	EXPECT_LT(32 * MIB, st.registered_bytes);
	EXPECT_LT(0, st.register_ns);
	EXPECT_EQ(1, st.stream_writes);
	/* The registration outlives the attachment that made it. */
	EXPECT_EQ(0, sluice_cuda_detach(c[0]));
	drv.census(&census);
	EXPECT_EQ(2, census.registrations);
	EXPECT_EQ(0, sluice_cuda_detach(c[2]));
	EXPECT_EQ(0, sluice_cuda_detach(c[1]));
	drv.census(&census);
	EXPECT_EQ(0, census.registrations);
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, what_others_registered_is_used)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct fake_cuda_census census;

	ASSERT_EQ(0, sluice_arena_info(self->a, &info));
	ASSERT_TRUE(gpu_init(0));
	ASSERT_EQ(0, drv.host_register(info.data, info.data_bytes, 0));
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	EXPECT_EQ(1, st.chunks);
	EXPECT_EQ(1, st.foreign);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	drv.census(&census);
	EXPECT_EQ(1, census.registrations);
	/* Half of it is not enough. */
	ASSERT_EQ(0, drv.host_unregister(info.data));
	ASSERT_EQ(0, drv.host_register(info.data, info.data_bytes / 2, 0));
	EXPECT_GT(0, sluice_cuda_attach(&self->c, self->a, NULL));
	drv.census(&census);
	EXPECT_EQ(1, census.registrations);
}

TEST_F(errors, chunks_keep_below_the_limit)
{
	struct sluice_cuda_opts o = {.sz = sizeof(o), .chunk_bytes = 2 * MIB};
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	setenv("FAKE_CUDA_REG_LIMIT", "4194304", 1);
	ASSERT_TRUE(gpu_init(0));
	self->s = gpu_stream();
	EXPECT_GT(0, sluice_cuda_attach(&self->c, self->a, NULL));
	o.chunk_bytes = MIB;
	EXPECT_EQ(-EINVAL, sluice_cuda_attach(&self->c, self->a, &o));
	o.chunk_bytes = 2 * MIB;
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, &o));
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	EXPECT_EQ(17, st.chunks);
	/* Copies across chunks are divided. */
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, batch_send(self->out, 9 * MIB + 1, i, 0));
	for (int i = 0; i < 3; i++) {
		struct sluice_tensor t = {.sz = sizeof(t)};

		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
		gpu_check(self->s, t.data, t.bytes, i);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, gpu_bad());
	NOTHING_LEFT(self);
}

TEST_F(errors, chunks_are_registered_side_by_side)
{
	struct sluice_cuda_opts o = {.sz = sizeof(o), .chunk_bytes = 2 * MIB, .threads = 4};
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct fake_cuda_census census;

	ASSERT_EQ(0, sluice_arena_info(self->a, &info));
	ASSERT_TRUE(gpu_init(0));
	o.threads = SLUICE_CUDA_MAX_THREADS + 1;
	EXPECT_EQ(-EINVAL, sluice_cuda_attach(&self->c, self->a, &o));
	o.threads = SLUICE_CUDA_MAX_THREADS;
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, &o));
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	EXPECT_EQ(17, st.chunks);
	drv.census(&census);
	EXPECT_EQ(17, census.registrations);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	/* Where one fails, what the other threads registered goes, and what others did stays. */
	ASSERT_EQ(0, drv.host_register((char *)info.data + 9 * MIB, MIB, 0));
	EXPECT_GT(0, sluice_cuda_attach(&self->c, self->a, &o));
	drv.census(&census);
	EXPECT_EQ(1, census.registrations);
	EXPECT_EQ(0, drv.host_unregister((char *)info.data + 9 * MIB));
	EXPECT_EQ(0, drv.violations());
}

static struct sluice_arena *read_only(struct sluice_arena *a)
{
	const struct sluice_attach_opts o = {.sz = sizeof(o), .role = SLUICE_ROLE_CONSUMER};
	struct sluice_arena *ro = NULL;

	if (sluice_arena_attach(&ro, sluice_arena_fd(a), &o))
		fprintf(stderr, "# %s\n", sluice_strerror());
	return ro;
}

TEST_F(errors, read_only_arena)
{
	struct sluice_arena *ro = read_only(self->a);
	struct sluice_cuda_drain *d;

	ASSERT_NE(NULL, ro);
	ASSERT_TRUE(gpu_init(0));
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, ro, NULL));
	EXPECT_EQ(-EPERM, sluice_cuda_drain_open(&d, self->c, self->back_out, NULL));
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	sluice_arena_detach(ro);
}

TEST_F(errors, read_only_arena_on_an_old_device)
{
	struct sluice_arena *ro = read_only(self->a);

	ASSERT_NE(NULL, ro);
	setenv("FAKE_CUDA_OLD", "1", 1);
	ASSERT_TRUE(gpu_init(0));
	EXPECT_EQ(-EPERM, sluice_cuda_attach(&self->c, ro, NULL));
	EXPECT_TRUE(sentence_has("read-only"));
	sluice_arena_detach(ro);
}

TEST_F_TIMEOUT(errors, every_call_of_attach_fails_once, 120)
{
	static const char *const calls[] = {
		"cuDevicePrimaryCtxRetain",
		"cuDevicePrimaryCtxGetState",
		"cuMemHostRegister",
		"cuCtxPushCurrent",
		"cuDeviceGet",
	};
	struct fake_cuda_census census;

	fake_load();
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		for (unsigned int nth = 1; nth <= 2; nth++) {
			int ret;

			drv.fail(calls[i], nth, CUDA_ERROR_OUT_OF_MEMORY);
			ret = sluice_cuda_attach(&self->c, self->a, &create);
			if (!ret)
				sluice_cuda_detach(self->c);
			EXPECT_TRUE(nth == 2 || ret < 0)
			{
				TH_LOG("%s failed, attach did not", calls[i]);
			}
			drv.fail("", 0, 0);
			drv.census(&census);
			EXPECT_EQ(0, census.registrations);
			EXPECT_EQ(0, census.primaries);
		}
	}
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, fork_after_the_driver_has_started)
{
	struct sluice_cuda_feed *f;
	pid_t pid;

	ASSERT_TRUE(gpu_init(0));
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	CHILD(pid) {
		struct sluice_cuda_batch *b;

		CHECK(sluice_cuda_feed_next(f, &b, NULL, 0) == -ECHILD);
		CHECK(sentence_has("fork"));
		CHECK(sluice_cuda_reap(self->c) == -ECHILD);
		CHECK(sluice_cuda_detach(self->c) == -ECHILD);
		sluice_cuda_feed_close(f);
		/* Not by a handle of its own either: the driver was started before the fork. */
		CHECK(sluice_cuda_probe(NULL) == -ECHILD);
		CHECK(sentence_has("fork"));
		CHECK(sluice_cuda_attach(&self->c, arena_child(self->a), &create) == -ECHILD);
		CHECK(sentence_has("fork"));
	}
	EXPECT_EQ(0, child_wait(pid));
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
}

/* ------------------------------------------------------------------ feeding */

static void start(struct __test_metadata *_metadata, FIXTURE_DATA(errors) * self)
{
	ASSERT_TRUE(gpu_init(0));
	self->s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
}

TEST_F(errors, device_memory_runs_out_and_comes_back)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_tensor t = {.sz = sizeof(t)};

	start(_metadata, self);
	drv.memory(3 * MIB);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, batch_send(self->out, 2 * MIB, i, 0));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	EXPECT_EQ(-ENOMEM, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_TRUE(sentence_has("2097152"));
	EXPECT_EQ(-ENOMEM, sluice_cuda_feed_next(f, &b, self->s, 0));
	drv.memory(100 * MIB);
	for (int i = 1; i < 3; i++) {
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, LONG_WAIT));
		ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
		gpu_check(self->s, t.data, t.bytes, i);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	}
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, gpu_bad());
	NOTHING_LEFT(self);
}

/* Any call may fail at any time: no batch is lost or seen twice, nothing leaks. */
TEST_F_TIMEOUT(errors, calls_of_the_feed_fail_now_and_then, 120)
{
	static const char *const calls[] = {
		"cuMemcpyHtoDAsync", "cuEventRecord",	"cuStreamWaitEvent", "cuLaunchHostFunc",
		"cuEventQuery",	     "cuMemAlloc",	"cuEventCreate",     "cuStreamCreate",
		"cuMemcpyDtoHAsync", "cuCtxGetCurrent",
	};
	struct fake_cuda_census census;

	start(_metadata, self);
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		for (unsigned int nth = 1; nth < 12; nth += 2) {
			struct sluice_cuda_batch *b = NULL;
			struct sluice_cuda_feed *f;
			uint64_t seed;
			int ret;

			for (int k = 0; k < 6; k++)
				ASSERT_EQ(0, batch_send(self->out, k % 2 ? 2 * MIB : 5000, k, 0));
			drv.fail(calls[i], nth, CUDA_ERROR_OUT_OF_MEMORY);
			ret = sluice_cuda_feed_open(&f, self->c, self->in, NULL);
			for (int k = 0; !ret && k < 6; k++) {
				ret = sluice_cuda_feed_next(f, &b, self->s, 0);
				if (!ret)
					sluice_cuda_batch_release(b, self->s);
				else if (ret == -ENOMEM)
					ret = 0;
				if (k == 5)
					sluice_cuda_feed_close(f);
			}
			drv.fail("", 0, 0);
			while (!batch_recv(self->in, &seed, 0))
				;
			NOTHING_LEFT(self);
		}
	}
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	drv.census(&census);
	EXPECT_EQ(0, census.allocations);
	EXPECT_EQ(1, census.streams);
	EXPECT_EQ(0, census.events);
	EXPECT_EQ(0, drv.violations());
}

/* Nobody may take a copy for complete, or let a stream at it, whose event was never recorded. */
TEST_F(errors, a_copy_that_cannot_be_followed_is_still_waited_for)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_tensor t = {.sz = sizeof(t)};

	start(_metadata, self);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	ASSERT_EQ(0, batch_send(self->out, 2 * MIB, 7, 0));
	drv.hold(true);
	drv.fail("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(-ENOMEM, sluice_cuda_feed_next(f, &b, self->s, 0));
	drv.fail("", 0, 0);
	EXPECT_LT(0, sluice_cuda_feed_pump(f));
	EXPECT_NE(NULL, arena_all_free(self->a));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	ASSERT_CUDA(0, sluice_cuda_batch_tensor(b, 0, &t));
	gpu_check(self->s, t.data, t.bytes, 7);
	drv.hold(false);
	gpu_sync(self->s);
	EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
	EXPECT_EQ(0, gpu_bad());
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	NOTHING_LEFT(self);
}

TEST_F(errors, a_release_that_cannot_be_followed_loses_no_buffer)
{
	struct sluice_cuda_feed_opts o = {.sz = sizeof(o), .depth = 1};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	start(_metadata, self);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, &o));
	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(0, batch_send(self->out, 5000, i, 0));
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
		gpu_busy(self->s, 1000);
		drv.fail("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
		drv.fail("", 0, 0);
	}
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	NOTHING_LEFT(self);
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, a_buffer_that_a_release_loses_is_counted)
{
	struct sluice_cuda_feed_stats st = {.sz = sizeof(st)};
	struct sluice_cuda_feed_opts o = {.sz = sizeof(o), .depth = 2};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	start(_metadata, self);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, &o));
	for (uint32_t i = 1; i <= 2; i++) {
		ASSERT_EQ(0, batch_send(self->out, 5000, i, 0));
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
		gpu_busy(self->s, 1000);
		drv.fail("cuEventRecord+cuStreamSynchronize", 1, CUDA_ERROR_OUT_OF_MEMORY);
		EXPECT_EQ(-ENOMEM, sluice_cuda_batch_release(b, self->s));
		drv.fail("", 0, 0);
		ASSERT_EQ(0, sluice_cuda_feed_stats(f, &st));
		EXPECT_EQ(i, st.lost);
	}
	EXPECT_EQ(-EBUSY, sluice_cuda_feed_next(f, &b, self->s, 0));
	EXPECT_TRUE(sentence_has("of 2 device buffers the caller has 0, and 2 are lost"));
	gpu_sync(self->s);
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	NOTHING_LEFT(self);
	EXPECT_EQ(0, drv.violations());
}

/* The streams of a feed cannot be waited for when it is closed: its events can, or nobody knows. */
TEST_F(errors, a_feed_is_closed_that_cannot_be_waited_for)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;

	setenv("FAKE_CUDA_DELAY_US", "5000", 1);
	start(_metadata, self);
	for (int known = 1; known >= 0; known--) {
		ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
		for (int i = 0; i < 3; i++)
			ASSERT_EQ(0, batch_send(self->out, i % 2 ? 2 * MIB : 5000, i, 0));
		ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
		EXPECT_EQ(0, sluice_cuda_batch_release(b, self->s));
		drv.fail(known ? "cuStreamSynchronize" : "cuStreamSynchronize+cuEventQuery", 1,
			 CUDA_ERROR_OUT_OF_MEMORY);
		sluice_cuda_feed_close(f);
		drv.fail("", 0, 0);
		ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
		ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
		EXPECT_EQ(known, st.quarantined == 0);
		EXPECT_EQ(st.quarantined, u.held);
	}
	usleep(300000); /* what is quarantined is copied by then */
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
}

/* A direct copy is begun and cannot be followed, and before it ends the context fails. */
TEST_F(errors, a_direct_copy_fails_with_its_context)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct CUstream_st *other;
	struct sluice_batch *b;
	void *dev;

	start(_metadata, self);
	other = gpu_stream();
	dev = gpu_alloc(MIB);
	ASSERT_EQ(0, batch_send(self->out, MIB, 1, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, 0));
	drv.hold(true);
	drv.fail("cuEventRecord", 1, CUDA_ERROR_INVALID_HANDLE);
	gpu_busy(other, 50000);
	drv.fault(other);
	EXPECT_GT(0, sluice_cuda_copy(self->c, b, dev, MIB, self->s));
	sluice_batch_release(b); /* it is ours, as after every failure */
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	EXPECT_EQ(1, st.quarantined);
	EXPECT_EQ(1, u.held);
	drv.hold(false);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
}

TEST_F(errors, a_kernel_fails_under_a_feed)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	uint64_t until = now_ns() + LONG_WAIT;
	int ret;

	start(_metadata, self);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(0, batch_send(self->out, 2 * MIB, i, 0));
	drv.hold(true);
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	drv.fault(gpu_stream()); /* ours waits for a copy */
	/* When the kernel gets to fail, all buffers may be with us. */
	do {
		ret = sluice_cuda_feed_next(f, &b, self->s, 0);
	} while ((!ret || ret == -EBUSY) && now_ns() < until && !usleep(100));
	EXPECT_EQ(-EIO, ret);
	EXPECT_TRUE(sentence_has("FAKE_ERROR_700"));
	EXPECT_EQ(-EIO, sluice_cuda_feed_next(f, &b, self->s, 0));
	drv.hold(false);
	sluice_cuda_feed_close(f);
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	/* What the context may still read stays leased. */
	EXPECT_LT(0, st.quarantined);
	EXPECT_EQ(st.quarantined, u.held);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, the_context_is_destroyed_under_a_feed)
{
	struct sluice_cuda_batch *b;
	struct sluice_cuda_feed *f;
	struct sluice_batch *hb;
	CUcontext ctx;
	void *dev;
	int ret;

	fake_load();
	ctx = drv.context(0);
	self->s = gpu_stream();
	dev = gpu_alloc(MIB);
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, self->in, NULL));
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(0, batch_send(self->out, MIB, i, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &hb, 0));
	drv.hold(true);
	ASSERT_CUDA(0, sluice_cuda_copy(self->c, hb, dev, MIB, self->s));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, self->s, 0));
	drv.context_destroy(ctx);
	drv.hold(false);
	ret = sluice_cuda_feed_next(f, &b, self->s, 0);
	EXPECT_EQ(-ESHUTDOWN, ret);
	sluice_cuda_feed_close(f);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	NOTHING_LEFT(self);
	EXPECT_EQ(0, drv.violations());
}

/* ------------------------------------------------------------------ draining */

static int drain_one(FIXTURE_DATA(errors) * self, struct sluice_cuda_drain *d, void *dev,
		     int64_t bytes)
{
	const struct sluice_tensor t = {
		.sz = sizeof(t),
		.name = "x",
		.data = dev,
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = &bytes,
	};
	const struct sluice_cuda_submit_opts o = {.sz = sizeof(o), .timeout_ns = 100 * MSEC};

	return sluice_cuda_drain_submit(d, &t, 1, self->s, &o);
}

TEST_F_TIMEOUT(errors, calls_of_the_drain_fail_now_and_then, 120)
{
	static const char *const calls[] = {
		"cuMemcpyDtoHAsync",	"cuEventRecord",  "cuStreamWaitEvent",
		"cuLaunchHostFunc",	"cuEventQuery",	  "cuEventCreate",
		"cuStreamWriteValue64", "cuStreamCreate", "cuEventSynchronize",
	};
	struct fake_cuda_census census;
	uint64_t seed;
	void *dev;

	start(_metadata, self);
	dev = gpu_alloc(MIB);
	gpu_fill(self->s, dev, MIB, 0);
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		for (unsigned int nth = 1; nth < 10; nth++) {
			struct sluice_cuda_drain_opts o = {.sz = sizeof(o), .depth = 2};
			struct sluice_cuda_drain *d;
			int ret, good = 0, got = 0;

			drv.fail(calls[i], nth, CUDA_ERROR_OUT_OF_MEMORY);
			ret = sluice_cuda_drain_open(&d, self->c, self->back_out, &o);
			for (int k = 0; !ret && k < 6; k++)
				good += !drain_one(self, d, dev, 1 + k * 100000);
			drv.fail("", 0, 0);
			if (!ret)
				EXPECT_EQ(0, sluice_cuda_drain_close(d));
			while (!(ret = batch_recv(self->back_in, &seed, 0)))
				got++;
			EXPECT_EQ(-EAGAIN, ret);
			EXPECT_EQ(good, got)
			{
				TH_LOG("%s, call %u", calls[i], nth);
			}
			NOTHING_LEFT(self);
		}
	}
	gpu_sync(self->s);
	gpu_free(dev);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	drv.census(&census);
	EXPECT_EQ(1, census.streams);
	EXPECT_EQ(0, census.events);
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, a_drain_is_closed_that_cannot_ask_its_events)
{
	struct sluice_cuda_drain *d;
	uint64_t seed;
	void *dev;

	setenv("FAKE_CUDA_DELAY_US", "5000", 1);
	start(_metadata, self);
	dev = gpu_alloc(MIB);
	gpu_fill(self->s, dev, MIB, 0);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->back_out, NULL));
	for (int i = 0; i < 2; i++)
		ASSERT_CUDA(0, drain_one(self, d, dev, MIB));
	drv.fail("cuEventQuery", 1, CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	drv.fail("", 0, 0);
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(0, batch_recv(self->back_in, &seed, 0));
	gpu_free(dev);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
	NOTHING_LEFT(self);
}

TEST_F(errors, extents_run_out_and_come_back)
{
	struct sluice_cuda_drain *d;
	uint64_t seed;
	void *dev;

	start(_metadata, self);
	dev = gpu_alloc(9 * MIB);
	gpu_fill(self->s, dev, 9 * MIB, 0);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->back_out, NULL));
	for (int round = 0; round < 2; round++) {
		drv.hold(true);
		for (int i = 0; i < 3; i++)
			ASSERT_CUDA(0, drain_one(self, d, dev, 9 * MIB));
		/* 100 ms for room among the 32 MiB. */
		EXPECT_EQ(-ETIMEDOUT, drain_one(self, d, dev, 9 * MIB));
		EXPECT_TRUE(sentence_has("no room for"));
		drv.hold(false);
		for (int i = 0; i < 3; i++)
			EXPECT_EQ(0, batch_recv(self->back_in, &seed, LONG_WAIT));
	}
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	gpu_free(dev);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
	NOTHING_LEFT(self);
}

TEST_F(errors, channels_of_another_arena)
{
	struct sluice_arena *b = arena_new(4 * MIB);
	struct sluice_channel *out = channel_new(b, "other", 8, SLUICE_CHANNEL_PRODUCE);
	struct sluice_channel *in = channel_join(b, "other", SLUICE_CHANNEL_CONSUME);
	struct sluice_cuda_batch *got;
	struct sluice_cuda_drain *d;
	struct sluice_cuda_feed *f;
	struct sluice_batch *hb;
	void *dev;

	start(_metadata, self);
	dev = gpu_alloc(5000);
	gpu_fill(self->s, dev, 5000, 0);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, out, NULL));
	EXPECT_EQ(-EINVAL, drain_one(self, d, dev, 5000));
	EXPECT_TRUE(sentence_has("not in the arena"));
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(0, batch_send(out, 5000, i, 0));
	ASSERT_EQ(0, sluice_channel_next(in, &hb, 0));
	EXPECT_EQ(-EINVAL, sluice_cuda_copy(self->c, hb, dev, 5000, self->s));
	sluice_batch_release(hb);
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, self->c, in, NULL));
	EXPECT_EQ(-EINVAL, sluice_cuda_feed_next(f, &got, self->s, 0));
	EXPECT_TRUE(sentence_has("not in the arena"));
	sluice_cuda_feed_close(f);
	gpu_sync(self->s);
	gpu_free(dev);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
	EXPECT_EQ(NULL, arena_all_free(b));
	sluice_channel_close(out);
	sluice_channel_close(in);
	sluice_arena_detach(b);
}

TEST_F(errors, a_kernel_fails_under_a_drain)
{
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_cuda_drain *d;
	uint64_t seed;
	void *dev;

	start(_metadata, self);
	dev = gpu_alloc(MIB);
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->back_out, NULL));
	drv.hold(true);
	for (int i = 0; i < 3; i++)
		ASSERT_CUDA(0, drain_one(self, d, dev, MIB));
	drv.fault(self->s);
	EXPECT_EQ(-EIO, sluice_cuda_drain_flush(d, LONG_WAIT));
	EXPECT_EQ(-EIO, drain_one(self, d, dev, MIB));
	drv.hold(false);
	/* Workers are not left waiting for what will not come. */
	ASSERT_EQ(0, batch_send(self->back_out, 100, 1, 0));
	EXPECT_EQ(0, batch_recv(self->back_in, &seed, LONG_WAIT));
	EXPECT_EQ(1, seed);
	EXPECT_EQ(-EIO, sluice_cuda_drain_close(d));
	ASSERT_EQ(0, sluice_cuda_stats(self->c, &st));
	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	EXPECT_EQ(3, st.quarantined);
	EXPECT_EQ(3, u.writing);
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, the_context_is_destroyed_under_a_drain)
{
	struct sluice_cuda_drain *d;
	CUcontext ctx;
	uint64_t seed;
	void *dev;

	fake_load();
	ctx = drv.context(0);
	self->s = gpu_stream();
	dev = gpu_alloc(MIB);
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->back_out, NULL));
	drv.hold(true);
	for (int i = 0; i < 3; i++)
		ASSERT_CUDA(0, drain_one(self, d, dev, MIB));
	drv.context_destroy(ctx);
	drv.hold(false);
	EXPECT_EQ(-ESHUTDOWN, drain_one(self, d, dev, MIB));
	ASSERT_EQ(0, batch_send(self->back_out, 100, 1, 0));
	EXPECT_EQ(0, batch_recv(self->back_in, &seed, LONG_WAIT));
	EXPECT_GT(0, sluice_cuda_drain_close(d));
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	NOTHING_LEFT(self);
	EXPECT_EQ(0, drv.violations());
}

TEST_F(errors, memory_of_another_device)
{
	struct sluice_cuda_drain *d;
	CUcontext ctx;
	void *dev;

	setenv("FAKE_CUDA_DEVICES", "2", 1);
	ASSERT_TRUE(gpu_init(1));
	dev = gpu_alloc(4096);
	ASSERT_EQ(0, drv.primary_retain(&ctx, 0));
	ASSERT_EQ(0, drv.push_current(ctx));
	self->s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&self->c, self->a, NULL));
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, self->c, self->back_out, NULL));
	EXPECT_EQ(-EXDEV, drain_one(self, d, dev, 4096));
	EXPECT_TRUE(sentence_has("device 1"));
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	EXPECT_EQ(0, sluice_cuda_detach(self->c));
	NOTHING_LEFT(self);
}

/* The fake driver itself: what it says it would notice, it notices. */
TEST_F(errors, the_fake_driver_notices)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_batch *b;
	void *dev;

	setenv("FAKE_CUDA_DELAY_US", "2000", 1);
	start(_metadata, self);
	dev = gpu_alloc(MIB);
	ASSERT_EQ(0, batch_send(self->out, MIB, 1, 0));
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, 0));
	ASSERT_EQ(0, sluice_batch_info(b, &info));
	drv.hold(true);
	sluice_batch_retain(b);
	ASSERT_CUDA(0, sluice_cuda_copy(self->c, b, dev, MIB, self->s));
	((volatile char *)info.payload)[777] ^= 1;
	drv.hold(false);
	gpu_sync(self->s);
	EXPECT_EQ(1, drv.violations());
	drv.hold(true);
	sluice_batch_retain(b);
	ASSERT_CUDA(0, sluice_cuda_copy(self->c, b, dev, MIB, self->s));
	EXPECT_EQ(0, drv.host_unregister(info.payload - info.payload_offset));
	EXPECT_EQ(2, drv.violations());
	gpu_free(dev);
	EXPECT_EQ(3, drv.violations());
	drv.hold(false);
	gpu_sync(self->s);
	sluice_batch_release(b);
}

TEST_HARNESS_MAIN
