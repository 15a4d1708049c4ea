// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The memory of an arena on hosts that lack something: memory, limits, system calls, /proc. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "region.h"
#include "util.h"

#include <kselftest_harness.h>

#define MADV_POPULATE 23 /* MADV_POPULATE_WRITE */
/* Shadow memory counts against every limit, and takes terabytes of address space. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SHADOW 1
#else
#define HAS_SHADOW 0
#endif

#define NOEXEC_SEAL 8 /* MFD_NOEXEC_SEAL */

static int create(struct sluice_region *r, uint64_t bytes, uint32_t flags)
{
	return sluice_region_create(r, &(struct sluice_region_req){.control_bytes = 1,
								   .data_bytes = bytes,
								   .flags = flags,
								   .threads = 2,
								   .label = "test"});
}

/* What every region promises, whatever it had to do without. */
static void check_whole(const struct sluice_region *r, uint64_t bytes)
{
	static unsigned char resident[64 * MIB / 4096];

	CHECK(r->data_bytes == bytes);
	CHECK(((uintptr_t)r->data & (2 * MIB - 1)) == 0);
	CHECK(mincore(r->data, bytes, resident) == 0);
	for (uint64_t i = 0; i < bytes / 4096; i++)
		CHECK(resident[i] & 1);
	for (uint64_t i = 0; i < bytes; i += 4096)
		CHECK(((const char *)r->data)[i] == 0);
}

/*
 * From now on a system call fails with an errno when (argument & mask) == value: an older kernel, or
 * a container's profile.
 */
static void refuse(unsigned int nr, unsigned int arg, uint32_t mask, uint32_t value, int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * arg),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = ARRAY_SIZE(code), .filter = code};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
}

TEST(too_much_is_refused_before_it_is_touched)
{
	struct sluice_region r;
	uint64_t before;
	unsigned int fds;

	create(&r, 4096, 0);
	sluice_region_unmap(&r);
	fds = open_fds();
	before = resident_bytes();
	EXPECT_EQ(-ENOMEM, create(&r, 1ULL << 45, 0));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "asked 35184372088832 bytes"));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "are free within"));
	EXPECT_EQ(fds, open_fds());
	EXPECT_LT(resident_bytes(), before + MIB);
}

