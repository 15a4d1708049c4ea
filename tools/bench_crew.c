// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Processes that do one thing for a while when they are told to, and how long that took. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/ptrace.h>

#include "bench.h"

#define ROUND_LIMIT_S 60
#define MARK	      0x736c7563UL

/* The side that this process is; the measuring process is none. */
static int self = -1;

uint64_t bench_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t cpu_now(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000000 +
	       (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) * 1000;
}

int bench_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return CPU_COUNT(&set);
}

static void pin(int side)
{
	cpu_set_t set, one;
	int nth, cpu;

	if (sched_getaffinity(0, sizeof(set), &set))
		return;
	nth = side % CPU_COUNT(&set);
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &set) || nth--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

int bench_fail(struct bench_crew *c, int err, const char *fmt, ...)
{
	char *why = self < 0 ? c->why : c->sh->side[self].why;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(c->why), fmt, ap);
	va_end(ap);
	return err;
}

void bench_mark(void)
{
	prctl(MARK, 0, 0, 0, 0);
}

static void sem_wait_intr(sem_t *sem)
{
	while (sem_wait(sem) && errno == EINTR)
		;
}

static void __attribute__((noreturn)) side_main(struct bench_crew *c, int side)
{
	struct bench_side *me = &c->sh->side[side];
	uint64_t cpu;

	self = side;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (c->spec->flags & BENCH_PIN)
		pin(side);
	me->err = c->spec->ops->open ? c->spec->ops->open(c, side) : 0;
	for (;;) {
		sem_post(&c->sh->done);
		sem_wait_intr(&me->go);
		if (!me->n)
			_exit(0);
		cpu = cpu_now();
		me->start_ns = bench_now();
		me->err = c->spec->ops->run(c, side, me->n);
		me->end_ns = bench_now();
		me->cpu_ns = cpu_now() - cpu;
	}
}

/* A side that failed leaves the others waiting for it: the first failure ends the round. */
static int crew_failed(struct bench_crew *c)
{
	int i, status;

	for (i = 0; i < c->spec->sides; i++) {
		if (c->sh->side[i].err) {
			snprintf(c->why, sizeof(c->why), "%s", c->sh->side[i].why);
			return c->sh->side[i].err;
		}
		if (c->pid[i] > 0 && waitpid(c->pid[i], &status, WNOHANG) == c->pid[i]) {
			c->pid[i] = 0;
			return bench_fail(c, -ECHILD, "%s: process %d of %d ended with %s %d",
					  c->spec->ops->name, i, c->spec->sides,
					  WIFSIGNALED(status) ? "signal" : "status",
					  WIFSIGNALED(status) ? WTERMSIG(status)
							      : WEXITSTATUS(status));
		}
	}
	return 0;
}

static int crew_wait(struct bench_crew *c)
{
	uint64_t deadline = bench_now() + ROUND_LIMIT_S * 1000000000ULL;
	int left = c->spec->sides, err;
	struct timespec ts;

	while (left) {
		clock_gettime(CLOCK_REALTIME, &ts);
		ts.tv_nsec += 50000000;
		ts.tv_sec += ts.tv_nsec / 1000000000;
		ts.tv_nsec %= 1000000000;
		if (!sem_timedwait(&c->sh->done, &ts)) {
			left--;
			continue;
		}
		err = crew_failed(c);
		if (err)
			return err;
		if (bench_now() > deadline)
			return bench_fail(c, -ETIMEDOUT, "%s: a round took more than %d s",
					  c->spec->ops->name, ROUND_LIMIT_S);
	}
	return crew_failed(c);
}

