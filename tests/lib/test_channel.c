// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Bounded queues between many producers and many consumers: order, waiting, the end of the stream. */
#include "util.h"

#include <kselftest_harness.h>

FIXTURE(channel)
{
	struct sluice_arena *a;
};

FIXTURE_SETUP(channel)
{
	self->a = arena_new(8 * MIB);
	ASSERT_NE(NULL, self->a);
}

FIXTURE_TEARDOWN(channel)
{
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	sluice_arena_detach(self->a);
}

TEST_F(channel, first_in_first_out)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 16, 0);
	uint64_t seed;

	ASSERT_NE(NULL, ch);
	for (int round = 0; round < 100; round++) {
		for (uint64_t i = 0; i < 16; i++)
			ASSERT_EQ(0, batch_send(ch, 100 * i, i, 0));
		for (uint64_t i = 0; i < 16; i++) {
			ASSERT_EQ(0, batch_recv(ch, &seed, 0));
			ASSERT_EQ(i, seed);
		}
	}
	sluice_channel_close(ch);
}

TEST_F(channel, capacity_is_exact)
{
	static const uint32_t capacities[] = {1, 2, 3, 7, 64, 100, 1024};

	for (size_t c = 0; c < ARRAY_SIZE(capacities); c++) {
		struct sluice_channel *ch = channel_new(self->a, "c", capacities[c], 0);
		struct sluice_channel_stats st = {.sz = sizeof(st)};
		uint64_t seed;

		ASSERT_NE(NULL, ch);
		for (int round = 0; round < 3; round++) {
			for (uint64_t i = 0; i < capacities[c]; i++)
				ASSERT_EQ(0, batch_send(ch, 8, i, 0));
			ASSERT_EQ(-EAGAIN, batch_send(ch, 8, 1, 0));
			ASSERT_EQ(-ETIMEDOUT, batch_send(ch, 8, 1, MSEC));
			for (uint64_t i = 0; i < capacities[c]; i++) {
				ASSERT_EQ(0, batch_recv(ch, &seed, 0));
				ASSERT_EQ(i, seed);
			}
			ASSERT_EQ(-EAGAIN, batch_recv(ch, &seed, 0));
		}
		ASSERT_EQ(0, sluice_channel_stats(ch, &st));
		EXPECT_EQ(capacities[c], st.capacity);
		sluice_channel_close(ch);
	}
}

TEST_F(channel, default_capacity_is_64)
{
	struct sluice_channel_stats st = {.sz = sizeof(st)};
	struct sluice_channel *ch;

	ASSERT_EQ(0, sluice_channel_create(&ch, self->a, "c", NULL));
	ASSERT_EQ(0, sluice_channel_stats(ch, &st));
	EXPECT_EQ(64, st.capacity);
	sluice_channel_close(ch);
}

