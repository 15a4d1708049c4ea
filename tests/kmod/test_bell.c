// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Bells: what is written to one is read from the other, by every way of waiting. */
#include "common.h"

#include <liburing.h>
#include <sys/epoll.h>

#include "kselftest_harness.h"

#ifndef IORING_POLL_ADD_MULTI
#define IORING_POLL_ADD_MULTI (1U << 0)
#endif
#define OP_READ_MULTISHOT 49 /* IORING_OP_READ_MULTISHOT, which older headers lack */

FIXTURE(bell)
{
	int arena;
	int a, b;
	struct sluice_ioc_peer_attach pa, pb;
};

FIXTURE_SETUP(bell)
{
	int dev = device_open();

	ASSERT_LE(0, dev);
	self->arena = arena_create(dev, 4096, 4096, 0);
	ASSERT_LE(0, self->arena);
	self->a = peer_attach(self->arena, SLUICE_IOC_ROLE_PRODUCER, &self->pa);
	self->b = peer_attach(self->arena, SLUICE_IOC_ROLE_CONSUMER, &self->pb);
	ASSERT_LE(0, self->a);
	ASSERT_LE(0, self->b);
}

FIXTURE_TEARDOWN(bell)
{
}

TEST_F(bell, sender_is_stamped)
{
	struct sluice_bell_record r;

	ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, 0x123456789abcULL));
	ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_COMPLETION, 2));
	ASSERT_TRUE(bell_next(self->b, &r));
	EXPECT_EQ(SLUICE_BELL_DOORBELL, r.type);
	EXPECT_EQ(self->pa.peer, r.from_peer);
	EXPECT_EQ(self->pa.bell, r.from_bell);
	EXPECT_EQ(getpid(), (pid_t)r.pid);
	EXPECT_EQ(0x123456789abcULL, r.arg);
	ASSERT_TRUE(bell_next(self->b, &r));
	EXPECT_EQ(SLUICE_BELL_COMPLETION, r.type);
	EXPECT_EQ(2, r.arg);
	EXPECT_TRUE(bell_silent(self->b));
	EXPECT_TRUE(bell_silent(self->a));
}

TEST_F(bell, bells_of_a_peer_are_apart)
{
	struct sluice_bell_record r;
	uint32_t id;
	int more = bell_open(self->b, &id);

	ASSERT_LE(0, more);
	EXPECT_LT(self->pb.bell, id);
	ASSERT_EQ(0, bell_ring(self->a, id, SLUICE_BELL_DOORBELL, 5));
	EXPECT_TRUE(bell_silent(self->b));
	ASSERT_TRUE(bell_next(more, &r));
	EXPECT_EQ(5, r.arg);
	/* The peer lives as long as one of them is open. */
	close(self->b);
	EXPECT_TRUE(bell_silent(self->a));
	close(more);
	ASSERT_TRUE(bell_next(self->a, &r));
	EXPECT_EQ(SLUICE_BELL_PEER_DEAD, r.type);
	EXPECT_EQ(self->pb.peer, r.from_peer);
}

TEST_F(bell, what_cannot_be_sent)
{
	struct sluice_bell_message m[2] = {
		{.to_bell = self->pb.bell, .type = SLUICE_BELL_DOORBELL, .arg = 1},
		{.to_bell = 4711, .type = SLUICE_BELL_DOORBELL},
	};
	struct sluice_bell_record r;

	EXPECT_EQ(-1, bell_ring(self->a, 0, SLUICE_BELL_DOORBELL, 0));
	EXPECT_EQ(ESRCH, errno);
	EXPECT_EQ(-1, bell_ring(self->a, self->pb.bell, SLUICE_BELL_PEER_DEAD, 0));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, bell_ring(self->a, self->pb.bell, SLUICE_BELL_OVERFLOW, 0));
	EXPECT_EQ(-1, bell_ring(self->a, self->pb.bell, 0, 0));
	EXPECT_EQ(-1, write(self->a, m, sizeof(m[0]) - 1));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, write(self->a, nowhere(), sizeof(m[0])));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_TRUE(bell_silent(self->b));
	/* Whole messages up to the one that fails. */
	EXPECT_EQ((ssize_t)sizeof(m[0]), write(self->a, m, sizeof(m)));
	ASSERT_TRUE(bell_next(self->b, &r));
	EXPECT_EQ(1, r.arg);
	EXPECT_TRUE(bell_silent(self->b));
	EXPECT_EQ(-1, read(self->b, &r, sizeof(r) - 1));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, lseek(self->b, 0, SEEK_SET));
}

