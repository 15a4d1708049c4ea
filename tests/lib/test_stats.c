// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Counters and lists; and that a million batches leave nothing behind. */
#include "util.h"

#include <kselftest_harness.h>

FIXTURE(stats)
{
	struct sluice_arena *a;
	struct sluice_arena_info info;
	struct sluice_channel *ch;
};

FIXTURE_SETUP(stats)
{
	self->a = arena_new(8 * MIB);
	ASSERT_NE(NULL, self->a);
	self->info.sz = sizeof(self->info);
	ASSERT_EQ(0, sluice_arena_info(self->a, &self->info));
	self->ch = channel_new(self->a, "c", 8, 0);
	ASSERT_NE(NULL, self->ch);
}

FIXTURE_TEARDOWN(stats)
{
	sluice_channel_close(self->ch);
	EXPECT_EQ(NULL, arena_all_free(self->a));
	sluice_arena_detach(self->a);
}

TEST_F(stats, of_an_endpoint)
{
	struct sluice_channel *other = channel_join(self->a, "c", 0);
	struct sluice_channel_stats st = {.sz = sizeof(st)};

	ASSERT_NE(NULL, other);
	for (uint64_t i = 0; i < 5; i++)
		ASSERT_EQ(0, batch_send(self->ch, 1000, i, 0));
	for (uint64_t i = 0; i < 3; i++)
		ASSERT_EQ(0, batch_recv(other, NULL, 0));
	ASSERT_EQ(0, sluice_channel_stats(self->ch, &st));
	EXPECT_EQ(5, st.published);
	EXPECT_EQ(5000, st.published_bytes);
	EXPECT_EQ(0, st.consumed);
	EXPECT_EQ(8, st.capacity);
	ASSERT_EQ(0, sluice_channel_stats(other, &st));
	EXPECT_EQ(0, st.published);
	EXPECT_EQ(3, st.consumed);
	EXPECT_EQ(3000, st.consumed_bytes);
	sluice_channel_close(other);
	ASSERT_EQ(0, batch_recv(self->ch, NULL, 0));
	ASSERT_EQ(0, batch_recv(self->ch, NULL, 0));
}

TEST_F(stats, of_a_channel_include_who_is_gone)
{
	struct sluice_channel_info info[4] = {{.sz = sizeof(info[0])}};
	struct sluice_channel *more;
	pid_t pid;

	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *ch = channel_join(a, "c", 0);

		CHECK(ch);
		for (uint64_t i = 0; i < 4; i++)
			CHECK_OK(batch_send(ch, 500, i, 0));
		CHECK_OK(batch_recv(ch, NULL, 0));
		sluice_channel_close(ch);
		sluice_arena_detach(a);
	}
	ASSERT_EQ(0, child_wait(pid));
	ASSERT_EQ(0, batch_send(self->ch, 500, 9, 0));
	more = channel_new(self->a, "second", 3, SLUICE_CHANNEL_CONSUME);
	ASSERT_NE(NULL, more);
	ASSERT_EQ(0, sluice_channel_shutdown(more));
	ASSERT_EQ(2, sluice_channel_list(self->a, info, 4));
	EXPECT_STREQ("c", info[0].name);
	EXPECT_EQ(0, info[0].closed);
	EXPECT_EQ(5, info[0].stats.published);
	EXPECT_EQ(2500, info[0].stats.published_bytes);
	EXPECT_EQ(1, info[0].stats.consumed);
	EXPECT_EQ(4, info[0].stats.queued);
	EXPECT_EQ(8, info[0].stats.capacity);
	EXPECT_EQ(1, info[0].stats.producers);
	EXPECT_EQ(1, info[0].stats.consumers);
	EXPECT_STREQ("second", info[1].name);
	EXPECT_EQ(1, info[1].closed);
	EXPECT_EQ(0, info[1].stats.producers);
	EXPECT_EQ(2, sluice_channel_list(self->a, info, 1));
	EXPECT_EQ(2, sluice_channel_list(self->a, NULL, 0));
	sluice_channel_close(more);
}

