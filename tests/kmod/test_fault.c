// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every allocation fails once. A call is made again and again, each time in a process of its own, in
 * which the kernel fails the first, the second, ... allocation, until there is none left to fail.
 * The call must then either work all the same or say ENOMEM, and leave nothing behind.
 *
 * Wants a kernel with CONFIG_FAILSLAB and CONFIG_FAIL_PAGE_ALLOC (tests/vm/debug-kernel). MODULE names
 * the module's file.
 */
#include "common.h"

#include <limits.h>
#include <sys/epoll.h>

#include "kselftest_harness.h"

#define DEBUGFS "/sys/kernel/debug/"
#define CONTROL 8192
#define MOST	20000 /* allocations of one call, or it is never done */

/* What a call works on. */
struct subject {
	int dev;
	int arena;
	int bell;
	uint64_t data_offset;
	void *data;
	int module;
	struct sluice_ioc_arena_create create;
	uint32_t role;
};

/* What the process that made a call found. */
struct found {
	bool injected;
	int result;
	bool leaked_fd;
};

static struct found *found;

struct faulty {
	/* Before anything fails; nonzero if that is not possible. */
	int (*prepare)(struct subject *s);
	/* Returns 0, or a descriptor that the caller closes, or a negative errno. */
	int (*call)(struct subject *s);
	/* Nonzero if what a successful call returned is not good. */
	int (*use)(struct subject *s, int fd);
	struct subject *s;
};

static int inject_everywhere(void)
{
	return write_text(DEBUGFS "failslab/ignore-gfp-wait", "N") ||
	       write_text(DEBUGFS "failslab/verbose", "0") ||
	       write_text(DEBUGFS "fail_page_alloc/ignore-gfp-wait", "N") ||
	       write_text(DEBUGFS "fail_page_alloc/ignore-gfp-highmem", "N") ||
	       write_text(DEBUGFS "fail_page_alloc/min-order", "0") ||
	       write_text(DEBUGFS "fail_page_alloc/verbose", "0");
}

static int set_number(const char *path, unsigned long long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%#llx", number);
	return write_text(path, text);
}

/* Only what is allocated below a function of the kernel; NULL: everything. */
static int inject_below(const char *function)
{
	unsigned long long address, start = 0, end = ULLONG_MAX;
	FILE *f = fopen("/proc/kallsyms", "re");
	char type, name[256], line[512];

	while (f && function && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%llx %c %255s", &address, &type, name) != 3)
			continue;
		if (!strcmp(name, function))
			start = address;
		else if (start && address > start && address < end)
			end = address;
	}
	if (f)
		fclose(f);
	return (function && !start) || set_number(DEBUGFS "failslab/require-start", start) ||
	       set_number(DEBUGFS "failslab/require-end", end) ||
	       set_number(DEBUGFS "fail_page_alloc/require-start", start) ||
	       set_number(DEBUGFS "fail_page_alloc/require-end", end);
}

static int module_users(void)
{
	char text[32];

	return read_text("/sys/module/sluice/refcnt", text, sizeof(text)) ? atoi(text) : 0;
}

/* What is torn down in the background, too, must be gone at last. */
static bool module_users_settle(int users)
{
	for (int i = 0; i < SOON_MS / 10; i++) {
		if (module_users() == users)
			return true;
		usleep(10000);
	}
	fprintf(stderr, "# the module has %d users instead of %d\n", module_users(), users);
	return false;
}

static int lowest_fd(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

/* In a process of its own: the call, with its @nth allocation failing. */
static void attempt(const struct faulty *f, unsigned int nth)
{
	int knob = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC), low;
	char text[16], left[16] = "";
	int n = snprintf(text, sizeof(text), "%u", nth);

	memset(found, 0, sizeof(*found));
	found->result = -EPROTO;
	if (f->prepare && f->prepare(f->s))
		_exit(4);
	low = lowest_fd();
	/* Once without effect, so that the code and data of what follows are mapped. */
	if (pwrite(knob, "0", 1, 0) != 1 || pread(knob, left, sizeof(left) - 1, 0) <= 0)
		_exit(1);
	if (pwrite(knob, text, n, 0) != n)
		_exit(1);
	found->result = f->call(f->s);
	if (pread(knob, left, sizeof(left) - 1, 0) <= 0 || pwrite(knob, "0", 1, 0) != 1)
		_exit(2);
	found->injected = atoi(left) == 0;
	if (found->result < 0)
		found->leaked_fd = lowest_fd() != low;
	else if (f->use && f->use(f->s, found->result))
		_exit(3);
	_exit(0);
}

