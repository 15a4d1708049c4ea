// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Waiting in the caller's own loop: poll, epoll, io_uring, and where io_uring is refused. */
#include <liburing.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "util.h"

#include <kselftest_harness.h>

FIXTURE(doorbell)
{
	struct sluice_arena *a;
};

FIXTURE_VARIANT(doorbell)
{
	uint32_t flags;
};

FIXTURE_VARIANT_ADD(doorbell, io_uring){.flags = 0};
FIXTURE_VARIANT_ADD(doorbell, poll){.flags = SLUICE_CHANNEL_POLL};

FIXTURE_SETUP(doorbell)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
}

FIXTURE_TEARDOWN(doorbell)
{
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	sluice_arena_detach(self->a);
}

static bool readable(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, timeout_ms) == 1 && p.revents & POLLIN;
}

TEST_F(doorbell, rings_only_when_armed)
{
	struct sluice_channel *p = channel_new(self->a, "c", 4, SLUICE_CHANNEL_PRODUCE);
	struct sluice_channel *c =
		channel_join(self->a, "c", SLUICE_CHANNEL_CONSUME | variant->flags);
	struct sluice_channel_stats st = {.sz = sizeof(st)};
	int fd;

	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, c);
	fd = sluice_channel_pollfd(c);
	ASSERT_LE(0, fd);
	EXPECT_EQ(FD_CLOEXEC, fcntl(fd, F_GETFD) & FD_CLOEXEC);
	ASSERT_EQ(0, batch_send(p, 8, 1, 0));
	/* Not to be slept on: there is something. */
	ASSERT_EQ(1, sluice_channel_arm(c));
	ASSERT_EQ(0, batch_recv(c, NULL, 0));
	for (int i = 0; i < 100; i++) {
		ASSERT_EQ(0, sluice_channel_arm(c));
		ASSERT_FALSE(readable(fd, 0));
		ASSERT_EQ(0, batch_send(p, 8, 1, 0));
		ASSERT_TRUE(readable(fd, 20000));
		ASSERT_EQ(0, batch_recv(c, NULL, 0));
		ASSERT_EQ(-EAGAIN, batch_recv(c, NULL, 0));
	}
	/* Nobody waits: nobody is rung. */
	ASSERT_EQ(0, sluice_channel_stats(p, &st));
	EXPECT_EQ(100, st.doorbells);
	for (int i = 0; i < 10; i++) {
		ASSERT_EQ(0, batch_send(p, 8, 1, 0));
		ASSERT_EQ(0, batch_recv(c, NULL, 0));
	}
	ASSERT_EQ(0, sluice_channel_stats(p, &st));
	EXPECT_EQ(100, st.doorbells);
	EXPECT_LE(10, st.doorbells_suppressed);
	sluice_channel_close(p);
	sluice_channel_close(c);
}

TEST_F(doorbell, tells_a_producer_of_room)
{
	struct sluice_channel *p =
		channel_new(self->a, "c", 1, SLUICE_CHANNEL_PRODUCE | variant->flags);
	struct sluice_channel *c = channel_join(self->a, "c", SLUICE_CHANNEL_CONSUME);
	int fd;

	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, c);
	fd = sluice_channel_pollfd(p);
	ASSERT_LE(0, fd);
	EXPECT_EQ(1, sluice_channel_arm(p));
	for (int i = 0; i < 20; i++) {
		ASSERT_EQ(0, batch_send(p, 8, 1, 0));
		ASSERT_EQ(0, sluice_channel_arm(p));
		ASSERT_FALSE(readable(fd, 0));
		ASSERT_EQ(0, batch_recv(c, NULL, 0));
		ASSERT_TRUE(readable(fd, 20000));
	}
	sluice_channel_close(p);
	sluice_channel_close(c);
}

TEST_F(doorbell, tells_of_the_end)
{
	struct sluice_channel *p = channel_new(self->a, "c", 1, SLUICE_CHANNEL_PRODUCE);
	struct sluice_channel *c =
		channel_join(self->a, "c", SLUICE_CHANNEL_CONSUME | variant->flags);
	int fd;

	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, c);
	fd = sluice_channel_pollfd(c);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, sluice_channel_arm(c));
	sluice_channel_close(p);
	ASSERT_TRUE(readable(fd, 20000));
	EXPECT_EQ(-ENODATA, batch_recv(c, NULL, 0));
	EXPECT_EQ(1, sluice_channel_arm(c));
	sluice_channel_close(c);
}

/* Closing a ring makes the kernel interrupt its thread a moment later, without a signal. */
static int epoll_wait_one(int ep, struct epoll_event *ev)
{
	int n;

	do {
		n = epoll_wait(ep, ev, 1, 20000);
	} while (n < 0 && errno == EINTR);
	return n;
}

