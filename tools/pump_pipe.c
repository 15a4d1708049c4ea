// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The same parcels through pipes, one for each producer, as large as an unprivileged user gets them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pump.h"

#define PIPE_BYTES (1 << 20)

/* In front of each parcel; then sizes of the parts, the index, and the bytes. */
struct frame {
	uint32_t parts;
	uint32_t index_bytes;
	uint64_t data_bytes;
};

/* The consumer's end, and the frame that has arrived in part. */
struct source {
	int fd;
	uint64_t have;
	char *buf;
	/* Where the next part begins: they are looked at one after the other. */
	unsigned int part;
	uint64_t off;
};

struct pipe_carrier {
	unsigned int producers;
	unsigned int turn; /* who is looked at first: everybody in turn */
	int read_fd[PUMP_MAX_PRODUCERS];
	int write_fd[PUMP_MAX_PRODUCERS];
	struct source source[PUMP_MAX_PRODUCERS];
	uint64_t frame_bytes; /* of the largest one */
	uint64_t batch_bytes;
	/* A producer's parcel. */
	int out;
	char *data;
	uint64_t used;
	uint32_t parts;
	uint64_t sizes[PARCEL_MAX_PARTS];
	char sentence[256];
};

static int fail(struct pipe_carrier *p, const char *what)
{
	int err = errno;

	snprintf(p->sentence, sizeof(p->sentence), "%s failed: %s", what, strerror(err));
	return -err;
}

static int pipe_open(struct carrier *c, const struct pump_opts *o)
{
	struct pipe_carrier *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	c->own = p;
	p->out = -1;
	p->producers = o->producers;
	p->batch_bytes = o->parcel_bytes;
	p->frame_bytes =
		sizeof(struct frame) + sizeof(p->sizes) + PARCEL_INDEX_BYTES + o->parcel_bytes;
	for (unsigned int i = 0; i < PUMP_MAX_PRODUCERS; i++)
		p->read_fd[i] = p->write_fd[i] = p->source[i].fd = -1;
	for (unsigned int i = 0; i < p->producers; i++) {
		int fd[2];

		if (pipe2(fd, O_CLOEXEC))
			return fail(p, "making a pipe");
		p->read_fd[i] = fd[0];
		p->write_fd[i] = fd[1];
		/* An unprivileged user may have used up what pipes may hold. */
		fcntl(fd[1], F_SETPIPE_SZ, PIPE_BYTES);
	}
	return 0;
}

static void fds_close(int *fd, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		if (fd[i] >= 0)
			close(fd[i]);
		fd[i] = -1;
	}
}

static int pipe_forked(struct carrier *c)
{
	struct pipe_carrier *p = c->own;

	fds_close(p->write_fd, p->producers);
	for (unsigned int i = 0; i < p->producers; i++) {
		struct source *s = &p->source[i];

		s->fd = p->read_fd[i];
		s->buf = malloc(p->frame_bytes);
		if (!s->buf)
			return fail(p, "allocating a buffer");
		if (fcntl(s->fd, F_SETFL, O_NONBLOCK))
			return fail(p, "making a pipe non-blocking");
	}
	return 0;
}

static int pipe_join(struct carrier *c, unsigned int producer)
{
	struct pipe_carrier *p = c->own;

	p->out = p->write_fd[producer];
	p->write_fd[producer] = -1;
	fds_close(p->write_fd, p->producers);
	fds_close(p->read_fd, p->producers);
	p->data = malloc(p->batch_bytes);
	return p->data ? 0 : fail(p, "allocating a buffer");
}

static int pipe_begin(struct carrier *c)
{
	struct pipe_carrier *p = c->own;

	p->used = 0;
	p->parts = 0;
	return 0;
}

static void *pipe_part(struct carrier *c, uint64_t bytes)
{
	struct pipe_carrier *p = c->own;
	void *at = p->data + p->used;

	if (p->parts == PARCEL_MAX_PARTS || bytes > p->batch_bytes - p->used) {
		errno = ENOSPC;
		fail(p, "adding a part");
		return NULL;
	}
	p->sizes[p->parts++] = bytes;
	p->used += bytes;
	return at;
}

static int pipe_send(struct carrier *c, const void *index, uint64_t bytes)
{
	struct pipe_carrier *p = c->own;
	struct frame frame = {.parts = p->parts, .index_bytes = bytes, .data_bytes = p->used};
	struct iovec iov[] = {
		{&frame, sizeof(frame)},
		{p->sizes, p->parts * sizeof(p->sizes[0])},
		{(void *)index, bytes},
		{p->data, p->used},
	};
	unsigned int first = 0;

	while (first < 4) {
		ssize_t n = writev(p->out, iov + first, 4 - first);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(p, "writing to a pipe");
		for (; first < 4 && (size_t)n >= iov[first].iov_len; first++)
			n -= iov[first].iov_len;
		if (first < 4) {
			iov[first].iov_base = (char *)iov[first].iov_base + n;
			iov[first].iov_len -= n;
		}
	}
	return 0;
}