TEST_F(channel, names_and_limits)
{
	struct sluice_channel_opts opts = {.sz = sizeof(opts), .capacity = 1};
	struct sluice_channel *ch, *more[SLUICE_MAX_CHANNELS];
	char name[64];
	int n, ret = 0;

	EXPECT_EQ(-EINVAL, sluice_channel_create(&ch, self->a, "", &opts));
	EXPECT_EQ(-EINVAL, sluice_channel_create(&ch, self->a, NULL, &opts));
	memset(name, 'n', sizeof(name));
	name[32] = '\0';
	EXPECT_EQ(-EINVAL, sluice_channel_create(&ch, self->a, name, &opts));
	name[31] = '\0';
	ASSERT_EQ(0, sluice_channel_create(&ch, self->a, name, &opts));
	EXPECT_EQ(-EEXIST, sluice_channel_create(&more[0], self->a, name, &opts));
	EXPECT_NE(NULL, strstr(sluice_strerror(), name));
	EXPECT_EQ(-ENOENT, sluice_channel_open(&more[0], self->a, "other", &opts));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "other"));
	ASSERT_EQ(0, sluice_channel_open(&more[0], self->a, name, &opts));
	sluice_channel_close(more[0]);
	sluice_channel_close(ch);
	/* Gone with its last endpoint. */
	EXPECT_EQ(-ENOENT, sluice_channel_open(&ch, self->a, name, &opts));

	opts.capacity = SLUICE_MAX_CAPACITY + 1;
	EXPECT_EQ(-EINVAL, sluice_channel_create(&ch, self->a, "c", &opts));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "16384"));
	opts.capacity = SLUICE_MAX_CAPACITY;
	ASSERT_EQ(0, sluice_channel_create(&ch, self->a, "c", &opts));
	sluice_channel_close(ch);

	opts.capacity = 1;
	for (n = 0; n < SLUICE_MAX_CHANNELS; n++) {
		snprintf(name, sizeof(name), "c%d", n);
		ASSERT_EQ(0, sluice_channel_create(&more[n], self->a, name, &opts));
	}
	ret = sluice_channel_create(&ch, self->a, "one more", &opts);
	EXPECT_EQ(-ENOSPC, ret);
	EXPECT_NE(NULL, strstr(sluice_strerror(), "64"));
	while (n--)
		sluice_channel_close(more[n]);
	ASSERT_EQ(0, sluice_channel_create(&ch, self->a, "one more", &opts));
	sluice_channel_close(ch);
}

TEST_F(channel, endpoints_are_limited)
{
	struct sluice_channel *ch[SLUICE_MAX_ENDPOINTS + 1];
	int n = 0, ret;

	ch[n++] = channel_new(self->a, "c", 1, 0);
	ASSERT_NE(NULL, ch[0]);
	while (!(ret = sluice_channel_open(&ch[n], self->a, "c", NULL)))
		ASSERT_GE(SLUICE_MAX_ENDPOINTS, ++n);
	EXPECT_EQ(-ENOSPC, ret);
	EXPECT_EQ(SLUICE_MAX_ENDPOINTS, n);
	EXPECT_NE(NULL, strstr(sluice_strerror(), "256"));
	while (n--)
		sluice_channel_close(ch[n]);
}

TEST_F(channel, endpoint_does_only_what_it_was_opened_for)
{
	struct sluice_channel *p = channel_new(self->a, "c", 4, SLUICE_CHANNEL_PRODUCE);
	struct sluice_channel *c = channel_join(self->a, "c", SLUICE_CHANNEL_CONSUME);
	struct sluice_batch *b;

	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, c);
	EXPECT_EQ(-EPERM, sluice_channel_next(p, &b, 0));
	EXPECT_EQ(-EPERM, sluice_batch_begin(c, &b, 8, 0));
	EXPECT_EQ(0, batch_send(p, 8, 1, 0));
	EXPECT_EQ(0, batch_recv(c, NULL, 0));
	sluice_channel_close(p);
	sluice_channel_close(c);
}

TEST_F(channel, deadlines)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 1, 0);
	uint64_t before = now_ns();

	ASSERT_NE(NULL, ch);
	EXPECT_EQ(-EAGAIN, batch_recv(ch, NULL, 0));
	EXPECT_EQ(-ETIMEDOUT, batch_recv(ch, NULL, 20 * MSEC));
	EXPECT_LE(before + 20 * MSEC, now_ns());
	before = now_ns();
	EXPECT_EQ(-ETIMEDOUT, batch_recv(ch, NULL, (before + 20 * MSEC) | SLUICE_ABSTIME));
	EXPECT_LE(before + 20 * MSEC, now_ns());
	/* A time that has passed. */
	EXPECT_EQ(-ETIMEDOUT, batch_recv(ch, NULL, 1 | SLUICE_ABSTIME));
	EXPECT_EQ(-ETIMEDOUT, batch_recv(ch, NULL, 1));
	EXPECT_EQ(0, batch_send(ch, 8, 1, 1 | SLUICE_ABSTIME));
	EXPECT_EQ(0, batch_recv(ch, NULL, 1 | SLUICE_ABSTIME));
	sluice_channel_close(ch);
}

