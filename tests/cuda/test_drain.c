// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Device to host: what workers get, when, and what becomes of it when somebody dies. */
#include "suite.h"

FIXTURE(drain)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in;
	struct sluice_cuda *c;
	struct sluice_cuda_drain *d;
	struct CUstream_st *s;
	void *dev; /* DEV bytes */
};

#define DEV (16 * MIB)

FIXTURE_VARIANT(drain)
{
	uint32_t flags;
};

FIXTURE_VARIANT_ADD(drain, gpu_signals){};
FIXTURE_VARIANT_ADD(drain, host_signals){.flags = SLUICE_CUDA_DRAIN_HOST_SIGNAL};
FIXTURE_VARIANT_ADD(drain, no_wake){.flags = SLUICE_CUDA_DRAIN_NO_WAKE};

FIXTURE_SETUP(drain)
{
	self->a = arena_new(64 * MIB);
	ASSERT_NE(NULL, self->a);
	self->out = channel_new(self->a, "drain", 8, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_join(self->a, "drain", SLUICE_CHANNEL_CONSUME);
}

static bool drain_start(FIXTURE_DATA(drain) * self, uint32_t flags, uint32_t depth)
{
	struct sluice_cuda_drain_opts opts = {.sz = sizeof(opts), .depth = depth, .flags = flags};

	if (!gpu_init(0))
		return false;
	self->s = gpu_stream();
	self->dev = gpu_alloc(DEV);
	if (sluice_cuda_attach(&self->c, self->a, NULL) ||
	    sluice_cuda_drain_open(&self->d, self->c, self->out, &opts)) {
		fprintf(stderr, "# %s\n", sluice_cuda_strerror());
		return false;
	}
	return true;
}

FIXTURE_TEARDOWN(drain)
{
	const char *left;

	if (self->c) {
		EXPECT_EQ(0, sluice_cuda_drain_close(self->d));
		gpu_sync(self->s);
		gpu_free(self->dev);
		EXPECT_EQ(0, sluice_cuda_detach(self->c));
		EXPECT_EQ(0, gpu_bad());
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

/* Fill @bytes at dev + @at with a pattern on the stream and submit them, tagged with its seed. */
static int submit(FIXTURE_DATA(drain) * self, size_t at, size_t bytes, uint64_t seed,
		  uint64_t timeout_ns)
{
	const struct sluice_cuda_submit_opts opts = {
		.sz = sizeof(opts),
		.tag = seed,
		.timeout_ns = timeout_ns,
	};

	gpu_fill(self->s, (char *)self->dev + at, bytes, seed);
	return submit_bytes(self->d, (char *)self->dev + at, bytes, self->s, &opts);
}

/* Without wake-ups a worker may sleep only when everything has arrived. */
static int arrived(FIXTURE_DATA(drain) * self, uint32_t flags)
{
	return flags & SLUICE_CUDA_DRAIN_NO_WAKE ? sluice_cuda_drain_flush(self->d, LONG_WAIT) : 0;
}

TEST_F(drain, one_batch)
{
	struct sluice_cuda_drain_stats st = {.sz = sizeof(st)};
	uint64_t seed;

	ASSERT_TRUE(drain_start(self, variant->flags, 0));
	gpu_busy(self->s, 20000);
	ASSERT_CUDA(0, submit(self, 0, 100001, 5, 0));
	/* The kernel before it runs for a while yet. */
	EXPECT_EQ(-EAGAIN, batch_recv(self->in, &seed, 0));
	EXPECT_EQ(-EAGAIN, sluice_cuda_drain_flush(self->d, 0));
	ASSERT_CUDA(0, arrived(self, variant->flags));
	ASSERT_EQ(0, batch_recv(self->in, &seed, LONG_WAIT));
	EXPECT_EQ(5, seed);
	ASSERT_CUDA(0, sluice_cuda_drain_flush(self->d, LONG_WAIT));
	ASSERT_EQ(0, sluice_cuda_drain_stats(self->d, &st));
	EXPECT_EQ(1, st.batches);
	EXPECT_EQ(100001, st.bytes);
	EXPECT_EQ(0, st.pending);
}

TEST_F(drain, random_sizes_in_order)
{
	const unsigned int rounds = scaled(200);
	pid_t pid;

	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *in = channel_join(a, "drain", SLUICE_CHANNEL_CONSUME);
		uint64_t seed;

		for (unsigned int i = 0; i < rounds; i++) {
			CHECK_OK(batch_recv(in, &seed, LONG_WAIT));
			CHECK(seed == i);
		}
		sluice_channel_close(in);
		sluice_arena_detach(a);
	}
	ASSERT_TRUE(drain_start(self, variant->flags, 4));
	for (unsigned int i = 0; i < rounds; i++) {
		size_t bytes = 1 + random_u64() % (i % 10 ? 20000 : 1000000);

		/* Four parts in turn: a part is filled anew when its last copy is over. */
		if (i % 4 == 0)
			ASSERT_CUDA(0, sluice_cuda_drain_guard(self->d, self->s));
		ASSERT_CUDA(0, submit(self, i % 4 * MIB, bytes, i, LONG_WAIT));
	}
	ASSERT_CUDA(0, sluice_cuda_drain_flush(self->d, LONG_WAIT));
	EXPECT_EQ(0, child_wait(pid));
}

TEST_F(drain, tensors_and_metadata)
{
	static const char note[] = "from the device";
	const struct sluice_blob blobs[] = {{"note", note, sizeof(note)}, {"none", NULL, 0}};
	const struct sluice_cuda_submit_opts opts = {
		.sz = sizeof(opts),
		.tag = 77,
		.blobs = blobs,
		.nblobs = 2,
		.timeout_ns = LONG_WAIT,
	};
	const int64_t shape[3] = {10, 20, 30}, strides[3] = {1, 10, 200}, empty[2] = {5, 0};
	struct sluice_tensor t[300], got = {.sz = sizeof(got)};
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_batch *b;
	const void *data;
	uint64_t len;

	ASSERT_TRUE(drain_start(self, variant->flags, 0));
	memset(t, 0, sizeof(t));
	for (unsigned int i = 0; i < ARRAY_SIZE(t); i++) {
		t[i] = (struct sluice_tensor){
			.sz = sizeof(t[i]),
			.name = "t",
			.data = (char *)self->dev + i * 32768,
			.dtype = SLUICE_F32,
			.ndim = i % 3 == 2 ? 0 : 3,
			.shape = shape,
			.strides = i % 3 == 1 ? strides : NULL,
		};
		gpu_fill(self->s, t[i].data, 24000, i);
	}
	t[9].ndim = 2;
	t[9].shape = empty;
	t[9].data = NULL;
	ASSERT_CUDA(0, sluice_cuda_drain_submit(self->d, t, ARRAY_SIZE(t), self->s, &opts));
	ASSERT_CUDA(0, arrived(self, variant->flags));
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, LONG_WAIT));
	ASSERT_EQ(0, sluice_batch_info(b, &info));
	EXPECT_EQ(77, info.tag);
	EXPECT_EQ(ARRAY_SIZE(t), info.tensors);
	for (unsigned int i = 0; i < ARRAY_SIZE(t); i++) {
		ASSERT_EQ(0, sluice_batch_tensor(b, i, &got));
		EXPECT_EQ(i == 9 ? 0 : i % 3 == 2 ? 4 : 24000, got.bytes);
		if (i != 9)
			EXPECT_TRUE(pattern_is(got.data, got.bytes & ~7ULL, i));
		if (i % 3 == 1)
			EXPECT_EQ(200, got.strides[2]);
	}
	ASSERT_EQ(0, sluice_batch_bytes(b, "note", &data, &len));
	EXPECT_EQ(sizeof(note), len);
	EXPECT_STREQ(note, data);
	sluice_batch_release(b);
}