TEST_F(doorbell, one_epoll_for_many_channels)
{
	enum {
		N = 20,
		EACH = 50
	};
	struct sluice_channel *c[N];
	int ep = epoll_create1(EPOLL_CLOEXEC);
	uint64_t next[N] = {0};
	unsigned int ended = 0;
	char name[16];
	pid_t pid;

	ASSERT_LE(0, ep);
	for (uint32_t i = 0; i < N; i++) {
		struct epoll_event ev = {.events = EPOLLIN, .data.u32 = i};

		snprintf(name, sizeof(name), "c%u", i);
		c[i] = channel_new(self->a, name, 2, SLUICE_CHANNEL_CONSUME | variant->flags);
		ASSERT_NE(NULL, c[i]);
		ASSERT_EQ(0, epoll_ctl(ep, EPOLL_CTL_ADD, sluice_channel_pollfd(c[i]), &ev));
		ASSERT_EQ(0, sluice_channel_arm(c[i]));
	}
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *p[N];

		for (int i = 0; i < N; i++) {
			snprintf(name, sizeof(name), "c%d", i);
			p[i] = channel_join(a, name, SLUICE_CHANNEL_PRODUCE);
			CHECK(p[i]);
		}
		for (uint64_t n = 0; n < EACH; n++)
			for (int i = 0; i < N; i++)
				CHECK_OK(batch_send(p[i], 8, n, LONG_WAIT));
		for (int i = 0; i < N; i++)
			sluice_channel_close(p[i]);
		sluice_arena_detach(a);
	}
	while (ended < N) {
		struct epoll_event ev;
		uint64_t seed;
		uint32_t i;
		int ret;

		ASSERT_EQ(1, epoll_wait_one(ep, &ev));
		i = ev.data.u32;
		do {
			while (!(ret = batch_recv(c[i], &seed, 0)))
				ASSERT_EQ(next[i]++, seed);
			if (ret == -ENODATA)
				break;
			ASSERT_EQ(-EAGAIN, ret);
		} while ((ret = sluice_channel_arm(c[i])) == 1);
		if (ret == -ENODATA) {
			ASSERT_EQ(EACH, next[i]);
			epoll_ctl(ep, EPOLL_CTL_DEL, sluice_channel_pollfd(c[i]), NULL);
			sluice_channel_close(c[i]);
			ended++;
		} else {
			ASSERT_EQ(0, ret);
		}
	}
	EXPECT_EQ(0, child_wait(pid));
	close(ep);
}

TEST_F(doorbell, one_ring_for_many_channels)
{
	enum {
		N = 16,
		EACH = 50
	};
	struct sluice_channel *c[N];
	struct io_uring ring;
	uint64_t next[N] = {0};
	unsigned int ended = 0;
	char name[16];
	pid_t pid;
	int ret;

	ret = io_uring_queue_init(2 * N, &ring, 0);
	if (ret)
		SKIP(return, "io_uring is refused here: %s", strerror(-ret));
	for (unsigned int i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		c[i] = channel_new(self->a, name, 2, SLUICE_CHANNEL_CONSUME | variant->flags);
		ASSERT_NE(NULL, c[i]);
		ASSERT_EQ(0, sluice_channel_arm_ring(c[i], &ring, i));
	}
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *p[N];

		for (int i = 0; i < N; i++) {
			snprintf(name, sizeof(name), "c%d", i);
			p[i] = channel_join(a, name, SLUICE_CHANNEL_PRODUCE);
			CHECK(p[i]);
		}
		for (uint64_t n = 0; n < EACH; n++)
			for (int i = 0; i < N; i++)
				CHECK_OK(batch_send(p[i], 8, n, LONG_WAIT));
		for (int i = 0; i < N; i++)
			sluice_channel_close(p[i]);
		sluice_arena_detach(a);
	}
	while (ended < N) {
		struct __kernel_timespec ts = {.tv_sec = 20};
		struct io_uring_cqe *cqe;
		uint64_t seed;
		unsigned int i;

		ASSERT_LE(0, io_uring_submit(&ring));
		ASSERT_EQ(0, io_uring_wait_cqe_timeout(&ring, &cqe, &ts));
		i = (unsigned int)cqe->user_data;
		io_uring_cqe_seen(&ring, cqe);
		ASSERT_GT(N, i);
		do {
			while (!(ret = batch_recv(c[i], &seed, 0)))
				ASSERT_EQ(next[i]++, seed);
			if (ret == -ENODATA)
				break;
			ASSERT_EQ(-EAGAIN, ret);
		} while ((ret = sluice_channel_arm_ring(c[i], &ring, i)) == 1);
		if (ret == -ENODATA) {
			ASSERT_EQ(EACH, next[i]);
			ended++;
		} else {
			ASSERT_EQ(0, ret);
		}
	}
	EXPECT_EQ(0, child_wait(pid));
	io_uring_queue_exit(&ring);
	for (int i = 0; i < N; i++)
		sluice_channel_close(c[i]);
}

TEST_F(doorbell, full_ring_is_busy)
{
	struct sluice_channel *c =
		channel_new(self->a, "c", 2, SLUICE_CHANNEL_CONSUME | variant->flags);
	struct io_uring ring;
	int ret = io_uring_queue_init(1, &ring, 0);

	if (ret)
		SKIP(return, "io_uring is refused here: %s", strerror(-ret));
	ASSERT_NE(NULL, c);
	while (io_uring_get_sqe(&ring))
		;
	EXPECT_EQ(-EBUSY, sluice_channel_arm_ring(c, &ring, 0));
	io_uring_queue_exit(&ring);
	sluice_channel_close(c);
}

