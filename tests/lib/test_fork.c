// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* How an arena comes into another process: fork, socket, inheritance through exec. */
#include <sys/resource.h>
#include <sys/socket.h>

#include "util.h"

#define main harness_main
#include <kselftest_harness.h>

FIXTURE(arena)
{
	struct sluice_arena *a;
	struct sluice_channel *ch;
};

FIXTURE_SETUP(arena)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
	self->ch = channel_new(self->a, "c", 8, 0);
	ASSERT_NE(NULL, self->ch);
}

FIXTURE_TEARDOWN(arena)
{
	sluice_channel_close(self->ch);
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	sluice_arena_detach(self->a);
}

TEST_F(arena, inherited_handles_do_nothing)
{
	struct sluice_batch *b, *held;
	pid_t pid;

	ASSERT_EQ(0, batch_send(self->ch, 8, 1, 0));
	ASSERT_EQ(0, batch_take(self->ch, &held, NULL, 0));
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 64, 0));
	CHILD(pid) {
		struct sluice_arena_usage u = {.sz = sizeof(u)};
		struct sluice_channel_stats st = {.sz = sizeof(st)};
		struct sluice_peer_info p = {.sz = sizeof(p)};
		struct sluice_event ev = {.sz = sizeof(ev)};
		struct sluice_channel *ch;
		struct sluice_batch *n;
		uint64_t token;

		CHECK(sluice_channel_next(self->ch, &n, 0) == -ECHILD);
		CHECK(strstr(sluice_strerror(), "sluice_arena_reattach"));
		CHECK(sluice_batch_begin(self->ch, &n, 8, 0) == -ECHILD);
		CHECK(sluice_batch_publish(b) == -ECHILD);
		CHECK(sluice_batch_seal(b) == -ECHILD);
		CHECK(!sluice_batch_tensor_add(b, "x", SLUICE_F32, 0, NULL, NULL));
		CHECK(errno == ECHILD);
		CHECK(!sluice_batch_bytes_add(b, "x", "x", 1));
		CHECK(errno == ECHILD);
		CHECK(sluice_batch_share(held, self->ch, 0) == -ECHILD);
		CHECK(sluice_batch_forward(held, self->ch, 0) == -ECHILD);
		CHECK(sluice_batch_token(held, &token) == -ECHILD);
		CHECK(sluice_batch_open(self->a, &n, 1) == -ECHILD);
		CHECK(sluice_channel_create(&ch, self->a, "d", NULL) == -ECHILD);
		CHECK(sluice_channel_open(&ch, self->a, "c", NULL) == -ECHILD);
		CHECK(sluice_channel_arm(self->ch) == -ECHILD);
		CHECK(sluice_channel_shutdown(self->ch) == -ECHILD);
		CHECK(sluice_channel_stats(self->ch, &st) == -ECHILD);
		CHECK(sluice_arena_usage(self->a, &u) == -ECHILD);
		CHECK(sluice_peer_list(self->a, &p, 1) == -ECHILD);
		CHECK(sluice_event_next(self->a, &ev, 0) == -ECHILD);
		/* What cannot fail must leave the parent's things alone. */
		sluice_batch_release(held);
		sluice_batch_abort(b);
		sluice_channel_close(self->ch);
		sluice_arena_detach(self->a);
	}
	ASSERT_EQ(0, child_wait(pid));
	struct sluice_arena_usage u = {.sz = sizeof(u)};

	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	EXPECT_EQ(1, u.held);
	EXPECT_EQ(1, u.writing);
	sluice_batch_release(held);
	ASSERT_EQ(0, sluice_batch_publish(b));
	ASSERT_EQ(0, sluice_channel_next(self->ch, &b, 0));
	sluice_batch_release(b);
}