/* Return: bytes that the frame has in all, as far as can be told; 0 when it makes no sense. */
static uint64_t frame_need(const struct pipe_carrier *p, const struct source *s)
{
	struct frame f;

	if (s->have < sizeof(f))
		return sizeof(f);
	memcpy(&f, s->buf, sizeof(f));
	if (f.parts > PARCEL_MAX_PARTS || f.index_bytes > PARCEL_INDEX_BYTES ||
	    f.data_bytes > p->batch_bytes)
		return 0;
	return sizeof(f) + f.parts * sizeof(p->sizes[0]) + f.index_bytes + f.data_bytes;
}

/* Return: 1 when a frame is complete, 0 when not yet, -EPIPE when the source is at its end. */
static int source_read(struct pipe_carrier *p, struct source *s)
{
	for (;;) {
		uint64_t need = frame_need(p, s);
		ssize_t n;

		if (!need)
			return -EPIPE;
		if (s->have == need && need > sizeof(struct frame))
			return 1;
		n = read(s->fd, s->buf + s->have, need - s->have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0)
			return -EPIPE;
		s->have += n;
	}
}

static int pipe_next(struct carrier *c, struct parcel *out, uint64_t timeout_ns)
{
	struct pipe_carrier *p = c->own;
	struct pollfd fds[PUMP_MAX_PRODUCERS];
	bool any = false;
	int n;

	for (unsigned int i = 0; i < p->producers; i++) {
		fds[i] = (struct pollfd){.fd = p->source[i].fd, .events = POLLIN};
		any |= fds[i].fd >= 0;
	}
	if (!any)
		return -ENODATA;
	n = poll(fds, p->producers, timeout_ns / 1000000);
	if (n < 0)
		return errno == EINTR ? -EINTR : fail(p, "waiting for pipes");
	if (!n)
		return -ETIMEDOUT;

	for (unsigned int k = 0; k < p->producers; k++) {
		unsigned int i = (p->turn + k) % p->producers;
		struct source *s = &p->source[i];
		struct frame f;

		if (!fds[i].revents)
			continue;
		n = source_read(p, s);
		if (n < 0) {
			fds_close(&s->fd, 1);
			p->read_fd[i] = -1;
		}
		if (n <= 0)
			continue;
		memcpy(&f, s->buf, sizeof(f));
		out->index = s->buf + sizeof(f) + f.parts * sizeof(p->sizes[0]);
		out->index_bytes = f.index_bytes;
		out->parts = f.parts;
		out->from = s;
		p->turn = i + 1;
		return 0;
	}
	/* Something arrived, but no frame is complete. */
	return -EINTR;
}

static int pipe_data(struct carrier *c, const struct parcel *parcel, unsigned int part,
		     const void **data, uint64_t *bytes)
{
	struct source *s = parcel->from;
	struct frame f;
	uint64_t n;

	memcpy(&f, s->buf, sizeof(f));
	if (part >= f.parts)
		return -EINVAL;
	if (part < s->part)
		s->part = s->off = 0;
	for (;;) {
		memcpy(&n, s->buf + sizeof(f) + s->part * sizeof(n), sizeof(n));
		if (n > f.data_bytes - s->off)
			return -EBADMSG;
		if (s->part == part)
			break;
		s->off += n;
		s->part++;
	}
	*data = (const char *)parcel->index + f.index_bytes + s->off;
	*bytes = n;
	return 0;
}

static void pipe_release(struct carrier *c, struct parcel *parcel)
{
	struct source *s = parcel->from;

	s->have = s->part = s->off = 0;
}

static void pipe_close(struct carrier *c)
{
	struct pipe_carrier *p = c->own;

	if (!p)
		return;
	fds_close(p->read_fd, p->producers);
	fds_close(p->write_fd, p->producers);
	fds_close(&p->out, 1);
	for (unsigned int i = 0; i < p->producers; i++)
		free(p->source[i].buf);
	free(p->data);
	free(p);
	c->own = NULL;
}

static const char *pipe_sentence(struct carrier *c)
{
	struct pipe_carrier *p = c->own;

	return p ? p->sentence : "out of memory";
}

const struct carrier_ops carrier_pipe = {
	.name = "pipe",
	.open = pipe_open,
	.forked = pipe_forked,
	.join = pipe_join,
	.begin = pipe_begin,
	.part = pipe_part,
	.send = pipe_send,
	.leave = pipe_close,
	.next = pipe_next,
	.data = pipe_data,
	.release = pipe_release,
	.close = pipe_close,
	.sentence = pipe_sentence,
};