TEST_F(drain, thousands_of_tensors_and_none)
{
	struct sluice_tensor *t = calloc(SLUICE_MAX_TENSORS + 1, sizeof(*t));
	struct sluice_tensor got = {.sz = sizeof(got)};
	const int64_t shape = 1000;
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_batch *b;

	ASSERT_TRUE(drain_start(self, variant->flags, 0));
	for (unsigned int i = 0; i <= SLUICE_MAX_TENSORS; i++)
		t[i] = (struct sluice_tensor){
			.sz = sizeof(t[i]),
			.name = "t",
			.data = (char *)self->dev + i * 1024,
			.dtype = SLUICE_U8,
			.ndim = 1,
			.shape = &shape,
		};
	gpu_fill(self->s, self->dev, SLUICE_MAX_TENSORS * 1024, 3);
	EXPECT_EQ(-EINVAL,
		  sluice_cuda_drain_submit(self->d, t, SLUICE_MAX_TENSORS + 1, self->s, NULL));
	ASSERT_CUDA(0, sluice_cuda_drain_submit(self->d, t, SLUICE_MAX_TENSORS, self->s, NULL));
	ASSERT_CUDA(0, sluice_cuda_drain_submit(self->d, NULL, 0, self->s, NULL));
	ASSERT_CUDA(0, arrived(self, variant->flags));
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, LONG_WAIT));
	ASSERT_EQ(0, sluice_batch_info(b, &info));
	EXPECT_EQ(SLUICE_MAX_TENSORS, info.tensors);
	ASSERT_EQ(0, sluice_batch_tensor(b, 0, &got));
	EXPECT_TRUE(pattern_is(got.data, got.bytes, 3));
	sluice_batch_release(b);
	ASSERT_EQ(0, sluice_channel_next(self->in, &b, LONG_WAIT));
	ASSERT_EQ(0, sluice_batch_info(b, &info));
	EXPECT_EQ(0, info.tensors);
	sluice_batch_release(b);
	free(t);
}

