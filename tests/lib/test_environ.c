// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Where processes are run: small limits, small /dev/shm, no /proc, little memory in the cgroup. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "util.h"

#include <kselftest_harness.h>

/* Create an arena and move some batches to another process and back: all that must work anywhere. */
static void converse(uint64_t bytes)
{
	struct sluice_arena *a = arena_new(bytes);
	struct sluice_channel *out, *in;
	pid_t pid;

	CHECK(a);
	out = channel_new(a, "out", 2, SLUICE_CHANNEL_PRODUCE);
	in = channel_new(a, "in", 2, SLUICE_CHANNEL_CONSUME);
	CHECK(out && in);
	CHILD(pid) {
		struct sluice_arena *b = arena_child(a);
		struct sluice_channel *to = channel_join(b, "in", SLUICE_CHANNEL_PRODUCE);
		struct sluice_channel *from = channel_join(b, "out", SLUICE_CHANNEL_CONSUME);
		uint64_t seed;

		CHECK(to && from);
		for (int i = 0; i < 20; i++) {
			CHECK_OK(batch_recv(from, &seed, LONG_WAIT));
			CHECK_OK(batch_send(to, 1000, seed, LONG_WAIT));
		}
		sluice_arena_detach(b);
	}
	for (uint64_t i = 0; i < 20; i++) {
		uint64_t seed;

		CHECK_OK(batch_send(out, bytes / 8, i, LONG_WAIT));
		CHECK_OK(batch_recv(in, &seed, LONG_WAIT));
		CHECK(seed == i);
	}
	CHECK_OK(child_wait(pid));
	sluice_channel_close(out);
	sluice_channel_close(in);
	CHECK(!arena_all_free(a));
	sluice_arena_detach(a);
}

/* As a user without privileges: what root may do hides what limits do. */
static void become_nobody(void)
{
	if (getuid() == 0)
		CHECK(!setgid(65534) && !setuid(65534));
}

