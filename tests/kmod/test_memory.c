// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What memory an arena takes: whose it is, how much beside its own, and what a full host does. */
#include "common.h"

#include <sys/stat.h>

#include "kselftest_harness.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

#define CGROUP "/sys/fs/cgroup/sluice-"

FIXTURE(memory)
{
	int dev;
};

FIXTURE_SETUP(memory)
{
	self->dev = device_open();
	ASSERT_LE(0, self->dev);
}

FIXTURE_TEARDOWN(memory)
{
	write_text("/proc/sys/vm/nr_hugepages", "0");
	write_text("/proc/sys/vm/compact_unevictable_allowed", "1");
	write_text("/proc/sys/vm/percpu_pagelist_high_fraction", "0");
}

/* The sum of the fields of a file of "NAME VALUE" lines that @names names, each with a space. */
static uint64_t field(const char *path, const char *names)
{
	FILE *f = fopen(path, "re");
	char line[256], name[64];
	unsigned long long value;
	uint64_t sum = 0;

	while (f && fgets(line, sizeof(line), f)) {
		char *at;

		if (sscanf(line, "%62s %llu", name, &value) != 2)
			continue;
		strcat(name, " ");
		at = strstr(names, name);
		if (at && (at == names || at[-1] == ' '))
			sum += value;
	}
	if (f)
		fclose(f);
	return sum;
}

/* Bytes of all pages that are neither free nor in a CPU's list of free pages. */
static uint64_t used_bytes(void)
{
	write_text("/proc/sys/vm/stat_refresh", "1");
	return ((field("/proc/meminfo", "MemTotal: ") - field("/proc/meminfo", "MemFree: "))
		<< 10) -
	       4096 * field("/proc/zoneinfo", "count: ");
}

static uint64_t slab_bytes(void)
{
	write_text("/proc/sys/vm/stat_refresh", "1");
	return field("/proc/meminfo", "Slab: PageTables: KernelStack: VmallocUsed: Percpu: ") << 10;
}

/* A group in which this process is from now on; false where the kernel has no such controller. */
static bool cgroup_enter(const char *path, const char *limit)
{
	char file[128];

	write_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	mkdir(path, 0755);
	snprintf(file, sizeof(file), "%s/memory.max", path);
	if (write_text(file, limit))
		return false;
	snprintf(file, sizeof(file), "%s/cgroup.procs", path);
	return !write_text(file, "0");
}

static uint64_t cgroup_bytes(const char *path)
{
	char file[128], text[64];

	snprintf(file, sizeof(file), "%s/memory.current", path);
	return read_text(file, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
}

/* Maps, writes everything, and is charged for next to nothing. */
static int use_elsewhere(int fd, uint64_t offset, uint64_t bytes)
{
	unsigned char *data;

	if (!cgroup_enter(CGROUP "user", "max"))
		return 1;
	data = arena_map(fd, (off_t)offset, bytes, PROT_READ | PROT_WRITE);
	if (data == MAP_FAILED)
		return 2;
	memset(data, 1, bytes);
	return cgroup_bytes(CGROUP "user") > bytes / 16 ? 3 : 0;
}

TEST_F(memory, is_charged_to_the_creator)
{
	const uint64_t bytes = 64 * MIB;
	struct sluice_ioc_arena_info info;
	uint64_t before, now;
	int fd, status;
	pid_t pid;

	if (!cgroup_enter(CGROUP "creator", "max"))
		SKIP(return, "this kernel's memory controller is not to be had under cgroup2");
	before = cgroup_bytes(CGROUP "creator");
	fd = arena_create(self->dev, 4096, bytes, SLUICE_IOC_HUGE_PREFERRED);
	ASSERT_LE(0, fd);
	now = cgroup_bytes(CGROUP "creator");
	EXPECT_LE(before + bytes, now);
	EXPECT_GE(before + bytes + bytes / 16, now);
	EXPECT_LE(bytes, field(CGROUP "creator/memory.stat", "shmem "));

	ASSERT_EQ(0, arena_info(fd, &info));
	pid = fork();
	if (!pid)
		_exit(use_elsewhere(fd, info.data_offset, bytes));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_GE(now + bytes / 16, cgroup_bytes(CGROUP "creator"));

	close(fd);
	EXPECT_GE(before + bytes / 16, cgroup_bytes(CGROUP "creator"));
	write_text("/sys/fs/cgroup/cgroup.procs", "0");
}

static void do_eat(int bell, int unused)
{
	if (!cgroup_enter(CGROUP "eater", "33554432"))
		_exit(1);
	for (;;) {
		char *p =
			mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		memset(p, 1, MIB);
	}
}

/* The kernel kills it for want of memory: a death as any other. */
TEST_F(memory, an_oom_kill_is_told)
{
	int arena = arena_create(self->dev, 4096, MIB, 0);
	int bell = peer_attach(arena, SLUICE_IOC_ROLE_PRODUCER, NULL);
	struct sluice_ioc_peer_attach args;
	struct sluice_bell_record r;
	pid_t pid;

	ASSERT_LE(0, bell);
	if (!cgroup_enter(CGROUP "eater", "33554432"))
		SKIP(return, "this kernel's memory controller is not to be had under cgroup2");
	write_text("/sys/fs/cgroup/cgroup.procs", "0");
	pid = peer_start(arena, &args, do_eat, 0);
	ASSERT_TRUE(bell_next(bell, &r));
	EXPECT_EQ(SLUICE_BELL_PEER_DEAD, r.type);
	EXPECT_EQ(args.peer, r.from_peer);
	EXPECT_EQ(pid, (pid_t)r.pid);
	EXPECT_EQ(SLUICE_DEAD(SLUICE_DEAD_EXIT, SIGKILL), r.arg);
	EXPECT_LE(1, field(CGROUP "eater/memory.events", "oom_kill "));
}

static int compare(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Beside the arena itself, under 0.05 % of it. The median of a few, because others work too. */
TEST_F_TIMEOUT(memory, bookkeeping_is_small, 240)
{
	enum {
		TIMES = 3
	};
	const uint64_t bytes = 512 * MIB, most = bytes / 2000;
	int64_t used[TIMES], slab[TIMES];

	for (int i = 0; i < TIMES; i++) {
		uint64_t used0 = used_bytes(), slab0 = slab_bytes();
		int fd = arena_create(self->dev, 4096, bytes, SLUICE_IOC_HUGE_REQUIRED);

		ASSERT_LE(0, fd);
		used[i] = (int64_t)(used_bytes() - used0 - bytes - 4096);
		slab[i] = (int64_t)(slab_bytes() - slab0);
		TH_LOG("512 MiB cost %lld bytes of pages beside them, %lld in slabs",
		       (long long)used[i], (long long)slab[i]);
		close(fd);
		usleep(200000);
	}
	qsort(used, TIMES, sizeof(used[0]), compare);
	qsort(slab, TIMES, sizeof(slab[0]), compare);
	EXPECT_GE((int64_t)most, used[TIMES / 2]);
	EXPECT_GE((int64_t)most, slab[TIMES / 2]);
}

/* From smaps: bytes of the mapping at @addr that are mapped by huge entries. */
static uint64_t huge_mapped(const void *addr)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[512], start[32];
	uint64_t kib = 0;
	bool here = false;

	snprintf(start, sizeof(start), "%lx-", (unsigned long)addr);
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, start, strlen(start)))
			here = true;
		if (here && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
			break;
	}
	if (f)
		fclose(f);
	return kib << 10;
}

