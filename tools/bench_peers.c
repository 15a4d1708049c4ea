// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The same batches through what people use today: pipe, AF_UNIX, process_vm_readv, a shm ring. */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench.h"

struct stream {
	int fd[2]; /* by side: 0 reads, 1 writes */
	int back[2];
	char *slots;
};

/* A batch is used for a while: the next ones go to other buffers, as they do in an arena. */
static void *stream_slot(struct bench_crew *c, struct stream *s)
{
	return s->slots + c->seq % c->spec->slots * c->spec->bytes;
}

static int stream_init(struct bench_crew *c)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		return bench_fail(c, -ENOMEM, "out of memory");
	memset(s->fd, -1, sizeof(s->fd));
	memset(s->back, -1, sizeof(s->back));
	c->priv = s;
	return bench_payload_init(c);
}

static void stream_exit(struct bench_crew *c)
{
	struct stream *s = c->priv;
	int i;

	for (i = 0; s && i < 2; i++) {
		if (s->fd[i] >= 0)
			close(s->fd[i]);
		if (s->back[i] >= 0)
			close(s->back[i]);
	}
	free(s);
}

static int pipe_init(struct bench_crew *c)
{
	int err = stream_init(c);
	struct stream *s = c->priv;

	if (err)
		return err;
	if (pipe(s->fd))
		return bench_fail(c, -errno, "pipe: %s", strerror(errno));
	return 0;
}

/* The largest pipe that an unprivileged process gets by default. */
static int pipe_big_init(struct bench_crew *c)
{
	int err = pipe_init(c);
	struct stream *s = c->priv;

	if (err)
		return err;
	if (fcntl(s->fd[1], F_SETPIPE_SZ, (int)BENCH_MIB) < 0)
		return bench_fail(c, -errno, "pipe of 1 MiB: %s", strerror(errno));
	return 0;
}

static int unix_init(struct bench_crew *c)
{
	int err = stream_init(c);
	struct stream *s = c->priv;

	if (err)
		return err;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, s->fd))
		return bench_fail(c, -errno, "socketpair: %s", strerror(errno));
	return 0;
}

static int stream_open(struct bench_crew *c, int side)
{
	struct stream *s = c->priv;

	close(s->fd[!side]);
	s->fd[!side] = -1;
	if (side)
		return 0;
	s->slots = bench_alloc(c->spec->slots * c->spec->bytes);
	return s->slots ? 0 : bench_fail(c, -ENOMEM, "no memory for buffers");
}

static int read_full(int fd, char *p, size_t n)
{
	while (n) {
		ssize_t got = read(fd, p, n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got ? -errno : -EPIPE;
		p += got;
		n -= (size_t)got;
	}
	return 0;
}

static int write_full(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t put = write(fd, p, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		p += put;
		n -= (size_t)put;
	}
	return 0;
}

static int stream_run(struct bench_crew *c, int side, uint64_t n)
{
	bool all = c->spec->flags & BENCH_READ;
	struct stream *s = c->priv;
	void *slot;
	int err;

	for (; n; n--, c->seq++) {
		if (side) {
			err = write_full(s->fd[1], bench_payload(c->seq), c->spec->bytes);
		} else {
			slot = stream_slot(c, s);
			err = read_full(s->fd[0], slot, c->spec->bytes);
			if (!err && !bench_payload_ok(slot, c->seq, all))
				err = -EBADMSG;
		}
		if (err)
			return bench_fail(c, err, "%s: batch %llu: %s", c->spec->ops->name,
					  (unsigned long long)c->seq, strerror(-err));
	}
	return 0;
}

const struct bench_ops bench_pipe = {
	.name = "pipe",
	.init = pipe_init,
	.open = stream_open,
	.run = stream_run,
	.exit = stream_exit,
};

const struct bench_ops bench_pipe_big = {
	.name = "pipe of 1 MiB",
	.init = pipe_big_init,
	.open = stream_open,
	.run = stream_run,
	.exit = stream_exit,
};

const struct bench_ops bench_unix = {
	.name = "AF_UNIX stream",
	.init = unix_init,
	.open = stream_open,
	.run = stream_run,
	.exit = stream_exit,
};

/* The consumer fetches each batch out of the producer; a pipe each way carries address and ack. */
struct remote {
	void *p;
	pid_t pid;
};

static int readv_init(struct bench_crew *c)
{
	int err = pipe_init(c);
	struct stream *s = c->priv;

	if (err)
		return err;
	if (pipe(s->back))
		return bench_fail(c, -errno, "pipe: %s", strerror(errno));
	return 0;
}

static int readv_open(struct bench_crew *c, int side)
{
	/* Where Yama restricts ptrace to descendants, siblings need this. */
	if (side)
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	return stream_open(c, side);
}

static int readv_produce(struct bench_crew *c, struct stream *s, uint64_t n)
{
	struct remote r = {.pid = getpid()};
	uint64_t sent, acked = 0;
	char ack;
	int err;

	for (sent = 0; sent < n || acked < sent;) {
		if (sent < n && sent - acked < BENCH_SOURCES) {
			r.p = bench_payload(c->seq++);
			err = write_full(s->fd[1], (char *)&r, sizeof(r));
			sent++;
		} else {
			err = read_full(s->back[0], &ack, 1);
			acked++;
		}
		if (err)
			return err;
	}
	return 0;
}

static int readv_fetch(const struct remote *r, char *buf, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		struct iovec to = {buf + done, bytes - done};
		struct iovec from = {(char *)r->p + done, bytes - done};
		ssize_t got = process_vm_readv(r->pid, &to, 1, &from, 1, 0);

		if (got <= 0)
			return got ? -errno : -EFAULT;
		done += (size_t)got;
	}
	return 0;
}

