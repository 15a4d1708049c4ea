// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Limits and rights, as users meet them who are neither root nor friends. */
#include "common.h"

#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include "kselftest_harness.h"

#define NOBODY 65534
#define GROUP  4242

FIXTURE(limits)
{
	int dev;
};

FIXTURE_SETUP(limits)
{
	self->dev = device_open();
	ASSERT_LE(0, self->dev);
}

FIXTURE_TEARDOWN(limits)
{
	write_text(PARAMETER("max_arena_bytes"), "0");
	write_text(PARAMETER("max_total_bytes"), "0");
	write_text(PARAMETER("max_user_bytes"), "0");
	write_text(PARAMETER("max_user_arenas"), "256");
}

/* Runs @body as another user; true if it returned 0. */
static bool as_user(uid_t uid, gid_t gid, int (*body)(int dev), int dev)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		if (setgroups(0, NULL) || setgid(gid) || setuid(uid))
			_exit(100);
		_exit(body(dev));
	}
	if (waitpid(pid, &status, 0) != pid)
		return false;
	if (status)
		fprintf(stderr, "# the user's part ended with status %#x\n", status);
	return !status;
}

static int opens(int unused)
{
	return device_open() < 0;
}

static int opens_not(int unused)
{
	return device_open() >= 0 || errno != EACCES;
}

TEST_F(limits, only_the_group_opens_the_device)
{
	struct stat st;

	ASSERT_EQ(0, stat("/dev/sluice", &st));
	EXPECT_EQ(0660, st.st_mode & 07777);
	EXPECT_TRUE(as_user(NOBODY, NOBODY, opens_not, 0));
	/* What the udev rule does. */
	ASSERT_EQ(0, chown("/dev/sluice", 0, GROUP));
	EXPECT_TRUE(as_user(NOBODY, GROUP, opens, 0));
	EXPECT_TRUE(as_user(NOBODY, NOBODY, opens_not, 0));
}

TEST_F(limits, largest_arena)
{
	ASSERT_EQ(0, write_text(PARAMETER("max_arena_bytes"), "1048576"));
	EXPECT_EQ(-1, arena_create(self->dev, 4096, MIB, 0));
	EXPECT_EQ(EFBIG, errno);
	EXPECT_LE(0, arena_create(self->dev, 4096, MIB - 4096, 0));
}

TEST_F(limits, total)
{
	int fd;

	ASSERT_EQ(0, write_text(PARAMETER("max_total_bytes"), "4194304"));
	fd = arena_create(self->dev, 4096, 3 * MIB, 0);
	EXPECT_LE(0, fd);
	EXPECT_EQ(-1, arena_create(self->dev, 4096, MIB, 0));
	EXPECT_EQ(ENOSPC, errno);
	close(fd);
	EXPECT_LE(0, arena_create(self->dev, 4096, MIB, 0));
}

static int three_arenas(int dev)
{
	int fd = -1;

	for (int i = 0; i < 3; i++) {
		fd = arena_create(dev, 4096, 4096, 0);
		if (fd < 0)
			return 1;
	}
	if (arena_create(dev, 4096, 4096, 0) >= 0 || errno != EDQUOT)
		return 2;
	/* What is given back can be had again. */
	close(fd);
	return arena_create(dev, 4096, 4096, 0) < 0;
}

static int two_mib(int dev)
{
	int fd = arena_create(dev, 4096, MIB, 0);

	if (fd < 0)
		return 1;
	if (arena_create(dev, 4096, MIB, 0) >= 0 || errno != EDQUOT)
		return 2;
	close(fd);
	return arena_create(dev, 4096, 2 * MIB - 4096, 0) < 0;
}

TEST_F(limits, arenas_of_a_user)
{
	ASSERT_EQ(0, write_text(PARAMETER("max_user_arenas"), "3"));
	EXPECT_TRUE(as_user(NOBODY, NOBODY, three_arenas, self->dev));
	/* The dead left nothing, and root has CAP_IPC_LOCK. */
	EXPECT_TRUE(as_user(NOBODY, NOBODY, three_arenas, self->dev));
	for (int i = 0; i < 5; i++)
		EXPECT_LE(0, arena_create(self->dev, 4096, 4096, 0));
	EXPECT_TRUE(as_user(NOBODY - 1, NOBODY, three_arenas, self->dev));
}

