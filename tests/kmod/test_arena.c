// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Memory: what is reserved, how it is mapped, and that nobody can take it away. */
#include "common.h"

#include "kselftest_harness.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define CONTROL 8192
#define DATA	(8 * MIB)

FIXTURE(arena)
{
	int dev;
	int fd;
	struct sluice_ioc_arena_info info;
	unsigned char *data;
};

FIXTURE_SETUP(arena)
{
	self->dev = device_open();
	ASSERT_LE(0, self->dev);
	self->fd = arena_create(self->dev, CONTROL, DATA, SLUICE_IOC_HUGE_PREFERRED);
	ASSERT_LE(0, self->fd);
	ASSERT_EQ(0, arena_info(self->fd, &self->info));
	self->data = arena_map(self->fd, self->info.data_offset, DATA, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)self->data);
}

FIXTURE_TEARDOWN(arena)
{
}

TEST(hello)
{
	struct {
		struct sluice_ioc_hello hello;
		uint64_t more;
	} args = {.hello = {.size = sizeof(args.hello), .abi = SLUICE_ABI_VERSION}};
	int dev = device_open();

	ASSERT_LE(0, dev);
	EXPECT_EQ(0, ioctl(dev, SLUICE_IOC_HELLO, &args));
	EXPECT_EQ(SLUICE_ABI_VERSION, args.hello.abi);
	EXPECT_TRUE(args.hello.features & SLUICE_FEATURE_EXIT_CODES);

	/* Both sides are named when they do not fit. */
	args.hello.abi = SLUICE_ABI_VERSION + 1;
	args.hello.features = 0;
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_HELLO, &args));
	EXPECT_EQ(EPROTO, errno);
	EXPECT_EQ(SLUICE_ABI_VERSION, args.hello.abi);
	args.hello.features = 1ULL << 63;
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_HELLO, &args));
	EXPECT_EQ(EOPNOTSUPP, errno);
	EXPECT_FALSE(args.hello.features & 1ULL << 63);

	/* A newer caller may know more, as long as it does not ask for it. */
	args.hello.features = 0;
	args.hello.size = sizeof(args);
	EXPECT_EQ(0, ioctl(dev, SLUICE_IOC_HELLO, &args));
	args.hello.features = 0;
	args.more = 1;
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_HELLO, &args));
	EXPECT_EQ(E2BIG, errno);
	args.hello.size = 8;
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_HELLO, &args));
	EXPECT_EQ(EINVAL, errno);
	args.hello.size = sizeof(args.hello);
	args.hello.reserved[1] = 1;
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_HELLO, &args));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_HELLO, NULL));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_PEER_LIST, &args));
	EXPECT_EQ(ENOTTY, errno);
}

TEST(create_refuses)
{
	const struct sluice_ioc_arena_create good = {
		.size = sizeof(good), .control_bytes = CONTROL, .data_bytes = DATA, .node = -1};
	struct sluice_ioc_arena_create bad[] = {good, good, good, good, good, good, good, good};
	int dev = device_open();

	bad[0].control_bytes = 0;
	bad[1].data_bytes = 0;
	bad[2].data_bytes = UINT64_MAX;
	bad[3].flags = SLUICE_IOC_HUGE_PREFERRED | SLUICE_IOC_HUGE_REQUIRED;
	bad[4].flags = 4;
	bad[5].node = 4096;
	bad[6].node = -2;
	bad[7].reserved = 1;
	for (unsigned int i = 0; i < 8; i++) {
		EXPECT_EQ(-1, ioctl(dev, SLUICE_IOC_ARENA_CREATE, &bad[i]))
		TH_LOG("case %u", i);
		EXPECT_EQ(EINVAL, errno);
	}
}

