// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Peers: who they are, and that every death is told. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include "kselftest_harness.h"

FIXTURE(peer)
{
	int arena;
	int bell;
	struct sluice_ioc_peer_attach me;
};

FIXTURE_SETUP(peer)
{
	int dev = device_open();

	ASSERT_LE(0, dev);
	self->arena = arena_create(dev, 4096, 4096, 0);
	ASSERT_LE(0, self->arena);
	self->bell = peer_attach(self->arena, SLUICE_IOC_ROLE_PRODUCER, &self->me);
	ASSERT_LE(0, self->bell);
}

FIXTURE_TEARDOWN(peer)
{
}

static void do_exit(int bell, int code)
{
	_exit(code);
}

static void do_raise(int bell, int signal)
{
	raise(signal);
}

static void do_close(int bell, int pipe_fd)
{
	char c;

	close(bell);
	_exit((int)read(pipe_fd, &c, 1));
}

static void do_wait(int bell, int unused)
{
	pause();
}

static void do_exec(int bell, int keep)
{
	char *argv[] = {"sleep", "30", NULL};

	if (keep)
		fcntl(bell, F_SETFD, 0);
	execvp(argv[0], argv);
}

/* Dies and leaves behind a child that has all its descriptors. */
static void do_orphan(int bell, int unused)
{
	if (!fork()) {
		sleep(2);
		_exit(0);
	}
	raise(SIGKILL);
}

static void *exit_thread(void *unused)
{
	usleep(50000);
	_exit(7);
}

/* The first thread goes, then another one ends the process. */
static void do_thread(int bell, int unused)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, exit_thread, NULL))
		pthread_exit(NULL);
}

/* Gives its bell away and dies. */
static void do_send(int bell, int sock)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &bell, sizeof(int));
	_exit(sendmsg(sock, &msg, 0) == 1 ? 5 : 6);
}

/* True if the next record of @bell tells of this death. */
static bool hears(int bell, uint32_t peer, pid_t pid, uint32_t reason, uint32_t status)
{
	struct sluice_bell_record r;

	if (!bell_next(bell, &r))
		return false;
	if (r.type == SLUICE_BELL_PEER_DEAD && r.from_peer == peer && r.pid == (uint32_t)pid &&
	    SLUICE_DEAD_REASON(r.arg) == reason && SLUICE_DEAD_STATUS(r.arg) == status)
		return true;
	fprintf(stderr, "# record: type %u peer %u pid %u arg %llx\n", r.type, r.from_peer, r.pid,
		(unsigned long long)r.arg);
	return false;
}

TEST_F(peer, ids_are_never_reused)
{
	struct sluice_ioc_peer_attach args;
	uint32_t peer = self->me.peer, bell = self->me.bell;

	EXPECT_NE(0, peer);
	EXPECT_NE(0, bell);
	for (int i = 0; i < 50; i++) {
		int fd = peer_attach(self->arena, SLUICE_IOC_ROLE_CONSUMER, &args);

		ASSERT_LE(0, fd);
		EXPECT_EQ(FD_CLOEXEC, fcntl(fd, F_GETFD));
		EXPECT_LT(peer, args.peer);
		EXPECT_LT(bell, args.bell);
		peer = args.peer;
		bell = args.bell;
		close(fd);
	}
}

TEST_F(peer, exit_is_told)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid = peer_start(self->arena, &args, do_exit, 3);

	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, 3 << 8));
	EXPECT_TRUE(bell_silent(self->bell));
}

TEST_F(peer, kill_is_told)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid = peer_start(self->arena, &args, do_raise, SIGKILL);

	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, SIGKILL));
}

/* Not only told in the end: nothing says that it lives once it was waited for. */
TEST_F_TIMEOUT(peer, who_was_waited_for_is_dead, 240)
{
	void (*const ways[])(int, int) = {do_exit, do_raise, do_thread};
	struct sluice_ioc_peer_list list = {.size = sizeof(list)};
	struct pollfd p = {.fd = self->bell, .events = POLLIN};
	struct sluice_ioc_peer_attach args;
	struct sluice_ioc_arena_info info;
	struct sluice_bell_record r;

	ASSERT_EQ(0, fcntl(self->bell, F_SETFL, O_NONBLOCK));
	for (int i = 0; i < 300; i++) {
		pid_t pid = peer_start(self->arena, &args, ways[i % 3], SIGKILL);

		ASSERT_EQ(pid, waitpid(pid, NULL, 0));
		switch (i / 3 % 4) {
		case 0:
			ASSERT_EQ(0, ioctl(self->bell, SLUICE_IOC_PEER_LIST, &list));
			ASSERT_EQ(1, list.count);
			list.count = 0;
			break;
		case 1:
			ASSERT_EQ(0, arena_info(self->arena, &info));
			ASSERT_EQ(1, info.peers);
			break;
		case 2:
			ASSERT_EQ(1, poll(&p, 1, 0));
			break;
		}
		ASSERT_EQ(sizeof(r), read(self->bell, &r, sizeof(r)));
		ASSERT_EQ(SLUICE_BELL_PEER_DEAD, r.type);
		ASSERT_EQ(args.peer, r.from_peer);
	}
}

