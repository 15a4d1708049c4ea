// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sends known numbers of bytes by every route and compares every counter, those that must stay as
 * they are included, so that a route counted twice or under a second name is an error as well.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <liburing.h>
#include <sluice.h>
#include "stat_read.h"

#define CHECK(cond)                                                                             \
	do {                                                                                    \
		if (!(cond)) {                                                                  \
			snprintf(problem, sizeof(problem), "line %d: %s (%s)", __LINE__, #cond, \
				 strerror(errno));                                              \
			return;                                                                 \
		}                                                                               \
	} while (0)

static char problem[256];
static char buf[1 << 20];
static int file; /* as many bytes as buf */

/* What a route is expected to add: bytes, calls and failures of one kind and direction. */
static struct expected {
	long bytes, calls, fails;
} expected[SLUICE_KINDS][2];

static void expect(enum sluice_kind kind, enum sluice_dir dir, long bytes, long calls, long fails)
{
	struct expected *e = &expected[kind][dir];

	e->bytes += bytes;
	e->calls += calls;
	e->fails += fails;
}

static void make_pipe(int fds[2])
{
	if (pipe2(fds, O_CLOEXEC) || fcntl(fds[1], F_SETPIPE_SZ, 1 << 20) < 0)
		abort();
}

static void close_both(int fds[2])
{
	close(fds[0]);
	close(fds[1]);
}

/* Empties a pipe; @n bytes come in one call as the pipe holds them all. */
static void drain(int fd, ssize_t n)
{
	CHECK(read(fd, buf, sizeof(buf)) == n);
	expect(SLUICE_PIPE, SLUICE_IN, n, 1, 0);
}

static void route_write(void)
{
	int p[2];

	make_pipe(p);
	CHECK(write(p[1], buf, 12345) == 12345);
	expect(SLUICE_PIPE, SLUICE_OUT, 12345, 1, 0);
	drain(p[0], 12345);
	close_both(p);
}

static void route_writev(void)
{
	struct iovec iov[3] = {{buf, 100}, {buf, 2000}, {buf, 30000}};
	int p[2];

	make_pipe(p);
	CHECK(writev(p[1], iov, 3) == 32100);
	expect(SLUICE_PIPE, SLUICE_OUT, 32100, 1, 0);
	CHECK(readv(p[0], iov, 3) == 32100);
	expect(SLUICE_PIPE, SLUICE_IN, 32100, 1, 0);
	close_both(p);
}

static void route_pwritev2(void)
{
	struct iovec iov[2] = {{buf, 777}, {buf, 4096}};
	int p[2];

	make_pipe(p);
	CHECK(pwritev2(p[1], iov, 2, -1, 0) == 4873);
	expect(SLUICE_PIPE, SLUICE_OUT, 4873, 1, 0);
	CHECK(preadv2(p[0], iov, 2, -1, 0) == 4873);
	expect(SLUICE_PIPE, SLUICE_IN, 4873, 1, 0);
	close_both(p);
}

static int submit(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int res;

	if (io_uring_submit(ring) != 1 || io_uring_wait_cqe(ring, &cqe))
		return -EIO;
	res = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return res;
}

static void route_io_uring(void)
{
	struct iovec iov[2] = {{buf, 1000}, {buf, 5000}};
	struct io_uring_sqe *sqe;
	struct io_uring ring;
	int p[2];

	make_pipe(p);
	CHECK(!io_uring_queue_init(8, &ring, 0));
	io_uring_prep_write(io_uring_get_sqe(&ring), p[1], buf, 9000, -1);
	CHECK(submit(&ring) == 9000);
	io_uring_prep_writev(io_uring_get_sqe(&ring), p[1], iov, 2, -1);
	CHECK(submit(&ring) == 6000);
	/* Carried out by a thread of the kernel's in this process. */
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_write(sqe, p[1], buf, 70, -1);
	sqe->flags |= IOSQE_ASYNC;
	CHECK(submit(&ring) == 70);
	expect(SLUICE_PIPE, SLUICE_OUT, 15070, 3, 0);
	io_uring_prep_read(io_uring_get_sqe(&ring), p[0], buf, sizeof(buf), -1);
	CHECK(submit(&ring) == 15070);
	expect(SLUICE_PIPE, SLUICE_IN, 15070, 1, 0);
	io_uring_queue_exit(&ring);
	close_both(p);
}