/* Returns how many attempts were refused, or a negative number: -nth of a failure, or -MOST. */
static int fail_each(const char *name, const struct faulty *f)
{
	int users = module_users(), refused = 0, status;
	unsigned int nth;
	uint64_t shmem;

	/* Is shared memory too, and not to be seen as growth. */
	memset(found, 0, sizeof(*found));
	shmem = meminfo_kib("Shmem:");
	for (nth = 1; nth < MOST; nth++) {
		pid_t pid = fork();

		if (!pid)
			attempt(f, nth);
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			return -(int)nth;
		if (status || found->leaked_fd || (found->result < 0 && found->result != -ENOMEM)) {
			fprintf(stderr, "# %s: allocation %u fails: status %#x, result %d%s\n",
				name, nth, status, found->result,
				found->leaked_fd ? ", a descriptor leaked" : "");
			return -(int)nth;
		}
		if (!module_users_settle(users))
			return -(int)nth;
		if (!found->injected)
			break;
		refused += found->result < 0;
	}
	if (nth == MOST || found->result < 0)
		return -(int)nth;
	fprintf(stderr, "# %s: each of %u allocations failed, %d times the call\n", name, nth - 1,
		refused);
	if (meminfo_kib("Shmem:") != shmem) {
		fprintf(stderr, "# %s: shared memory: %llu KiB before, %llu KiB after\n", name,
			(unsigned long long)shmem, (unsigned long long)meminfo_kib("Shmem:"));
		return -MOST;
	}
	return refused;
}

FIXTURE(fault)
{
	struct subject s;
};

FIXTURE_SETUP(fault)
{
	struct sluice_ioc_arena_info info;

	found = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)found);
	ASSERT_EQ(0, inject_everywhere())
	TH_LOG("this kernel does not inject faults");
	self->s = (struct subject){.dev = device_open()};
	ASSERT_LE(0, self->s.dev);
	self->s.create = (struct sluice_ioc_arena_create){.size = sizeof(self->s.create),
							  .control_bytes = CONTROL,
							  .data_bytes = CONTROL,
							  .node = -1,
							  .label = "fault"};
	self->s.role = SLUICE_IOC_ROLE_PRODUCER;
	self->s.arena = arena_create(self->s.dev, CONTROL, MIB, 0);
	ASSERT_LE(0, self->s.arena);
	ASSERT_EQ(0, arena_info(self->s.arena, &info));
	self->s.data_offset = info.data_offset;
	self->s.data = arena_map(self->s.arena, info.data_offset, MIB, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, self->s.data);
	self->s.bell = peer_attach(self->s.arena, SLUICE_IOC_ROLE_PRODUCER, NULL);
	ASSERT_LE(0, self->s.bell);
}

FIXTURE_TEARDOWN(fault)
{
}

/* ------------------------------------------------------------------ the module */

static int call_load(struct subject *s)
{
	return syscall(SYS_finit_module, s->module, "", 0) ? -errno : 0;
}

static int use_load(struct subject *s, int unused)
{
	int dev = device_open();
	bool bad = dev < 0;

	close(dev);
	return bad || syscall(SYS_delete_module, "sluice", O_NONBLOCK);
}

/* A copy in memory, or what fails would be the file system that the file lies on. */
static int module_copy(const char *path)
{
	int from = open(path, O_RDONLY | O_CLOEXEC);
	int to = memfd_create("module", MFD_CLOEXEC);
	char buf[65536];
	ssize_t n;

	while ((n = read(from, buf, sizeof(buf))) > 0) {
		if (write(to, buf, (size_t)n) != n)
			return -1;
	}
	close(from);
	return n ? -1 : to;
}