TEST_F(channel, publish_that_timed_out_can_be_repeated)
{
	struct sluice_channel_opts opts = {
		.sz = sizeof(opts),
		.capacity = 1,
		.publish_timeout_ns = MSEC,
	};
	struct sluice_channel *ch;
	struct sluice_batch *b;
	int64_t *p;

	ASSERT_EQ(0, sluice_channel_create(&ch, self->a, "c", &opts));
	ASSERT_EQ(0, batch_send(ch, 8, 1, 0));
	ASSERT_EQ(0, sluice_batch_begin(ch, &b, 8, 0));
	p = sluice_batch_tensor_add(b, "x", SLUICE_I64, 0, NULL, NULL);
	ASSERT_NE(NULL, p);
	EXPECT_EQ(-ETIMEDOUT, sluice_batch_publish(b));
	EXPECT_EQ(-EAGAIN, sluice_batch_publish_timeout(b, 0));
	*p = 77; /* still being written */
	ASSERT_EQ(0, batch_recv(ch, NULL, 0));
	ASSERT_EQ(0, sluice_batch_publish(b));
	struct sluice_tensor t = {.sz = sizeof(t)};

	ASSERT_EQ(0, sluice_channel_next(ch, &b, 0));
	ASSERT_EQ(0, sluice_batch_tensor(b, 0, &t));
	EXPECT_EQ(77, *(int64_t *)t.data);
	sluice_batch_release(b);
	sluice_channel_close(ch);
}

TEST_F(channel, ends_after_the_last_batch)
{
	struct sluice_channel *c = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	struct sluice_channel *p1 = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	struct sluice_channel *p2 = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	uint64_t seed;

	ASSERT_NE(NULL, c);
	ASSERT_NE(NULL, p1);
	ASSERT_NE(NULL, p2);
	ASSERT_EQ(0, batch_send(p1, 8, 1, 0));
	sluice_channel_close(p1);
	ASSERT_EQ(0, batch_send(p2, 8, 2, 0));
	ASSERT_EQ(0, batch_recv(c, &seed, 0));
	EXPECT_EQ(1, seed);
	sluice_channel_close(p2);
	ASSERT_EQ(0, batch_recv(c, &seed, SLUICE_FOREVER));
	EXPECT_EQ(2, seed);
	EXPECT_EQ(-ENODATA, batch_recv(c, &seed, SLUICE_FOREVER));
	EXPECT_EQ(-ENODATA, batch_recv(c, &seed, 0));
	sluice_channel_close(c);
}

TEST_F(channel, does_not_end_before_a_producer_came)
{
	struct sluice_channel *c = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	struct sluice_channel *p;

	ASSERT_NE(NULL, c);
	EXPECT_EQ(-EAGAIN, batch_recv(c, NULL, 0));
	EXPECT_EQ(-ETIMEDOUT, batch_recv(c, NULL, 10 * MSEC));
	p = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, batch_send(p, 8, 1, 0));
	ASSERT_EQ(0, batch_recv(c, NULL, 0));
	sluice_channel_close(p);
	EXPECT_EQ(-ENODATA, batch_recv(c, NULL, 0));
	sluice_channel_close(c);
}

TEST_F(channel, kept_open_it_outlives_its_producers)
{
	struct sluice_channel *c =
		channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_KEEP_OPEN);

	ASSERT_NE(NULL, c);
	for (uint64_t i = 0; i < 3; i++) {
		struct sluice_channel *p = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
		uint64_t seed;

		ASSERT_NE(NULL, p);
		ASSERT_EQ(0, batch_send(p, 8, i, 0));
		sluice_channel_close(p);
		ASSERT_EQ(0, batch_recv(c, &seed, 0));
		EXPECT_EQ(i, seed);
		EXPECT_EQ(-EAGAIN, batch_recv(c, NULL, 0));
	}
	ASSERT_EQ(0, sluice_channel_shutdown(c));
	EXPECT_EQ(-ENODATA, batch_recv(c, NULL, SLUICE_FOREVER));
	sluice_channel_close(c);
}