TEST_F(peer, reaped_by_nobody)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid;

	signal(SIGCHLD, SIG_IGN);
	pid = peer_start(self->arena, &args, do_exit, 0);
	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, 0));
}

TEST_F(peer, closing_is_told)
{
	struct sluice_ioc_peer_attach args;
	int hold[2];
	pid_t pid;

	ASSERT_EQ(0, pipe(hold));
	pid = peer_start(self->arena, &args, do_close, hold[0]);
	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_LEFT, 0));
	EXPECT_EQ(1, write(hold[1], "", 1));
	EXPECT_TRUE(bell_silent(self->bell));
}

TEST_F(peer, exec_is_told)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid = peer_start(self->arena, &args, do_exec, 0);

	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXEC, 0));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	EXPECT_TRUE(bell_silent(self->bell));
}

TEST_F(peer, exec_that_keeps_the_descriptor_is_told)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid = peer_start(self->arena, &args, do_exec, 1);

	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXEC, 0));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	EXPECT_TRUE(bell_silent(self->bell));
}

TEST_F(peer, child_does_not_keep_it_alive)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid = peer_start(self->arena, &args, do_orphan, 0);

	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, SIGKILL));
	/* The child's end is nobody's death. */
	sleep(3);
	EXPECT_TRUE(bell_silent(self->bell));
}

TEST_F(peer, last_thread_counts)
{
	struct sluice_ioc_peer_attach args;
	pid_t pid = peer_start(self->arena, &args, do_thread, 0);

	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, 7 << 8));
}

TEST_F(peer, descriptor_elsewhere_does_not_keep_it_alive)
{
	struct sluice_ioc_peer_attach args;
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	struct sluice_bell_record r;
	struct pollfd p;
	int pair[2], fd;
	pid_t pid;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	pid = peer_start(self->arena, &args, do_send, pair[1]);
	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, 5 << 8));
	ASSERT_EQ(1, recvmsg(pair[0], &msg, 0));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));

	/* What is left of it is good for nothing. */
	p = (struct pollfd){.fd = fd, .events = POLLIN};
	EXPECT_EQ(1, poll(&p, 1, 0));
	EXPECT_TRUE(p.revents & POLLHUP);
	EXPECT_EQ(0, read(fd, &r, sizeof(r)));
	EXPECT_EQ(-1, bell_ring(fd, self->me.bell, SLUICE_BELL_DOORBELL, 0));
	EXPECT_EQ(ESHUTDOWN, errno);
	EXPECT_EQ(-1, bell_ring(self->bell, args.bell, SLUICE_BELL_DOORBELL, 0));
	EXPECT_EQ(ESRCH, errno);
	close(fd);
	EXPECT_TRUE(bell_silent(self->bell));
}

TEST_F(peer, every_bell_hears)
{
	struct sluice_ioc_peer_attach args, other;
	int more = bell_open(self->bell, NULL);
	int third = peer_attach(self->arena, SLUICE_IOC_ROLE_CONSUMER, &other);
	pid_t pid;

	ASSERT_LE(0, more);
	ASSERT_LE(0, third);
	pid = peer_start(self->arena, &args, do_raise, SIGKILL);
	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, SIGKILL));
	EXPECT_TRUE(hears(more, args.peer, pid, SLUICE_DEAD_EXIT, SIGKILL));
	EXPECT_TRUE(hears(third, args.peer, pid, SLUICE_DEAD_EXIT, SIGKILL));
}

TEST_F(peer, a_full_queue_hides_no_death)
{
	struct sluice_ioc_peer_attach args;
	struct sluice_bell_record r;
	bool overflow = false;
	int dead = 0, rung = 0;
	pid_t pid;

	for (int i = 0; i < 1000; i++)
		ASSERT_EQ(0, bell_ring(self->bell, self->me.bell, SLUICE_BELL_DOORBELL, i));
	pid = peer_start(self->arena, &args, do_exit, 0);
	waitpid(pid, NULL, 0);
	while (!dead && bell_next(self->bell, &r))
		dead += r.type == SLUICE_BELL_PEER_DEAD && r.from_peer == args.peer;
	EXPECT_EQ(1, dead);
	while (!bell_silent(self->bell) && bell_next(self->bell, &r)) {
		overflow |= r.type == SLUICE_BELL_OVERFLOW;
		rung += r.type == SLUICE_BELL_DOORBELL;
	}
	EXPECT_TRUE(overflow);
	EXPECT_LE(1, rung);
}