/*
 * First, so that the tests below find a module that has not done anything yet. What the kernel does
 * before it calls the module's init is left alone: trace events warn when they find no memory.
 */
TEST_F_TIMEOUT(fault, load, 900)
{
	const struct faulty f = {.call = call_load, .use = use_load, .s = &self->s};

	ASSERT_EQ(0, inject_below(NULL))
	TH_LOG("this kernel does not choose faults by stack");
	ASSERT_NE(NULL, getenv("MODULE"));
	self->s.module = module_copy(getenv("MODULE"));
	ASSERT_LE(0, self->s.module);
	munmap(self->s.data, MIB);
	close(self->s.bell);
	close(self->s.arena);
	close(self->s.dev);
	ASSERT_TRUE(module_users_settle(0));
	ASSERT_EQ(0, syscall(SYS_delete_module, "sluice", O_NONBLOCK));
	ASSERT_EQ(0, inject_below("do_init_module"));
	EXPECT_LT(0, fail_each("load", &f));
	EXPECT_EQ(0, inject_below(NULL));
	EXPECT_EQ(0, call_load(&self->s));
}

/* ------------------------------------------------------------------ the device */

static int call_open(struct subject *s)
{
	int fd = device_open();

	return fd < 0 ? -errno : fd;
}

static int call_create(struct subject *s)
{
	int fd = ioctl(s->dev, SLUICE_IOC_ARENA_CREATE, &s->create);

	return fd < 0 ? -errno : fd;
}

static int use_create(struct subject *s, int fd)
{
	struct sluice_ioc_arena_info info;
	unsigned char *data;

	if (arena_info(fd, &info) || info.data_bytes != s->create.data_bytes)
		return 1;
	data = arena_map(fd, info.data_offset, info.data_bytes, PROT_READ | PROT_WRITE);
	if (data == MAP_FAILED)
		return 2;
	for (uint64_t i = 0; i < info.data_bytes; i += 4096) {
		if (data[i])
			return 3;
	}
	data[info.data_bytes - 1] = 1;
	return 0;
}

TEST_F_TIMEOUT(fault, open, 300)
{
	const struct faulty f = {.call = call_open, .s = &self->s};

	EXPECT_LT(0, fail_each("open", &f));
}

TEST_F_TIMEOUT(fault, create, 900)
{
	static const struct {
		const char *name;
		uint32_t flags;
		int32_t node;
		uint64_t bytes;
	} kinds[] = {
		{"create", 0, -1, CONTROL},
		{"create on a node", 0, 0, CONTROL},
		{"create, huge preferred", SLUICE_IOC_HUGE_PREFERRED, -1, 4 * MIB + 4096},
		{"create, huge required", SLUICE_IOC_HUGE_REQUIRED, 0, 4 * MIB},
	};
	const struct faulty f = {.call = call_create, .use = use_create, .s = &self->s};

	for (unsigned int i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		self->s.create.flags = kinds[i].flags;
		self->s.create.node = kinds[i].node;
		self->s.create.data_bytes = kinds[i].bytes;
		EXPECT_LT(0, fail_each(kinds[i].name, &f));
	}
}

/* Nothing of what failed may still be on somebody's account. */
TEST_F_TIMEOUT(fault, accounts_are_kept, 600)
{
	const struct faulty f = {.call = call_create, .use = use_create, .s = &self->s};
	char most[32];
	int fd;

	EXPECT_LT(0, fail_each("create", &f));
	/* The fixture's arena, and one more. */
	snprintf(most, sizeof(most), "%lu", CONTROL + MIB + 2 * CONTROL);
	ASSERT_EQ(0, write_text(PARAMETER("max_total_bytes"), most));
	fd = call_create(&self->s);
	EXPECT_LE(0, fd);
	EXPECT_EQ(-ENOSPC, call_create(&self->s));
	ASSERT_EQ(0, write_text(PARAMETER("max_total_bytes"), "0"));
}

