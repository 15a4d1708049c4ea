// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Peers that are killed, stopped or gone: what the others see, and what they get back. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "util.h"

#include <kselftest_harness.h>

FIXTURE(death)
{
	struct sluice_arena *a;
	struct sluice_arena_info info;
	struct gate ready;
};

FIXTURE_SETUP(death)
{
	self->a = arena_new(8 * MIB);
	ASSERT_NE(NULL, self->a);
	self->info.sz = sizeof(self->info);
	ASSERT_EQ(0, sluice_arena_info(self->a, &self->info));
	gate_init(&self->ready);
}

FIXTURE_TEARDOWN(death)
{
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	sluice_arena_detach(self->a);
}

static struct sluice_event event_next(struct sluice_arena *a, uint64_t timeout_ns)
{
	struct sluice_event ev = {.sz = sizeof(ev)};
	int ret = sluice_event_next(a, &ev, timeout_ns);

	if (ret) {
		memset(&ev, 0, sizeof(ev));
		errno = -ret;
	}
	return ev;
}

TEST_F(death, event_says_who_and_what)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 8, SLUICE_CHANNEL_KEEP_OPEN);
	uint64_t id, before = now_ns();
	struct sluice_event ev;
	int told[2];
	pid_t pid;

	ASSERT_NE(NULL, ch);
	ASSERT_EQ(0, pipe2(told, O_CLOEXEC));
	ASSERT_EQ(0, batch_send(ch, 100 * KIB, 1, 0));
	CHILD(pid) {
		struct sluice_arena_info info = {.sz = sizeof(info)};
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *mine = channel_join(a, "c", 0);
		struct sluice_batch *b, *held;

		CHECK(mine);
		CHECK_OK(batch_take(mine, &held, NULL, 0));
		CHECK_OK(sluice_batch_begin(mine, &b, 60 * KIB, 0));
		CHECK_OK(sluice_batch_begin(mine, &b, 20 * KIB, 0));
		CHECK_OK(batch_send(mine, 5 * KIB, 2, 0));
		CHECK_OK(sluice_arena_info(a, &info));
		CHECK(write(told[1], &info.peer_id, sizeof(info.peer_id)) == sizeof(info.peer_id));
		pause();
	}
	ASSERT_EQ(sizeof(id), read(told[0], &id, sizeof(id)));
	kill(pid, SIGKILL);
	ev = event_next(self->a, LONG_WAIT);
	EXPECT_EQ(sizeof(ev), ev.sz);
	EXPECT_EQ(SLUICE_EVENT_PEER_DEAD, ev.type);
	EXPECT_EQ(id, ev.peer_id);
	EXPECT_EQ((uint32_t)pid, ev.pid);
	EXPECT_EQ(3, ev.extents);
	EXPECT_LE((100 + 60 + 20) * KIB, ev.bytes);
	EXPECT_EQ(2, ev.lost);
	EXPECT_EQ(SIGKILL, ev.signal);
	EXPECT_EQ(-1, ev.exit_code);
	EXPECT_LE(before, ev.time_ns);
	EXPECT_LE(ev.time_ns, now_ns());
	/* One death, one event; what it had published is there. */
	EXPECT_EQ(0, event_next(self->a, 0).type);
	EXPECT_EQ(EAGAIN, errno);
	EXPECT_EQ(0, batch_recv(ch, &id, 0));
	EXPECT_EQ(2, id);
	EXPECT_EQ(-EAGAIN, batch_recv(ch, &id, 0));
	/* Our child is still there to be waited for. */
	EXPECT_TRUE(WIFSIGNALED(child_wait(pid)));
	sluice_channel_close(ch);
}

TEST_F(death, exit_without_detach_is_a_death)
{
	struct sluice_event ev;
	pid_t pid;

	CHILD(pid) {
		arena_child(self->a);
		_exit(7);
	}
	ev = event_next(self->a, LONG_WAIT);
	EXPECT_EQ(SLUICE_EVENT_PEER_DEAD, ev.type);
	EXPECT_EQ((uint32_t)pid, ev.pid);
	EXPECT_EQ(0, ev.extents);
	EXPECT_EQ(0, ev.signal);
	EXPECT_EQ(7, ev.exit_code);
	child_wait(pid);
}