TEST_F_TIMEOUT(peer, more_deaths_than_the_log_holds, 120)
{
	struct sluice_bell_record r;
	int dead = 0, overflow = 0;
	uint32_t last = 0;

	for (int i = 0; i < 300; i++) {
		int fd = peer_attach(self->arena, SLUICE_IOC_ROLE_CONSUMER, NULL);

		ASSERT_LE(0, fd);
		close(fd);
	}
	while (!bell_silent(self->bell) && bell_next(self->bell, &r)) {
		overflow += r.type == SLUICE_BELL_OVERFLOW;
		if (r.type != SLUICE_BELL_PEER_DEAD)
			continue;
		EXPECT_LT(last, r.from_peer);
		last = r.from_peer;
		dead++;
	}
	EXPECT_EQ(256, dead);
	EXPECT_EQ(1, overflow);
}

TEST_F(peer, list)
{
	struct sluice_ioc_peer_info infos[4];
	struct sluice_ioc_peer_list list = {
		.size = sizeof(list), .count = 4, .peers = (uintptr_t)infos};
	struct sluice_ioc_peer_attach args;
	struct sluice_ioc_arena_info info;
	pid_t pid = peer_start(self->arena, &args, do_wait, 0);

	ASSERT_EQ(0, ioctl(self->arena, SLUICE_IOC_PEER_LIST, &list));
	ASSERT_EQ(2, list.count);
	EXPECT_EQ(self->me.peer, infos[0].peer);
	EXPECT_EQ(getpid(), (pid_t)infos[0].pid);
	EXPECT_EQ(SLUICE_IOC_ROLE_PRODUCER, infos[0].role);
	EXPECT_EQ(args.peer, infos[1].peer);
	EXPECT_EQ(pid, (pid_t)infos[1].pid);
	EXPECT_EQ(args.bell, infos[1].bell);
	EXPECT_EQ(SLUICE_IOC_ROLE_CONSUMER, infos[1].role);
	ASSERT_EQ(0, arena_info(self->arena, &info));
	EXPECT_EQ(2, info.peers);

	list.count = 0;
	ASSERT_EQ(0, ioctl(self->bell, SLUICE_IOC_PEER_LIST, &list));
	EXPECT_EQ(2, list.count);
	list.count = 1;
	list.peers = 8;
	EXPECT_EQ(-1, ioctl(self->bell, SLUICE_IOC_PEER_LIST, &list));
	EXPECT_EQ(EFAULT, errno);

	kill(pid, SIGKILL);
	EXPECT_TRUE(hears(self->bell, args.peer, pid, SLUICE_DEAD_EXIT, SIGKILL));
	list.count = 0;
	ASSERT_EQ(0, ioctl(self->arena, SLUICE_IOC_PEER_LIST, &list));
	EXPECT_EQ(1, list.count);
}

TEST_F(peer, fork_does_not_attach)
{
	struct sluice_ioc_arena_info info;
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (bell_open(self->bell, NULL) != -1 || errno != EPERM)
			_exit(1);
		_exit(arena_info(self->arena, &info) || info.peers != 1);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_TRUE(bell_silent(self->bell));
	ASSERT_EQ(0, arena_info(self->arena, &info));
	EXPECT_EQ(1, info.peers);
}

TEST_F(peer, pids_are_those_of_the_reader)
{
	struct sluice_ioc_peer_attach args;
	struct sluice_bell_record r;
	int status, go[2];
	pid_t pid;

	ASSERT_EQ(0, pipe(go));
	ASSERT_EQ(0, unshare(CLONE_NEWPID));
	pid = fork();
	if (!pid) {
		/* Process 1 of its namespace, from which we cannot be seen. */
		int bell = peer_attach(self->arena, SLUICE_IOC_ROLE_CONSUMER, &args);

		if (bell_ring(bell, self->me.bell, SLUICE_BELL_DOORBELL, args.bell))
			_exit(1);
		if (!bell_next(bell, &r) || r.from_peer != self->me.peer)
			_exit(2);
		_exit(r.pid == 0 ? 0 : 3);
	}
	ASSERT_TRUE(bell_next(self->bell, &r));
	EXPECT_EQ(pid, (pid_t)r.pid);
	EXPECT_EQ(0, bell_ring(self->bell, (uint32_t)r.arg, SLUICE_BELL_DOORBELL, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

TEST_HARNESS_MAIN