TEST_F(stats, of_a_peer)
{
	struct sluice_channel_stats st = {.sz = sizeof(st)};
	struct sluice_channel *more = channel_new(self->a, "second", 3, 0);

	ASSERT_NE(NULL, more);
	ASSERT_EQ(0, batch_send(self->ch, 100, 1, 0));
	ASSERT_EQ(0, batch_send(more, 100, 1, 0));
	ASSERT_EQ(0, sluice_peer_stats(self->a, self->info.peer_id, &st));
	EXPECT_EQ(2, st.published);
	EXPECT_EQ(200, st.published_bytes);
	EXPECT_EQ(-ESRCH, sluice_peer_stats(self->a, self->info.peer_id + 1000, &st));
	sluice_channel_close(more);
}

TEST_F(stats, of_waiting)
{
	struct sluice_channel_stats st = {.sz = sizeof(st)};
	struct sluice_batch *b;

	EXPECT_EQ(-ETIMEDOUT, batch_recv(self->ch, NULL, 20 * MSEC));
	ASSERT_EQ(0, sluice_channel_stats(self->ch, &st));
	EXPECT_EQ(1, st.batch_waits);
	EXPECT_LE(20 * MSEC, st.batch_wait_ns);
	EXPECT_LE(1, st.sleeps);
	EXPECT_EQ(0, st.space_waits);
	for (uint64_t i = 0; i < 8; i++)
		ASSERT_EQ(0, batch_send(self->ch, 8, i, 0));
	EXPECT_EQ(-ETIMEDOUT, batch_send(self->ch, 8, 9, 20 * MSEC));
	ASSERT_EQ(0, sluice_channel_stats(self->ch, &st));
	EXPECT_EQ(1, st.space_waits);
	EXPECT_LE(20 * MSEC, st.space_wait_ns);
	EXPECT_EQ(-ETIMEDOUT, sluice_batch_begin(self->ch, &b, 8 * MIB - 64 * KIB, 20 * MSEC));
	ASSERT_EQ(0, sluice_channel_stats(self->ch, &st));
	EXPECT_EQ(2, st.space_waits);
	for (uint64_t i = 0; i < 8; i++)
		ASSERT_EQ(0, batch_recv(self->ch, NULL, 0));
}

TEST_F(stats, of_what_a_peer_holds)
{
	struct sluice_peer_info p[4] = {{.sz = sizeof(p[0])}};
	struct sluice_batch *b, *held;
	int mine, n;

	ASSERT_EQ(0, batch_send(self->ch, 100 * KIB, 1, 0));
	ASSERT_EQ(0, batch_take(self->ch, &held, NULL, 0));
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 50 * KIB, 0));
	usleep(30000);
	n = sluice_peer_list(self->a, p, 4);
	ASSERT_EQ(1, n);
	for (mine = 0; p[mine].id != self->info.peer_id; mine++)
		ASSERT_GT(n, mine + 1);
	EXPECT_EQ(2, p[mine].extents);
	EXPECT_LE(150 * KIB, p[mine].bytes);
	EXPECT_LE(20 * MSEC, p[mine].oldest_ns);
	sluice_batch_abort(b);
	sluice_batch_release(held);
	ASSERT_EQ(1, sluice_peer_list(self->a, p, 4));
	EXPECT_EQ(0, p[0].extents);
	EXPECT_EQ(0, p[0].bytes);
	EXPECT_EQ(0, p[0].oldest_ns);
}

TEST_F(stats, are_filled_only_as_far_as_the_caller_knows_them)
{
	struct sluice_channel_stats st;

	memset(&st, 0xa5, sizeof(st));
	st.sz = offsetof(struct sluice_channel_stats, consumed);
	ASSERT_EQ(0, sluice_channel_stats(self->ch, &st));
	EXPECT_EQ(0, st.published);
	EXPECT_EQ(0xa5a5a5a5a5a5a5a5ULL, st.consumed);
	st.sz = 0;
	EXPECT_EQ(-EINVAL, sluice_channel_stats(self->ch, &st));
}