/* Make io_uring_setup() fail as the seccomp profiles of containers do. */
static void refuse_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = ARRAY_SIZE(code), .filter = code};
	struct io_uring ring;

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
	CHECK(io_uring_queue_init(1, &ring, 0) == -EPERM);
}

/* Two processes that sleep for each other at every batch. */
TEST_F(doorbell, works_where_io_uring_is_refused)
{
	enum {
		ROUNDS = 300
	};
	uint32_t flags = variant->flags | SLUICE_CHANNEL_NO_SPIN;
	pid_t pid, peer;

	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *there, *back;
		uint64_t seed;

		refuse_io_uring();
		there = channel_new(a, "there", 1, SLUICE_CHANNEL_PRODUCE | flags);
		back = channel_new(a, "back", 1, SLUICE_CHANNEL_CONSUME | flags);
		CHECK(there && back);
		CHILD(peer) {
			struct sluice_arena *b = arena_child(a);
			struct sluice_channel *in, *out;

			in = channel_join(b, "there", SLUICE_CHANNEL_CONSUME | flags);
			out = channel_join(b, "back", SLUICE_CHANNEL_PRODUCE | flags);
			CHECK(in && out);
			for (int i = 0; i < ROUNDS; i++) {
				CHECK_OK(batch_recv(in, &seed, LONG_WAIT));
				CHECK_OK(batch_send(out, 8, seed, LONG_WAIT));
			}
			sluice_arena_detach(b);
		}
		for (uint64_t i = 0; i < ROUNDS; i++) {
			CHECK_OK(batch_send(there, 8, i, LONG_WAIT));
			CHECK_OK(batch_recv(back, &seed, LONG_WAIT));
			CHECK(seed == i);
		}
		CHECK_OK(child_wait(peer));
		/* The pollable descriptor does not need io_uring either. */
		CHECK(sluice_channel_pollfd(back) >= 0);
		sluice_arena_detach(a);
	}
	EXPECT_EQ(0, child_wait(pid));
}

/* What is armed from an earlier sleep waits on a bell that is not rung any more. */
TEST_F(doorbell, blocking_works_after_the_descriptor_was_taken)
{
	struct sluice_channel *p = channel_new(self->a, "c", 4, SLUICE_CHANNEL_PRODUCE);
	struct gate ready;
	pid_t pid;

	ASSERT_NE(NULL, p);
	gate_init(&ready);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *c =
			channel_join(a, "c", SLUICE_CHANNEL_CONSUME | variant->flags);

		CHECK(c);
		CHECK(batch_recv(c, NULL, 10 * MSEC) == -ETIMEDOUT);
		CHECK(sluice_channel_pollfd(c) >= 0);
		gate_open(&ready);
		CHECK_OK(batch_recv(c, NULL, SLUICE_FOREVER));
		sluice_channel_close(c);
		sluice_arena_detach(a);
	}
	gate_pass(&ready);
	child_wait_asleep(pid);
	ASSERT_EQ(0, batch_send(p, 8, 1, LONG_WAIT));
	EXPECT_EQ(0, child_wait(pid));
	sluice_channel_close(p);
}

/* A sleeper is not woken by what is not for it, and does not miss what is. */
TEST_F(doorbell, no_wake_up_is_lost)
{
	enum {
		PAIRS = 3
	};
	unsigned int rounds = scaled(5000);
	uint32_t flags = variant->flags | SLUICE_CHANNEL_NO_SPIN;
	struct sluice_channel *keep[2 * PAIRS];
	pid_t pid[2 * PAIRS];
	char name[16];

	for (unsigned int i = 0; i < 2 * PAIRS; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		keep[i] = channel_new(self->a, name, 1, SLUICE_CHANNEL_PRODUCE);
		ASSERT_NE(NULL, keep[i]);
	}
	for (unsigned int i = 0; i < 2 * PAIRS; i++) {
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *in, *out;
			uint64_t seed;

			snprintf(name, sizeof(name), "c%u", i);
			in = channel_join(a, name, SLUICE_CHANNEL_CONSUME | flags);
			snprintf(name, sizeof(name), "c%u", i ^ 1);
			out = channel_join(a, name, SLUICE_CHANNEL_PRODUCE | flags);
			CHECK(in && out);
			for (unsigned int n = 0; n < rounds; n++) {
				if (i & 1)
					CHECK_OK(batch_send(out, 8, n, LONG_WAIT));
				CHECK_OK(batch_recv(in, &seed, LONG_WAIT));
				CHECK(seed == n);
				if (!(i & 1))
					CHECK_OK(batch_send(out, 8, n, LONG_WAIT));
			}
			sluice_channel_close(in);
			sluice_channel_close(out);
			sluice_arena_detach(a);
		}
	}
	for (unsigned int i = 0; i < 2 * PAIRS; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	for (unsigned int i = 0; i < 2 * PAIRS; i++)
		sluice_channel_close(keep[i]);
}

TEST_HARNESS_MAIN