/* Workers that sleep are woken, and none of several is forgotten. */
TEST_F(drain, sleeping_workers)
{
	const unsigned int rounds = scaled(30);
	pid_t pid[3];

	/* Without a wake-up they would sleep until the next submission. */
	if (variant->flags & SLUICE_CUDA_DRAIN_NO_WAKE)
		SKIP(return, "workers must not sleep without wake-ups");
	for (unsigned int w = 0; w < 3; w++)
		CHILD(pid[w]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *in = channel_join(
				a, "drain", SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_NO_SPIN);
			int ret;

			while (!(ret = batch_recv(in, NULL, LONG_WAIT)))
				;
			CHECK(ret == -ENODATA);
			sluice_channel_close(in);
			sluice_arena_detach(a);
		}
	for (unsigned int w = 0; w < 3; w++)
		child_wait_asleep(pid[w]);
	ASSERT_TRUE(drain_start(self, variant->flags, 0));
	for (unsigned int i = 0; i < rounds; i++) {
		struct sluice_arena_usage u = {.sz = sizeof(u)};
		uint64_t until = now_ns() + LONG_WAIT;

		gpu_busy(self->s, 200);
		for (unsigned int k = 0; k < 1 + i % 3; k++)
			ASSERT_CUDA(0, submit(self, k * MIB, 50000, i, LONG_WAIT));
		/* Nobody calls the library now; all the same everything is taken. */
		do {
			usleep(200);
			ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
		} while (u.reserved_bytes && now_ns() < until);
		EXPECT_EQ(0, u.reserved_bytes);
	}
	sluice_channel_shutdown(self->out);
	for (unsigned int w = 0; w < 3; w++)
		EXPECT_EQ(0, child_wait(pid[w]));
}

/* The thread sanitizer may make every call too slow for a quiet one to be worth it. */
#ifdef __SANITIZE_THREAD__
#define SUBMIT_IS_SLOW 1
#else
#define SUBMIT_IS_SLOW 0
#endif