static void route_io_uring_splice(void)
{
	struct io_uring ring;
	int p[2], q[2];

	make_pipe(p);
	make_pipe(q);
	CHECK(!io_uring_queue_init(8, &ring, 0));
	io_uring_prep_splice(io_uring_get_sqe(&ring), file, 0, p[1], -1, 8192, 0);
	CHECK(submit(&ring) == 8192);
	expect(SLUICE_SPLICE, SLUICE_OUT, 8192, 1, 0);
	io_uring_prep_tee(io_uring_get_sqe(&ring), p[0], q[1], 8192, 0);
	CHECK(submit(&ring) == 8192);
	expect(SLUICE_TEE, SLUICE_OUT, 8192, 1, 0);
	drain(p[0], 8192);
	drain(q[0], 8192);
	io_uring_queue_exit(&ring);
	close_both(p);
	close_both(q);
}

static void route_splice_file_to_pipe(void)
{
	off_t off = 0;
	int p[2];

	make_pipe(p);
	CHECK(splice(file, &off, p[1], NULL, 20000, 0) == 20000);
	expect(SLUICE_SPLICE, SLUICE_OUT, 20000, 1, 0);
	drain(p[0], 20000);
	close_both(p);
}

static void route_splice_pipe_to_file(void)
{
	int p[2], out = memfd_create("out", MFD_CLOEXEC);

	make_pipe(p);
	CHECK(write(p[1], buf, 30000) == 30000);
	expect(SLUICE_PIPE, SLUICE_OUT, 30000, 1, 0);
	CHECK(splice(p[0], NULL, out, NULL, 30000, 0) == 30000);
	expect(SLUICE_SPLICE, SLUICE_IN, 30000, 1, 0);
	close_both(p);
	close(out);
}

static void route_splice_pipe_to_pipe(void)
{
	int p[2], q[2];

	make_pipe(p);
	make_pipe(q);
	CHECK(write(p[1], buf, 40000) == 40000);
	expect(SLUICE_PIPE, SLUICE_OUT, 40000, 1, 0);
	CHECK(splice(p[0], NULL, q[1], NULL, 25000, 0) == 25000);
	expect(SLUICE_SPLICE, SLUICE_IN, 25000, 1, 0);
	expect(SLUICE_SPLICE, SLUICE_OUT, 25000, 1, 0);
	drain(p[0], 15000);
	drain(q[0], 25000);
	close_both(p);
	close_both(q);
}

static void route_vmsplice(void)
{
	struct iovec iov[2] = {{buf, 8192}, {buf + 65536, 100}};
	int p[2];

	make_pipe(p);
	CHECK(vmsplice(p[1], iov, 2, 0) == 8292);
	expect(SLUICE_VMSPLICE, SLUICE_OUT, 8292, 1, 0);
	CHECK(vmsplice(p[0], iov, 1, 0) == 8192);
	expect(SLUICE_VMSPLICE, SLUICE_IN, 8192, 1, 0);
	drain(p[0], 100);
	CHECK(vmsplice(-1, iov, 2, 0) < 0);
	close_both(p);
}

static void route_tee(void)
{
	int p[2], q[2];

	make_pipe(p);
	make_pipe(q);
	CHECK(write(p[1], buf, 6000) == 6000);
	expect(SLUICE_PIPE, SLUICE_OUT, 6000, 1, 0);
	CHECK(tee(p[0], q[1], 6000, 0) == 6000);
	expect(SLUICE_TEE, SLUICE_OUT, 6000, 1, 0);
	drain(p[0], 6000);
	drain(q[0], 6000);
	close_both(p);
	close_both(q);
}

static void route_sendfile_to_pipe(void)
{
	off_t off = 0;
	int p[2];

	make_pipe(p);
	CHECK(sendfile(p[1], file, &off, 50000) == 50000);
	expect(SLUICE_SENDFILE, SLUICE_OUT, 50000, 1, 0);
	drain(p[0], 50000);
	close_both(p);
}

static void route_fifo(void)
{
	int out, in, q[2];

	unlink("/tmp/sluice-matrix.fifo");
	CHECK(!mkfifo("/tmp/sluice-matrix.fifo", 0600));
	in = open("/tmp/sluice-matrix.fifo", O_RDONLY | O_NONBLOCK);
	out = open("/tmp/sluice-matrix.fifo", O_WRONLY);
	CHECK(in >= 0 && out >= 0);
	make_pipe(q);
	CHECK(write(out, buf, 5000) == 5000);
	expect(SLUICE_FIFO, SLUICE_OUT, 5000, 1, 0);
	CHECK(read(in, buf, 3000) == 3000);
	expect(SLUICE_FIFO, SLUICE_IN, 3000, 1, 0);
	CHECK(splice(in, NULL, q[1], NULL, 2000, 0) == 2000);
	expect(SLUICE_SPLICE, SLUICE_IN, 2000, 1, 0);
	expect(SLUICE_SPLICE, SLUICE_OUT, 2000, 1, 0);
	CHECK(read(in, buf, 1) == -1 && errno == EAGAIN);
	expect(SLUICE_FIFO, SLUICE_IN, 0, 1, 1);
	drain(q[0], 2000);
	close_both(q);
	close(in);
	close(out);
	unlink("/tmp/sluice-matrix.fifo");
}