TEST_F(channel, shutdown_lets_the_queue_run_empty)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 8, 0);
	struct sluice_batch *b;
	uint64_t seed;

	ASSERT_NE(NULL, ch);
	ASSERT_EQ(0, batch_send(ch, 8, 1, 0));
	ASSERT_EQ(0, batch_send(ch, 8, 2, 0));
	ASSERT_EQ(0, sluice_batch_begin(ch, &b, 8, 0));
	ASSERT_EQ(0, sluice_channel_shutdown(ch));
	EXPECT_EQ(-ESHUTDOWN, sluice_batch_publish(b));
	sluice_batch_abort(b);
	EXPECT_EQ(-ESHUTDOWN, sluice_batch_begin(ch, &b, 8, 0));
	EXPECT_EQ(0, batch_recv(ch, &seed, 0));
	EXPECT_EQ(1, seed);
	EXPECT_EQ(0, batch_recv(ch, &seed, 0));
	EXPECT_EQ(2, seed);
	EXPECT_EQ(-ENODATA, batch_recv(ch, &seed, SLUICE_FOREVER));
	/* Twice is no error. */
	EXPECT_EQ(0, sluice_channel_shutdown(ch));
	sluice_channel_close(ch);
}

TEST_F(channel, what_is_queued_goes_with_the_channel)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 8, 0);

	ASSERT_NE(NULL, ch);
	for (uint64_t i = 0; i < 8; i++)
		ASSERT_EQ(0, batch_send(ch, 100 * KIB, i, 0));
	sluice_channel_close(ch);
	EXPECT_EQ(NULL, arena_all_free(self->a));
	/* The name and the ring cells can be used again. */
	ch = channel_new(self->a, "c", 3, 0);
	ASSERT_NE(NULL, ch);
	EXPECT_EQ(-EAGAIN, batch_recv(ch, NULL, 0));
	ASSERT_EQ(0, batch_send(ch, 8, 9, 0));
	EXPECT_EQ(0, batch_recv(ch, NULL, 0));
	sluice_channel_close(ch);
}

TEST_F(channel, rings_are_used_again)
{
	/* Sizes that do not fit where the ones before stood: cells must not be lost to gaps. */
	for (unsigned int i = 0; i < scaled(2000); i++) {
		struct sluice_channel *a, *b;

		a = channel_new(self->a, "a", 1 + random_u64() % SLUICE_MAX_CAPACITY, 0);
		ASSERT_NE(NULL, a);
		b = channel_new(self->a, "b", 1 + random_u64() % 100, 0);
		ASSERT_NE(NULL, b);
		ASSERT_EQ(0, batch_send(b, 8, i, 0));
		sluice_channel_close(a);
		ASSERT_EQ(0, batch_recv(b, NULL, 0));
		sluice_channel_close(b);
	}
}

TEST_F(channel, many_at_once_do_not_mix)
{
	struct sluice_channel *ch[SLUICE_MAX_CHANNELS];
	char name[16];
	uint64_t seed;

	for (uint64_t i = 0; i < ARRAY_SIZE(ch); i++) {
		snprintf(name, sizeof(name), "c%d", (int)i);
		ch[i] = channel_new(self->a, name, 4, 0);
		ASSERT_NE(NULL, ch[i]);
		ASSERT_EQ(0, batch_send(ch[i], 8, i, 0));
		ASSERT_EQ(0, batch_send(ch[i], 8, i + 1000, 0));
	}
	for (uint64_t i = 0; i < ARRAY_SIZE(ch); i++) {
		ASSERT_EQ(0, batch_recv(ch[i], &seed, 0));
		EXPECT_EQ(i, seed);
		ASSERT_EQ(0, batch_recv(ch[i], &seed, 0));
		EXPECT_EQ(i + 1000, seed);
		EXPECT_EQ(-EAGAIN, batch_recv(ch[i], &seed, 0));
		sluice_channel_close(ch[i]);
	}
}

