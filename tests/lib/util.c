// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <dirent.h>
#include <sys/prctl.h>

#include "util.h"

void check_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "# %s:%d: pid %d: not true: %s (errno %d; library: %s)\n", file, line,
		getpid(), what, errno, sluice_strerror());
	_exit(1);
}

void check_failed_ret(const char *file, int line, const char *what, long ret)
{
	fprintf(stderr, "# %s:%d: pid %d: %s returned %ld (library: %s)\n", file, line, getpid(),
		what, ret, sluice_strerror());
	_exit(1);
}

pid_t child_fork(void)
{
	pid_t parent = getpid();
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

int child_wait(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return status;
}

void child_kill(pid_t pid)
{
	kill(pid, SIGKILL);
	child_wait(pid);
}

static char process_state(pid_t pid)
{
	char path[32], line[256], *paren;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, line, sizeof(line) - 1);
	close(fd);
	line[n > 0 ? n : 0] = '\0';
	paren = strrchr(line, ')');
	return paren ? paren[2] : 0;
}

void child_wait_asleep(pid_t pid)
{
	uint64_t until = now_ns() + LONG_WAIT;
	unsigned int seen = 0;

	/* Ten times in a row: a process also sleeps for a moment on its way to where it waits. */
	while (seen < 10 && now_ns() < until) {
		seen = process_state(pid) == 'S' ? seen + 1 : 0;
		usleep(1000);
	}
}

void gate_init(struct gate *g)
{
	if (pipe2(g->fd, O_CLOEXEC) < 0)
		abort();
}

void gate_open(struct gate *g)
{
	if (write(g->fd[1], "", 1) != 1)
		abort();
}

void gate_pass(struct gate *g)
{
	struct pollfd p = {.fd = g->fd[0], .events = POLLIN};
	char c;

	while (poll(&p, 1, (int)(LONG_WAIT / MSEC)) < 0 && errno == EINTR)
		;
	if (!(p.revents & POLLIN) || read(g->fd[0], &c, 1) != 1) {
		fprintf(stderr, "# pid %d: nobody opened the gate\n", getpid());
		abort();
	}
}

struct sluice_arena *arena_new(uint64_t bytes)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.flags = SLUICE_ARENA_NO_HUGE,
		.data_bytes = bytes,
		/* The smallest for which the control region keeps below its limit. */
		.block_bytes = bytes > 32 * MIB ? 32 * KIB : 4 * KIB,
		.label = "test",
	};
	struct sluice_arena *a = NULL;
	int ret = sluice_arena_create(&a, &opts);

	if (ret)
		fprintf(stderr, "# arena of %llu bytes: %d, %s\n", (unsigned long long)bytes, ret,
			sluice_strerror());
	return a;
}

struct sluice_arena *arena_child(struct sluice_arena *inherited)
{
	struct sluice_arena *a;

	CHECK_OK(sluice_arena_reattach(&a, inherited));
	return a;
}

const char *arena_all_free(struct sluice_arena *a)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	static char what[256];

	if (sluice_arena_info(a, &info) || sluice_arena_usage(a, &u))
		return sluice_strerror();
	if (u.free_bytes == info.data_bytes && !u.reserved_bytes && !u.writing && !u.ready &&
	    !u.held && !u.parked && !u.shared)
		return NULL;
	snprintf(what, sizeof(what),
		 "free %llu of %llu bytes, writing %llu, ready %llu, held %llu, parked %llu, "
		 "shared %llu, reserved %llu bytes",
		 (unsigned long long)u.free_bytes, (unsigned long long)info.data_bytes,
		 (unsigned long long)u.writing, (unsigned long long)u.ready,
		 (unsigned long long)u.held, (unsigned long long)u.parked,
		 (unsigned long long)u.shared, (unsigned long long)u.reserved_bytes);
	return what;
}

struct sluice_channel *channel_new(struct sluice_arena *a, const char *name, uint32_t capacity,
				   uint32_t flags)
{
	struct sluice_channel_opts opts = {
		.sz = sizeof(opts),
		.flags = flags,
		.capacity = capacity,
	};
	struct sluice_channel *ch = NULL;
	int ret = sluice_channel_create(&ch, a, name, &opts);

	if (ret)
		fprintf(stderr, "# channel %s: %d, %s\n", name, ret, sluice_strerror());
	return ch;
}

