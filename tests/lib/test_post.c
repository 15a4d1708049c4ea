// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Batches that are queued before their payload is there. */
#include "shm.h"
#include "util.h"

#include <kselftest_harness.h>

FIXTURE(post)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in;
};

FIXTURE_SETUP(post)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(self->a, NULL);
	self->out = channel_new(self->a, "post", 8, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_join(self->a, "post", SLUICE_CHANNEL_CONSUME);
}

FIXTURE_TEARDOWN(post)
{
	const char *left;

	sluice_channel_close(self->out);
	sluice_channel_close(self->in);
	left = arena_all_free(self->a);
	ASSERT_EQ(NULL, left)
	{
		TH_LOG("%s", left);
	}
	sluice_arena_detach(self->a);
}

/* A batch with room for a pattern, queued. */
static struct sluice_batch *posted(struct sluice_channel *ch, void **data, uint64_t **word,
				   uint64_t *value)
{
	const int64_t shape = 4096;
	struct sluice_batch *b;

	if (sluice_batch_begin(ch, &b, 4096, 0))
		return NULL;
	*data = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, &shape, NULL);
	if (!*data || sluice_batch_post(b, word, value, 0))
		return NULL;
	return b;
}

TEST_F(post, nothing_is_there_before_the_word)
{
	struct sluice_batch *b, *got;
	uint64_t *word, value, seed;
	void *data;

	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	EXPECT_EQ(-EAGAIN, sluice_channel_next(self->in, &got, 0));
	EXPECT_EQ(-ETIMEDOUT, sluice_channel_next(self->in, &got, 5 * MSEC));
	pattern_fill(data, 4096, 7);
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST); /* as a device would */
	ASSERT_EQ(0, sluice_channel_next(self->in, &got, 0));
	sluice_batch_posted(b);
	sluice_batch_release(got);
	EXPECT_EQ(-EAGAIN, batch_recv(self->in, &seed, 0));
}

TEST_F(post, order_is_kept_behind_it)
{
	struct sluice_batch *b, *got;
	uint64_t *word, value, seed;
	struct sluice_batch_info info = {.sz = sizeof(info)};
	void *data;

	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	ASSERT_EQ(0, batch_send(self->out, 100, 5, 0));
	EXPECT_EQ(-EAGAIN, batch_recv(self->in, &seed, 0));
	sluice_batch_posted(b);
	ASSERT_EQ(0, sluice_channel_next(self->in, &got, 0));
	ASSERT_EQ(0, sluice_batch_info(got, &info));
	EXPECT_EQ(0, info.sequence);
	sluice_batch_release(got);
	ASSERT_EQ(0, batch_recv(self->in, &seed, 0));
	EXPECT_EQ(5, seed);
}

TEST_F(post, taken_back)
{
	uint64_t *word, value, seed;
	struct sluice_batch *b;
	void *data;

	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	ASSERT_EQ(0, batch_send(self->out, 100, 5, 0));
	EXPECT_EQ(0, sluice_batch_unpost(b));
	sluice_batch_abort(b);
	ASSERT_EQ(0, batch_recv(self->in, &seed, 0));
	EXPECT_EQ(5, seed);
	EXPECT_EQ(-EAGAIN, batch_recv(self->in, &seed, 0));
}

TEST_F(post, too_late_to_take_back)
{
	struct sluice_batch *b, *got;
	uint64_t *word, value;
	void *data;

	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
	EXPECT_EQ(-EALREADY, sluice_batch_unpost(b));
	ASSERT_EQ(0, sluice_channel_next(self->in, &got, 0));
	sluice_batch_release(got);
}

/* One sleeper is spent on the batch behind; completing the first must ring for both. */
TEST_F(post, sleepers_are_rung_for_what_waited_behind)
{
	struct sluice_batch *b;
	uint64_t *word, value;
	pid_t pid[2];
	void *data;

	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	for (int i = 0; i < 2; i++) {
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *in = channel_join(a, "post", SLUICE_CHANNEL_CONSUME);
			struct sluice_batch *got;

			CHECK_OK(sluice_channel_next(in, &got, LONG_WAIT));
			sluice_batch_release(got);
			sluice_channel_close(in);
			sluice_arena_detach(a);
		}
		child_wait_asleep(pid[i]);
	}
	ASSERT_EQ(0, batch_send(self->out, 100, 5, 0));
	for (int i = 0; i < 2; i++)
		child_wait_asleep(pid[i]);
	sluice_batch_posted(b);
	EXPECT_EQ(0, child_wait(pid[0]));
	EXPECT_EQ(0, child_wait(pid[1]));
}

/* A process that takes one batch, says so, and stays. */
static pid_t taker(struct sluice_arena *inherited, struct gate *took)
{
	pid_t pid;

	CHILD(pid) {
		struct sluice_arena *a = arena_child(inherited);
		struct sluice_channel *in =
			channel_join(a, "post", SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_NO_SPIN);
		struct sluice_batch *got;

		/* Longer than a slow host takes to tell that both of two are asleep. */
		CHECK_OK(sluice_channel_next(in, &got, 10 * LONG_WAIT));
		sluice_batch_release(got);
		gate_open(took);
		pause();
	}
	return pid;
}