static void route_stream(void)
{
	int s[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	CHECK(write(s[0], buf, 11000) == 11000);
	CHECK(send(s[1], buf, 12000, 0) == 12000);
	expect(SLUICE_UNIX_STREAM, SLUICE_OUT, 23000, 2, 0);
	CHECK(recv(s[1], buf, 5000, MSG_PEEK) == 5000);
	expect(SLUICE_UNIX_STREAM, SLUICE_IN, 0, 1, 0);
	CHECK(read(s[1], buf, 20000) == 11000);
	CHECK(recv(s[0], buf, 12000, 0) == 12000);
	expect(SLUICE_UNIX_STREAM, SLUICE_IN, 23000, 2, 0);
	close_both(s);
}

static void route_dgram(void)
{
	struct sockaddr_un addr = {AF_UNIX, "\0sluice-matrix"};
	int s[2], to;

	CHECK(!socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, s));
	CHECK(send(s[0], buf, 1400, 0) == 1400);
	CHECK(send(s[0], buf, 900, 0) == 900);
	to = socket(AF_UNIX, SOCK_DGRAM, 0);
	CHECK(!bind(to, (void *)&addr, sizeof(sa_family_t) + 14));
	CHECK(sendto(s[0], buf, 600, 0, (void *)&addr, sizeof(sa_family_t) + 14) == 600 ||
	      errno == EISCONN || errno == EPERM);
	CHECK(recv(s[1], buf, 4096, MSG_PEEK) == 1400);
	CHECK(recv(s[1], buf, 4096, 0) == 1400);
	/* The rest of a datagram is thrown away; its true length is only said. */
	CHECK(recv(s[1], buf, 100, MSG_TRUNC) == 900);
	expect(SLUICE_UNIX_DGRAM, SLUICE_OUT, 2300, 2, 0);
	expect(SLUICE_UNIX_DGRAM, SLUICE_IN, 1500, 3, 0);
	if (recv(to, buf, 4096, MSG_DONTWAIT) == 600) {
		expect(SLUICE_UNIX_DGRAM, SLUICE_OUT, 600, 1, 0);
		expect(SLUICE_UNIX_DGRAM, SLUICE_IN, 600, 1, 0);
	} else {
		expect(SLUICE_UNIX_DGRAM, SLUICE_OUT, 0, 1, 1);
		expect(SLUICE_UNIX_DGRAM, SLUICE_IN, 0, 1, 1);
	}
	close_both(s);
	close(to);
}

static void route_seqpacket(void)
{
	int s[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s));
	CHECK(send(s[0], buf, 3333, 0) == 3333);
	expect(SLUICE_UNIX_SEQPACKET, SLUICE_OUT, 3333, 1, 0);
	CHECK(recv(s[1], buf, 4096, 0) == 3333);
	expect(SLUICE_UNIX_SEQPACKET, SLUICE_IN, 3333, 1, 0);
	close_both(s);
}

static void route_scm_rights(void)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {{.cmsg_len = CMSG_LEN(sizeof(int)),
		      .cmsg_level = SOL_SOCKET,
		      .cmsg_type = SCM_RIGHTS}};
	struct iovec iov = {buf, 2048};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	int s[2];

	memcpy(CMSG_DATA(&control.header), &file, sizeof(int));
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	CHECK(sendmsg(s[0], &msg, 0) == 2048);
	expect(SLUICE_UNIX_STREAM, SLUICE_OUT, 2048, 1, 0);
	CHECK(recvmsg(s[1], &msg, 0) == 2048);
	expect(SLUICE_UNIX_STREAM, SLUICE_IN, 2048, 1, 0);
	close(*(int *)CMSG_DATA(&control.header));
	close_both(s);
}