TEST_F(limits, bytes_of_a_user)
{
	ASSERT_EQ(0, write_text(PARAMETER("max_user_bytes"), "2097152"));
	EXPECT_TRUE(as_user(NOBODY, NOBODY, two_mib, self->dev));
	EXPECT_LE(0, arena_create(self->dev, 4096, 4 * MIB, 0));
}

TEST_F(limits, too_much_is_refused_at_create)
{
	struct sysinfo si;

	ASSERT_EQ(0, sysinfo(&si));
	ASSERT_EQ(0, write_text(PARAMETER("max_total_bytes"), "1099511627776"));
	EXPECT_EQ(-1, arena_create(self->dev, 4096, (uint64_t)si.totalram * si.mem_unit, 0));
	EXPECT_EQ(ENOMEM, errno);
}

TEST_F(limits, refusals_are_logged)
{
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	char line[1024], want[64];
	bool found = false;
	ssize_t n;

	ASSERT_LE(0, log);
	lseek(log, 0, SEEK_END);
	ASSERT_EQ(0, write_text(PARAMETER("max_arena_bytes"), "1048576"));
	EXPECT_EQ(-1, arena_create(self->dev, 4096, MIB, 0));
	snprintf(want, sizeof(want), "[%d] asked for 1052672, max_arena_bytes allows 1048576",
		 getpid());
	while ((n = read(log, line, sizeof(line) - 1)) > 0) {
		line[n] = 0;
		found |= strstr(line, want) != NULL;
	}
	EXPECT_TRUE(found);
}

#define CGROUP "/sys/fs/cgroup/sluice-test"

TEST_F(limits, memory_is_charged_to_the_creator)
{
	char text[64];
	int fd;

	write_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	ASSERT_TRUE(!mkdir(CGROUP, 0755) || errno == EEXIST);
	if (access(CGROUP "/memory.max", W_OK))
		SKIP(return, "this kernel's memory controller is not to be had under cgroup2");
	ASSERT_EQ(0, write_text(CGROUP "/memory.max", "33554432"));
	ASSERT_EQ(0, write_text(CGROUP "/cgroup.procs", "0"));

	fd = arena_create(self->dev, 4096, 16 * MIB, SLUICE_IOC_HUGE_PREFERRED);
	ASSERT_LE(0, fd);
	ASSERT_TRUE(read_text(CGROUP "/memory.current", text, sizeof(text)));
	EXPECT_LE(16 * MIB, strtoull(text, NULL, 10));

	/* Too much for the group is an errno, not the end of a process. */
	EXPECT_EQ(-1, arena_create(self->dev, 4096, 64 * MIB, SLUICE_IOC_HUGE_PREFERRED));
	EXPECT_EQ(ENOMEM, errno);
	ASSERT_TRUE(read_text(CGROUP "/memory.events", text, sizeof(text)));
	close(fd);
	EXPECT_LE(0, arena_create(self->dev, 4096, 16 * MIB, 0));
	write_text("/sys/fs/cgroup/cgroup.procs", "0");
}

/* ------------------------------------------------------------------ other users */

#define ALICE 60001
#define BOB   60002

/* Has an arena with a peer of two bells, says so, and hears nothing until all is done. */
static int alice(int dev, int ready, int done)
{
	int arena = arena_create(dev, 4096, MIB, 0);
	int bell = peer_attach(arena, SLUICE_IOC_ROLE_PRODUCER, NULL);
	int second = bell_open(bell, NULL);
	int fds[] = {arena, bell, second};
	char c;

	if (second < 0 || write(ready, fds, sizeof(fds)) != sizeof(fds) || read(done, &c, 1))
		return 1;
	return bell_silent(bell) && bell_silent(second) ? 0 : 2;
}