static int readv_run(struct bench_crew *c, int side, uint64_t n)
{
	struct stream *s = c->priv;
	struct remote r;
	int err = 0;

	if (side)
		err = readv_produce(c, s, n);
	for (; !side && !err && n; n--, c->seq++) {
		err = read_full(s->fd[0], (char *)&r, sizeof(r));
		if (!err)
			err = readv_fetch(&r, stream_slot(c, s), c->spec->bytes);
		if (!err &&
		    !bench_payload_ok(stream_slot(c, s), c->seq, c->spec->flags & BENCH_READ))
			err = -EBADMSG;
		if (!err)
			err = write_full(s->back[1], "", 1);
	}
	return err ? bench_fail(c, err, "%s: %s", c->spec->ops->name, strerror(-err)) : 0;
}

const struct bench_ops bench_readv = {
	.name = "process_vm_readv",
	.init = readv_init,
	.open = readv_open,
	.run = readv_run,
	.exit = stream_exit,
};

/* What one writes by hand: shm_open(), slots, two semaphores.  One dead process and it hangs. */
struct shm_ring {
	sem_t used, room;
	char *slots;
	size_t stride, bytes;
};

static int shm_ring_init(struct bench_crew *c)
{
	size_t stride = (c->spec->bytes + 4095) & ~4095UL, bytes = 4096 + c->spec->slots * stride;
	char name[64];
	struct shm_ring *r;
	int fd, err;

	snprintf(name, sizeof(name), "/sluice-bench.%d", (int)getpid());
	fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return bench_fail(c, -errno, "shm_open %s: %s", name, strerror(errno));
	shm_unlink(name);
	err = posix_fallocate(fd, 0, (off_t)bytes);
	if (err) {
		close(fd);
		return bench_fail(c, -err, "shm ring of %zu bytes: %s", bytes, strerror(err));
	}
	r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (r == MAP_FAILED)
		return bench_fail(c, -errno, "mmap: %s", strerror(errno));
	r->slots = (char *)r + 4096;
	r->stride = stride;
	r->bytes = bytes;
	sem_init(&r->used, 1, 0);
	sem_init(&r->room, 1, c->spec->slots);
	c->priv = r;
	return bench_payload_init(c);
}

static int shm_ring_run(struct bench_crew *c, int side, uint64_t n)
{
	struct shm_ring *r = c->priv;

	for (; n; n--, c->seq++) {
		char *slot = r->slots + c->seq % c->spec->slots * r->stride;

		while (sem_wait(side ? &r->room : &r->used))
			;
		if (side)
			memcpy(slot, bench_payload(c->seq), c->spec->bytes);
		else if (!bench_payload_ok(slot, c->seq, c->spec->flags & BENCH_READ))
			return bench_fail(c, -EBADMSG, "%s: batch %llu is damaged",
					  c->spec->ops->name, (unsigned long long)c->seq);
		sem_post(side ? &r->used : &r->room);
	}
	return 0;
}

static void shm_ring_exit(struct bench_crew *c)
{
	struct shm_ring *r = c->priv;

	if (r)
		munmap(r, r->bytes);
}

const struct bench_ops bench_shm_ring = {
	.name = "shm_open ring",
	.init = shm_ring_init,
	.run = shm_ring_run,
	.exit = shm_ring_exit,
};
