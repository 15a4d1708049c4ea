// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The producer: takes files from the shared list and reads each straight into a parcel. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cmd.h"
#include "pump.h"
#include "pump_sum.h"

/* A part smaller than this is not worth splitting a file for. */
#define LEAST_PART 4096ULL

struct producing {
	struct carrier *c;
	unsigned int producer;
	uint64_t batch_bytes;
	XXH64_state_t *hash;
	bool sums;
	/* The parcel being filled. */
	bool open;
	uint64_t used;
	unsigned int parts;
	uint32_t index_used;
	char index[PARCEL_INDEX_BYTES];
};

static int parcel_send(struct producing *p)
{
	int ret;

	if (!p->open)
		return 0;
	ret = p->c->ops->send(p->c, p->index, p->index_used);
	if (!ret)
		p->open = false;
	return ret;
}

static uint32_t record_bytes(uint32_t name_len)
{
	return sizeof(struct part) + ((name_len + 7) & ~7U);
}

/* Makes sure of a parcel with room for a record, and for some bytes if want is not 0. */
static int parcel_need(struct producing *p, uint32_t name_len, uint64_t want)
{
	uint64_t least = want < LEAST_PART ? want : LEAST_PART;
	int ret;

	if (p->open && (p->batch_bytes - p->used < least || p->parts == PARCEL_MAX_PARTS ||
			PARCEL_INDEX_BYTES - p->index_used < record_bytes(name_len))) {
		ret = parcel_send(p);
		if (ret)
			return ret;
	}
	if (p->open)
		return 0;
	ret = p->c->ops->begin(p->c);
	if (ret)
		return ret;
	p->open = true;
	p->used = 0;
	p->parts = 0;
	p->index_used = 0;
	return 0;
}

static struct part *record_add(struct producing *p, uint32_t file, const char *name, uint32_t len)
{
	struct part *part = (struct part *)(p->index + p->index_used);
	uint32_t bytes = record_bytes(len);

	memset(part, 0, bytes);
	part->file = file;
	part->producer = p->producer;
	part->name_len = len;
	memcpy(part + 1, name, len);
	p->index_used += bytes;
	p->parts++;
	return part;
}

static ssize_t read_full(int fd, char *to, uint64_t bytes, uint64_t off)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, to + done, bytes - done, off + done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		done += n;
	}
	return done;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* What happened to the file while it was read. */
static void judge(struct part *part, int fd, uint64_t read, const struct stat *before)
{
	struct stat now;
	char beyond;

	if (fstat(fd, &now)) {
		part->trouble = TROUBLE_UNREADABLE;
		part->detail = errno;
		return;
	}
	part->detail = now.st_size;
	if (read < part->size) {
		part->trouble = TROUBLE_SHRANK;
		part->detail = read;
	} else if ((uint64_t)now.st_size > part->size) {
		part->trouble = TROUBLE_GREW;
	} else if ((uint64_t)now.st_size < part->size) {
		part->trouble = TROUBLE_SHRANK;
	} else if (pread(fd, &beyond, 1, part->size) == 1) {
		/* Files of /proc and the like do not know their size. */
		part->trouble = TROUBLE_GREW;
		part->detail = part->size + 1;
	} else if (!same_time(&now.st_mtim, &before->st_mtim)) {
		part->trouble = TROUBLE_CHANGED;
	}
}

static int file_refuse(struct producing *p, uint32_t file, const char *path, enum trouble trouble,
		       uint64_t detail)
{
	uint32_t len = strlen(path);
	struct part *part;
	int ret;

	ret = parcel_need(p, len, 0);
	if (ret)
		return ret;
	if (!p->c->ops->part(p->c, 0))
		return -errno;
	part = record_add(p, file, path, len);
	part->flags = PART_LAST;
	part->trouble = trouble;
	part->detail = detail;
	return 0;
}

static int file_send(struct producing *p, uint32_t file, const char *path, int fd,
		     const struct stat *st)
{
	uint64_t size = st->st_size, off = 0, sum = 0, n, room;
	uint32_t len = strlen(path);
	struct part *part;
	ssize_t got;
	char *to;
	int ret;

	XXH64_reset(p->hash, 0);
	do {
		ret = parcel_need(p, len, size - off);
		if (ret)
			return ret;
		room = p->batch_bytes - p->used;
		n = size - off < room ? size - off : room & ~7ULL;
		to = p->c->ops->part(p->c, n);
		if (!to)
			return -errno;
		p->used += n;
		part = record_add(p, file, path, len);
		part->offset = off;
		part->size = size;

		got = read_full(fd, to, n, off);
		if (got < 0) {
			part->flags = PART_LAST;
			part->trouble = TROUBLE_UNREADABLE;
			part->detail = -got;
			return 0;
		}
		part->bytes = got;
		XXH64_update(p->hash, to, got);
		if (p->sums)
			sum += sum_add(to, got, off / 8);
		off += got;
	} while (off < size && (uint64_t)got == n);

	part->flags = PART_LAST;
	part->hash = XXH64_digest(p->hash);
	part->sum = sum;
	judge(part, fd, off, st);
	return 0;
}

static int file_produce(struct producing *p, uint32_t file, const char *path)
{
	struct stat st;
	int fd, ret;

	if (strlen(path) > PARCEL_INDEX_BYTES / 2)
		return file_refuse(p, file, "", TROUBLE_UNREADABLE, ENAMETOOLONG);
	/* It may have become a FIFO or a link since the walk: neither may hang or lead astray. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	if (fd < 0) {
		int err = errno;

		if (err == ENOENT || err == ENOTDIR)
			return file_refuse(p, file, path, TROUBLE_VANISHED, 0);
		if (err == ELOOP || err == ENXIO)
			return file_refuse(p, file, path, TROUBLE_NOT_REGULAR, 0);
		return file_refuse(p, file, path, TROUBLE_UNREADABLE, err);
	}
	if (fstat(fd, &st))
		ret = file_refuse(p, file, path, TROUBLE_UNREADABLE, errno);
	else if (!S_ISREG(st.st_mode))
		ret = file_refuse(p, file, path, TROUBLE_NOT_REGULAR, 0);
	else
		ret = file_send(p, file, path, fd, &st);
	close(fd);
	return ret;
}

static int produce(struct producing *p, const struct pump_list *l, struct pump_shared *shared)
{
	struct part *end;
	uint32_t i;
	int ret;

	while ((i = atomic_fetch_add(&shared->next, 1)) < l->files) {
		shared->taken[i] = 1 + p->producer;
		ret = file_produce(p, i, l->file[i].path);
		if (ret)
			return ret;
	}
	ret = parcel_need(p, 0, 0);
	if (ret)
		return ret;
	if (!p->c->ops->part(p->c, 0))
		return -errno;
	end = record_add(p, UINT32_MAX, "", 0);
	end->flags = PART_END;
	return parcel_send(p);
}

int pump_produce(struct carrier *c, const struct pump_list *l, struct pump_shared *shared,
		 unsigned int producer, const struct pump_opts *o)
{
	struct producing *p = calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return EXIT_BROKEN;
	p->hash = XXH64_createState();
	p->c = c;
	p->producer = producer;
	p->batch_bytes = o->parcel_bytes;
	p->sums = o->on_gpu;
	ret = p->hash ? c->ops->join(c, producer) : -ENOMEM;
	if (!ret)
		ret = produce(p, l, shared);
	if (ret)
		complain("pump", "producer %u: %s", producer, c->ops->sentence(c));
	c->ops->leave(c);
	XXH64_freeState(p->hash);
	free(p);
	return ret ? EXIT_BROKEN : EXIT_OK;
}
