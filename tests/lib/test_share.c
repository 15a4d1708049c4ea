// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* One extent in several hands: share, forward, tokens, local references. */
#include <pthread.h>

#include "util.h"

#include <kselftest_harness.h>

#define MAX_SHARED 1024

FIXTURE(share)
{
	struct sluice_arena *a;
	struct sluice_channel *ch;
	struct sluice_batch *b;
};

FIXTURE_SETUP(share)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
	self->ch = channel_new(self->a, "c", 2048, 0);
	ASSERT_NE(NULL, self->ch);
	ASSERT_EQ(0, batch_send(self->ch, 10000, 42, 0));
	ASSERT_EQ(0, batch_take(self->ch, &self->b, NULL, 0));
}

FIXTURE_TEARDOWN(share)
{
	sluice_channel_close(self->ch);
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	sluice_arena_detach(self->a);
}

static struct sluice_arena_usage usage(struct sluice_arena *a)
{
	struct sluice_arena_usage u = {.sz = sizeof(u)};

	if (sluice_arena_usage(a, &u))
		memset(&u, 0xff, sizeof(u));
	return u;
}

static bool holds_42(struct sluice_batch *b)
{
	struct sluice_tensor t = {.sz = sizeof(t)};

	return !sluice_batch_tensor(b, 0, &t) && t.bytes == 10000 && pattern_is(t.data, 10000, 42);
}

TEST_F(share, nothing_is_copied)
{
	struct sluice_tensor mine = {.sz = sizeof(mine)}, theirs = {.sz = sizeof(theirs)};
	struct sluice_batch *b;
	uint64_t reserved = usage(self->a).reserved_bytes;

	ASSERT_EQ(0, sluice_batch_share(self->b, self->ch, 0));
	EXPECT_EQ(1, usage(self->a).shared);
	EXPECT_EQ(reserved, usage(self->a).reserved_bytes);
	ASSERT_EQ(0, batch_take(self->ch, &b, NULL, 0));
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &mine));
	ASSERT_EQ(0, sluice_batch_tensor(b, 0, &theirs));
	EXPECT_EQ(mine.data, theirs.data);
	sluice_batch_release(self->b);
	EXPECT_EQ(1, usage(self->a).parked);
	EXPECT_TRUE(holds_42(b));
	sluice_batch_release(b);
}

TEST_F(share, released_in_any_order)
{
	struct sluice_batch *b[8];

	for (int round = 0; round < 50; round++) {
		size_t left = ARRAY_SIZE(b);

		b[0] = self->b;
		for (size_t i = 1; i < left; i++) {
			/* Of the first, or of one that is a reference itself. */
			ASSERT_EQ(0, sluice_batch_share(b[random_u64() % i], self->ch, 0));
			ASSERT_EQ(0, batch_take(self->ch, &b[i], NULL, 0));
		}
		while (left) {
			size_t i = random_u64() % left;

			EXPECT_TRUE(holds_42(b[i]));
			sluice_batch_release(b[i]);
			b[i] = b[--left];
		}
		EXPECT_EQ(NULL, arena_all_free(self->a));
		ASSERT_EQ(0, batch_send(self->ch, 10000, 42, 0));
		ASSERT_EQ(0, batch_take(self->ch, &self->b, NULL, 0));
	}
	sluice_batch_release(self->b);
}

TEST_F(share, references_are_limited)
{
	int n = 0, ret;

	while (!(ret = sluice_batch_share(self->b, self->ch, 0)))
		ASSERT_GE(MAX_SHARED, ++n);
	EXPECT_EQ(-ENOSPC, ret);
	EXPECT_EQ(MAX_SHARED, n);
	EXPECT_NE(NULL, strstr(sluice_strerror(), "1024"))
	{
		TH_LOG("%s", sluice_strerror());
	}
	for (; n; n--)
		ASSERT_EQ(0, batch_recv(self->ch, NULL, 0));
	/* All of them can be used again. */
	ASSERT_EQ(0, sluice_batch_share(self->b, self->ch, 0));
	ASSERT_EQ(0, batch_recv(self->ch, NULL, 0));
	sluice_batch_release(self->b);
}