TEST_F(death, leaving_is_no_death)
{
	struct sluice_event ev = {.sz = sizeof(ev)};
	pid_t pid;

	CHILD(pid)
		sluice_arena_detach(arena_child(self->a));
	ASSERT_EQ(0, child_wait(pid));
	EXPECT_EQ(-EAGAIN, sluice_event_next(self->a, &ev, 0));
	EXPECT_EQ(-ETIMEDOUT, sluice_event_next(self->a, &ev, 20 * MSEC));
}

TEST_F(death, event_descriptor)
{
	struct pollfd p = {.fd = sluice_event_fd(self->a), .events = POLLIN};
	pid_t pid;

	ASSERT_LE(0, p.fd);
	CHILD(pid) {
		arena_child(self->a);
		gate_open(&self->ready);
		pause();
	}
	gate_pass(&self->ready);
	/* Joining may ring; nothing has happened yet. */
	while (poll(&p, 1, 0) == 1)
		ASSERT_EQ(0, event_next(self->a, 0).type);
	child_kill(pid);
	ASSERT_EQ(1, poll(&p, 1, 20000));
	EXPECT_EQ((uint32_t)pid, event_next(self->a, 0).pid);
	EXPECT_EQ(0, event_next(self->a, 0).type);
	EXPECT_EQ(0, poll(&p, 1, 0));
}

/* Asked for by nobody: the first call of anything on the way notices. */
static atomic_bool enough;

static void *recv_all(void *ch)
{
	while (!enough)
		batch_recv(ch, NULL, SLUICE_FOREVER);
	return NULL;
}

/* The thread that sleeps in the channel may take the notice first. */
TEST_F(death, event_comes_whichever_thread_sees_the_death)
{
	struct sluice_channel *c =
		channel_new(self->a, "c", 4, SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_KEEP_OPEN);
	struct sluice_channel *p = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	pthread_t t;
	pid_t pid;

	ASSERT_NE(NULL, c);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, pthread_create(&t, NULL, recv_all, c));
	for (unsigned int i = scaled(100); i; i--) {
		CHILD(pid) {
			arena_child(self->a);
			gate_open(&self->ready);
			pause();
		}
		gate_pass(&self->ready);
		kill(pid, SIGKILL);
		ASSERT_EQ((uint32_t)pid, event_next(self->a, SLUICE_FOREVER).pid);
		ASSERT_NE(0, child_wait(pid));
	}
	enough = true;
	ASSERT_EQ(0, batch_send(p, 8, 0, LONG_WAIT));
	ASSERT_EQ(0, pthread_join(t, NULL));
	sluice_channel_close(p);
	sluice_channel_close(c);
}

/* A peer that could not be watched when it joined is watched as soon as it can be. */
TEST_F(death, is_seen_after_descriptors_ran_out)
{
	struct gate joined, tried;
	pid_t pid, observer;

	gate_init(&joined);
	gate_init(&tried);
	CHILD(observer) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *c = channel_new(a, "c", 4, 0);
		struct rlimit few, most;

		CHECK(c);
		CHECK(sluice_event_fd(a) >= 0);
		CHECK(batch_recv(c, NULL, MSEC) == -ETIMEDOUT);
		gate_open(&self->ready);
		gate_pass(&joined);
		CHECK_OK(getrlimit(RLIMIT_NOFILE, &most));
		few = most;
		few.rlim_cur = 3;
		CHECK_OK(setrlimit(RLIMIT_NOFILE, &few));
		CHECK(batch_recv(c, NULL, MSEC) == -ETIMEDOUT);
		CHECK_OK(setrlimit(RLIMIT_NOFILE, &most));
		gate_open(&tried);
		CHECK(event_next(a, LONG_WAIT).type == SLUICE_EVENT_PEER_DEAD);
		sluice_channel_close(c);
		sluice_arena_detach(a);
	}
	gate_pass(&self->ready);
	CHILD(pid) {
		arena_child(self->a);
		gate_open(&joined);
		pause();
	}
	gate_pass(&tried);
	child_kill(pid);
	EXPECT_EQ(0, child_wait(observer));
}

