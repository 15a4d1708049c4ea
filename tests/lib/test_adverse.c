// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What a host does to a program on a bad day, and what must still go on. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "util.h"

#include <kselftest_harness.h>

FIXTURE(adverse)
{
	struct sluice_arena *a;
};

FIXTURE_SETUP(adverse)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
}

FIXTURE_TEARDOWN(adverse)
{
	sluice_arena_detach(self->a);
}

/*
 * What those leave unread who do not look after their bells counts against the socket of who rang.
 * One who sleeps elsewhere must be woken all the same.
 */
TEST_F(adverse, unread_bells_do_not_keep_others_from_being_rung)
{
	struct sluice_attach_opts opts = {.sz = sizeof(opts)};
	struct sluice_arena *deaf[60], *guest;
	struct sluice_channel *out;
	struct gate opened;
	uint64_t since;
	pid_t pid;

	opts.data_fd = sluice_arena_data_fd(self->a);
	out = channel_new(self->a, "c", 8, SLUICE_CHANNEL_PRODUCE);
	ASSERT_NE(NULL, out);
	gate_init(&opened);
	CHILD(pid) {
		uint32_t flags = SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_POLL;
		struct sluice_channel *in = channel_join(arena_child(self->a), "c", flags);
		uint64_t seed;

		CHECK(in);
		gate_open(&opened);
		CHECK_OK(batch_recv(in, &seed, LONG_WAIT));
	}
	gate_pass(&opened);
	for (unsigned int i = 0; i < ARRAY_SIZE(deaf); i++) {
		ASSERT_EQ(0, sluice_arena_attach(&deaf[i], sluice_arena_fd(self->a), &opts));
		ASSERT_LE(0, sluice_event_fd(deaf[i]));
	}
	/* Each that comes or goes rings all of them. */
	for (unsigned int i = 0; i < 20; i++) {
		ASSERT_EQ(0, sluice_arena_attach(&guest, sluice_arena_fd(self->a), &opts));
		sluice_arena_detach(guest);
	}
	child_wait_asleep(pid);
	since = now_ns();
	EXPECT_EQ(0, batch_send(out, 8, 1, 0));
	EXPECT_EQ(0, child_wait(pid));
	EXPECT_GT(LONG_WAIT / 2, now_ns() - since);
	for (unsigned int i = 0; i < ARRAY_SIZE(deaf); i++)
		sluice_arena_detach(deaf[i]);
	sluice_channel_close(out);
}

/* Opens descriptors until there are none left; how many it opened. */
static unsigned int use_up_fds(int *fds, unsigned int n)
{
	struct rlimit limit;
	unsigned int used = 0;
	int next = dup(0);

	close(next);
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	limit.rlim_cur = (rlim_t)next + n;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	while (used < n && (fds[used] = dup(0)) >= 0)
		used++;
	return used;
}

/* A peer that joins when no descriptor is left to watch it with must not die unseen. */
TEST_F(adverse, death_is_seen_although_descriptors_were_short)
{
	struct sluice_channel *in;
	unsigned int used;
	uint64_t seed;
	int fds[64];
	struct gate opened;
	pid_t pid;

	in = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	ASSERT_NE(NULL, in);
	EXPECT_EQ(-ETIMEDOUT, batch_recv(in, &seed, MSEC)); /* has all that sleeping needs */
	gate_init(&opened);
	CHILD(pid) {
		CHECK(channel_join(arena_child(self->a), "c", SLUICE_CHANNEL_PRODUCE));
		gate_open(&opened);
		pause();
	}
	gate_pass(&opened);
	used = use_up_fds(fds, ARRAY_SIZE(fds));
	ASSERT_LT(0, used);
	EXPECT_EQ(-ETIMEDOUT, batch_recv(in, &seed, 10 * MSEC));
	while (used)
		close(fds[--used]);
	child_kill(pid);
	EXPECT_EQ(-EOWNERDEAD, batch_recv(in, &seed, LONG_WAIT));
	sluice_channel_close(in);
}

/* One of two who wait for room in the arena is stopped: the ring that it got must not be the last. */
TEST_F(adverse, stopped_waiter_does_not_keep_room_from_others)
{
	struct sluice_channel *in, *out;
	struct sluice_batch *all;
	uint64_t seed, since;
	pid_t pid[2];

	in = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	out = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	ASSERT_NE(NULL, in);
	ASSERT_NE(NULL, out);
	ASSERT_EQ(0, sluice_batch_begin(out, &all, 4 * MIB - 64 * KIB, 0));
	for (unsigned int i = 0; i < 2; i++) {
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *ch = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE);

			CHECK(ch);
			CHECK_OK(batch_send(ch, MIB, i, SLUICE_FOREVER));
			sluice_arena_detach(a);
		}
		child_wait_asleep(pid[i]);
	}
	kill(pid[0], SIGSTOP);
	sluice_batch_abort(all); /* rings who has slept longest */
	since = now_ns();
	EXPECT_EQ(0, batch_recv(in, &seed, LONG_WAIT));
	EXPECT_EQ(1, seed);
	EXPECT_GT(LONG_WAIT / 2, now_ns() - since);
	kill(pid[0], SIGCONT);
	EXPECT_EQ(0, batch_recv(in, &seed, LONG_WAIT));
	for (unsigned int i = 0; i < 2; i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	sluice_channel_close(in);
	sluice_channel_close(out);
}