/* Fills memory with small pages that stay where they are, and gives back every other one. */
static bool fragment(void)
{
	uint64_t bytes;
	char *p;

	write_text("/proc/sys/vm/compact_unevictable_allowed", "0");
	/* What is given back shall be free, not in the lists of a CPU, where the module sees none. */
	write_text("/proc/sys/vm/percpu_pagelist_high_fraction", "10000");
	bytes = (field("/proc/meminfo", "MemAvailable: ") << 10) & ~(2 * MIB - 1);
	if (bytes < 64 * MIB)
		return false;
	bytes -= 16 * MIB;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		 -1, 0);
	if (p == MAP_FAILED || madvise(p, bytes, MADV_NOHUGEPAGE) || mlock(p, bytes))
		return false;
	for (uint64_t i = 0; i < bytes; i += 8192)
		if (madvise(p + i, 4096, MADV_DONTNEED_LOCKED))
			return false;
	return true;
}

/* All memory but @rest goes to the pool of huge pages: it need not be written for that. */
static void pool_take(uint64_t rest)
{
	uint64_t available = field("/proc/meminfo", "MemAvailable: ") << 10;
	char text[32];

	snprintf(text, sizeof(text), "%llu",
		 available > rest ? (unsigned long long)(available - rest) / (2 * MIB) : 0);
	write_text("/proc/sys/vm/nr_hugepages", text);
}

TEST_F_TIMEOUT(memory, fragmented_coverage_is_told_as_it_is, 240)
{
	const uint64_t bytes = 256 * MIB;
	struct sluice_ioc_arena_info info;
	unsigned char *data;
	int fd;

	write_text("/proc/sys/vm/drop_caches", "3");
	pool_take(768 * MIB);
	ASSERT_TRUE(fragment());
	EXPECT_EQ(-1, arena_create(self->dev, 4096, bytes, SLUICE_IOC_HUGE_REQUIRED));
	EXPECT_EQ(ENOMEM, errno);
	fd = arena_create(self->dev, 4096, bytes, SLUICE_IOC_HUGE_PREFERRED);
	ASSERT_LE(0, fd)
	{
		TH_LOG("errno %d with %llu MiB available", errno,
		       (unsigned long long)field("/proc/meminfo", "MemAvailable: ") >> 10);
	}
	ASSERT_EQ(0, arena_info(fd, &info));
	EXPECT_GT(bytes, info.huge_bytes);
	data = arena_map(fd, (off_t)info.data_offset, bytes, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)data);
	memset(data, 1, bytes);
	TH_LOG("%llu of 256 MiB in huge pages", (unsigned long long)info.huge_bytes >> 20);
	EXPECT_EQ(info.huge_bytes, huge_mapped(data));
	EXPECT_EQ(0, pin_buffer(data, bytes));
}

TEST_HARNESS_MAIN