TEST_F(death, every_survivor_gets_the_event)
{
	struct gate killed;
	pid_t pid[3], victim;

	gate_init(&killed);
	CHILD(victim) {
		arena_child(self->a);
		gate_open(&self->ready);
		pause();
	}
	gate_pass(&self->ready);
	for (int i = 0; i < 3; i++) {
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_event ev;

			gate_open(&self->ready);
			gate_pass(&killed);
			ev = event_next(a, LONG_WAIT);
			CHECK(ev.type == SLUICE_EVENT_PEER_DEAD);
			CHECK(ev.pid == (uint32_t)victim);
			CHECK(event_next(a, 0).type == 0);
			sluice_arena_detach(a);
		}
	}
	for (int i = 0; i < 3; i++)
		gate_pass(&self->ready);
	child_kill(victim);
	for (int i = 0; i < 3; i++)
		gate_open(&killed);
	EXPECT_EQ((uint32_t)victim, event_next(self->a, LONG_WAIT).pid);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
}

TEST_F(death, too_many_events_are_counted)
{
	struct sluice_event ev;
	uint64_t missed = 0, seen = 0;

	for (int i = 0; i < 200; i++) {
		pid_t pid;

		CHILD(pid) {
			arena_child(self->a);
			_exit(0);
		}
		child_wait(pid);
		/* Somebody else does the recovery; we do not read the events. */
		CHILD(pid) {
			struct sluice_arena *a = arena_child(self->a);

			event_next(a, 0);
			sluice_arena_detach(a);
		}
		child_wait(pid);
	}
	while ((ev = event_next(self->a, 0)).type) {
		if (ev.type == SLUICE_EVENT_OVERRUN)
			missed += ev.peer_id;
		else
			seen++;
	}
	EXPECT_LT(0, seen);
	EXPECT_EQ(200, seen + missed);
}

TEST_F(death, producer_dies_and_the_stream_says_so)
{
	struct sluice_channel *c = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	uint64_t seed;
	pid_t pid;

	ASSERT_NE(NULL, c);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *p = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE);
		struct sluice_batch *b;

		CHECK(p);
		for (uint64_t i = 0; i < 5; i++)
			CHECK_OK(batch_send(p, 10 * KIB, i, 0));
		CHECK_OK(sluice_batch_begin(p, &b, MIB, 0));
		kill(getpid(), SIGKILL);
	}
	for (uint64_t i = 0; i < 5; i++) {
		ASSERT_EQ(0, batch_recv(c, &seed, LONG_WAIT));
		EXPECT_EQ(i, seed);
	}
	EXPECT_EQ(-EOWNERDEAD, batch_recv(c, &seed, LONG_WAIT));
	EXPECT_EQ(-EOWNERDEAD, batch_recv(c, &seed, 0));
	child_wait(pid);
	sluice_channel_close(c);
}

TEST_F(death, one_of_two_producers_dies)
{
	struct sluice_channel *c = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	struct sluice_channel *p = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	uint64_t seed;
	pid_t pid;

	ASSERT_NE(NULL, c);
	ASSERT_NE(NULL, p);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *mine = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE);

		CHECK(mine);
		CHECK_OK(batch_send(mine, 8, 1, 0));
		kill(getpid(), SIGKILL);
	}
	child_wait(pid);
	ASSERT_EQ(0, batch_recv(c, &seed, LONG_WAIT));
	/* The stream goes on. */
	EXPECT_EQ(-ETIMEDOUT, batch_recv(c, &seed, 20 * MSEC));
	ASSERT_EQ(0, batch_send(p, 8, 2, 0));
	ASSERT_EQ(0, batch_recv(c, &seed, 0));
	EXPECT_EQ(2, seed);
	sluice_channel_close(p);
	EXPECT_EQ(-ENODATA, batch_recv(c, &seed, 0));
	sluice_channel_close(c);
}

