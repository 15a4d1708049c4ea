/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Short names for what every test of the module does. */
#ifndef KMOD_COMMON_H
#define KMOD_COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uapi/sluice.h"

#define MIB (1UL << 20)
/* An address that nobody has, hidden from the compiler. */
static inline void *nowhere(void)
{
	uintptr_t address = 8;

	__asm__("" : "+r"(address));
	return (void *)address;
}

#define PARAMETER(name) "/sys/module/sluice/parameters/" name

/* Emulated machines are slow: no test waits longer than this for what must happen at once. */
#define SOON_MS 20000

static inline int device_open(void)
{
	return open("/dev/sluice", O_RDWR | O_CLOEXEC);
}

/* -1 and errno, like the call itself. */
static inline int arena_create(int dev, uint64_t control, uint64_t data, uint32_t flags)
{
	struct sluice_ioc_arena_create args = {
		.size = sizeof(args),
		.flags = flags,
		.control_bytes = control,
		.data_bytes = data,
		.node = -1,
		.label = "test",
	};

	return ioctl(dev, SLUICE_IOC_ARENA_CREATE, &args);
}

static inline int arena_info(int fd, struct sluice_ioc_arena_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return ioctl(fd, SLUICE_IOC_ARENA_INFO, info);
}

static inline void *arena_map(int fd, uint64_t offset, size_t bytes, int prot)
{
	return mmap(NULL, bytes, prot, MAP_SHARED, fd, (off_t)offset);
}

static inline int peer_attach(int arena, uint32_t role, struct sluice_ioc_peer_attach *args)
{
	struct sluice_ioc_peer_attach local;

	if (!args)
		args = &local;
	*args = (struct sluice_ioc_peer_attach){.size = sizeof(*args), .role = role};
	return ioctl(arena, SLUICE_IOC_PEER_ATTACH, args);
}

static inline int bell_open(int bell, uint32_t *id)
{
	struct sluice_ioc_bell_open args = {.size = sizeof(args)};
	int fd = ioctl(bell, SLUICE_IOC_BELL_OPEN, &args);

	if (id)
		*id = args.bell;
	return fd;
}

static inline int bell_ring(int from, uint32_t to, uint32_t type, uint64_t arg)
{
	struct sluice_bell_message message = {.to_bell = to, .type = type, .arg = arg};
	ssize_t n = write(from, &message, sizeof(message));

	return n == sizeof(message) ? 0 : -1;
}

/* One record, or false when none comes. */
static inline bool bell_next(int bell, struct sluice_bell_record *record)
{
	struct pollfd p = {.fd = bell, .events = POLLIN};

	memset(record, 0, sizeof(*record));
	return poll(&p, 1, SOON_MS) == 1 && read(bell, record, sizeof(*record)) == sizeof(*record);
}

static inline bool bell_silent(int bell)
{
	struct pollfd p = {.fd = bell, .events = POLLIN};

	return poll(&p, 1, 100) == 0;
}

/* Starts a process that attaches as consumer, then runs @then, which should not return. */
static inline pid_t peer_start(int arena, struct sluice_ioc_peer_attach *args,
			       void (*then)(int bell, int arg), int arg)
{
	int ready[2];
	pid_t pid;

	if (pipe2(ready, O_CLOEXEC))
		return -1;
	pid = fork();
	if (!pid) {
		int bell = peer_attach(arena, SLUICE_IOC_ROLE_CONSUMER, args);

		if (bell < 0 || write(ready[1], args, sizeof(*args)) != sizeof(*args))
			_exit(99);
		close(ready[0]);
		close(ready[1]);
		then(bell, arg);
		_exit(98);
	}
	close(ready[1]);
	if (read(ready[0], args, sizeof(*args)) != sizeof(*args)) {
		close(ready[0]);
		return -1;
	}
	close(ready[0]);
	return pid;
}

static inline int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

static inline bool read_text(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, room - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return n >= 0;
}

/* io_uring_register(IORING_REGISTER_BUFFERS): pins for good, as a GPU driver does. */
static inline int pin_buffer(void *addr, size_t bytes)
{
	struct io_uring_params params = {0};
	struct iovec iov[64];
	int ring, err = 0, n = 0;

	/* One buffer may have 1 GiB at most. */
	for (size_t done = 0; done < bytes && n < 64; n++) {
		iov[n].iov_base = (char *)addr + done;
		iov[n].iov_len = bytes - done < 1024 * MIB ? bytes - done : 1024 * MIB;
		done += iov[n].iov_len;
	}
	ring = (int)syscall(SYS_io_uring_setup, 2, &params);
	if (ring < 0)
		return -errno;
	if (syscall(SYS_io_uring_register, ring, 0, iov, n))
		err = -errno;
	close(ring);
	return err;
}

/* A line of /proc/meminfo, in KiB. */
static inline uint64_t meminfo_kib(const char *field)
{
	char text[4096], *line;

	/* Folds in what each CPU counts for itself. */
	write_text("/proc/sys/vm/stat_refresh", "1");
	if (!read_text("/proc/meminfo", text, sizeof(text)))
		return 0;
	line = strstr(text, field);
	return line ? strtoull(line + strlen(field), NULL, 10) : 0;
}

#endif