static void route_io_uring_socket(void)
{
	struct io_uring ring;
	int s[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	CHECK(!io_uring_queue_init(8, &ring, 0));
	io_uring_prep_send(io_uring_get_sqe(&ring), s[0], buf, 4444, 0);
	CHECK(submit(&ring) == 4444);
	expect(SLUICE_UNIX_STREAM, SLUICE_OUT, 4444, 1, 0);
	io_uring_prep_recv(io_uring_get_sqe(&ring), s[1], buf, 8192, 0);
	CHECK(submit(&ring) == 4444);
	expect(SLUICE_UNIX_STREAM, SLUICE_IN, 4444, 1, 0);
	io_uring_queue_exit(&ring);
	close_both(s);
}

/* Both ends of such a splice count where they belong; the calls inside differ between kernels. */
static void route_splice_socket(void)
{
	int p[2], s[2];

	make_pipe(p);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	CHECK(write(p[1], buf, 16384) == 16384);
	expect(SLUICE_PIPE, SLUICE_OUT, 16384, 1, 0);
	CHECK(splice(p[0], NULL, s[0], NULL, 16384, 0) == 16384);
	expect(SLUICE_SPLICE, SLUICE_IN, 16384, 1, 0);
	expect(SLUICE_UNIX_STREAM, SLUICE_OUT, 16384, -1, 0);
	CHECK(splice(s[1], NULL, p[1], NULL, 4096, 0) == 4096);
	expect(SLUICE_UNIX_STREAM, SLUICE_IN, 4096, -1, 0);
	expect(SLUICE_SPLICE, SLUICE_OUT, 4096, 1, 0);
	drain(p[0], 4096);
	close_both(s);
	close_both(p);
}

/* Goes through a pipe inside the kernel that nobody holds: only the socket's end counts. */
static void route_sendfile_to_socket(void)
{
	off_t off = 0;
	int s[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	CHECK(sendfile(s[0], file, &off, 30000) == 30000);
	expect(SLUICE_UNIX_STREAM, SLUICE_OUT, 30000, -1, 0);
	CHECK(recv(s[1], buf, sizeof(buf), MSG_WAITALL | MSG_DONTWAIT) == 30000);
	expect(SLUICE_UNIX_STREAM, SLUICE_IN, 30000, 1, 0);
	close_both(s);
}

static void route_process_vm(void)
{
	struct iovec local = {buf, 40000}, remote = {buf + 500000, 40000};
	struct iovec bad[2] = {{buf + 500000, 10000}, {(void *)8, 10000}};

	CHECK(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == 40000);
	expect(SLUICE_PROCESS_VM, SLUICE_OUT, 40000, 1, 0);
	local.iov_len = 20000;
	CHECK(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 20000);
	expect(SLUICE_PROCESS_VM, SLUICE_IN, 20000, 1, 0);
	CHECK(process_vm_writev(getpid(), &local, 1, bad, 2, 0) == 10000);
	expect(SLUICE_PROCESS_VM, SLUICE_OUT, 10000, 1, 0);
	CHECK(process_vm_writev(getpid(), &local, 1, bad + 1, 1, 0) == -1);
	expect(SLUICE_PROCESS_VM, SLUICE_OUT, 0, 1, 1);
}

static void route_partial(void)
{
	char *edge;
	int p[2];

	CHECK(!pipe2(p, O_NONBLOCK | O_CLOEXEC));
	CHECK(write(p[1], buf, 100000) == 65536);
	CHECK(write(p[1], buf, 1) == -1 && errno == EAGAIN);
	expect(SLUICE_PIPE, SLUICE_OUT, 65536, 2, 1);
	drain(p[0], 65536);
	CHECK(read(p[0], buf, 1) == -1 && errno == EAGAIN);
	expect(SLUICE_PIPE, SLUICE_IN, 0, 1, 1);
	/* Two pages of which the second cannot be read. */
	edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(edge, 1, 4096);
	CHECK(!mprotect(edge + 4096, 4096, PROT_NONE));
	CHECK(write(p[1], edge, 8192) == 4096);
	expect(SLUICE_PIPE, SLUICE_OUT, 4096, 1, 0);
	drain(p[0], 4096);
	munmap(edge, 8192);
	close(p[0]);
	CHECK(write(p[1], buf, 10) == -1 && errno == EPIPE);
	expect(SLUICE_PIPE, SLUICE_OUT, 0, 1, 1);
	close(p[1]);
}

static void *write_slowly(void *fd)
{
	for (int i = 0; i < 8; i++)
		if (write(*(int *)fd, buf, 100000) != 100000)
			return (void *)1;
	return NULL;
}

/* Four threads block on one full pipe; their calls are theirs, the process has the sum. */
static void route_threads(void)
{
	pthread_t threads[4];
	long sum = 0, calls = 0;
	void *failed;
	int p[2];

	CHECK(!pipe2(p, O_CLOEXEC));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, write_slowly, &p[1]));
	while (sum < 3200000) {
		ssize_t n = read(p[0], buf, sizeof(buf));

		CHECK(n > 0);
		sum += n;
		calls++;
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &failed);
		CHECK(!failed);
	}
	expect(SLUICE_PIPE, SLUICE_OUT, 3200000, 32, 0);
	expect(SLUICE_PIPE, SLUICE_IN, 3200000, calls, 0);
	close_both(p);
}