TEST_F(bell, reads_many_at_once)
{
	struct sluice_bell_record r[20];
	ssize_t n, got = 0;

	for (int i = 0; i < 20; i++)
		ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, i));
	while (got < 20) {
		n = read(self->b, r, sizeof(r));
		ASSERT_LT(0, n);
		ASSERT_EQ(0, n % (ssize_t)sizeof(r[0]));
		for (size_t i = 0; i < n / sizeof(r[0]); i++)
			EXPECT_EQ((uint64_t)got++, r[i].arg);
	}
	EXPECT_TRUE(bell_silent(self->b));
}

TEST_F(bell, a_bad_buffer_loses_no_wake_up)
{
	struct sluice_bell_record r;

	ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, 1));
	EXPECT_EQ(-1, read(self->b, nowhere(), sizeof(r)));
	EXPECT_EQ(EFAULT, errno);
	ASSERT_TRUE(bell_next(self->b, &r));
	EXPECT_EQ(SLUICE_BELL_OVERFLOW, r.type);
}

TEST_F(bell, nonblocking)
{
	struct sluice_bell_record r;

	ASSERT_EQ(0, fcntl(self->b, F_SETFL, O_NONBLOCK));
	EXPECT_EQ(-1, read(self->b, &r, sizeof(r)));
	EXPECT_EQ(EAGAIN, errno);
}

TEST_F(bell, epoll_edges)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
	int ep = epoll_create1(0);

	ASSERT_EQ(0, epoll_ctl(ep, EPOLL_CTL_ADD, self->b, &ev));
	EXPECT_EQ(0, epoll_wait(ep, &ev, 1, 0));
	for (int i = 0; i < 200; i++) {
		ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, i));
		/* An edge for each, also when the queue is full. */
		ASSERT_EQ(1, epoll_wait(ep, &ev, 1, SOON_MS));
	}
}

/* A child that answers each record, until it is told to stop. */
static void do_echo(int bell, int to)
{
	struct sluice_bell_record r;

	while (read(bell, &r, sizeof(r)) == sizeof(r)) {
		if (r.type == SLUICE_BELL_COMPLETION)
			_exit(0);
		if (r.type == SLUICE_BELL_DOORBELL &&
		    bell_ring(bell, to, SLUICE_BELL_DOORBELL, r.arg))
			_exit(1);
	}
	_exit(2);
}

TEST_F_TIMEOUT(bell, no_wake_up_is_lost, 120)
{
	struct sluice_ioc_peer_attach args;
	struct sluice_bell_record r;
	pid_t pid = peer_start(self->arena, &args, do_echo, (int)self->pa.bell);
	int status;

	ASSERT_LT(0, pid);
	for (int i = 0; i < 5000; i++) {
		ASSERT_EQ(0, bell_ring(self->a, args.bell, SLUICE_BELL_DOORBELL, i));
		ASSERT_EQ((ssize_t)sizeof(r), read(self->a, &r, sizeof(r)));
		ASSERT_EQ(SLUICE_BELL_DOORBELL, r.type);
		ASSERT_EQ((uint64_t)i, r.arg);
	}
	ASSERT_EQ(0, bell_ring(self->a, args.bell, SLUICE_BELL_COMPLETION, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* The next completion's result, or a negative errno. */
static int ring_next(struct io_uring *ring, unsigned int *flags)
{
	struct __kernel_timespec ts = {.tv_sec = SOON_MS / 1000};
	struct io_uring_cqe *cqe;
	int err = io_uring_wait_cqe_timeout(ring, &cqe, &ts);

	if (err)
		return err;
	err = cqe->res;
	if (flags)
		*flags = cqe->flags;
	io_uring_cqe_seen(ring, cqe);
	return err;
}

TEST_F(bell, io_uring_read)
{
	struct io_uring ring;
	struct sluice_bell_record r = {0};

	ASSERT_EQ(0, io_uring_queue_init(4, &ring, 0));
	io_uring_prep_read(io_uring_get_sqe(&ring), self->b, &r, sizeof(r), 0);
	ASSERT_EQ(1, io_uring_submit(&ring));
	ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, 77));
	EXPECT_EQ((int)sizeof(r), ring_next(&ring, NULL));
	EXPECT_EQ(77, r.arg);
}

TEST_F(bell, io_uring_multishot_poll)
{
	struct io_uring ring;
	unsigned int flags;
	struct sluice_bell_record r;

	ASSERT_EQ(0, io_uring_queue_init(4, &ring, 0));
	io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), self->b, POLLIN);
	ASSERT_EQ(1, io_uring_submit(&ring));
	for (int i = 0; i < 10; i++) {
		ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, i));
		EXPECT_TRUE(ring_next(&ring, &flags) & POLLIN);
		EXPECT_TRUE(flags & IORING_CQE_F_MORE);
		ASSERT_EQ((ssize_t)sizeof(r), read(self->b, &r, sizeof(r)));
	}
}

