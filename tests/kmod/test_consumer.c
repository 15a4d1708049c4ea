// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* A consumer reads the data region; none of the ways to write to it works. */
#include "common.h"

#include "kselftest_harness.h"

#define CONTROL 8192
#define DATA	(4 * MIB)

FIXTURE(consumer)
{
	int full;
	int fd;
	uint64_t off;
	unsigned char *full_data;
	unsigned char *data;
};

FIXTURE_SETUP(consumer)
{
	struct sluice_ioc_arena_info info;
	int dev = device_open();

	ASSERT_LE(0, dev);
	self->full = arena_create(dev, CONTROL, DATA, SLUICE_IOC_HUGE_PREFERRED);
	ASSERT_LE(0, self->full);
	self->fd = ioctl(self->full, SLUICE_IOC_ARENA_RESTRICT);
	ASSERT_LE(0, self->fd);
	ASSERT_EQ(0, arena_info(self->fd, &info));
	ASSERT_EQ(SLUICE_IOC_ROLE_CONSUMER, info.role);
	self->off = info.data_offset;
	self->full_data = arena_map(self->full, self->off, DATA, PROT_READ | PROT_WRITE);
	self->data = arena_map(self->fd, self->off, DATA, PROT_READ);
	ASSERT_NE(MAP_FAILED, (void *)self->full_data);
	ASSERT_NE(MAP_FAILED, (void *)self->data);
	memset(self->full_data, 0x11, DATA);
}

FIXTURE_TEARDOWN(consumer)
{
}

TEST_F(consumer, reads)
{
	EXPECT_EQ(0x11, self->data[0]);
	EXPECT_EQ(0x11, self->data[DATA - 1]);
}

TEST_F(consumer, maps_control_writable)
{
	unsigned char *control = arena_map(self->fd, 0, CONTROL, PROT_READ | PROT_WRITE);
	unsigned char *other = arena_map(self->full, 0, CONTROL, PROT_READ);

	ASSERT_NE(MAP_FAILED, (void *)control);
	control[5] = 1;
	EXPECT_EQ(1, other[5]);
}

TEST_F(consumer, cannot_map_data_writable)
{
	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, self->off, DATA, PROT_READ | PROT_WRITE));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(MAP_FAILED, arena_map(self->fd, self->off, DATA, PROT_WRITE));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, DATA, PROT_READ | PROT_WRITE, MAP_PRIVATE, self->fd,
				   (off_t)self->off));
}

TEST_F(consumer, mprotect)
{
	EXPECT_EQ(-1, mprotect(self->data, DATA, PROT_READ | PROT_WRITE));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(0, mprotect(self->data, 4096, PROT_NONE));
	EXPECT_EQ(-1, mprotect(self->data, 4096, PROT_READ | PROT_WRITE));
	EXPECT_EQ(0, mprotect(self->data, 4096, PROT_READ));
	EXPECT_EQ(0x11, self->data[0]);
}

TEST_F(consumer, mremap)
{
	unsigned char *moved;

	moved = mremap(self->data, DATA, 4096, MREMAP_MAYMOVE);
	ASSERT_NE(MAP_FAILED, (void *)moved);
	EXPECT_EQ(-1, mprotect(moved, 4096, PROT_READ | PROT_WRITE));
	EXPECT_EQ(MAP_FAILED, mremap(moved, 4096, DATA, MREMAP_MAYMOVE));
}

TEST_F(consumer, remap_file_pages)
{
	/* May succeed, as a read-only mapping of other pages of the same region. */
	if (!syscall(SYS_remap_file_pages, self->data, 4096, 0, 3, 0))
		EXPECT_EQ(0x11, self->data[0]);
	EXPECT_EQ(-1, mprotect(self->data, 4096, PROT_READ | PROT_WRITE));
	/* Not beyond the region. */
	EXPECT_EQ(-1, syscall(SYS_remap_file_pages, self->data, 4096, 0, DATA / 4096, 0));
}

TEST_F(consumer, proc_mem)
{
	unsigned char byte = 0x22;
	struct iovec mine = {&byte, 1}, his = {self->data, 1};
	int fd = open("/proc/self/mem", O_RDWR);

	ASSERT_LE(0, fd);
	EXPECT_EQ(-1, pwrite(fd, &byte, 1, (off_t)(uintptr_t)self->data));
	EXPECT_EQ(-1, process_vm_writev(getpid(), &mine, 1, &his, 1, 0));
	EXPECT_EQ(0x11, self->full_data[0]);
}

TEST_F(consumer, kernel_does_not_write_for_it)
{
	int zero = open("/dev/zero", O_RDONLY);

	EXPECT_EQ(-1, read(zero, self->data, 4096));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_NE(0, pin_buffer(self->data, DATA));
	EXPECT_EQ(0x11, self->full_data[0]);
}

TEST_F(consumer, reopen)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", self->fd);
	EXPECT_EQ(-1, open(path, O_RDWR));
	EXPECT_EQ(-1, open(path, O_RDONLY));
	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)self->data,
		 (unsigned long)self->data + DATA);
	EXPECT_EQ(-1, open(path, O_RDWR));
}

TEST_F(consumer, attaches_as_consumer_only)
{
	EXPECT_EQ(-1, peer_attach(self->fd, SLUICE_IOC_ROLE_PRODUCER, NULL));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(-1, peer_attach(self->fd, 0, NULL));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_LE(0, peer_attach(self->fd, SLUICE_IOC_ROLE_CONSUMER, NULL));
}

TEST_F(consumer, restricting_again_gives_no_more)
{
	int fd = ioctl(self->fd, SLUICE_IOC_ARENA_RESTRICT);

	ASSERT_LE(0, fd);
	EXPECT_EQ(MAP_FAILED, arena_map(fd, self->off, DATA, PROT_READ | PROT_WRITE));
	EXPECT_EQ(-1, peer_attach(fd, SLUICE_IOC_ROLE_PRODUCER, NULL));
}

TEST_HARNESS_MAIN