TEST(memlock_of_64_kib)
{
	struct rlimit lim = {64 * KIB, 64 * KIB};
	pid_t pid;

	CHILD(pid) {
		CHECK(!setrlimit(RLIMIT_MEMLOCK, &lim));
		become_nobody();
		converse(16 * MIB);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(without_privileges)
{
	pid_t pid;

	CHILD(pid) {
		become_nobody();
		converse(4 * MIB);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(dev_shm_of_64_mib)
{
	pid_t pid;

	if (getuid())
		SKIP(return, "only root can mount another /dev/shm");
	CHILD(pid) {
		CHECK(!unshare(CLONE_NEWNS));
		CHECK(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		CHECK(!mount("shm", "/dev/shm", "tmpfs", 0, "size=64m"));
		become_nobody();
		converse(256 * MIB);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(without_proc)
{
	pid_t pid;

	if (getuid())
		SKIP(return, "only root can hide /proc");
	CHILD(pid) {
		CHECK(!unshare(CLONE_NEWNS));
		CHECK(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		CHECK(!mount("none", "/proc", "tmpfs", 0, NULL));
		CHECK(access("/proc/self", F_OK));
		converse(4 * MIB);
	}
	EXPECT_EQ(0, child_wait(pid));
}

/* Between users, and without /proc: descriptors travel over the socket. */
TEST(sent_to_another_user_without_proc)
{
	pid_t pid;
	int sock[2];

	if (getuid())
		SKIP(return, "only root can hide /proc and change users");
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	CHILD(pid) {
		struct sluice_channel *ch;
		struct sluice_arena *a;

		CHECK(!unshare(CLONE_NEWNS));
		CHECK(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		CHECK(!mount("none", "/proc", "tmpfs", 0, NULL));
		become_nobody();
		CHECK_OK(sluice_arena_recv(&a, sock[1], SLUICE_ROLE_RW));
		ch = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE);
		CHECK(ch);
		for (uint64_t i = 0; i < 20; i++)
			CHECK_OK(batch_send(ch, 10000, i, LONG_WAIT));
		sluice_channel_close(ch);
		sluice_arena_detach(a);
	}
	struct sluice_arena *a = arena_new(4 * MIB);
	struct sluice_channel *ch;
	uint64_t seed, n = 0;
	int ret;

	ASSERT_NE(NULL, a);
	ch = channel_new(a, "c", 2, SLUICE_CHANNEL_CONSUME);
	ASSERT_NE(NULL, ch);
	ASSERT_EQ(0, sluice_arena_send(a, sock[0], SLUICE_ROLE_RW));
	while (!(ret = batch_recv(ch, &seed, LONG_WAIT)))
		ASSERT_EQ(n++, seed);
	EXPECT_EQ(-ENODATA, ret);
	EXPECT_EQ(20, n);
	EXPECT_EQ(0, child_wait(pid));
	sluice_channel_close(ch);
	sluice_arena_detach(a);
}

static bool write_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text);
}

/* A memory cgroup of our own with this limit, v2 or v1, or NULL with why there is none. */
static const char *cgroup_new(char *dir, size_t size, const char *limit)
{
	static const struct {
		const char *root, *file;
	} kinds[] = {
		{"/sys/fs/cgroup", "memory.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		snprintf(dir, size, "%s/sluice-test-%d", kinds[i].root, getpid());
		if (mkdir(dir, 0755))
			continue;
		if (write_file(dir, kinds[i].file, limit))
			return NULL;
		rmdir(dir);
	}
	return "no memory cgroup can be made here";
}

TEST(cgroup_limit_is_an_error_and_not_a_kill)
{
	const char *why;
	char dir[128];
	pid_t pid;

	why = cgroup_new(dir, sizeof(dir), "67108864");
	if (why)
		SKIP(return, "%s", why);
	CHILD(pid) {
		struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = 256 * MIB};
		struct sluice_arena *a;

		CHECK(write_file(dir, "cgroup.procs", "0"));
		CHECK(sluice_arena_create(&a, &opts) == -ENOMEM);
		/* Asked, free, and which limit. */
		CHECK(strstr(sluice_strerror(), "256") || strstr(sluice_strerror(), "268435456"));
		CHECK(strstr(sluice_strerror(), "cgroup") || strstr(sluice_strerror(), "memory."));
		opts.data_bytes = 16 * MIB;
		CHECK_OK(sluice_arena_create(&a, &opts));
		sluice_arena_detach(a);
	}
	EXPECT_EQ(0, child_wait(pid));
	EXPECT_EQ(0, rmdir(dir));
}

TEST(address_space_limit)
{
	struct rlimit lim = {256 * MIB, 256 * MIB};
	pid_t pid;

	if (getenv("TEST_DIVISOR"))
		SKIP(return, "sanitizers and valgrind need more address space than the limit");
	CHILD(pid) {
		struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = 512 * MIB};
		unsigned int fds = open_fds();
		struct sluice_arena *a;

		CHECK(!setrlimit(RLIMIT_AS, &lim));
		CHECK(sluice_arena_create(&a, &opts) == -ENOMEM);
		CHECK(strlen(sluice_strerror()) > 10);
		CHECK(open_fds() == fds);
		opts.data_bytes = 16 * MIB;
		CHECK_OK(sluice_arena_create(&a, &opts));
		sluice_arena_detach(a);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(file_size_limit_is_an_error_and_not_a_signal)
{
	struct rlimit lim = {MIB, MIB};
	pid_t pid;

	CHILD(pid) {
		struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = 64 * MIB};
		struct sluice_arena *a;
		int ret;

		CHECK(!setrlimit(RLIMIT_FSIZE, &lim));
		ret = sluice_arena_create(&a, &opts);
		/* Kernels differ in whether memfds count as files here. */
		CHECK(ret == 0 || (ret < 0 && strlen(sluice_strerror()) > 10));
		if (!ret)
			sluice_arena_detach(a);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(descriptors_run_out)
{
	pid_t pid;

	CHILD(pid) {
		struct rlimit lim;
		int ret = 0, tight = 0;

		CHECK(!getrlimit(RLIMIT_NOFILE, &lim));
		for (rlim_t n = 3; n < 40; n++) {
			struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = MIB};
			struct sluice_channel *ch;
			struct sluice_arena *a;

			lim.rlim_cur = n;
			CHECK(!setrlimit(RLIMIT_NOFILE, &lim));
			ret = sluice_arena_create(&a, &opts);
			if (ret) {
				CHECK(ret == -EMFILE);
				CHECK(strlen(sluice_strerror()) > 10);
				tight++;
				continue;
			}
			ch = channel_new(a, "c", 2, 0);
			CHECK(ch);
			ret = batch_recv(ch, NULL, MSEC);
			CHECK(ret == -ETIMEDOUT || ret == -EMFILE);
			ret = sluice_channel_pollfd(ch);
			CHECK(ret >= 0 || ret == -EMFILE);
			CHECK_OK(batch_send(ch, 100, 1, 0));
			CHECK_OK(batch_recv(ch, NULL, 0));
			sluice_channel_close(ch);
			sluice_arena_detach(a);
		}
		CHECK(tight);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST_HARNESS_MAIN