TEST_F(bell, io_uring_read_multishot)
{
	struct io_uring ring;
	struct io_uring_probe *probe = io_uring_get_probe();
	struct sluice_bell_record bufs[8];
	struct io_uring_sqe *sqe;
	unsigned int flags;

	if (!probe || probe->last_op < OP_READ_MULTISHOT)
		SKIP(return, "this kernel has no IORING_OP_READ_MULTISHOT");
	ASSERT_EQ(0, io_uring_queue_init(8, &ring, 0));
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_provide_buffers(sqe, bufs, sizeof(bufs[0]), 8, 1, 0);
	ASSERT_EQ(1, io_uring_submit(&ring));
	ASSERT_LE(0, ring_next(&ring, NULL));
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_rw(OP_READ_MULTISHOT, sqe, self->b, NULL, 0, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = 1;
	ASSERT_EQ(1, io_uring_submit(&ring));
	for (unsigned int i = 0; i < 4; i++) {
		ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, 100 + i));
		ASSERT_EQ((int)sizeof(bufs[0]), ring_next(&ring, &flags));
		EXPECT_TRUE(flags & IORING_CQE_F_MORE);
		EXPECT_EQ(100 + i, bufs[flags >> IORING_CQE_BUFFER_SHIFT].arg);
	}
}

static void do_uring_wait(int bell, int unused)
{
	struct io_uring ring;
	struct sluice_bell_record r;

	if (io_uring_queue_init(4, &ring, 0))
		_exit(1);
	io_uring_prep_read(io_uring_get_sqe(&ring), bell, &r, sizeof(r), 0);
	io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), bell, POLLIN);
	io_uring_submit(&ring);
	pause();
}

TEST_F(bell, pending_requests_do_not_hide_a_death)
{
	struct sluice_ioc_peer_attach args;
	struct sluice_bell_record r;
	pid_t pid = peer_start(self->arena, &args, do_uring_wait, 0);

	ASSERT_LT(0, pid);
	usleep(300000);
	kill(pid, SIGKILL);
	ASSERT_TRUE(bell_next(self->a, &r));
	EXPECT_EQ(SLUICE_BELL_PEER_DEAD, r.type);
	EXPECT_EQ(args.peer, r.from_peer);
}

TEST_F(bell, fdinfo)
{
	static const char *const fields[] = {"arena:\t",      "control_bytes:\t", "data_bytes:\t",
					     "huge_bytes:\t", "node:\t",	  "peer:\t",
					     "pid:\t",	      "bell:\t"};
	char path[64], text[1024];

	ASSERT_EQ(0, bell_ring(self->a, self->pb.bell, SLUICE_BELL_DOORBELL, 1));
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->b);
	ASSERT_TRUE(read_text(path, text, sizeof(text)));
	for (unsigned int i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		EXPECT_NE(NULL, strstr(text, fields[i]))
		{
			TH_LOG("no %s in: %s", fields[i], text);
		}
	}
	EXPECT_NE(NULL, strstr(text, "label:\ttest\n"));
	EXPECT_NE(NULL, strstr(text, "role:\tconsumer\n"));
	EXPECT_NE(NULL, strstr(text, "peers:\t2\n"));
	EXPECT_NE(NULL, strstr(text, "records:\t1\n"));
	EXPECT_NE(NULL, strstr(text, "dead:\t0\n"));
}

TEST_HARNESS_MAIN
