// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * usage: fuzz [-f] [-s SEED] [-t SECONDS | -n STEPS] [-p PROCESSES]
 *
 * Processes without privileges do to arenas, bells and mappings whatever system calls can do, in an
 * order that the seed decides. What is looked for is a report in the kernel's log, and a process
 * that cannot be ended; return values do not matter. With -f, the kernel fails allocations of these
 * processes, as often as its task filters for fault injection say.
 */
#include "common.h"

#include <grp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define SLOTS 16
#define USER  65534

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static uint64_t state;
static unsigned long steps;

/* Descriptors and mappings that come and go; the kinds do not matter. */
static int fds[SLOTS];
static struct {
	char *addr;
	size_t bytes;
} maps[SLOTS];
static int dev, pair[2], ring = -1;

static uint32_t rnd(uint32_t below)
{
	/* splitmix64 */
	uint64_t z = (state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return (uint32_t)((z ^ z >> 31) % below);
}

/* A number that is likely to matter. */
static uint64_t rnd_number(void)
{
	static const uint64_t numbers[] = {
		0,
		1,
		2,
		3,
		7,
		8,
		64,
		4095,
		4096,
		4097,
		8192,
		1 << 20,
		2 << 20,
		4 << 20,
		UINT32_MAX,
		1ULL << 32,
		INT64_MAX,
		UINT64_MAX,
		UINT64_MAX - 4095,
	};

	return numbers[rnd(sizeof(numbers) / sizeof(numbers[0]))] + (rnd(4) ? 0 : rnd(5) - 2);
}

static int any_fd(void)
{
	return fds[rnd(SLOTS)];
}

static void keep_fd(int fd)
{
	int slot = (int)rnd(SLOTS);

	if (fd < 0)
		return;
	if (fds[slot] >= 0)
		close(fds[slot]);
	fds[slot] = fd;
}

static void keep_map(void *addr, size_t bytes)
{
	unsigned int slot = rnd(SLOTS);

	if (addr == MAP_FAILED)
		return;
	if (maps[slot].addr)
		munmap(maps[slot].addr, maps[slot].bytes);
	maps[slot].addr = addr;
	maps[slot].bytes = bytes;
}

static void do_create(void)
{
	uint64_t data = rnd(3)	 ? (rnd(8) + 1) << 12
			: rnd(3) ? rnd(3) * 2 * MIB + 4096
				 : rnd_number();

	keep_fd(arena_create(dev, rnd(8) ? 4096 : rnd_number(), data, rnd(4)));
}

static void do_ioctl(void)
{
	static const unsigned long calls[] = {
		SLUICE_IOC_HELLO,	SLUICE_IOC_ARENA_CREATE, SLUICE_IOC_ARENA_RESTRICT,
		SLUICE_IOC_PEER_ATTACH, SLUICE_IOC_ARENA_INFO,	 SLUICE_IOC_PEER_LIST,
		SLUICE_IOC_BELL_OPEN,
	};
	static uint32_t room[64];
	union {
		uint32_t words[32];
		struct sluice_ioc_arena_create create;
		struct sluice_ioc_peer_list list;
	} args;
	unsigned long call = calls[rnd(7)];
	int fd;

	for (unsigned int i = 0; i < 32; i++)
		args.words[i] = rnd(3) ? 0 : (uint32_t)rnd_number();
	args.words[0] = rnd(8) ? _IOC_SIZE(call) : (uint32_t)rnd_number();
	if (call == SLUICE_IOC_PEER_LIST && rnd(4)) {
		args.list.count = rnd(17);
		args.list.peers = (uintptr_t)room;
	}
	/* Only small arenas, or nothing else gets its turn. */
	if (call == SLUICE_IOC_ARENA_CREATE && args.create.data_bytes > 16 * MIB)
		args.create.data_bytes = rnd_number() % (16 * MIB);
	/* Of these, zero is no descriptor. */
	fd = ioctl(rnd(8) ? any_fd() : dev, call, rnd(32) ? &args : nowhere());
	if (fd > 0)
		keep_fd(fd);
}

static void do_attach(void)
{
	keep_fd(peer_attach(any_fd(), 1 + rnd(2), NULL));
}

static void do_bell(void)
{
	keep_fd(bell_open(any_fd(), NULL));
}

static void do_mmap(void)
{
	size_t bytes = rnd(2) ? 4096 : rnd(4) ? 2 * MIB : (size_t)rnd_number();
	int prot = (int)rnd(8);

	if (bytes > 64 * MIB)
		bytes = 4096;
	keep_map(mmap(NULL, bytes, prot, rnd(8) ? MAP_SHARED : MAP_PRIVATE, any_fd(),
		      (off_t)(rnd(2)   ? 0
			      : rnd(2) ? 2 * MIB
				       : rnd_number() & ~4095ULL)),
		 bytes);
}

static void do_map_call(void)
{
	/* Not MADV_DONTFORK: in a child, something else could be mapped where we think we are. */
	static const int advice[] = {
		MADV_NORMAL,   MADV_DONTNEED,	   MADV_REMOVE,		MADV_COLD,
		MADV_PAGEOUT,  MADV_COLLAPSE,	   MADV_FREE,		MADV_HUGEPAGE,
		MADV_WILLNEED, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
	};
	unsigned int slot = rnd(SLOTS);
	char *addr = maps[slot].addr;
	size_t bytes = maps[slot].bytes, part = (rnd(4) + 1) * 4096;
	void *moved;

	if (!addr)
		return;
	if (part > bytes)
		part = bytes;
	switch (rnd(11)) {
	case 10:
		moved = mremap(addr, 0, bytes, MREMAP_MAYMOVE);
		keep_map(moved, bytes);
		break;
	case 0:
		moved = mremap(addr, bytes, rnd(2) ? bytes : part, MREMAP_MAYMOVE);
		if (moved != MAP_FAILED) {
			maps[slot].addr = NULL;
			keep_map(moved, part);
		}
		break;
	case 1:
		moved = mremap(addr, bytes, bytes * 2, MREMAP_MAYMOVE);
		if (moved != MAP_FAILED) {
			maps[slot].addr = NULL;
			keep_map(moved, bytes * 2);
		}
		break;
	case 2:
		mprotect(addr, part, (int)rnd(8));
		break;
	case 3:
		/* When it fails it leaves a hole, which nobody else must fill. */
		if (syscall(SYS_remap_file_pages, addr, part, 0, rnd(600), 0) && errno != EINTR)
			mmap(addr, part, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		break;
	case 4:
		if (munmap(addr, part))
			break;
		/* What is mapped there next must not be taken for ours. */
		maps[slot].addr = part < bytes ? addr + part : NULL;
		maps[slot].bytes = bytes - part;
		break;
	case 5:
		pin_buffer(addr, bytes);
		break;
	case 6:
		if (rnd(2))
			mlock(addr, part);
		else
			msync(addr, part, MS_SYNC);
		break;
	case 7:
		/* Through the kernel, so that a fault is an errno. */
		if (write(pair[0], addr, part < 512 ? part : 512) > 0)
			recv(pair[1], addr, 512, MSG_DONTWAIT);
		break;
	default:
		madvise(addr, rnd(2) ? bytes : part, advice[rnd(11)]);
	}
}

static void do_file_call(void)
{
	char path[64], buf[512];
	struct sluice_bell_message m = {.to_bell = rnd(40), .type = rnd(6), .arg = rnd_number()};
	int fd = any_fd();

	switch (rnd(10)) {
	case 0:
		fallocate(fd, (int)rnd(4), (off_t)rnd_number(), (off_t)rnd_number());
		break;
	case 1:
		if (ftruncate(fd, (off_t)rnd_number()))
			break;
		break;
	case 2:
		fcntl(fd, rnd(2) ? F_ADD_SEALS : F_GET_SEALS, rnd(32));
		break;
	case 3:
		fcntl(fd, F_SETFL, rnd(2) ? O_NONBLOCK : 0);
		break;
	case 4:
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		keep_fd(open(path, rnd(2) ? O_RDWR : O_RDONLY));
		break;
	case 5:
		keep_fd(dup(fd));
		break;
	case 6:
		fcntl(fd, F_SETFL, O_NONBLOCK);
		if (read(fd, rnd(8) ? buf : nowhere(), rnd(sizeof(buf))) < 0)
			break;
		break;
	case 7:
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
		read_text(path, buf, sizeof(buf));
		break;
	default:
		if (write(fd, rnd(16) ? (void *)&m : nowhere(), rnd(8) ? sizeof(m) : rnd(400)) < 0)
			break;
	}
}

static void do_send(void)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	int fd = any_fd();

	if (rnd(2)) {
		if (recvmsg(pair[1], &msg, MSG_DONTWAIT) == 1 && CMSG_FIRSTHDR(&msg) &&
		    CMSG_FIRSTHDR(&msg)->cmsg_type == SCM_RIGHTS) {
			memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
			keep_fd(fd);
		}
		return;
	}
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	sendmsg(pair[0], &msg, MSG_DONTWAIT);
}

/* Requests that stay pending until their file, or we, are gone. */
static void do_uring(void)
{
	static struct io_uring_params p;
	static char *sq, *sqes;
	static char buf[64];
	struct io_uring_sqe *sqe;
	unsigned int *tail;

	if (ring < 0) {
		memset(&p, 0, sizeof(p));
		ring = (int)syscall(SYS_io_uring_setup, 32, &p);
		if (ring < 0)
			return;
		sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE,
			  MAP_SHARED, ring, IORING_OFF_SQ_RING);
		sqes = mmap(NULL, p.sq_entries * sizeof(*sqe), PROT_READ | PROT_WRITE, MAP_SHARED,
			    ring, IORING_OFF_SQES);
	}
	if (sq == MAP_FAILED || sqes == MAP_FAILED)
		return;
	tail = (unsigned int *)(sq + p.sq_off.tail);
	sqe = (struct io_uring_sqe *)sqes + *tail % p.sq_entries;
	memset(sqe, 0, sizeof(*sqe));
	sqe->fd = any_fd();
	switch (rnd(3)) {
	case 0:
		sqe->opcode = IORING_OP_READ;
		sqe->addr = (uintptr_t)buf;
		sqe->len = sizeof(buf);
		break;
	case 1:
		sqe->opcode = IORING_OP_POLL_ADD;
		sqe->poll32_events = POLLIN;
		sqe->len = rnd(2);
		break;
	default:
		sqe->opcode = IORING_OP_WRITE;
		sqe->addr = (uintptr_t)buf;
		sqe->len = sizeof(struct sluice_bell_message);
	}
	((unsigned int *)(sq + p.sq_off.array))[*tail % p.sq_entries] = *tail % p.sq_entries;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0);
	if (!rnd(20)) {
		close(ring);
		ring = -1;
	}
}

