// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Limits and rights, as users meet them who are neither root nor friends. */
#include "common.h"

#include <grp.h>
#include <sys/prctl.h>
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

TEST_HARNESS_MAIN
