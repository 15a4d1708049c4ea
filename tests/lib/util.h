/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the suites share.  Tests run under kselftest_harness.h; processes that they start use CHECK()
 * and end with a status, since an ASSERT in a child would only leave the child.
 */
#ifndef TESTS_LIB_UTIL_H
#define TESTS_LIB_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sluice.h>

#define KIB	      1024ULL
#define MIB	      (1024ULL * 1024)
#define MSEC	      1000000ULL
#define SEC	      (1000 * MSEC)
#define LONG_WAIT     (20 * SEC) /* for what must happen: fails rather than hangs */
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* In a child: end it, naming the line, the condition and the library's sentence. */
#define CHECK(cond)                                              \
	do {                                                     \
		if (!(cond))                                     \
			check_failed(__FILE__, __LINE__, #cond); \
	} while (0)
/* The same for a call that must return 0. */
#define CHECK_OK(call)                                                     \
	do {                                                               \
		long ret_ = (call);                                        \
		if (ret_)                                                  \
			check_failed_ret(__FILE__, __LINE__, #call, ret_); \
	} while (0)

__attribute__((noreturn)) void check_failed(const char *file, int line, const char *what);
__attribute__((noreturn)) void check_failed_ret(const char *file, int line, const char *what,
						long ret);

/*
 * CHILD(pid) { body } runs the body in a new process, which exits with 0 at its end.  It dies with
 * the process that started it, so that a failing test leaves nothing behind.
 */
#define CHILD(pid) for ((pid) = child_fork(); (pid) == 0; _exit(0))

pid_t child_fork(void);
/* 0 when it exited with 0; else its wait status. */
int child_wait(pid_t pid);
/* Kill it with SIGKILL and reap it. */
void child_kill(pid_t pid);
/* Wait until the kernel says that it sleeps. */
void child_wait_asleep(pid_t pid);

/* A gate is passed once for each time that it was opened, in any process. */
struct gate {
	int fd[2];
};

void gate_init(struct gate *g);
void gate_open(struct gate *g);
void gate_pass(struct gate *g);

/* 4 KiB pages, and small blocks, since most tests want many of them. */
struct sluice_arena *arena_new(uint64_t bytes);
/* In a child. */
struct sluice_arena *arena_child(struct sluice_arena *inherited);
/* NULL when every block is free and nothing is held, queued or parked, else what is not. */
const char *arena_all_free(struct sluice_arena *a);

struct sluice_channel *channel_new(struct sluice_arena *a, const char *name, uint32_t capacity,
				   uint32_t flags);
struct sluice_channel *channel_join(struct sluice_arena *a, const char *name, uint32_t flags);

/* Payloads that can be told apart and checked: every 8 bytes follow from seed and position. */
void pattern_fill(void *p, size_t bytes, uint64_t seed);
bool pattern_is(const void *p, size_t bytes, uint64_t seed);

/* Begin, fill and publish a batch of one u8 tensor "x"; its tag is the seed.  0 or -errno. */
int batch_send(struct sluice_channel *ch, size_t bytes, uint64_t seed, uint64_t timeout_ns);
/* Take a batch of batch_send() and check it.  *seed is its tag; 0 or -errno; -EILSEQ if it differs. */
int batch_take(struct sluice_channel *ch, struct sluice_batch **b, uint64_t *seed,
	       uint64_t timeout_ns);
/* The same, and release it. */
int batch_recv(struct sluice_channel *ch, uint64_t *seed, uint64_t timeout_ns);

uint64_t now_ns(void);
unsigned int open_fds(void);
/* Resident bytes of this process, shared ones included. */
uint64_t resident_bytes(void);
/* @n, or less where every step costs more (TEST_DIVISOR: sanitizers, valgrind). */
unsigned int scaled(unsigned int n);
/* A number that differs from call to call; SLUICE_TEST_SEED repeats a run. */
uint64_t random_u64(void);

#endif