TEST_F(share, into_a_full_channel)
{
	struct sluice_channel *full = channel_new(self->a, "full", 1, 0);

	ASSERT_NE(NULL, full);
	ASSERT_EQ(0, batch_send(full, 8, 1, 0));
	EXPECT_EQ(-EAGAIN, sluice_batch_share(self->b, full, 0));
	EXPECT_EQ(-ETIMEDOUT, sluice_batch_share(self->b, full, MSEC));
	EXPECT_EQ(-EAGAIN, sluice_batch_forward(self->b, full, 0));
	EXPECT_EQ(0, usage(self->a).shared);
	EXPECT_TRUE(holds_42(self->b));
	ASSERT_EQ(0, sluice_channel_shutdown(full));
	EXPECT_EQ(-ESHUTDOWN, sluice_batch_share(self->b, full, 0));
	EXPECT_EQ(-ESHUTDOWN, sluice_batch_forward(self->b, full, 0));
	EXPECT_EQ(0, usage(self->a).shared);
	sluice_batch_release(self->b);
	sluice_channel_close(full);
}

TEST_F(share, forward_moves_it)
{
	uint64_t reserved = usage(self->a).reserved_bytes;

	for (int i = 0; i < 100; i++) {
		ASSERT_EQ(0, sluice_batch_forward(self->b, self->ch, 0));
		EXPECT_EQ(1, usage(self->a).ready);
		EXPECT_EQ(0, usage(self->a).shared);
		EXPECT_EQ(reserved, usage(self->a).reserved_bytes);
		ASSERT_EQ(0, batch_take(self->ch, &self->b, NULL, 0));
		EXPECT_TRUE(holds_42(self->b));
	}
	sluice_batch_release(self->b);
}

TEST_F(share, forward_of_a_reference)
{
	struct sluice_batch *b;

	ASSERT_EQ(0, sluice_batch_share(self->b, self->ch, 0));
	ASSERT_EQ(0, batch_take(self->ch, &b, NULL, 0));
	sluice_batch_release(self->b);
	ASSERT_EQ(0, sluice_batch_forward(b, self->ch, 0));
	ASSERT_EQ(0, batch_take(self->ch, &b, NULL, 0));
	EXPECT_TRUE(holds_42(b));
	sluice_batch_release(b);
}

TEST_F(share, forward_needs_the_only_local_reference)
{
	ASSERT_EQ(self->b, sluice_batch_retain(self->b));
	EXPECT_GT(0, sluice_batch_forward(self->b, self->ch, 0));
	EXPECT_NE('\0', sluice_strerror()[0]);
	sluice_batch_release(self->b);
	EXPECT_TRUE(holds_42(self->b));
	ASSERT_EQ(0, sluice_batch_forward(self->b, self->ch, 0));
	ASSERT_EQ(0, batch_recv(self->ch, NULL, 0));
}

TEST_F(share, sealed_instead_of_published)
{
	struct sluice_batch *b, *c;
	int64_t *p;

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 8, 0));
	p = sluice_batch_tensor_add(b, "x", SLUICE_I64, 0, NULL, NULL);
	ASSERT_NE(NULL, p);
	*p = 5;
	ASSERT_EQ(0, sluice_batch_seal(b));
	EXPECT_EQ(2, usage(self->a).held);
	EXPECT_EQ(NULL, sluice_batch_tensor_add(b, "y", SLUICE_I64, 0, NULL, NULL));
	EXPECT_EQ(EROFS, errno);
	for (int i = 0; i < 3; i++) {
		struct sluice_tensor t = {.sz = sizeof(t)};

		ASSERT_EQ(0, sluice_batch_share(b, self->ch, 0));
		ASSERT_EQ(0, sluice_channel_next(self->ch, &c, 0));
		ASSERT_EQ(0, sluice_batch_tensor(c, 0, &t));
		EXPECT_EQ(5, *(int64_t *)t.data);
		sluice_batch_release(c);
	}
	sluice_batch_release(b);
	sluice_batch_release(self->b);
}

TEST_F(share, only_what_is_held)
{
	struct sluice_batch *b;
	uint64_t token;

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 8, 0));
	EXPECT_GT(0, sluice_batch_share(b, self->ch, 0));
	EXPECT_GT(0, sluice_batch_forward(b, self->ch, 0));
	EXPECT_GT(0, sluice_batch_token(b, &token));
	sluice_batch_abort(b);
	sluice_batch_release(self->b);
}