/* Older seccomp profiles of containers do not know this call. */
static void refuse_pidfds(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = ARRAY_SIZE(code), .filter = code};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
	CHECK(syscall(SYS_pidfd_open, getpid(), 0) < 0);
}

TEST_F(adverse, death_is_seen_where_pidfds_are_refused)
{
	struct sluice_event ev = {.sz = sizeof(ev)};
	struct sluice_channel *in;
	struct gate opened;
	uint64_t seed;
	pid_t pid;

	refuse_pidfds();
	in = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME);
	ASSERT_NE(NULL, in);
	gate_init(&opened);
	for (int i = 0; i < 2; i++) {
		CHILD(pid) {
			CHECK(channel_join(arena_child(self->a), "c", SLUICE_CHANNEL_PRODUCE));
			gate_open(&opened);
			pause();
		}
		gate_pass(&opened);
		EXPECT_EQ(-ETIMEDOUT, batch_recv(in, &seed, 5 * MSEC));
		child_kill(pid);
		if (!i)
			EXPECT_EQ(-EOWNERDEAD, batch_recv(in, &seed, LONG_WAIT));
		EXPECT_EQ(0, sluice_event_next(self->a, &ev, LONG_WAIT));
		EXPECT_EQ(pid, ev.pid);
	}
	sluice_channel_close(in);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MALLOC_MAY_FAIL 0
#else
#define MALLOC_MAY_FAIL 1
#endif

/* No address space from now on; what it was goes to *old. */
static int memory_short(struct rlimit *old)
{
	struct rlimit none = {.rlim_max = RLIM_INFINITY};

	if (getrlimit(RLIMIT_AS, old))
		return -errno;
	none.rlim_max = old->rlim_max;
	return setrlimit(RLIMIT_AS, &none) ? -errno : 0;
}

static void send_many_tensors(struct sluice_channel *ch)
{
	struct sluice_batch_opts o = {.sz = sizeof(o), .bytes = MIB, .tensors = 4096};
	struct sluice_batch *b;
	int64_t shape = 1;

	CHECK_OK(sluice_batch_begin_opts(ch, &b, &o));
	for (unsigned int i = 0; i < o.tensors; i++)
		CHECK(sluice_batch_tensor_add(b, "a name of some length", SLUICE_U8, 1, &shape,
					      NULL));
	CHECK_OK(sluice_batch_publish(b));
}

/* A consumer without memory for the description of a batch gets that batch when it has some. */
TEST_F(adverse, batch_is_not_lost_when_memory_is_short)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_channel *in, *out;
	struct sluice_batch *b;
	struct rlimit limit;
	uint64_t seed;
	int ret, armed;
	pid_t pid;

	if (!MALLOC_MAY_FAIL)
		SKIP(return, "the allocator of a sanitizer does not fail");
	in = channel_new(self->a, "c", 8, SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_POLL);
	out = channel_join(self->a, "c", SLUICE_CHANNEL_PRODUCE);
	ASSERT_NE(NULL, in);
	ASSERT_NE(NULL, out);
	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *ch = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE);

		CHECK_OK(batch_send(ch, 8, 1, 0));
		send_many_tensors(ch);
		sluice_arena_detach(a);
	}
	EXPECT_EQ(0, batch_recv(in, &seed, LONG_WAIT));
	EXPECT_EQ(0, child_wait(pid));
	ASSERT_EQ(0, memory_short(&limit));
	for (unsigned int i = 0; i < 3; i++) {
		ret = sluice_channel_next(in, &b, LONG_WAIT);
		if (ret != -ENOMEM)
			break;
	}
	armed = sluice_channel_arm(in);
	ASSERT_EQ(0, setrlimit(RLIMIT_AS, &limit));
	EXPECT_EQ(-ENOMEM, ret);
	EXPECT_EQ(1, armed);
	ASSERT_EQ(0, sluice_channel_next(in, &b, 0));
	EXPECT_EQ(0, sluice_batch_info(b, &info));
	EXPECT_EQ(4096, info.tensors);
	sluice_batch_release(b);
	EXPECT_EQ(-EAGAIN, sluice_channel_next(in, &b, 0));
	sluice_channel_close(out);
	sluice_channel_close(in);
}

TEST_HARNESS_MAIN