static void route_child(void)
{
	int p[2], status;
	pid_t pid;

	make_pipe(p);
	pid = fork();
	if (!pid)
		_exit(write(p[1], buf, 54321) != 54321);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	expect(SLUICE_PIPE, SLUICE_OUT, 54321, 1, 0);
	drain(p[0], 54321);
	close_both(p);
}

/* A batch of @n bytes, published to the channel; 0 on success. */
static int send_batch(struct sluice_channel *ch, int64_t n)
{
	struct sluice_batch *b;
	void *payload;

	if (sluice_batch_begin(ch, &b, n, 0))
		return -1;
	payload = sluice_batch_tensor_add(b, "bytes", SLUICE_U8, 1, &n, NULL);
	if (!payload)
		return -1;
	memset(payload, 1, n);
	return sluice_batch_publish(b);
}

/* What is begun and not published does not move, what is passed on moves once more. */
static void use_arena(struct sluice_arena *a, struct sluice_channel *ch, enum sluice_kind kind)
{
	static const int64_t sizes[] = {1, 4097, 123457, 1 << 20};
	struct sluice_batch *b, *shared;
	int64_t n = 5000;
	uint64_t token;

	for (int i = 0; i < 4; i++) {
		CHECK(!send_batch(ch, sizes[i]));
		CHECK(!sluice_channel_next(ch, &b, 0));
		sluice_batch_release(b);
		expect(kind, SLUICE_OUT, sizes[i], 1, 0);
		expect(kind, SLUICE_IN, sizes[i], 1, 0);
	}
	CHECK(!sluice_batch_begin(ch, &b, n, 0));
	CHECK(sluice_batch_tensor_add(b, "dropped", SLUICE_U8, 1, &n, NULL));
	sluice_batch_abort(b);
	CHECK(!sluice_batch_begin(ch, &b, n, 0));
	CHECK(sluice_batch_tensor_add(b, "shared", SLUICE_U8, 1, &n, NULL));
	CHECK(!sluice_batch_seal(b));
	CHECK(!sluice_batch_share(b, ch, 0));
	CHECK(!sluice_batch_token(b, &token));
	CHECK(!sluice_channel_next(ch, &shared, 0));
	CHECK(!sluice_batch_forward(shared, ch, 0));
	CHECK(!sluice_channel_next(ch, &shared, 0));
	sluice_batch_release(shared);
	CHECK(!sluice_batch_open(a, &shared, token));
	sluice_batch_release(shared);
	sluice_batch_release(b);
	expect(kind, SLUICE_OUT, 2 * n, 2, 0);
	expect(kind, SLUICE_IN, 3 * n, 3, 0);
	CHECK(sluice_channel_next(ch, &b, 0) == -EAGAIN);
}

static void run_arena(enum sluice_backend backend, enum sluice_kind kind)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = 8 << 20,
		.backend = backend,
	};
	struct sluice_channel_opts both = {
		.sz = sizeof(both),
		.flags = SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_CONSUME,
	};
	struct sluice_channel *ch;
	struct sluice_arena *a;

	CHECK(!sluice_arena_create(&a, &opts));
	CHECK(!sluice_channel_create(&ch, a, "matrix", &both));
	use_arena(a, ch, kind);
	sluice_channel_close(ch);
	sluice_arena_detach(a);
}

static void route_arena_memfd(void)
{
	run_arena(SLUICE_BACKEND_MEMFD, SLUICE_ARENA_MEMFD);
}

/* The module must be loaded. */
static void route_arena_kmod(void)
{
	run_arena(SLUICE_BACKEND_KMOD, SLUICE_ARENA_KMOD);
}