static void do_step(void);

static void do_fork(void)
{
	static int depth;
	char *argv[] = {"true", NULL};
	pid_t pid;

	if (depth > 2)
		return;
	pid = fork();
	if (!pid) {
		depth++;
		ring = -1;
		for (unsigned int i = rnd(50); i; i--)
			do_step();
		switch (rnd(4)) {
		case 0:
			raise(SIGKILL);
			break;
		case 1:
			execv("/bin/true", argv);
			break;
		}
		_exit(0);
	}
	if (pid > 0 && rnd(2))
		kill(pid, SIGKILL);
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

static void do_close(void)
{
	unsigned int slot = rnd(SLOTS);

	if (fds[slot] >= 0)
		close(fds[slot]);
	fds[slot] = -1;
}

static void do_step(void)
{
	static void (*const steps_of[])(void) = {
		do_create,    do_ioctl,	    do_ioctl,	 do_attach,   do_bell,	    do_mmap,
		do_mmap,      do_map_call,  do_map_call, do_map_call, do_file_call, do_file_call,
		do_file_call, do_file_call, do_send,	 do_uring,    do_close,	    do_close,
	};

	steps++;
	if (!rnd(60))
		do_fork();
	else
		steps_of[rnd(sizeof(steps_of) / sizeof(steps_of[0]))]();
}

/* A stack that cannot grow ends the process: have all that the calls below will want. */
static __attribute__((noinline)) void stack_grow(void)
{
	volatile char room[256 << 10];

	for (size_t i = 0; i < sizeof(room); i += 4096)
		room[i] = 1;
}

/* From here on what is not in memory yet may never get there. */
static int become_faulty(void)
{
	stack_grow();
	return mlockall(MCL_CURRENT) || write_text("/proc/thread-self/make-it-fail", "1");
}

static int run(uint64_t seed, unsigned int seconds, unsigned long limit, bool faulty)
{
	time_t end = time(NULL) + seconds;

	state = seed;
	for (int i = 0; i < SLOTS; i++)
		fds[i] = -1;
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair))
		return 1;
	dev = device_open();
	if (dev < 0) {
		perror("fuzz: /dev/sluice");
		return 1;
	}
	if (setgroups(0, NULL) || setgid(USER)) {
		perror("fuzz: giving up the group");
		return 1;
	}
	if (faulty && become_faulty()) {
		perror("fuzz: no faults on this kernel");
		return 1;
	}
	while (setuid(USER)) {
		if (errno != ENOMEM) {
			perror("fuzz: giving up privileges");
			return 1;
		}
	}
	while (limit ? steps < limit : time(NULL) < end)
		do_step();
	printf("seed %llu: %lu steps\n", (unsigned long long)seed, steps);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned int seconds = 10, processes = 1;
	unsigned long limit = 0;
	uint64_t seed = 1;
	int opt, status, failed = 0;
	bool faulty = false;

	while ((opt = getopt(argc, argv, "fs:t:n:p:")) != -1) {
		switch (opt) {
		case 'f':
			faulty = true;
			break;
		case 's':
			seed = strtoull(optarg, NULL, 0);
			break;
		case 't':
			seconds = (unsigned int)strtoul(optarg, NULL, 0);
			break;
		case 'n':
			limit = strtoul(optarg, NULL, 0);
			break;
		case 'p':
			processes = (unsigned int)strtoul(optarg, NULL, 0);
			break;
		default:
			fprintf(stderr, "usage: fuzz [-f] [-s SEED] [-t SECONDS | -n STEPS] [-p "
					"PROCESSES]\n");
			return 2;
		}
	}
	for (unsigned int i = 0; i < processes; i++) {
		if (!fork()) {
			status = run(seed * 1000 + i, seconds, limit, faulty);
			fflush(NULL);
			_exit(status);
		}
	}
	while (wait(&status) > 0) {
		if (status) {
			fprintf(stderr, "fuzz: a process ended with status %#x\n", status);
			failed = 1;
		}
	}
	return failed;
}