/* What sleeps for ever, what wakes it, and how it must end. */
enum asleep {
	IN_NEXT,
	IN_PUBLISH,
	IN_BEGIN
};

static void sleeper(struct sluice_arena *inherited, enum asleep where, int want)
{
	struct sluice_arena *a = arena_child(inherited);
	uint32_t flags = where == IN_NEXT ? SLUICE_CHANNEL_CONSUME : SLUICE_CHANNEL_PRODUCE;
	struct sluice_channel *ch = channel_join(a, "c", flags);
	struct sluice_batch *b;
	int ret;

	CHECK(ch);
	switch (where) {
	case IN_NEXT:
		ret = sluice_channel_next(ch, &b, SLUICE_FOREVER);
		break;
	case IN_PUBLISH:
		CHECK_OK(sluice_batch_begin(ch, &b, 8, 0));
		ret = sluice_batch_publish(b);
		if (ret)
			sluice_batch_abort(b);
		break;
	default:
		ret = sluice_batch_begin(ch, &b, 7 * MIB, SLUICE_FOREVER);
		if (!ret)
			sluice_batch_abort(b);
	}
	if (ret != want)
		fprintf(stderr, "# %d instead of %d: %s\n", ret, want, sluice_strerror());
	CHECK(ret == want);
	if (where == IN_NEXT && !ret)
		sluice_batch_release(b);
	sluice_channel_close(ch);
	sluice_arena_detach(a);
}

TEST_F(channel, wakes_a_consumer_for_a_batch)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 1, SLUICE_CHANNEL_PRODUCE);
	pid_t pid;

	ASSERT_NE(NULL, ch);
	for (int i = 0; i < 10; i++) {
		CHILD(pid)
			sleeper(self->a, IN_NEXT, 0);
		child_wait_asleep(pid);
		ASSERT_EQ(0, batch_send(ch, 8, 1, LONG_WAIT));
		ASSERT_EQ(0, child_wait(pid));
	}
	sluice_channel_close(ch);
}

TEST_F(channel, wakes_a_producer_for_room_in_the_channel)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 1, 0);
	pid_t pid;

	ASSERT_NE(NULL, ch);
	for (int i = 0; i < 10; i++) {
		ASSERT_EQ(0, batch_send(ch, 8, 1, 0));
		CHILD(pid)
			sleeper(self->a, IN_PUBLISH, 0);
		child_wait_asleep(pid);
		ASSERT_EQ(0, batch_recv(ch, NULL, 0));
		ASSERT_EQ(0, child_wait(pid));
		struct sluice_batch *b;

		ASSERT_EQ(0, sluice_channel_next(ch, &b, 0));
		sluice_batch_release(b);
	}
	sluice_channel_close(ch);
}

/* A consumer takes less than half of a full queue, then waits for what that producer does next. */
TEST_F(channel, one_free_cell_is_room)
{
	struct sluice_channel *in, *other;
	uint64_t seed, since;
	pid_t pid;

	in = channel_new(self->a, "in", 8, SLUICE_CHANNEL_CONSUME);
	other = channel_new(self->a, "other", 8, SLUICE_CHANNEL_CONSUME);
	ASSERT_NE(NULL, in);
	ASSERT_NE(NULL, other);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *out = channel_join(a, "in", SLUICE_CHANNEL_PRODUCE);
		struct sluice_channel *then = channel_join(a, "other", SLUICE_CHANNEL_PRODUCE);

		CHECK(out && then);
		for (unsigned int i = 0; i < 10; i++)
			CHECK_OK(batch_send(out, 8, i, SLUICE_FOREVER));
		CHECK_OK(batch_send(then, 8, 10, SLUICE_FOREVER));
		sluice_arena_detach(a);
	}
	child_wait_asleep(pid);
	since = now_ns();
	EXPECT_EQ(0, batch_recv(in, &seed, LONG_WAIT));
	EXPECT_EQ(0, batch_recv(in, &seed, LONG_WAIT));
	EXPECT_EQ(0, batch_recv(other, &seed, LONG_WAIT));
	EXPECT_GT(LONG_WAIT / 2, now_ns() - since);
	EXPECT_EQ(0, child_wait(pid));
	sluice_channel_close(in);
	sluice_channel_close(other);
}