int bench_crew_start(struct bench_crew *c, const struct bench_spec *spec)
{
	const char *missing = spec->ops->missing ? spec->ops->missing(spec) : NULL;
	int i, err;

	memset(c, 0, sizeof(*c));
	c->spec = spec;
	if (missing) {
		snprintf(c->why, sizeof(c->why), "%s", missing);
		return -ENOPKG;
	}
	c->sh = mmap(NULL, sizeof(*c->sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (c->sh == MAP_FAILED) {
		c->sh = NULL;
		return bench_fail(c, -errno, "%s: mmap: %s", spec->ops->name, strerror(errno));
	}
	sem_init(&c->sh->done, 1, 0);
	for (i = 0; i < spec->sides; i++)
		sem_init(&c->sh->side[i].go, 1, 0);
	err = spec->ops->init ? spec->ops->init(c) : 0;
	if (err)
		return err;
	fflush(NULL);
	for (i = 0; i < spec->sides; i++) {
		c->pid[i] = fork();
		if (c->pid[i] < 0) {
			c->pid[i] = 0;
			return bench_fail(c, -errno, "%s: fork: %s", spec->ops->name,
					  strerror(errno));
		}
		if (!c->pid[i])
			side_main(c, i);
	}
	return crew_wait(c);
}

static void crew_go(struct bench_crew *c, uint64_t n)
{
	int i;

	c->sh->own_ns = 0;
	atomic_store(&c->sh->stop, 0);
	atomic_store(&c->sh->finished, 0);
	for (i = 0; i < c->spec->sides; i++) {
		c->sh->side[i].n = n;
		c->sh->side[i].extra = 0;
	}
	for (i = 0; i < c->spec->sides; i++)
		sem_post(&c->sh->side[i].go);
}

static void crew_sample(struct bench_crew *c, uint64_t n, struct bench_sample *s)
{
	uint64_t start = UINT64_MAX, end = 0;
	int i;

	*s = (struct bench_sample){.n = n};
	for (i = 0; i < c->spec->sides; i++) {
		struct bench_side *side = &c->sh->side[i];

		start = side->start_ns < start ? side->start_ns : start;
		end = side->end_ns > end ? side->end_ns : end;
		s->cpu_ns += (double)side->cpu_ns;
		s->extra += side->extra;
	}
	s->ns = (double)(c->sh->own_ns ? c->sh->own_ns : end - start);
}

int bench_crew_run(struct bench_crew *c, uint64_t n, struct bench_sample *s)
{
	int err;

	crew_go(c, n);
	err = crew_wait(c);
	if (!err)
		crew_sample(c, n, s);
	return err;
}

/* One stop of a traced side.  Counts entries between the two marks of that side. */
static void count_stop(pid_t pid, int status, bool *steady, uint64_t *calls)
{
	struct __ptrace_syscall_info info;
	int sig = WSTOPSIG(status);

	if (status >> 16) {
		ptrace(PTRACE_SYSCALL, pid, 0, 0);
		return;
	}
	if (sig != (SIGTRAP | 0x80)) {
		ptrace(PTRACE_SYSCALL, pid, 0, sig);
		return;
	}
	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) > 0 &&
	    info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		if (info.entry.nr == SYS_prctl && info.entry.args[0] == MARK)
			*steady = !*steady;
		else if (*steady)
			++*calls;
	}
	ptrace(PTRACE_SYSCALL, pid, 0, 0);
}

static int crew_trace(struct bench_crew *c)
{
	int i;

	for (i = 0; i < c->spec->sides; i++) {
		if (ptrace(PTRACE_SEIZE, c->pid[i], 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) ||
		    ptrace(PTRACE_INTERRUPT, c->pid[i], 0, 0))
			return bench_fail(c, -errno, "system calls cannot be counted: ptrace: %s",
					  strerror(errno));
	}
	return 0;
}

/*
 * As bench_crew_run(), but @s->extra is the number of system calls that all sides made between
 * their marks.  Tracing needs no privilege and no counter that a container may hide.  The crew is
 * good for nothing else afterwards.
 */
int bench_crew_count(struct bench_crew *c, uint64_t n, struct bench_sample *s)
{
	bool steady[BENCH_MAX_SIDES] = {false};
	uint64_t calls[BENCH_MAX_SIDES] = {0}, total = 0;
	int i, status, left, err;
	pid_t pid;

	err = crew_trace(c);
	if (err)
		return err;
	crew_go(c, n);
	for (left = c->spec->sides; left;) {
		pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			return bench_fail(c, -errno, "system calls: waitpid: %s", strerror(errno));
		for (i = 0; i < c->spec->sides && c->pid[i] != pid; i++)
			;
		if (i == c->spec->sides)
			continue;
		if (!WIFSTOPPED(status)) {
			c->pid[i] = 0;
			return bench_fail(c, -ECHILD, "system calls: process %d ended", i);
		}
		count_stop(pid, status, &steady[i], &calls[i]);
		while (left && !sem_trywait(&c->sh->done))
			left--;
	}
	for (i = 0; i < c->spec->sides; i++) {
		if (steady[i] || c->sh->side[i].err)
			return bench_fail(c, -EPROTO, "system calls: process %d: %s", i,
					  c->sh->side[i].err ? c->sh->side[i].why
							     : "the steady phase has no end");
		total += calls[i];
	}
	crew_sample(c, n, s);
	s->extra = (double)total;
	return 0;
}

void bench_crew_stop(struct bench_crew *c)
{
	int i;

	/* Some peers have no orderly way out of a wait, and nothing that we use outlives us. */
	for (i = 0; c->spec && i < c->spec->sides; i++) {
		if (c->pid[i] <= 0)
			continue;
		kill(c->pid[i], SIGKILL);
		while (waitpid(c->pid[i], NULL, __WALL) > 0)
			;
		c->pid[i] = 0;
	}
	if (!c->sh)
		return;
	if (c->spec->ops->exit)
		c->spec->ops->exit(c);
	munmap(c->sh, sizeof(*c->sh));
	c->sh = NULL;
}