TEST_F(arena, child_is_a_peer_of_its_own)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	pid_t pid;

	ASSERT_EQ(0, sluice_arena_info(self->a, &info));
	CHILD(pid) {
		struct sluice_arena_info mine = {.sz = sizeof(mine)};
		struct sluice_arena *a = arena_child(self->a);
		struct sluice_channel *ch = channel_join(a, "c", 0);

		CHECK(ch);
		CHECK_OK(sluice_arena_info(a, &mine));
		CHECK(mine.peer_id != info.peer_id);
		CHECK(mine.peers == 2);
		CHECK(mine.data == info.data); /* mapped once */
		CHECK_OK(batch_send(ch, 1000, 7, 0));
		sluice_channel_close(ch);
		sluice_arena_detach(a);
	}
	ASSERT_EQ(0, child_wait(pid));
	EXPECT_EQ(0, batch_recv(self->ch, NULL, 0));
	ASSERT_EQ(0, sluice_arena_info(self->a, &info));
	EXPECT_EQ(1, info.peers);
}

TEST_F(arena, reattach_is_for_children)
{
	struct sluice_arena *a;

	EXPECT_GT(0, sluice_arena_reattach(&a, self->a));
	EXPECT_NE('\0', sluice_strerror()[0]);
	EXPECT_EQ(0, batch_send(self->ch, 8, 1, 0));
	EXPECT_EQ(0, batch_recv(self->ch, NULL, 0));
}

TEST_F(arena, grandchildren)
{
	pid_t pid, grand;

	CHILD(pid) {
		struct sluice_arena *a = arena_child(self->a);

		CHILD(grand) {
			struct sluice_arena *b = arena_child(a);
			struct sluice_channel *ch = channel_join(b, "c", 0);

			CHECK(ch);
			CHECK_OK(batch_send(ch, 1000, 7, 0));
			sluice_arena_detach(b);
		}
		CHECK_OK(child_wait(grand));
		sluice_arena_detach(a);
	}
	ASSERT_EQ(0, child_wait(pid));
	EXPECT_EQ(0, batch_recv(self->ch, NULL, 0));
}

/* fork() at any moment: while a batch is written, held, and while the parent goes on. */
TEST_F(arena, fork_in_the_middle)
{
	struct sluice_batch *b, *held;
	pid_t pid[20];
	int64_t *p;

	ASSERT_EQ(0, batch_send(self->ch, 5000, 1, 0));
	ASSERT_EQ(0, batch_take(self->ch, &held, NULL, 0));
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 8, 0));
	p = sluice_batch_tensor_add(b, "x", SLUICE_I64, 0, NULL, NULL);
	ASSERT_NE(NULL, p);
	for (size_t i = 0; i < ARRAY_SIZE(pid); i++) {
		CHILD(pid[i]) {
			struct sluice_arena *a = arena_child(self->a);
			struct sluice_channel *ch = channel_join(a, "c", SLUICE_CHANNEL_PRODUCE);

			CHECK(ch);
			CHECK_OK(batch_send(ch, 100 * i, i, LONG_WAIT));
			if (i % 2)
				sluice_arena_detach(a);
		}
	}
	*p = 99;
	for (size_t i = 0; i < ARRAY_SIZE(pid); i++)
		ASSERT_EQ(0, batch_recv(self->ch, NULL, LONG_WAIT));
	for (size_t i = 0; i < ARRAY_SIZE(pid); i++)
		EXPECT_EQ(0, child_wait(pid[i]));
	ASSERT_EQ(0, sluice_batch_publish(b));
	struct sluice_tensor t = {.sz = sizeof(t)};

	ASSERT_EQ(0, sluice_channel_next(self->ch, &b, 0));
	ASSERT_EQ(0, sluice_batch_tensor(b, 0, &t));
	EXPECT_EQ(99, *(int64_t *)t.data);
	sluice_batch_release(b);
	ASSERT_EQ(0, sluice_batch_tensor(held, 0, &t));
	EXPECT_TRUE(pattern_is(t.data, 5000, 1));
	sluice_batch_release(held);
}