TEST_F(channel, wakes_a_producer_for_room_in_the_arena)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 1, 0);
	struct sluice_batch *b;
	pid_t pid;

	ASSERT_NE(NULL, ch);
	for (int i = 0; i < 10; i++) {
		ASSERT_EQ(0, sluice_batch_begin(ch, &b, 4 * MIB, 0));
		CHILD(pid)
			sleeper(self->a, IN_BEGIN, 0);
		child_wait_asleep(pid);
		sluice_batch_abort(b);
		ASSERT_EQ(0, child_wait(pid));
	}
	sluice_channel_close(ch);
}

TEST_F(channel, shutdown_wakes_everybody)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 1, 0);
	struct sluice_batch *b;
	pid_t pid[6];

	ASSERT_NE(NULL, ch);
	for (int i = 0; i < 3; i++) {
		CHILD(pid[i])
			sleeper(self->a, IN_NEXT, -ENODATA);
	}
	for (int i = 0; i < 3; i++)
		child_wait_asleep(pid[i]);
	ASSERT_EQ(0, sluice_channel_shutdown(ch));
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	sluice_channel_close(ch);

	ch = channel_new(self->a, "c", 1, 0);
	ASSERT_NE(NULL, ch);
	ASSERT_EQ(0, batch_send(ch, 8, 1, 0));
	ASSERT_EQ(0, sluice_batch_begin(ch, &b, 4 * MIB, 0));
	for (int i = 0; i < 6; i++) {
		CHILD(pid[i])
			sleeper(self->a, i % 2 ? IN_PUBLISH : IN_BEGIN, -ESHUTDOWN);
	}
	for (int i = 0; i < 6; i++)
		child_wait_asleep(pid[i]);
	ASSERT_EQ(0, sluice_channel_shutdown(ch));
	for (int i = 0; i < 6; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	sluice_batch_abort(b);
	sluice_channel_close(ch);
}

static void nothing(int sig)
{
}

TEST_F(channel, signals_interrupt)
{
	struct sigaction sa = {.sa_handler = nothing}; /* no SA_RESTART */
	struct sluice_channel *ch = channel_new(self->a, "c", 1, 0);
	struct sluice_batch *b;
	pid_t pid;

	ASSERT_NE(NULL, ch);
	ASSERT_EQ(0, sigaction(SIGUSR1, &sa, NULL));
	for (enum asleep where = IN_NEXT; where <= IN_BEGIN; where++) {
		if (where == IN_PUBLISH) {
			ASSERT_EQ(0, batch_send(ch, 8, 1, 0));
		}
		ASSERT_EQ(0, sluice_batch_begin(ch, &b, 4 * MIB, 0));
		CHILD(pid)
			sleeper(self->a, where, -EINTR);
		child_wait_asleep(pid);
		ASSERT_EQ(0, kill(pid, SIGUSR1));
		EXPECT_EQ(0, child_wait(pid))
		{
			TH_LOG("asleep in %d", where);
		}
		sluice_batch_abort(b);
	}
	ASSERT_EQ(0, batch_recv(ch, NULL, 0));
	sluice_channel_close(ch);
}

/* Every batch to exactly one consumer, in the order of its producer. */
struct mpmc {
	unsigned int producers, consumers, each;
	uint32_t capacity, flags;
	size_t bytes;
};

static void produce(struct sluice_arena *inherited, const struct mpmc *m, uint64_t number)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel *ch = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE | m->flags);

	CHECK(ch);
	for (uint64_t i = 0; i < m->each; i++)
		CHECK_OK(batch_send(ch, m->bytes + i % 100, number << 32 | i, LONG_WAIT));
	sluice_channel_close(ch);
	sluice_arena_detach(a);
}