TEST_F(stats, of_fragmentation)
{
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_batch *b[64];

	for (size_t i = 0; i < ARRAY_SIZE(b); i++)
		ASSERT_EQ(0, sluice_batch_begin(self->ch, &b[i], 64 * KIB, 0));
	for (size_t i = 0; i < ARRAY_SIZE(b); i += 2)
		sluice_batch_abort(b[i]);
	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	EXPECT_EQ(32, u.writing);
	EXPECT_LE(32, u.free_runs);
	EXPECT_LT(u.largest_free_bytes, u.free_bytes);
	EXPECT_EQ(self->info.data_bytes, u.free_bytes + u.reserved_bytes);
	for (size_t i = 1; i < ARRAY_SIZE(b); i += 2)
		sluice_batch_abort(b[i]);
	/* Neighbours are put together for whoever needs the room. */
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b[0], 8 * MIB - 64 * KIB, 0));
	sluice_batch_abort(b[0]);
}

static void nothing_logged(void *arg, enum sluice_log_level level, const char *msg)
{
	++*(unsigned int *)arg;
}

TEST_F(stats, library_prints_only_through_the_log_function)
{
	unsigned int lines = 0;
	int out[2], n;
	char buf[64];
	pid_t pid;

	ASSERT_EQ(0, pipe2(out, O_CLOEXEC | O_NONBLOCK));
	CHILD(pid) {
		struct sluice_arena *a;
		pid_t victim;

		CHECK(dup2(out[1], STDOUT_FILENO) >= 0 && dup2(out[1], STDERR_FILENO) >= 0);
		a = arena_child(self->a);
		sluice_log_set(nothing_logged, &lines, SLUICE_LOG_DEBUG);
		CHILD(victim)
			arena_child(a);
		child_wait(victim);
		struct sluice_event ev = {.sz = sizeof(ev)};

		if (sluice_event_next(a, &ev, LONG_WAIT) || !lines)
			_exit(1);
		sluice_log_set(NULL, NULL, SLUICE_LOG_DEBUG);
		sluice_arena_detach(a);
	}
	EXPECT_EQ(0, child_wait(pid));
	n = (int)read(out[0], buf, sizeof(buf));
	EXPECT_EQ(-1, n);
}

/* Memory, descriptors and free space after a million batches are what they were after a thousand. */
TEST_F_TIMEOUT(stats, a_million_batches_leave_nothing_behind, 120)
{
	struct sluice_arena_usage before = {.sz = sizeof(before)}, after = {.sz = sizeof(after)};
	unsigned int total = scaled(1000000), fds = 0;
	struct sluice_batch *held[16] = {NULL};
	uint64_t resident = 0;

	for (unsigned int i = 0; i < total; i++) {
		size_t bytes = i % 17 * 100;
		struct sluice_batch *b;

		ASSERT_EQ(0, batch_send(self->ch, bytes, i, 0));
		ASSERT_EQ(0, batch_take(self->ch, &b, NULL, 0));
		/* Some are held longer than others. */
		sluice_batch_release(held[i * 7 % 16]);
		held[i * 7 % 16] = b;
		if (i == 1000) {
			resident = resident_bytes();
			fds = open_fds();
			ASSERT_EQ(0, sluice_arena_usage(self->a, &before));
		}
	}
	ASSERT_EQ(0, sluice_arena_usage(self->a, &after));
	EXPECT_EQ(before.held, after.held);
	EXPECT_EQ(fds, open_fds());
	/* Sanitizers keep notes of every byte that was touched. */
	if (total == 1000000) {
		EXPECT_LE(resident_bytes(), resident + 256 * KIB);
	}
	for (size_t i = 0; i < ARRAY_SIZE(held); i++)
		sluice_batch_release(held[i]);
}

TEST_HARNESS_MAIN