/* What the exec'd program does: it knows nothing but numbers of descriptors. */
static int stranger(const char *how, int fd, int data_fd)
{
	struct sluice_attach_opts opts = {.sz = sizeof(opts), .data_fd = data_fd};
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_channel *in, *out;
	struct sluice_arena *a;

	if (!strcmp(how, "socket"))
		CHECK_OK(sluice_arena_recv(&a, fd, SLUICE_ROLE_RW));
	else
		CHECK_OK(sluice_arena_attach(&a, fd, &opts));
	close(fd);
	CHECK_OK(sluice_arena_info(a, &info));
	CHECK(info.peers >= 2);
	in = channel_join(a, "in", SLUICE_CHANNEL_CONSUME);
	out = channel_join(a, "out", SLUICE_CHANNEL_PRODUCE);
	CHECK(in && out);
	for (uint64_t i = 0; i < 100; i++) {
		uint64_t seed;

		CHECK_OK(batch_recv(in, &seed, LONG_WAIT));
		CHECK_OK(batch_send(out, 1000 + i, seed + 1, LONG_WAIT));
	}
	sluice_channel_close(in);
	sluice_channel_close(out);
	sluice_arena_detach(a);
	return 0;
}

static void exec_stranger(const char *how, int fd, int data_fd)
{
	char number[2][16];

	fcntl(fd, F_SETFD, 0);
	if (data_fd)
		fcntl(data_fd, F_SETFD, 0);
	snprintf(number[0], sizeof(number[0]), "%d", fd);
	snprintf(number[1], sizeof(number[1]), "%d", data_fd);
	execl("/proc/self/exe", "stranger", how, number[0], number[1], NULL);
	_exit(1);
}

static int converse(struct sluice_channel *out, struct sluice_channel *in)
{
	for (uint64_t i = 0; i < 100; i++) {
		uint64_t seed;
		int ret = batch_send(out, 5000 + i, i, LONG_WAIT);

		if (!ret)
			ret = batch_recv(in, &seed, LONG_WAIT);
		if (ret || seed != i + 1) {
			fprintf(stderr, "# round %d: %d, %s\n", (int)i, ret, sluice_strerror());
			return -1;
		}
	}
	return 0;
}

FIXTURE(stranger)
{
	struct sluice_arena *a;
	struct sluice_channel *out, *in;
};

FIXTURE_SETUP(stranger)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
	self->out = channel_new(self->a, "in", 2, SLUICE_CHANNEL_PRODUCE);
	self->in = channel_new(self->a, "out", 2, SLUICE_CHANNEL_CONSUME);
	ASSERT_NE(NULL, self->out);
	ASSERT_NE(NULL, self->in);
}

FIXTURE_TEARDOWN(stranger)
{
	sluice_channel_close(self->out);
	sluice_channel_close(self->in);
	EXPECT_EQ(NULL, arena_all_free(self->a));
	sluice_arena_detach(self->a);
}

static int over_socket(struct sluice_arena *a, struct sluice_channel *out,
		       struct sluice_channel *in, int type)
{
	int sock[2], ret;
	pid_t pid;

	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, sock))
		return -errno;
	CHILD(pid)
		exec_stranger("socket", sock[1], 0);
	ret = sluice_arena_send(a, sock[0], SLUICE_ROLE_RW);
	if (!ret)
		ret = converse(out, in);
	if (!ret)
		ret = child_wait(pid);
	close(sock[0]);
	close(sock[1]);
	return ret;
}

TEST_F(stranger, over_a_stream_socket)
{
	EXPECT_EQ(0, over_socket(self->a, self->out, self->in, SOCK_STREAM));
}

TEST_F(stranger, over_a_seqpacket_socket)
{
	EXPECT_EQ(0, over_socket(self->a, self->out, self->in, SOCK_SEQPACKET));
}

TEST_F(stranger, over_a_datagram_socket)
{
	EXPECT_EQ(0, over_socket(self->a, self->out, self->in, SOCK_DGRAM));
}