/* Workers come to wait at all times, also just behind a batch that nobody rings for. */
TEST_F(drain, workers_between_sleeping_and_waking)
{
	const unsigned int rounds = scaled(400);
	struct sluice_cuda_drain_stats st = {.sz = sizeof(st)};
	const bool want_quiet = !variant->flags && !SUBMIT_IS_SLOW;
	const uint64_t end = now_ns() + LONG_WAIT;
	pid_t pid[2];

	if (variant->flags & SLUICE_CUDA_DRAIN_NO_WAKE)
		SKIP(return, "workers must not sleep without wake-ups");
	for (unsigned int w = 0; w < 2; w++)
		CHILD(pid[w]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *in =
				channel_join(a, "drain", SLUICE_CHANNEL_CONSUME);
			int ret;

			while (!(ret = batch_recv(in, NULL, LONG_WAIT)))
				usleep(random_u64() % 300);
			CHECK(ret == -ENODATA);
			sluice_channel_close(in);
			sluice_arena_detach(a);
		}
	ASSERT_TRUE(drain_start(self, variant->flags, 0));
	/* A busy host may need more of them until one follows another quickly and nobody sleeps. */
	for (unsigned int i = 0; i < rounds || (want_quiet && !st.quiet && now_ns() < end); i++) {
		const unsigned int burst = 1 + random_u64() % 6;
		struct sluice_arena_usage u = {.sz = sizeof(u)};
		uint64_t until = now_ns() + LONG_WAIT;

		for (unsigned int k = 0; k < burst; k++)
			ASSERT_CUDA(0, submit(self, k * 64 * KIB, 5000, i, LONG_WAIT));
		ASSERT_CUDA(0, sluice_cuda_drain_guard(self->d, self->s));
		ASSERT_EQ(0, sluice_cuda_drain_stats(self->d, &st));
		if (random_u64() % 4)
			continue;
		/* Nobody calls the library now; all the same everything is taken. */
		do {
			usleep(200);
			ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
		} while (u.reserved_bytes && now_ns() < until);
		EXPECT_EQ(0, u.reserved_bytes);
	}
	if (variant->flags)
		EXPECT_EQ(0, st.quiet);
	if (want_quiet)
		EXPECT_LT(0, st.quiet);
	sluice_channel_shutdown(self->out);
	for (unsigned int w = 0; w < 2; w++)
		EXPECT_EQ(0, child_wait(pid[w]));
}

TEST_F(drain, slow_workers_hold_it_back)
{
	struct sluice_cuda_drain_stats st = {.sz = sizeof(st)};
	uint64_t seed;

	ASSERT_TRUE(drain_start(self, variant->flags, 3));
	/* The channel has room for 8. */
	for (int i = 0; i < 8; i++)
		ASSERT_CUDA(0, submit(self, 0, 100000, 1, LONG_WAIT));
	ASSERT_CUDA(0, sluice_cuda_drain_flush(self->d, LONG_WAIT));
	EXPECT_EQ(-ETIMEDOUT, submit(self, 0, 100000, 1, 20 * MSEC));
	EXPECT_EQ(-EAGAIN, submit(self, 0, 100000, 1, 0));
	for (unsigned int i = 0; i < 8; i++)
		ASSERT_EQ(0, batch_recv(self->in, &seed, LONG_WAIT));
	ASSERT_CUDA(0, submit(self, 0, 100000, 2, LONG_WAIT));
	ASSERT_CUDA(0, arrived(self, variant->flags));
	ASSERT_EQ(0, batch_recv(self->in, &seed, LONG_WAIT));
	EXPECT_EQ(2, seed);
	EXPECT_EQ(-E2BIG, sluice_cuda_drain_submit(
				  self->d,
				  &(struct sluice_tensor){.sz = sizeof(struct sluice_tensor),
							  .data = self->dev,
							  .dtype = SLUICE_U8,
							  .ndim = 1,
							  .shape = (int64_t[]){1LL << 40}},
				  1, self->s, NULL));
	ASSERT_EQ(0, sluice_cuda_drain_stats(self->d, &st));
	EXPECT_EQ(9, st.batches);
	EXPECT_EQ(0, st.lost);
}