TEST(create_is_exact)
{
	struct sluice_ioc_arena_info info;
	int dev = device_open();
	int fd = arena_create(dev, 1, 5 * MIB + 1, SLUICE_IOC_HUGE_PREFERRED);
	unsigned char *data;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, arena_info(fd, &info));
	EXPECT_EQ(4096, info.control_bytes);
	EXPECT_EQ(5 * MIB + 4096, info.data_bytes);
	EXPECT_EQ(0, info.data_offset % (2 * MIB));
	EXPECT_LE(info.control_bytes, info.data_offset);
	EXPECT_GE(4 * MIB, info.huge_bytes);
	EXPECT_EQ(SLUICE_IOC_ROLE_PRODUCER, info.role);
	EXPECT_EQ(0, strcmp("test", info.label));
	EXPECT_EQ(FD_CLOEXEC, fcntl(fd, F_GETFD));

	data = arena_map(fd, info.data_offset, info.data_bytes, PROT_READ);
	ASSERT_NE(MAP_FAILED, (void *)data);
	for (uint64_t i = 0; i < info.data_bytes; i += 4096)
		ASSERT_EQ(0, data[i]);
}

/* From smaps: bytes of the mapping at @addr in a field. */
static uint64_t smaps_bytes(const void *addr, const char *field)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	uint64_t kib = 0;
	char line[512], start[32];
	bool here = false;

	snprintf(start, sizeof(start), "%lx-", (unsigned long)addr);
	while (f && fgets(line, sizeof(line), f)) {
		if (strchr(line, '-') && strstr(line, " /") && line[0] != ' ')
			here = !strncmp(line, start, strlen(start));
		else if (here && !strncmp(line, field, strlen(field)))
			kib = strtoull(line + strlen(field), NULL, 10);
	}
	if (f)
		fclose(f);
	return kib << 10;
}

TEST_F_TIMEOUT(arena, huge_pages_are_mapped_huge, 240)
{
	const uint64_t bytes = 256 * MIB;
	struct sluice_ioc_arena_info info;
	int fd = arena_create(self->dev, CONTROL, bytes, SLUICE_IOC_HUGE_REQUIRED);
	unsigned char *data;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, arena_info(fd, &info));
	EXPECT_EQ(bytes, info.huge_bytes);
	data = arena_map(fd, info.data_offset, bytes, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)data);
	for (uint64_t i = 0; i < bytes; i += 4096)
		data[i] = 1;
	EXPECT_EQ(bytes, smaps_bytes(data, "ShmemPmdMapped:"));
}

TEST_F(arena, small_pages_when_asked)
{
	struct sluice_ioc_arena_info info;
	int fd = arena_create(self->dev, CONTROL, DATA, 0);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, arena_info(fd, &info));
	EXPECT_EQ(0, info.huge_bytes);
}

TEST_F(arena, ids_are_never_reused)
{
	struct sluice_ioc_arena_info info;
	uint64_t last = self->info.id;

	for (int i = 0; i < 20; i++) {
		int fd = arena_create(self->dev, CONTROL, CONTROL, 0);

		ASSERT_LE(0, fd);
		ASSERT_EQ(0, arena_info(fd, &info));
		EXPECT_LT(last, info.id);
		last = info.id;
		close(fd);
	}
}

TEST_F(arena, node)
{
	struct sluice_ioc_arena_create args = {
		.size = sizeof(args), .control_bytes = CONTROL, .data_bytes = DATA, .node = 0};
	struct sluice_ioc_arena_info info;
	int fd = ioctl(self->dev, SLUICE_IOC_ARENA_CREATE, &args);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, arena_info(fd, &info));
	EXPECT_EQ(0, info.node);
}

TEST_F(arena, mapping_stays_inside)
{
	const uint64_t off = self->info.data_offset;

	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, 0, CONTROL + 4096, PROT_READ));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, off - 4096, 8192, PROT_READ));
	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, off, DATA + 4096, PROT_READ));
	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, off + DATA, 4096, PROT_READ));
	EXPECT_NE(MAP_FAILED, arena_map(self->fd, off + DATA - 4096, 4096, PROT_READ));
	EXPECT_EQ(MAP_FAILED,
		  mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, self->fd, (off_t)off));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, off, 4096, PROT_READ | PROT_EXEC));
	EXPECT_EQ(-1, mprotect(self->data, 4096, PROT_READ | PROT_EXEC));

	EXPECT_EQ(MAP_FAILED, mremap(self->data, DATA, DATA + 4096, MREMAP_MAYMOVE));
	EXPECT_EQ(MAP_FAILED, mremap(self->data, 0, DATA, MREMAP_MAYMOVE));
}