struct sluice_channel *channel_join(struct sluice_arena *a, const char *name, uint32_t flags)
{
	struct sluice_channel_opts opts = {.sz = sizeof(opts), .flags = flags};
	struct sluice_channel *ch = NULL;
	int ret = sluice_channel_open(&ch, a, name, &opts);

	if (ret)
		fprintf(stderr, "# channel %s: %d, %s\n", name, ret, sluice_strerror());
	return ch;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x7fb5d329728ea185ULL;
	x ^= x >> 27;
	x *= 0x81dadef4bc2dd44dULL;
	return x ^ x >> 33;
}

static uint64_t pattern_word(uint64_t seed, size_t i)
{
	return mix(seed * 0x9e3779b97f4a7c15ULL + i + 1);
}

void pattern_fill(void *p, size_t bytes, uint64_t seed)
{
	for (size_t at = 0, i = 0; at < bytes; at += 8, i++) {
		uint64_t w = pattern_word(seed, i);

		memcpy((char *)p + at, &w, bytes - at < 8 ? bytes - at : 8);
	}
}

bool pattern_is(const void *p, size_t bytes, uint64_t seed)
{
	for (size_t at = 0, i = 0; at < bytes; at += 8, i++) {
		uint64_t w = pattern_word(seed, i);

		if (memcmp((const char *)p + at, &w, bytes - at < 8 ? bytes - at : 8))
			return false;
	}
	return true;
}

int batch_send(struct sluice_channel *ch, size_t bytes, uint64_t seed, uint64_t timeout_ns)
{
	int64_t shape[1] = {(int64_t)bytes};
	struct sluice_batch *b;
	void *p;
	int ret;

	ret = sluice_batch_begin(ch, &b, bytes, timeout_ns);
	if (ret)
		return ret;
	p = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, shape, NULL);
	if (!p) {
		ret = -errno;
		sluice_batch_abort(b);
		return ret;
	}
	pattern_fill(p, bytes, seed);
	sluice_batch_tag(b, seed);
	ret = sluice_batch_publish_timeout(b, timeout_ns);
	if (ret)
		sluice_batch_abort(b);
	return ret;
}

int batch_take(struct sluice_channel *ch, struct sluice_batch **b, uint64_t *seed,
	       uint64_t timeout_ns)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	int ret;

	ret = sluice_channel_next(ch, b, timeout_ns);
	if (ret)
		return ret;
	ret = sluice_batch_info(*b, &info);
	if (!ret)
		ret = sluice_batch_tensor(*b, 0, &t);
	if (!ret && (info.tensors != 1 || !pattern_is(t.data, t.bytes, info.tag)))
		ret = -EILSEQ;
	if (seed)
		*seed = info.tag;
	if (ret)
		sluice_batch_release(*b);
	return ret;
}

int batch_recv(struct sluice_channel *ch, uint64_t *seed, uint64_t timeout_ns)
{
	struct sluice_batch *b;
	int ret = batch_take(ch, &b, seed, timeout_ns);

	if (!ret)
		sluice_batch_release(b);
	return ret;
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SEC + (uint64_t)ts.tv_nsec;
}

unsigned int open_fds(void)
{
	unsigned int n = 0;
	DIR *d = opendir("/proc/self/fd");

	if (!d)
		return 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n - 3; /* . and .. and the folder itself */
}

uint64_t resident_bytes(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f) {
		if (fscanf(f, "%*u %llu", &pages) != 1)
			pages = 0;
		fclose(f);
	}
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

unsigned int scaled(unsigned int n)
{
	const char *env = getenv("TEST_DIVISOR");
	unsigned int by = env ? (unsigned int)atoi(env) : 1;

	return by > 1 ? (n + by - 1) / by : n;
}

uint64_t random_u64(void)
{
	static uint64_t state;

	if (!state) {
		const char *env = getenv("SLUICE_TEST_SEED");

		state = env ? strtoull(env, NULL, 0) : now_ns() ^ (uint64_t)getpid() << 40;
		printf("# SLUICE_TEST_SEED=%llu\n", (unsigned long long)state);
		fflush(stdout);
	}
	return mix(state++);
}