/* Is in the group as well, and tries to get at what is Alice's. */
static int bob(int dev, pid_t pid, const int *fds)
{
	int arena = arena_create(dev, 4096, MIB, 0), bell;
	struct sluice_ioc_peer_list list = {.size = sizeof(list)};
	struct sluice_ioc_peer_attach me;
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	char path[64];

	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fds[i]);
		if (open(path, O_RDWR) >= 0 || errno != EACCES)
			return 10;
		snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fds[i]);
		if (open(path, O_RDONLY) >= 0 || errno != EACCES)
			return 11;
		if (syscall(SYS_pidfd_getfd, pidfd, fds[i], 0) >= 0 || errno != EPERM)
			return 12;
	}
	bell = peer_attach(arena, SLUICE_IOC_ROLE_PRODUCER, &me);
	if (bell < 0 || ioctl(arena, SLUICE_IOC_PEER_LIST, &list) || list.count != 1)
		return 13;
	/* Numbers of bells mean the arena's own: none but the first is there, and that one is ours. */
	for (uint32_t to = 0; to < 100; to++) {
		if (to != me.bell &&
		    (!bell_ring(bell, to, SLUICE_BELL_DOORBELL, 0) || errno != ESRCH))
			return 14;
	}
	return bell_silent(bell) ? 0 : 15;
}

TEST_F(limits, others_cannot_reach_it)
{
	int ready[2], done[2], fds[3], status;
	pid_t pids[2];

	ASSERT_EQ(0, pipe(ready));
	ASSERT_EQ(0, pipe(done));
	pids[0] = fork();
	if (!pids[0]) {
		close(done[1]);
		if (setgroups(0, NULL) || setgid(GROUP) || setuid(ALICE))
			_exit(100);
		_exit(alice(self->dev, ready[1], done[0]));
	}
	ASSERT_EQ(sizeof(fds), read(ready[0], fds, sizeof(fds)));
	pids[1] = fork();
	if (!pids[1]) {
		close(done[1]);
		if (setgroups(0, NULL) || setgid(GROUP) || setuid(BOB))
			_exit(100);
		_exit(bob(self->dev, pids[0], fds));
	}
	for (int i = 1; i >= 0; i--) {
		ASSERT_EQ(pids[i], waitpid(pids[i], &status, 0));
		EXPECT_EQ(0, status)
		TH_LOG("%s ended with status %#x", i ? "Bob" : "Alice", status);
		if (i)
			close(done[1]);
	}
}

/* User ids that a user was given for user namespaces give no account of their own. */
TEST_F(limits, user_namespaces_have_no_limits_of_their_own)
{
	int ready[2], go[2], status;
	char path[64];
	pid_t pid;

	ASSERT_EQ(0, write_text(PARAMETER("max_user_arenas"), "3"));
	ASSERT_EQ(0, pipe(ready));
	ASSERT_EQ(0, pipe(go));
	pid = fork();
	if (!pid) {
		char c;

		if (setgroups(0, NULL) || setgid(GROUP) || setuid(ALICE) ||
		    prctl(PR_SET_DUMPABLE, 1))
			_exit(100);
		if (unshare(CLONE_NEWUSER) || write(ready[1], "", 1) != 1 ||
		    read(go[0], &c, 1) != 1)
			_exit(101);
		/* One account, whoever we are. */
		for (int i = 0; i < 3; i++) {
			if (arena_create(self->dev, 4096, 4096, 0) < 0 || setresuid(i + 1, 0, 0))
				_exit(102 + i);
		}
		_exit(arena_create(self->dev, 4096, 4096, 0) >= 0 || errno != EDQUOT);
	}
	close(ready[1]);
	ASSERT_EQ(1, read(ready[0], path, 1));
	snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	ASSERT_EQ(0, write_text(path, "0 60001 1\n1 100000 10\n"));
	ASSERT_EQ(1, write(go[1], "", 1));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status)
	TH_LOG("status %#x", status);
}

/* ------------------------------------------------------------------ small objects */

#define OBJECTS 3000

enum {
	BELLS,
	PEERS,
	HANDLES,
	MAPPINGS,
	ARENAS,
	KINDS
};