/* ------------------------------------------------------------------ an arena */

static int call_restrict(struct subject *s)
{
	int fd = ioctl(s->arena, SLUICE_IOC_ARENA_RESTRICT);

	return fd < 0 ? -errno : fd;
}

static int call_attach(struct subject *s)
{
	struct sluice_ioc_peer_attach args;
	int fd = peer_attach(s->arena, s->role, &args);

	return fd < 0 ? -errno : fd;
}

static int use_attach(struct subject *s, int fd)
{
	struct sluice_ioc_arena_info info;

	/* The fixture's peer, and us. */
	return arena_info(fd, &info) || info.peers != 2;
}

static int call_list(struct subject *s)
{
	struct sluice_ioc_peer_info infos[64];
	struct sluice_ioc_peer_list list = {
		.size = sizeof(list), .count = 64, .peers = (uintptr_t)infos};

	if (ioctl(s->arena, SLUICE_IOC_PEER_LIST, &list))
		return -errno;
	return list.count == 1 ? 0 : -EPROTO;
}

static int call_map(struct subject *s)
{
	void *p = arena_map(s->arena, s->data_offset, MIB, PROT_READ | PROT_WRITE);

	return p == MAP_FAILED ? -errno : 0;
}

static int call_map_consumer(struct subject *s)
{
	void *p = arena_map(s->arena, s->data_offset, MIB, PROT_READ);

	return p == MAP_FAILED ? -errno : 0;
}

/* Three pieces where there was one. */
static int call_split(struct subject *s)
{
	return mprotect((char *)s->data + 4096, 4096, PROT_READ) ? -errno : 0;
}

static int call_unmap_inside(struct subject *s)
{
	return munmap((char *)s->data + 4096, 4096) ? -errno : 0;
}

static int call_move(struct subject *s)
{
	return mremap(s->data, MIB, MIB / 2, MREMAP_MAYMOVE | MREMAP_FIXED,
		      (char *)s->data + 64 * MIB) == MAP_FAILED
		       ? -errno
		       : 0;
}

/* When it fails it may have taken away what was there. */
static int call_remap(struct subject *s)
{
	return syscall(SYS_remap_file_pages, s->data, 4096, 0, 3, 0) ? -errno : 0;
}

TEST_F_TIMEOUT(fault, restrict, 300)
{
	const struct faulty f = {.call = call_restrict, .s = &self->s};

	EXPECT_LT(0, fail_each("restrict", &f));
}

TEST_F_TIMEOUT(fault, attach, 300)
{
	const struct faulty f = {.call = call_attach, .use = use_attach, .s = &self->s};
	struct sluice_ioc_arena_info info;

	EXPECT_LT(0, fail_each("attach", &f));
	self->s.role = SLUICE_IOC_ROLE_CONSUMER;
	EXPECT_LT(0, fail_each("attach as consumer", &f));
	ASSERT_EQ(0, arena_info(self->s.arena, &info));
	EXPECT_EQ(1, info.peers);
}

TEST_F_TIMEOUT(fault, list, 300)
{
	const struct faulty f = {.call = call_list, .s = &self->s};

	EXPECT_LT(0, fail_each("list", &f));
}

TEST_F_TIMEOUT(fault, map, 900)
{
	static const struct {
		const char *name;
		int (*call)(struct subject *s);
	} kinds[] = {
		{"map", call_map},
		{"mprotect of a part", call_split},
		{"munmap of a part", call_unmap_inside},
		{"mremap", call_move},
		{"remap_file_pages", call_remap},
	};
	struct faulty f = {.s = &self->s};

	for (unsigned int i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		f.call = kinds[i].call;
		EXPECT_LT(0, fail_each(kinds[i].name, &f));
	}
	f.call = call_map_consumer;
	self->s.arena = call_restrict(&self->s);
	EXPECT_LT(0, fail_each("map as consumer", &f));
}

/* ------------------------------------------------------------------ a bell */