TEST_F(share, only_within_one_arena)
{
	struct sluice_arena *other = arena_new(MIB);
	struct sluice_channel *ch;

	ASSERT_NE(NULL, other);
	ch = channel_new(other, "c", 4, 0);
	ASSERT_NE(NULL, ch);
	EXPECT_GT(0, sluice_batch_share(self->b, ch, 0));
	EXPECT_GT(0, sluice_batch_forward(self->b, ch, 0));
	sluice_batch_release(self->b);
	sluice_channel_close(ch);
	sluice_arena_detach(other);
}

TEST_F(share, tokens)
{
	struct sluice_batch *b;
	uint64_t token;
	pid_t pid;

	ASSERT_EQ(0, sluice_batch_token(self->b, &token));
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);

		CHECK_OK(sluice_batch_open(a, &b, token));
		CHECK(holds_42(b));
		CHECK(usage(a).shared == 1);
		sluice_batch_release(b);
		sluice_arena_detach(a);
	}
	ASSERT_EQ(0, child_wait(pid));
	/* A reference outlives the first holder. */
	ASSERT_EQ(0, sluice_batch_open(self->a, &b, token));
	sluice_batch_release(self->b);
	EXPECT_TRUE(holds_42(b));
	sluice_batch_release(b);
	/* And what is free stays free, also when the extent is used again. */
	EXPECT_EQ(-ESTALE, sluice_batch_open(self->a, &b, token));
	ASSERT_EQ(0, batch_send(self->ch, 10000, 43, 0));
	ASSERT_EQ(0, batch_take(self->ch, &self->b, NULL, 0));
	EXPECT_EQ(-ESTALE, sluice_batch_open(self->a, &b, token));
	sluice_batch_release(self->b);
}

TEST_F(share, any_number_is_no_token)
{
	struct sluice_batch *b;
	unsigned int opened = 0;

	for (unsigned int i = 0; i < scaled(100000); i++) {
		if (!sluice_batch_open(self->a, &b, random_u64())) {
			sluice_batch_release(b);
			opened++;
		}
	}
	/* One of 2^28 leases in one of 2^36 generations: chance does not find it. */
	EXPECT_EQ(0, opened);
	for (unsigned int bit = 0; bit < 64; bit++) {
		uint64_t token;

		ASSERT_EQ(0, sluice_batch_token(self->b, &token));
		EXPECT_NE(0, sluice_batch_open(self->a, &b, token ^ 1ULL << bit));
	}
	sluice_batch_release(self->b);
}

static void *release_many(void *b)
{
	for (int i = 0; i < 1000; i++)
		sluice_batch_release(sluice_batch_retain(b));
	sluice_batch_release(b);
	return NULL;
}

TEST_F(share, references_of_threads)
{
	pthread_t t[4];

	for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
		ASSERT_EQ(self->b, sluice_batch_retain(self->b));
		ASSERT_EQ(0, pthread_create(&t[i], NULL, release_many, self->b));
	}
	for (size_t i = 0; i < ARRAY_SIZE(t); i++)
		ASSERT_EQ(0, pthread_join(t[i], NULL));
	EXPECT_TRUE(holds_42(self->b));
	EXPECT_EQ(1, usage(self->a).held);
	sluice_batch_release(self->b);
}

struct worker {
	struct sluice_arena *a;
	unsigned int number, rounds;
	int ret;
};