TEST_F(arena, both_regions_are_shared)
{
	unsigned char *a = arena_map(self->fd, 0, CONTROL, PROT_READ | PROT_WRITE);
	pid_t pid;
	int status;

	ASSERT_NE(MAP_FAILED, (void *)a);
	self->data[DATA - 1] = 7;
	a[CONTROL - 1] = 8;
	pid = fork();
	if (!pid) {
		unsigned char *d = arena_map(self->fd, self->info.data_offset, DATA, PROT_READ);
		unsigned char *c = arena_map(self->fd, 0, CONTROL, PROT_READ | PROT_WRITE);

		if (d[DATA - 1] != 7 || c[CONTROL - 1] != 8)
			_exit(1);
		c[0] = 9;
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(9, a[0]);
	EXPECT_EQ(0, self->data[0]);
}

TEST_F(arena, memory_cannot_be_taken_away)
{
	memset(self->data, 0x5a, DATA);
	EXPECT_EQ(-1, madvise(self->data, DATA, MADV_REMOVE));
	madvise(self->data, DATA, MADV_DONTNEED);
	madvise(self->data, DATA, MADV_COLD);
	madvise(self->data, DATA, MADV_PAGEOUT);
	madvise(self->data, DATA, MADV_COLLAPSE);
	EXPECT_EQ(-1, fallocate(self->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	EXPECT_EQ(-1, ftruncate(self->fd, 0));
	EXPECT_EQ(-1, fcntl(self->fd, F_ADD_SEALS, F_SEAL_WRITE));
	for (uint64_t i = 0; i < DATA; i += 512)
		ASSERT_EQ(0x5a, self->data[i]);
	EXPECT_EQ(0, pin_buffer(self->data, DATA));
}

TEST_F(arena, no_way_around_the_descriptor)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", self->fd);
	EXPECT_EQ(-1, open(path, O_RDWR));
	EXPECT_EQ(-1, open(path, O_RDONLY));
	/* Even root, who may open the files behind mappings. */
	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)self->data,
		 (unsigned long)self->data + DATA);
	fd = open(path, O_RDWR);
	EXPECT_EQ(-1, fd);
	EXPECT_EQ(ENXIO, errno);
}

/* Both regions, whole. */
static int pin_arena(int fd)
{
	struct sluice_ioc_arena_info info;
	void *control, *data;
	int err;

	if (arena_info(fd, &info))
		return -errno;
	control = arena_map(fd, 0, info.control_bytes, PROT_READ | PROT_WRITE);
	data = arena_map(fd, info.data_offset, info.data_bytes, PROT_READ | PROT_WRITE);
	if (control == MAP_FAILED || data == MAP_FAILED)
		return -errno;
	err = pin_buffer(control, info.control_bytes) ?: pin_buffer(data, info.data_bytes);
	munmap(control, info.control_bytes);
	munmap(data, info.data_bytes);
	return err;
}