/* As many small things of one kind as there may be; returns how many. */
static int make_objects(int dev, int kind)
{
	int arena = arena_create(dev, 4096, 4096, 0), bell = -1, n;

	for (n = 0; n < OBJECTS; n++) {
		int fd = -1;

		switch (kind) {
		case BELLS:
			if (n % 1024 == 0)
				fd = bell = peer_attach(arena, SLUICE_IOC_ROLE_CONSUMER, NULL);
			else
				fd = bell_open(bell, NULL);
			break;
		case PEERS:
			fd = peer_attach(arena, SLUICE_IOC_ROLE_CONSUMER, NULL);
			break;
		case HANDLES:
			fd = ioctl(arena, SLUICE_IOC_ARENA_RESTRICT);
			break;
		case MAPPINGS:
			/* Each other one, or they would be one. */
			fd = arena_map(arena, 0, 4096, n % 2 ? PROT_READ : PROT_WRITE) ==
			     MAP_FAILED;
			fd = -fd;
			break;
		case ARENAS:
			fd = arena_create(dev, 4096, 4096, 0);
			break;
		}
		if (fd < 0)
			break;
	}
	return n;
}

static uint64_t kernel_bytes(void)
{
	return (meminfo_kib("SUnreclaim:") + meminfo_kib("VmallocUsed:") +
		meminfo_kib("SReclaimable:") + meminfo_kib("PageTables:") + meminfo_kib("\nShmem:"))
	       << 10;
}

/* What they cost is counted against the memory of whoever makes them. */
TEST_F_TIMEOUT(limits, small_objects_are_charged, 300)
{
	static const char *const names[] = {"bells", "peers", "handles", "mappings", "arenas"};
	const struct rlimit many = {2 * OBJECTS, 2 * OBJECTS};
	char text[64], group[64], file[96];
	int pipes[2], hold[2];

	if (!access("/sys/kernel/debug/kmemleak", F_OK))
		SKIP(return, "kmemleak takes notes of every object, which nobody is charged for");
	write_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &many));
	ASSERT_EQ(0, write_text(PARAMETER("max_user_arenas"), "10000"));
	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t used, charged;
		int status, n = 0;
		pid_t pid;

		/* One for each kind, because what the last one left is uncharged later. */
		snprintf(group, sizeof(group), CGROUP "-%s", names[kind]);
		ASSERT_TRUE(!mkdir(group, 0755) || errno == EEXIST);
		snprintf(file, sizeof(file), "%s/memory.current", group);
		if (access(file, R_OK))
			SKIP(return, "this kernel's memory controller is not to be had under "
				     "cgroup2");
		sleep(1);
		ASSERT_EQ(0, pipe(pipes));
		ASSERT_EQ(0, pipe(hold));
		pid = fork();
		if (!pid) {
			snprintf(file, sizeof(file), "%s/cgroup.procs", group);
			if (write_text(file, "0") || setgroups(0, NULL) || setgid(GROUP) ||
			    setuid(NOBODY))
				_exit(100);
			close(hold[1]);
			/* The first says that we are there. */
			if (write(pipes[1], &n, sizeof(n)) != sizeof(n) ||
			    read(hold[0], text, 1) != 1)
				_exit(101);
			n = make_objects(self->dev, kind);
			if (write(pipes[1], &n, sizeof(n)) != sizeof(n))
				_exit(102);
			_exit(read(hold[0], text, 1) ? 103 : 0);
		}
		close(hold[0]);
		ASSERT_EQ(sizeof(n), read(pipes[0], &n, sizeof(n)));
		ASSERT_TRUE(read_text(file, text, sizeof(text)));
		charged = strtoull(text, NULL, 10);
		used = kernel_bytes();
		ASSERT_EQ(1, write(hold[1], "", 1));
		ASSERT_EQ(sizeof(n), read(pipes[0], &n, sizeof(n)));
		used = kernel_bytes() - used;
		ASSERT_TRUE(read_text(file, text, sizeof(text)));
		charged = strtoull(text, NULL, 10) - charged;
		TH_LOG("%d %s take %llu KiB of the kernel, %llu KiB are charged", n, names[kind],
		       (unsigned long long)used >> 10, (unsigned long long)charged >> 10);
		/* Little must be left for the kernel; less than a megabyte would tell nothing. */
		EXPECT_LT(MIB, used);
		EXPECT_LT(used * 8 / 10, charged);
		close(hold[1]);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(0, status);
		close(pipes[0]);
		close(pipes[1]);
	}
}

TEST_HARNESS_MAIN