TEST_F(death, last_consumer_dies)
{
	struct sluice_channel *p = channel_new(self->a, "c", 2, SLUICE_CHANNEL_PRODUCE);
	struct sluice_batch *b;
	pid_t pid;

	ASSERT_NE(NULL, p);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);

		CHECK(channel_join(a, "c", SLUICE_CHANNEL_CONSUME));
		gate_open(&self->ready);
		pause();
	}
	gate_pass(&self->ready);
	ASSERT_EQ(0, batch_send(p, 8, 1, 0));
	ASSERT_EQ(0, batch_send(p, 8, 2, 0));
	ASSERT_EQ(0, sluice_batch_begin(p, &b, 8, 0));
	kill(pid, SIGKILL);
	/* Blocked in a full channel that nobody will empty. */
	EXPECT_EQ(-EPIPE, sluice_batch_publish(b));
	sluice_batch_abort(b);
	EXPECT_EQ(-EPIPE, sluice_batch_begin(p, &b, 8, SLUICE_FOREVER));
	EXPECT_NE('\0', sluice_strerror()[0]);
	child_wait(pid);
	sluice_channel_close(p);
}

TEST_F(death, holder_dies_and_who_waits_for_room_goes_on)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 2, 0);
	struct sluice_batch *b;
	pid_t pid;

	ASSERT_NE(NULL, ch);
	for (int i = 0; i < 5; i++) {
		CHILD(pid) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *mine = channel_join(a, "c", 0);

			CHECK(mine);
			CHECK_OK(sluice_batch_begin(mine, &b, 5 * MIB, 0));
			gate_open(&self->ready);
			usleep(20000);
			kill(getpid(), SIGKILL);
		}
		gate_pass(&self->ready);
		ASSERT_EQ(0, sluice_batch_begin(ch, &b, 5 * MIB, LONG_WAIT));
		sluice_batch_abort(b);
		child_wait(pid);
	}
	sluice_channel_close(ch);
}

TEST_F(death, readers_references_come_back)
{
	struct sluice_channel *ch = channel_new(self->a, "c", 16, 0);
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_batch *b;
	pid_t pid;

	ASSERT_NE(NULL, ch);
	ASSERT_EQ(0, batch_send(ch, MIB, 5, 0));
	ASSERT_EQ(0, batch_take(ch, &b, NULL, 0));
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, sluice_batch_share(b, ch, 0));
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *mine = channel_join(a, "c", SLUICE_CHANNEL_CONSUME);
		struct sluice_batch *h[3];

		CHECK(mine);
		for (int i = 0; i < 3; i++)
			CHECK_OK(batch_take(mine, &h[i], NULL, 0));
		gate_open(&self->ready);
		pause();
	}
	gate_pass(&self->ready);
	sluice_batch_release(b);
	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	EXPECT_EQ(1, u.parked);
	EXPECT_EQ(3, u.shared);
	child_kill(pid);
	EXPECT_EQ((uint32_t)pid, event_next(self->a, LONG_WAIT).pid);
	EXPECT_EQ(NULL, arena_all_free(self->a));
	sluice_channel_close(ch);
}

TEST_F(death, all_but_the_observer_die)
{
	struct sluice_channel *c = channel_new(self->a, "c", 4, SLUICE_CHANNEL_CONSUME);
	unsigned int seen = 0;
	pid_t pid[6];

	ASSERT_NE(NULL, c);
	for (int i = 0; i < 6; i++) {
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *mine = channel_join(a, "c", 0);

			CHECK(mine);
			gate_open(&self->ready);
			for (uint64_t n = 0;; n++) {
				batch_send(mine, 100 * KIB, n, MSEC);
				batch_recv(mine, NULL, MSEC);
			}
		}
	}
	for (int i = 0; i < 6; i++)
		gate_pass(&self->ready);
	usleep(50000);
	for (int i = 0; i < 6; i++)
		kill(pid[i], SIGKILL);
	while (seen < 6) {
		struct sluice_event ev = event_next(self->a, LONG_WAIT);

		ASSERT_EQ(SLUICE_EVENT_PEER_DEAD, ev.type);
		seen++;
	}
	for (int i = 0; i < 6; i++)
		child_wait(pid[i]);
	while (!batch_recv(c, NULL, 0))
		;
	sluice_channel_close(c);
}