TEST_F(arena, outlives_its_creator)
{
	int ready[2], status;
	pid_t pid;

	ASSERT_EQ(0, pipe(ready));
	pid = fork();
	if (!pid) {
		char c;

		/* Ours are copies; the parent's go first. */
		close(ready[1]);
		if (read(ready[0], &c, 1) != 0)
			_exit(1);
		self->data[0] = 3;
		_exit(pin_buffer(self->data, DATA) ? 2 : 0);
	}
	munmap(self->data, DATA);
	close(self->fd);
	close(self->dev);
	close(ready[0]);
	close(ready[1]);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

/* The creator is gone altogether, its address space and descriptors with it. */
TEST_F(arena, can_be_registered_after_its_creator_died)
{
	int result[2], status, err = 1;
	pid_t pid;

	ASSERT_EQ(0, pipe(result));
	pid = fork();
	if (!pid) {
		int fd = arena_create(self->dev, CONTROL, DATA, SLUICE_IOC_HUGE_PREFERRED);
		pid_t creator = getpid();

		if (fd < 0 || pin_arena(fd))
			_exit(1);
		if (fork())
			_exit(0);
		/* Children are handed on when both are gone. */
		while (getppid() == creator)
			usleep(1000);
		err = pin_arena(fd);
		_exit(write(result[1], &err, sizeof(err)) != sizeof(err));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	close(result[1]);
	ASSERT_EQ(sizeof(err), read(result[0], &err, sizeof(err)));
	EXPECT_EQ(0, err);
}

TEST_F(arena, unload_is_refused_while_mapped)
{
	close(self->fd);
	close(self->dev);
	EXPECT_EQ(-1, syscall(SYS_delete_module, "sluice", O_NONBLOCK));
	EXPECT_EQ(EAGAIN, errno);
	self->data[0] = 1;
}

TEST_F(arena, can_be_registered_as_often_as_wanted)
{
	void *other = arena_map(self->fd, self->info.data_offset, DATA, PROT_READ | PROT_WRITE);
	pid_t pid;
	int status;

	ASSERT_NE(MAP_FAILED, other);
	EXPECT_EQ(0, pin_arena(self->fd));
	pid = fork();
	if (!pid) {
		if (pin_arena(self->fd) || pin_buffer(self->data, DATA))
			_exit(2);
		/* One unmaps while the other pins. */
		for (int i = 0; i < 50; i++) {
			void *p = arena_map(self->fd, self->info.data_offset, DATA,
					    PROT_READ | PROT_WRITE);

			if (p == MAP_FAILED || munmap(p, DATA))
				_exit(1);
		}
		_exit(0);
	}
	for (int i = 0; i < 20; i++) {
		ASSERT_EQ(0, pin_buffer(other, DATA));
		ASSERT_EQ(0, pin_arena(self->fd));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, pin_buffer(self->data, DATA));
}

TEST_F(arena, fdinfo)
{
	char path[64], text[1024], want[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", self->fd);
	ASSERT_TRUE(read_text(path, text, sizeof(text)));
	snprintf(want, sizeof(want), "arena:\t%llu\n", (unsigned long long)self->info.id);
	EXPECT_NE(NULL, strstr(text, want));
	snprintf(want, sizeof(want), "huge_bytes:\t%llu\n",
		 (unsigned long long)self->info.huge_bytes);
	EXPECT_NE(NULL, strstr(text, want));
	EXPECT_NE(NULL, strstr(text, "label:\ttest\n"));
	EXPECT_NE(NULL, strstr(text, "control_bytes:\t8192\n"));
	EXPECT_NE(NULL, strstr(text, "data_bytes:\t8388608\n"));
	EXPECT_NE(NULL, strstr(text, "node:\t-1\n"));
	EXPECT_NE(NULL, strstr(text, "role:\tproducer\n"));
	EXPECT_NE(NULL, strstr(text, "peers:\t0\n"));
}

/* A label may fill its array, and holds whatever the creator wrote. */
TEST_F(arena, fdinfo_of_an_odd_label)
{
	struct sluice_ioc_arena_create args = {
		.size = sizeof(args), .control_bytes = CONTROL, .data_bytes = CONTROL, .node = -1};
	char path[64], text[1024], want[4 * sizeof(args.label) + 32] = "label:\t";
	int fd;

	for (size_t i = 0; i < sizeof(args.label); i++) {
		args.label[i] = i % 2 ? '\n' : '\377';
		strcat(want, i % 2 ? "\\n" : "\\377");
	}
	strcat(want, "\ncontrol_bytes:");
	fd = ioctl(self->dev, SLUICE_IOC_ARENA_CREATE, &args);
	ASSERT_LE(0, fd);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	ASSERT_TRUE(read_text(path, text, sizeof(text)));
	EXPECT_NE(NULL, strstr(text, want))
	TH_LOG("%s", text);
}

TEST_HARNESS_MAIN