/* Each thread has endpoints of its own in one attached process. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct sluice_channel *ch;
	char name[16];

	snprintf(name, sizeof(name), "thread %u", w->number);
	ch = channel_new(w->a, name, 4, 0);
	for (unsigned int i = 0; ch && i < w->rounds && !w->ret; i++) {
		struct sluice_batch *b, *c;
		uint64_t token;

		w->ret = batch_send(ch, 100 + i, i, LONG_WAIT);
		if (!w->ret)
			w->ret = batch_take(ch, &b, NULL, LONG_WAIT);
		if (w->ret)
			break;
		w->ret = sluice_batch_token(b, &token);
		if (!w->ret)
			w->ret = sluice_batch_open(w->a, &c, token);
		sluice_batch_release(b);
		if (!w->ret)
			sluice_batch_release(c);
	}
	sluice_channel_close(ch);
	return NULL;
}

TEST_F(share, threads_of_one_process)
{
	struct worker w[4] = {0};
	pthread_t t[4];

	for (unsigned int i = 0; i < ARRAY_SIZE(t); i++) {
		w[i] = (struct worker){.a = self->a, .number = i, .rounds = scaled(5000)};
		ASSERT_EQ(0, pthread_create(&t[i], NULL, work, &w[i]));
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(t); i++) {
		ASSERT_EQ(0, pthread_join(t[i], NULL));
		EXPECT_EQ(0, w[i].ret);
	}
	sluice_batch_release(self->b);
}

/* Broadcast: every one of several readers gets the same extent. */
TEST_F(share, broadcast)
{
	enum {
		READERS = 3,
		ROUNDS = 200
	};
	struct sluice_channel *to[READERS];
	char name[16];
	pid_t pid[READERS];

	sluice_batch_release(self->b);
	for (int i = 0; i < READERS; i++) {
		snprintf(name, sizeof(name), "reader %d", i);
		to[i] = channel_new(self->a, name, 2, SLUICE_CHANNEL_PRODUCE);
		ASSERT_NE(NULL, to[i]);
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *ch = channel_join(a, name, SLUICE_CHANNEL_CONSUME);
			uint64_t n = 0, seed;
			int ret;

			CHECK(ch);
			while (!(ret = batch_recv(ch, &seed, LONG_WAIT)))
				CHECK(seed == n++);
			CHECK(ret == -ENODATA);
			CHECK(n == ROUNDS);
		}
	}
	for (uint64_t n = 0; n < ROUNDS; n++) {
		int64_t shape[1] = {20000};
		struct sluice_batch *b;
		void *p;

		ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 20000, LONG_WAIT));
		p = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, shape, NULL);
		ASSERT_NE(NULL, p);
		pattern_fill(p, 20000, n);
		ASSERT_EQ(0, sluice_batch_tag(b, n));
		ASSERT_EQ(0, sluice_batch_seal(b));
		for (int i = 0; i < READERS; i++)
			ASSERT_EQ(0, sluice_batch_share(b, to[i], LONG_WAIT));
		sluice_batch_release(b);
	}
	for (int i = 0; i < READERS; i++)
		sluice_channel_close(to[i]);
	for (int i = 0; i < READERS; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
}

/* Who opens a token just while the batch is freed gets all of it or nothing, poisoned or not. */
TEST(open_and_free_at_once)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.flags = SLUICE_ARENA_NO_HUGE | SLUICE_ARENA_POISON,
		.data_bytes = 4 * MIB,
	};
	const int64_t shape = MIB;
	unsigned int rounds = scaled(20000);
	_Atomic uint64_t *token;
	struct sluice_arena *a;
	struct sluice_batch *b;
	pid_t pid;

	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	token = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)token);
	CHILD(pid) {
		struct sluice_arena *own = arena_child(a);
		struct sluice_channel *ch = channel_new(own, "c", 1, 0);
		uint64_t t;

		CHECK(ch);
		for (unsigned int i = 0; i < rounds; i++) {
			CHECK_OK(sluice_batch_begin(ch, &b, MIB, LONG_WAIT));
			CHECK(sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, &shape, NULL));
			CHECK_OK(sluice_batch_seal(b));
			CHECK_OK(sluice_batch_token(b, &t));
			*token = t;
			sluice_batch_release(b);
		}
		*token = UINT64_MAX;
	}
	while (*token != UINT64_MAX) {
		int ret = sluice_batch_open(a, &b, *token);

		if (!ret)
			sluice_batch_release(b);
		else if (ret != -ESTALE)
			break;
	}
	EXPECT_EQ(UINT64_MAX, *token)
	{
		TH_LOG("%s", sluice_strerror());
	}
	EXPECT_EQ(0, child_wait(pid));
	munmap((void *)token, 4096);
	sluice_arena_detach(a);
}

TEST_HARNESS_MAIN