/* Only who attached may open another one. */
static int become_peer(struct subject *s)
{
	s->bell = peer_attach(s->arena, SLUICE_IOC_ROLE_CONSUMER, NULL);
	return s->bell < 0;
}

static int call_bell(struct subject *s)
{
	int fd = bell_open(s->bell, NULL);

	return fd < 0 ? -errno : fd;
}

static int call_epoll(struct subject *s)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int ep = epoll_create1(EPOLL_CLOEXEC);

	if (ep < 0)
		return -errno;
	if (epoll_ctl(ep, EPOLL_CTL_ADD, s->bell, &ev)) {
		int err = errno;

		close(ep);
		return -err;
	}
	return ep;
}

static int call_uring(struct subject *s)
{
	return pin_buffer(s->data, MIB);
}

static int call_fdinfo(struct subject *s)
{
	char path[64], text[2048];
	ssize_t n;
	int fd, err;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", s->bell);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	/* What /proc says as well when it has no memory for an inode. */
	if (fd < 0)
		return errno == ENOENT ? -ENOMEM : -errno;
	n = read(fd, text, sizeof(text) - 1);
	err = errno;
	close(fd);
	if (n < 0)
		return -err;
	text[n] = 0;
	return strstr(text, "\nrecords:\t0\n") ? 0 : -EPROTO;
}

static int use_epoll(struct subject *s, int ep)
{
	struct epoll_event ev;

	return epoll_wait(ep, &ev, 1, 0) != 0;
}

TEST_F_TIMEOUT(fault, bell, 600)
{
	struct faulty f = {.s = &self->s, .call = call_epoll, .use = use_epoll};

	EXPECT_LT(0, fail_each("epoll of a bell", &f));
	f = (struct faulty){.s = &self->s, .call = call_fdinfo};
	EXPECT_LT(0, fail_each("fdinfo of a bell", &f));
	f.call = call_uring;
	EXPECT_LT(0, fail_each("io_uring, buffer registered", &f));
	/* Last: the fixture's bell hears of every peer that this leaves dead. */
	f = (struct faulty){.s = &self->s, .prepare = become_peer, .call = call_bell};
	EXPECT_LT(0, fail_each("bell", &f));
}

/* ------------------------------------------------------------------ a death */

/* What a process does while its @nth allocation from now on fails. */
static void fail_from_here(int nth)
{
	int knob = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	char text[16];
	int n = snprintf(text, sizeof(text), "%d", nth);

	if (pwrite(knob, text, n, 0) != n)
		_exit(97);
}

static void do_exit(int bell, int nth)
{
	fail_from_here(nth);
	_exit(3);
}

static void do_exec(int bell, int nth)
{
	char *argv[] = {"true", NULL};

	fail_from_here(nth);
	execv("/bin/true", argv);
	_exit(3);
}

/* Whatever fails on the way out, the death is told once. */
static bool deaths_are_told(int bell, int arena, void (*die)(int, int), int most)
{
	struct sluice_ioc_peer_attach args;
	struct sluice_bell_record r;
	int status, users = module_users();

	for (int nth = 1; nth <= most; nth++) {
		pid_t pid = peer_start(arena, &args, die, nth);

		if (pid < 0 || !bell_next(bell, &r) || waitpid(pid, &status, 0) != pid)
			return false;
		if (r.type != SLUICE_BELL_PEER_DEAD || r.from_peer != args.peer ||
		    r.pid != (uint32_t)pid || (WIFEXITED(status) && WEXITSTATUS(status) == 97) ||
		    !module_users_settle(users)) {
			fprintf(stderr, "# allocation %d: type %u peer %u arg %llx status %#x\n",
				nth, r.type, r.from_peer, (unsigned long long)r.arg, status);
			return false;
		}
	}
	return bell_silent(bell);
}

TEST_F_TIMEOUT(fault, death, 900)
{
	EXPECT_TRUE(deaths_are_told(self->s.bell, self->s.arena, do_exit, 40));
	EXPECT_TRUE(deaths_are_told(self->s.bell, self->s.arena, do_exec, 150));
}

TEST_HARNESS_MAIN