static void consume(struct sluice_arena *inherited, const struct mpmc *m, unsigned char *seen,
		    struct gate *ready)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel *ch = channel_join(a, "c", SLUICE_CHANNEL_CONSUME | m->flags);
	uint64_t last[16], seed;
	int ret;

	CHECK(ch);
	gate_open(ready);
	for (unsigned int i = 0; i < 16; i++)
		last[i] = UINT64_MAX;
	while (!(ret = batch_recv(ch, &seed, LONG_WAIT))) {
		uint64_t from = seed >> 32, i = seed & 0xffffffff;

		CHECK(from < m->producers && i < m->each);
		CHECK(last[from] == UINT64_MAX || last[from] < i);
		last[from] = i;
		CHECK(__atomic_exchange_n(&seen[from * m->each + i], 1, __ATOMIC_RELAXED) == 0);
	}
	CHECK(ret == -ENODATA);
	sluice_channel_close(ch);
	sluice_arena_detach(a);
}

FIXTURE(mpmc)
{
	struct sluice_arena *a;
};

FIXTURE_VARIANT(mpmc)
{
	struct mpmc m;
};

/* clang-format off */
FIXTURE_VARIANT_ADD(mpmc, one_to_one) { .m = {1, 1, 20000, 64, 0, 64} };
FIXTURE_VARIANT_ADD(mpmc, capacity_1) { .m = {2, 2, 3000, 1, 0, 64} };
FIXTURE_VARIANT_ADD(mpmc, four_to_one) { .m = {4, 1, 4000, 16, 0, 3000} };
FIXTURE_VARIANT_ADD(mpmc, one_to_four) { .m = {1, 4, 8000, 16, 0, 3000} };
FIXTURE_VARIANT_ADD(mpmc, three_to_three) { .m = {3, 3, 5000, 7, 0, 1000} };
FIXTURE_VARIANT_ADD(mpmc, sleeping_at_once) { .m = {3, 2, 2000, 2, SLUICE_CHANNEL_NO_SPIN, 100} };
FIXTURE_VARIANT_ADD(mpmc, without_io_uring) {
	.m = {3, 2, 2000, 2, SLUICE_CHANNEL_POLL | SLUICE_CHANNEL_NO_SPIN, 100}
};
/* Larger than a producer's share of the arena: everybody waits for room. */
FIXTURE_VARIANT_ADD(mpmc, short_of_memory) { .m = {4, 2, 200, 64, 0, 1500000} };
/* clang-format on */

FIXTURE_SETUP(mpmc)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
}

FIXTURE_TEARDOWN(mpmc)
{
	sluice_arena_detach(self->a);
}

TEST_F_TIMEOUT(mpmc, each_once_and_in_order, 120)
{
	struct mpmc m = variant->m;
	struct sluice_channel *ch;
	unsigned char *seen;
	struct gate ready;
	pid_t pid[16];
	unsigned int n = 0;

	m.each = scaled(m.each);
	seen = mmap(NULL, (size_t)m.producers * m.each, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, seen);
	gate_init(&ready);
	/* Holds the stream open until all are there. */
	ch = channel_new(self->a, "c", m.capacity, SLUICE_CHANNEL_PRODUCE);
	ASSERT_NE(NULL, ch);
	for (unsigned int i = 0; i < m.consumers; i++, n++) {
		CHILD(pid[n])
			consume(self->a, &m, seen, &ready);
	}
	for (unsigned int i = 0; i < m.producers; i++, n++) {
		CHILD(pid[n])
			produce(self->a, &m, i);
	}
	for (unsigned int i = m.consumers; i < n; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	sluice_channel_close(ch);
	for (unsigned int i = 0; i < m.consumers; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	for (unsigned int i = 0; i < m.producers * m.each; i++) {
		ASSERT_EQ(1, seen[i])
		{
			TH_LOG("batch %u of producer %u is lost", i % m.each, i / m.each);
		}
	}
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
}

TEST_HARNESS_MAIN