/* Nothing has a name: what nobody has open any more is gone. */
TEST_F(death, nothing_outlives_everybody)
{
	int fd;
	pid_t pid;
	char path[64];

	if (self->info.backend != SLUICE_BACKEND_MEMFD)
		SKIP(return, "looks at the descriptors of the memfd backend");
	CHILD(pid) {
		struct sluice_arena *a = arena_new(MIB);

		CHECK(a);
		fd = sluice_arena_fd(a);
		CHECK(write(self->ready.fd[1], &fd, sizeof(fd)) == sizeof(fd));
		pause();
	}
	ASSERT_EQ(sizeof(fd), read(self->ready.fd[0], &fd, sizeof(fd)));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	ASSERT_EQ(0, access(path, R_OK));
	child_kill(pid);
	EXPECT_EQ(-1, access(path, R_OK));
}

TEST_F(death, stopped_is_not_dead)
{
	struct sluice_channel *p = channel_new(self->a, "c", 2, SLUICE_CHANNEL_PRODUCE);
	struct sluice_event ev = {.sz = sizeof(ev)};
	pid_t pid;
	int status;

	ASSERT_NE(NULL, p);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *c = channel_join(a, "c", SLUICE_CHANNEL_CONSUME);
		uint64_t seed, n = 0;
		int ret;

		CHECK(c);
		gate_open(&self->ready);
		while (!(ret = batch_recv(c, &seed, LONG_WAIT)))
			CHECK(seed == n++);
		CHECK(ret == -ENODATA);
		CHECK(n == 6);
		sluice_channel_close(c);
		sluice_arena_detach(a);
	}
	gate_pass(&self->ready);
	ASSERT_EQ(0, batch_send(p, 8, 0, LONG_WAIT));
	kill(pid, SIGSTOP);
	ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
	/* One batch may have been on its way out of the channel. */
	for (uint64_t i = 1; i < 4; i++)
		if (batch_send(p, 8, i, 100 * MSEC))
			break;
		else
			ASSERT_GT(4, i);
	EXPECT_EQ(-EAGAIN, sluice_event_next(self->a, &ev, 0));
	kill(pid, SIGCONT);
	struct sluice_channel_stats st = {.sz = sizeof(st)};

	ASSERT_EQ(0, sluice_channel_stats(p, &st));
	for (uint64_t i = st.published; i < 6; i++)
		ASSERT_EQ(0, batch_send(p, 8, i, LONG_WAIT));
	sluice_channel_close(p);
	EXPECT_EQ(0, child_wait(pid));
}

TEST_F(death, its_slot_is_used_again)
{
	/* More than the 256 unread deaths that the kernel module keeps. */
	unsigned int deaths = self->info.backend == SLUICE_BACKEND_KMOD ? 300 : scaled(400);
	uint64_t last = self->info.peer_id;

	for (unsigned int i = 0; i < deaths; i++) {
		uint64_t id = 0;
		pid_t pid;

		CHILD(pid) {
			struct sluice_arena_info info = {.sz = sizeof(info)};
			struct sluice_arena *a = arena_child(self->a);

			CHECK_OK(sluice_arena_info(a, &info));
			CHECK(write(self->ready.fd[1], &info.peer_id, 8) == 8);
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(8, read(self->ready.fd[0], &id, 8));
		ASSERT_LT(last, id);
		last = id;
		child_wait(pid);
	}
	/* All of them are recovered at the latest when somebody asks. */
	while (event_next(self->a, 0).type)
		;
	ASSERT_EQ(1, sluice_peer_list(self->a, NULL, 0));
}

TEST_HARNESS_MAIN