TEST_F(post, who_comes_to_wait_for_a_quiet_batch_finds_it)
{
	struct sluice_batch *b;
	uint64_t *word, value, start;
	struct gate took;
	void *data;
	pid_t pid;

	gate_init(&took);
	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	EXPECT_EQ(1, sluice_batch_quiet(b));
	pid = taker(self->a, &took);
	child_wait_asleep(pid);
	start = now_ns();
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST); /* as a device would; nobody rings */
	gate_pass(&took);
	EXPECT_GT(SEC, now_ns() - start);
	sluice_batch_posted(b);
	child_kill(pid);
}

TEST_F(post, nothing_is_quiet_while_somebody_sleeps)
{
	struct sluice_batch *b;
	uint64_t *word, value;
	struct gate took;
	void *data;
	pid_t pid;

	gate_init(&took);
	pid = taker(self->a, &took);
	child_wait_asleep(pid);
	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	EXPECT_EQ(0, sluice_batch_quiet(b));
	sluice_batch_posted(b);
	gate_pass(&took);
	child_kill(pid);
}

/* One that is rung for stands before one that is not, and who takes the first does not come back. */
TEST_F(post, a_quiet_batch_behind_another_is_found_as_well)
{
	uint64_t *word[2], value[2];
	struct sluice_batch *b[2];
	struct gate took;
	pid_t pid[2];
	void *data;

	gate_init(&took);
	for (int i = 0; i < 2; i++) {
		b[i] = posted(self->out, &data, &word[i], &value[i]);
		ASSERT_NE(NULL, b[i]);
	}
	EXPECT_EQ(1, sluice_batch_quiet(b[1]));
	for (int i = 0; i < 2; i++)
		pid[i] = taker(self->a, &took);
	for (int i = 0; i < 2; i++)
		child_wait_asleep(pid[i]);
	sluice_batch_posted(b[0]);
	gate_pass(&took);
	usleep(5000); /* the other one sleeps again */
	__atomic_store_n(word[1], value[1], __ATOMIC_SEQ_CST);
	gate_pass(&took);
	sluice_batch_posted(b[1]);
	for (int i = 0; i < 2; i++)
		child_kill(pid[i]);
}

TEST_F(post, loops_of_the_callers_are_always_rung)
{
	struct sluice_batch *b, *got;
	uint64_t *word, value;
	void *data;

	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	EXPECT_EQ(1, sluice_batch_quiet(b));
	/* The first such loop comes too late for this one: it must not sleep. */
	EXPECT_EQ(1, sluice_channel_arm(self->in));
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
	ASSERT_EQ(0, sluice_channel_next(self->in, &got, 0));
	sluice_batch_posted(b);
	sluice_batch_release(got);
	EXPECT_EQ(0, sluice_channel_arm(self->in));
	b = posted(self->out, &data, &word, &value);
	ASSERT_NE(NULL, b);
	EXPECT_EQ(0, sluice_batch_quiet(b));
	sluice_batch_posted(b);
	ASSERT_EQ(0, sluice_channel_next(self->in, &got, 0));
	sluice_batch_release(got);
}

/* Nothing is queued, whatever a hostile peer wrote: a caller's loop sleeps and does not turn round. */
TEST_F(post, no_position_keeps_a_callers_loop_awake)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct shm_channel *c;

	ASSERT_EQ(0, sluice_arena_info(self->a, &info));
	c = (struct shm_channel *)((char *)info.control + SHM_CHANNELS_OFF);
	atomic_store(&c->quiet, UINT64_MAX);
	EXPECT_EQ(0, sluice_channel_arm(self->in));
	ASSERT_EQ(0, batch_send(self->out, 100, 5, 0));
	EXPECT_EQ(1, sluice_channel_arm(self->in));
	EXPECT_EQ(0, batch_recv(self->in, NULL, 0));
	EXPECT_EQ(0, sluice_channel_arm(self->in));
}

TEST_F(post, the_dead_take_it_along)
{
	uint64_t seed;
	struct gate ready;
	pid_t pid;

	gate_init(&ready);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *out = channel_join(a, "post", SLUICE_CHANNEL_PRODUCE);
		uint64_t *word, value;
		void *data;

		CHECK(posted(out, &data, &word, &value));
		CHECK_OK(batch_send(out, 100, 9, 0));
		gate_open(&ready);
		pause();
	}
	gate_pass(&ready);
	EXPECT_EQ(-EAGAIN, batch_recv(self->in, &seed, 0));
	child_kill(pid);
	ASSERT_EQ(0, batch_recv(self->in, &seed, LONG_WAIT));
	EXPECT_EQ(9, seed);
}

TEST_HARNESS_MAIN