TEST_F(stranger, by_inheritance)
{
	int fd = sluice_arena_fd(self->a), data_fd = sluice_arena_data_fd(self->a);
	pid_t pid;

	CHILD(pid)
		exec_stranger("attach", fd, data_fd > 0 ? data_fd : 0);
	EXPECT_EQ(0, converse(self->out, self->in));
	EXPECT_EQ(0, child_wait(pid));
}

TEST_F(stranger, by_the_first_descriptor_alone)
{
	int fd = sluice_arena_fd(self->a);
	pid_t pid;

	/* The second is found through /proc of a live peer. */
	CHILD(pid)
		exec_stranger("attach", fd, 0);
	EXPECT_EQ(0, converse(self->out, self->in));
	EXPECT_EQ(0, child_wait(pid));
}

TEST_F(stranger, sent_for_consuming_only)
{
	int sock[2];
	pid_t pid;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	CHILD(pid) {
		struct sluice_channel_opts produce = {.sz = sizeof(produce),
						      .flags = SLUICE_CHANNEL_PRODUCE};
		struct sluice_attach_opts rw = {.sz = sizeof(rw)};
		struct sluice_arena_info info = {.sz = sizeof(info)};
		struct sluice_channel *ch;
		struct sluice_arena *a, *b;

		CHECK_OK(sluice_arena_recv(&a, sock[1], SLUICE_ROLE_CONSUMER));
		CHECK_OK(sluice_arena_info(a, &info));
		CHECK(info.role == SLUICE_ROLE_CONSUMER);
		CHECK(sluice_channel_open(&ch, a, "in", &produce) == -EPERM);
		CHECK(mprotect(info.data, 4096, PROT_READ | PROT_WRITE) == -1);
		ch = channel_join(a, "in", SLUICE_CHANNEL_CONSUME);
		CHECK(ch);
		CHECK_OK(batch_recv(ch, NULL, LONG_WAIT));
		/* What was received gives no more than that. */
		rw.data_fd = sluice_arena_data_fd(a);
		CHECK(rw.data_fd < 0 || sluice_arena_attach(&b, sluice_arena_fd(a), &rw) < 0);
		sluice_channel_close(ch);
		sluice_arena_detach(a);
	}
	ASSERT_EQ(0, sluice_arena_send(self->a, sock[0], SLUICE_ROLE_CONSUMER));
	ASSERT_EQ(0, batch_send(self->out, 3000, 3, LONG_WAIT));
	EXPECT_EQ(0, child_wait(pid));
	close(sock[0]);
	close(sock[1]);
}

TEST_F(stranger, asks_for_more_than_was_sent)
{
	struct sluice_arena *a;
	int sock[2];

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	ASSERT_EQ(0, sluice_arena_send(self->a, sock[0], SLUICE_ROLE_CONSUMER));
	EXPECT_GT(0, sluice_arena_recv(&a, sock[1], SLUICE_ROLE_RW));
	EXPECT_NE('\0', sluice_strerror()[0]);
	close(sock[0]);
	close(sock[1]);
}

TEST_F(stranger, garbage_on_the_socket)
{
	unsigned int fds;
	struct sluice_arena *a;
	int sock[2];

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock));
	fds = open_fds();
	ASSERT_EQ(5, write(sock[0], "hello", 5));
	EXPECT_GT(0, sluice_arena_recv(&a, sock[1], SLUICE_ROLE_RW));
	close(sock[0]);
	EXPECT_GT(0, sluice_arena_recv(&a, sock[1], SLUICE_ROLE_RW));
	EXPECT_EQ(fds - 1, open_fds());
	EXPECT_GT(0, sluice_arena_send(self->a, sock[1], SLUICE_ROLE_RW));
	EXPECT_GT(0, sluice_arena_send(self->a, -1, SLUICE_ROLE_RW));
	close(sock[1]);
}

TEST_HARNESS_MAIN

#undef main
int main(int argc, char **argv)
{
	if (argc == 4)
		return stranger(argv[1], atoi(argv[2]), atoi(argv[3]));
	return harness_main(argc, argv);
}