TEST_F(drain, refuses_what_is_not_device_memory)
{
	static char here[64];
	struct sluice_tensor t = {
		.sz = sizeof(t),
		.data = here,
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = (int64_t[]){64},
	};

	ASSERT_TRUE(drain_start(self, variant->flags, 0));
	EXPECT_EQ(-EINVAL, sluice_cuda_drain_submit(self->d, &t, 1, self->s, NULL));
	t.data = self->dev;
	t.shape = (int64_t[]){-1};
	EXPECT_EQ(-EINVAL, sluice_cuda_drain_submit(self->d, &t, 1, self->s, NULL));
	t.shape = (int64_t[]){INT64_MAX};
	t.dtype = SLUICE_F64;
	EXPECT_EQ(-EINVAL, sluice_cuda_drain_submit(self->d, &t, 1, self->s, NULL));
}

TEST_F(drain, workers_are_killed)
{
	const unsigned int rounds = scaled(150);
	unsigned int n, got = 0;
	pid_t pid[3];
	uint64_t seed;
	int ret;

	for (unsigned int w = 0; w < 3; w++)
		CHILD(pid[w]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *in =
				channel_join(a, "drain", SLUICE_CHANNEL_CONSUME);

			while (!batch_recv(in, NULL, LONG_WAIT))
				;
		}
	ASSERT_TRUE(drain_start(self, variant->flags, 4));
	for (n = 0; n < rounds; n++) {
		if (n % (rounds / 3) == rounds / 6)
			child_kill(pid[n / (rounds / 3)]);
		ret = submit(self, n % 4 * MIB, 100000, n, 50 * MSEC);
		/* With nobody left we are the worker. */
		if (ret == -ETIMEDOUT && !batch_recv(self->in, &seed, LONG_WAIT))
			got++;
		else
			ASSERT_CUDA(0, ret);
		if (n % 4 == 3)
			ASSERT_CUDA(0, sluice_cuda_drain_flush(self->d, LONG_WAIT));
	}
	while (!batch_recv(self->in, &seed, 100 * MSEC))
		got++;
	EXPECT_LT(0, got);
}

/*
 * The process of the drain dies with copies in flight.  Its extents are used again at once, and no
 * copy of the dead may show in them.
 */
TEST_F(drain, its_process_is_killed)
{
	const size_t bytes = gpu_is_fake() ? MIB : 8 * MIB;
	struct gate going;
	pid_t pid;

	gate_init(&going);
	for (unsigned int round = 0; round < scaled(6); round++) {
		struct sluice_event ev = {.sz = sizeof(ev)};
		struct sluice_batch *b[4];
		uint64_t seed;
		void *p[4];
		int ret;

		CHILD(pid) {
			FIXTURE_DATA(drain) mine = {.a = arena_child(self->a)};

			mine.out = channel_join(mine.a, "drain", SLUICE_CHANNEL_PRODUCE);
			CHECK(drain_start(&mine, variant->flags, 0));
			for (unsigned int i = 0;; i++) {
				CHECK_OK(sluice_cuda_drain_guard(mine.d, mine.s));
				CHECK_OK(submit(&mine, 0, bytes, i, LONG_WAIT));
				if (i == 3)
					gate_open(&going);
			}
		}
		gate_pass(&going);
		usleep(random_u64() % 2000);
		child_kill(pid);
		ASSERT_EQ(0, sluice_event_next(self->a, &ev, LONG_WAIT));
		EXPECT_EQ(pid, ev.pid);
		/* What had arrived is whole; what had not is gone. */
		do {
			ret = batch_recv(self->in, &seed, 0);
		} while (!ret);
		EXPECT_EQ(-EAGAIN, ret);
		for (unsigned int i = 0; i < 4; i++) {
			ASSERT_EQ(0, sluice_batch_begin(self->out, &b[i], 10 * MIB, 0));
			p[i] = sluice_batch_bytes_add(b[i], "x", NULL, 10 * MIB);
			pattern_fill(p[i], 10 * MIB, i);
		}
		usleep(20000);
		for (unsigned int i = 0; i < 4; i++) {
			EXPECT_TRUE(pattern_is(p[i], 10 * MIB, i));
			sluice_batch_abort(b[i]);
		}
	}
}

TEST_HARNESS_MAIN