TEST(file_size_limit_is_an_error_and_not_a_signal)
{
	struct rlimit limit = {.rlim_cur = MIB, .rlim_max = MIB};
	struct sluice_region r;
	pid_t pid;

	CHILD(pid) {
		CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
		CHECK(create(&r, 2 * MIB, 0) == -ENOMEM);
		CHECK(strstr(sluice_strerror(), "RLIMIT_FSIZE"));
		CHECK_OK(create(&r, MIB, 0));
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(address_space_limit_is_an_error)
{
	struct sluice_region r;
	pid_t pid;

	if (HAS_SHADOW)
		SKIP(return, "a sanitizer does not live within an address space limit");
	CHILD(pid) {
		struct rlimit limit = {.rlim_cur = 64 * MIB, .rlim_max = 64 * MIB};

		CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
		CHECK(create(&r, 256 * MIB, 0) == -ENOMEM);
		CHECK(strstr(sluice_strerror(), "268435456"));
	}
	EXPECT_EQ(0, child_wait(pid));
}

static int write_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	int fd, ret;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

/* A group with a limit, and a group in it to live in.  Return: 0 or -errno. */
static int group_make(char *outer, char *inner, size_t len, const char *limit)
{
	bool v2 = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
	int err;

	snprintf(outer, len, "/sys/fs/cgroup/%ssluice-test-%d", v2 ? "" : "memory/", getpid());
	snprintf(inner, len, "%.200s/inner", outer);
	if (mkdir(outer, 0755))
		return -errno;
	err = write_file(outer, v2 ? "memory.max" : "memory.limit_in_bytes", limit);
	if (!err && mkdir(inner, 0755))
		err = -errno;
	if (err)
		rmdir(outer);
	return err;
}

TEST(limit_of_a_control_group_above_is_respected)
{
	char outer[256], inner[256];
	struct sluice_region r;
	int err, status;
	pid_t pid;

	if (HAS_SHADOW)
		SKIP(return, "a sanitizer's shadow memory is charged to the group too");
	err = group_make(outer, inner, sizeof(outer), "67108864");
	if (err)
		SKIP(return, "no memory control group can be made here: %s", strerror(-err));
	CHILD(pid) {
		CHECK_OK(write_file(inner, "cgroup.procs", "0"));
		/* Does not fit: refused, where faulting it in would be the OOM killer. */
		CHECK(create(&r, 64 * MIB, 0) == -ENOMEM);
		CHECK(strstr(sluice_strerror(), "asked 67108864 bytes"));
		CHECK(strstr(sluice_strerror(), "control group"));
		CHECK(strstr(sluice_strerror(), "sluice-test-"));
		/* Fits: all there, and nobody was killed. */
		CHECK_OK(create(&r, 32 * MIB, 0));
		check_whole(&r, 32 * MIB);
		/* The rest is too small for another one. */
		CHECK(create(&r, 48 * MIB, 0) == -ENOMEM);
	}
	status = child_wait(pid);
	rmdir(inner);
	rmdir(outer);
	EXPECT_EQ(0, status);
}

TEST(kernel_without_populate)
{
	struct sluice_region r;
	pid_t pid;

	CHILD(pid) {
		refuse(SYS_madvise, 2, ~0U, MADV_POPULATE, EINVAL);
		CHECK_OK(create(&r, 48 * MIB, SLUICE_ARENA_NO_HUGETLB));
		check_whole(&r, 48 * MIB);
		CHECK_OK(create(&r, 4 * MIB, SLUICE_ARENA_NO_HUGE));
		check_whole(&r, 4 * MIB);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(kernel_without_noexec_seal)
{
	struct sluice_region r, m;
	pid_t pid;

	CHILD(pid) {
		refuse(SYS_memfd_create, 1, NOEXEC_SEAL, NOEXEC_SEAL, EINVAL);
		CHECK_OK(create(&r, 4 * MIB, 0));
		CHECK_OK(sluice_region_map(&m, r.ctl_fd, r.data_fd, true));
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(memory_runs_out_while_it_is_faulted_in)
{
	struct sluice_region r;
	unsigned int fds;
	pid_t pid;

	CHILD(pid) {
		create(&r, 4096, 0);
		sluice_region_unmap(&r);
		fds = open_fds();
		/* What the kernel says where a store would be SIGBUS. */
		refuse(SYS_madvise, 2, ~0U, MADV_POPULATE, EFAULT);
		CHECK(create(&r, 48 * MIB, 0) == -ENOMEM);
		CHECK(open_fds() == fds);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(huge_pages_switched_off)
{
	struct sluice_region r;
	unsigned int fds;
	pid_t pid;

	CHILD(pid) {
		const uint32_t required = SLUICE_ARENA_HUGE_REQUIRED | SLUICE_ARENA_NO_HUGETLB;

		CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
		CHECK_OK(create(&r, 8 * MIB, SLUICE_ARENA_NO_HUGETLB));
		CHECK(r.huge_bytes == 0 && r.huge_page_bytes == 0);
		check_whole(&r, 8 * MIB);
		sluice_region_unmap(&r);

		fds = open_fds();
		CHECK(create(&r, 8 * MIB, required) == -ENOMEM);
		CHECK(strstr(sluice_strerror(), "asked 8388608 bytes, got 0"));
		CHECK(open_fds() == fds);
	}
	EXPECT_EQ(0, child_wait(pid));
}

TEST(huge_required_of_an_odd_size)
{
	struct sluice_region r;

	EXPECT_EQ(-EINVAL, create(&r, 2 * MIB + 4096, SLUICE_ARENA_HUGE_REQUIRED));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "2101248"));
	EXPECT_EQ(-EINVAL, create(&r, 2 * MIB, SLUICE_ARENA_HUGE_REQUIRED | SLUICE_ARENA_NO_HUGE));
}

TEST(nodes_that_do_not_exist)
{
	struct sluice_region r;

	for (int node = 1023; node < 1026; node++) {
		int ret = sluice_region_create(
			&r, &(struct sluice_region_req){.control_bytes = 1,
							.data_bytes = MIB,
							.flags = SLUICE_ARENA_BIND_NODE,
							.numa_node = node});
		EXPECT_EQ(-EINVAL, ret);
		EXPECT_NE(NULL, strstr(sluice_strerror(), "does not exist"));
	}
}

TEST(without_proc)
{
	struct sluice_region r, m;
	int status;
	pid_t pid;

	CHILD(pid) {
		if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		    mount("none", "/proc", "tmpfs", 0, NULL))
			_exit(77);
		CHECK_OK(create(&r, 4 * MIB, SLUICE_ARENA_NO_HUGETLB));
		check_whole(&r, 4 * MIB);
		/* Coverage that cannot be measured is not claimed. */
		CHECK(r.huge_bytes == 0);
		CHECK(sluice_region_map(&m, r.ctl_fd, r.data_fd, true) == -ENOTSUP);
		CHECK_OK(sluice_region_map(&m, r.ctl_fd, r.data_fd, false));
	}
	status = child_wait(pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP(return, "this user may not hide /proc");
	EXPECT_EQ(0, status);
}

TEST(other_user_cannot_reopen_for_writing)
{
	struct sluice_region r, ro;
	char path[64];
	pid_t pid;

	if (geteuid())
		SKIP(return, "only root can become another user");
	ASSERT_EQ(0, create(&r, MIB, 0));
	ASSERT_EQ(0, sluice_region_map(&ro, r.ctl_fd, r.data_fd, true));
	CHILD(pid) {
		close(r.data_fd);
		CHECK(setresgid(65534, 65534, 65534) == 0);
		CHECK(setresuid(65534, 65534, 65534) == 0);
		/* A change of user makes /proc/self root's; a new dumpable state gives it back. */
		CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", ro.data_fd);
		CHECK(open(path, O_RDONLY | O_CLOEXEC) >= 0);
		CHECK(open(path, O_RDWR | O_CLOEXEC) == -1 && errno == EACCES);
		CHECK(fchmod(ro.data_fd, 0666) == -1 && errno == EPERM);
	}
	EXPECT_EQ(0, child_wait(pid));
	sluice_region_unmap(&ro);
	sluice_region_unmap(&r);
}

TEST(read_only_needs_the_consumer_role)
{
	struct sluice_region r, ro, m;

	ASSERT_EQ(0, create(&r, MIB, 0));
	ASSERT_EQ(0, sluice_region_map(&ro, r.ctl_fd, r.data_fd, true));
	EXPECT_EQ(-1, mprotect(ro.data, 4096, PROT_READ | PROT_WRITE));
	EXPECT_EQ(-EACCES, sluice_region_map(&m, r.ctl_fd, ro.data_fd, false));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "consumer"));
	/* A descriptor that is read-only already needs no second opening. */
	EXPECT_EQ(0, sluice_region_map(&m, r.ctl_fd, ro.data_fd, true));
	sluice_region_unmap(&m);
	sluice_region_unmap(&ro);
	sluice_region_unmap(&r);
}

TEST(unsealed_memory_is_refused)
{
	int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct sluice_region r, m;
	unsigned int fds;

	ASSERT_EQ(0, create(&r, MIB, 0));
	ASSERT_EQ(0, ftruncate(unsealed, MIB));
	fds = open_fds();
	/* Whoever may shrink it could turn every access of ours into SIGBUS. */
	EXPECT_EQ(-EBADF, sluice_region_map(&m, unsealed, r.data_fd, false));
	EXPECT_EQ(-EBADF, sluice_region_map(&m, r.ctl_fd, unsealed, false));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "seals"));
	EXPECT_EQ(-EBADF, sluice_region_map(&m, r.ctl_fd, -1, false));
	EXPECT_EQ(fds, open_fds());
	close(unsealed);
	sluice_region_unmap(&r);
}

TEST_HARNESS_MAIN