static const struct {
	const char *name;
	void (*run)(void);
} routes[] = {
	{"write", route_write},
	{"writev", route_writev},
	{"pwritev2", route_pwritev2},
	{"io_uring write, writev, asynchronous write, read", route_io_uring},
	{"io_uring splice, tee", route_io_uring_splice},
	{"splice file to pipe", route_splice_file_to_pipe},
	{"splice pipe to file", route_splice_pipe_to_file},
	{"splice pipe to pipe", route_splice_pipe_to_pipe},
	{"vmsplice both ways", route_vmsplice},
	{"tee", route_tee},
	{"sendfile to pipe", route_sendfile_to_pipe},
	{"FIFO", route_fifo},
	{"unix stream", route_stream},
	{"unix datagram", route_dgram},
	{"unix seqpacket", route_seqpacket},
	{"SCM_RIGHTS beside bytes", route_scm_rights},
	{"io_uring send, recv", route_io_uring_socket},
	{"splice to and from a socket", route_splice_socket},
	{"sendfile to socket", route_sendfile_to_socket},
	{"process_vm_writev, process_vm_readv", route_process_vm},
	{"partial and failing calls", route_partial},
	{"threads", route_threads},
	{"child process", route_child},
	{"arena by memfd", route_arena_memfd},
	{"arena by kmod", route_arena_kmod},
};

#define ROUTES (sizeof(routes) / sizeof(routes[0]))

typedef struct sluice_count sums[SLUICE_KINDS][2];

static int read_sums(struct counters *c, sums *sum)
{
	struct snapshot s;
	int err;

	memset(sum, 0, sizeof(*sum));
	err = snapshot_read(&s, c);
	for (int i = 0; !err && i < s.num_processes; i++) {
		for (int kind = 0; kind < SLUICE_KINDS; kind++) {
			for (int dir = 0; dir < 2; dir++) {
				struct sluice_count *from = &s.processes[i].kinds[kind][dir];

				(*sum)[kind][dir].bytes += from->bytes;
				(*sum)[kind][dir].calls += from->calls;
				(*sum)[kind][dir].fails += from->fails;
			}
		}
	}
	snapshot_free(&s);
	return err;
}

static int compare(const sums *before, const sums *after)
{
	int wrong = 0;

	for (int kind = 0; kind < SLUICE_KINDS; kind++) {
		for (int dir = 0; dir < 2; dir++) {
			const struct sluice_count *b = &(*before)[kind][dir];
			const struct sluice_count *a = &(*after)[kind][dir];
			struct expected *e = &expected[kind][dir];
			long bytes = a->bytes - b->bytes, calls = a->calls - b->calls;
			long fails = a->fails - b->fails;

			if (bytes == e->bytes && fails == e->fails &&
			    (calls == e->calls || (e->calls < 0 && calls > 0)))
				continue;
			printf("# %s %s: %ld bytes, %ld calls, %ld failed; expected %ld, %ld, "
			       "%ld\n",
			       kind_name(kind), dir ? "in" : "out", bytes, calls, fails, e->bytes,
			       e->calls, e->fails);
			wrong++;
		}
	}
	return wrong;
}

int main(int argc, char **argv)
{
	struct counters_opts opts = {
		.size = sizeof(opts),
		.only_targets = true,
		.library = "/proc/self/exe",
	};
	static sums before, after;
	__u64 missed[2];
	struct counters *c;
	int failed = 0, err;

	signal(SIGPIPE, SIG_IGN);
	file = memfd_create("file", MFD_CLOEXEC);
	if (file < 0 || write(file, buf, sizeof(buf)) != sizeof(buf)) {
		perror("memfd_create");
		return 1;
	}
	err = counters_load(&c, &opts);
	if (!err)
		err = counters_add_target(c, getpid());
	if (err) {
		printf("Bail out! the counters do not load\n");
		return 1;
	}
	printf("1..%zu\n", ROUTES + 1);
	for (size_t i = 0; i < ROUTES; i++) {
		memset(expected, 0, sizeof(expected));
		problem[0] = '\0';
		/* What this prints may itself go through a pipe. */
		fflush(stdout);
		err = read_sums(c, &before);
		routes[i].run();
		if (!err)
			err = read_sums(c, &after);
		if (problem[0])
			printf("# %s\n", problem);
		err = err || problem[0] || compare(&before, &after);
		printf("%sok %zu - %s\n", err ? "not " : "", i + 1, routes[i].name);
		failed += !!err;
	}
	counters_missed(c, &missed[0], &missed[1]);
	err = missed[0] != 0;
	printf("%sok %zu - no call was missed\n", err ? "not " : "", ROUTES + 1);
	counters_close(c);
	return failed || err;
}
