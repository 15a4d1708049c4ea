// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "arena_view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "term.h"

/* The whole region as it was, more or less, at one time. */
struct copy {
	char *bytes;
	const struct shm_peer *peer;
	const struct shm_endpoint *endpoint;
	const struct shm_channel *channel;
	const shm_u64 *cell;
	const struct shm_lease *lease;
};

/* Where a control region is read from: a descriptor, or a mapping. */
struct source {
	int fd;
	const void *mapped;
	uint64_t bytes;
};

static ssize_t source_read(const struct source *s, void *to, uint64_t bytes, uint64_t off)
{
	if (!s->mapped)
		return pread(s->fd, to, bytes, off);
	if (off >= s->bytes)
		return 0;
	if (bytes > s->bytes - off)
		bytes = s->bytes - off;
	memcpy(to, (const char *)s->mapped + off, bytes);
	return bytes;
}

static int copy_take(struct copy *c, const struct source *s)
{
	uint64_t have = 0, bytes = s->bytes;

	/* The structures in it are aligned to cache lines. */
	c->bytes = aligned_alloc(4096, (bytes + 4095) & ~4095ULL);
	if (!c->bytes)
		return -ENOMEM;
	while (have < bytes) {
		ssize_t n = source_read(s, c->bytes + have, bytes - have, have);

		if (n <= 0)
			return n ? -errno : -EIO;
		have += n;
	}
	c->peer = (const void *)(c->bytes + SHM_PEERS_OFF);
	c->endpoint = (const void *)(c->bytes + SHM_ENDPOINTS_OFF);
	c->channel = (const void *)(c->bytes + SHM_CHANNELS_OFF);
	c->cell = (const void *)(c->bytes + SHM_CELLS_OFF);
	c->lease = (const void *)(c->bytes + SHM_LEASES_OFF);
	return 0;
}

static int header_check(const struct shm_header *h, uint64_t size, char *why, unsigned int len)
{
	if (h->magic != SHM_MAGIC) {
		snprintf(why, len, "it is not the control region of an arena");
		return -EBADF;
	}
	if (h->abi_major != SHM_ABI_MAJOR) {
		snprintf(why, len, "the arena has ABI version %u.%u and this program knows %u.%u",
			 h->abi_major, h->abi_minor, SHM_ABI_MAJOR, SHM_ABI_MINOR);
		return -EPROTO;
	}
	if (h->block_shift < 12 || h->block_shift > 30 || !h->nblocks || h->nblocks > 1ULL << 28 ||
	    SHM_LEASES_OFF + (h->nblocks + SHM_NALIAS) * sizeof(struct shm_lease) > size) {
		snprintf(why, len,
			 "its header is damaged: %" PRIu64 " blocks of 2^%u bytes in %" PRIu64
			 " bytes of control region",
			 h->nblocks, h->block_shift, size);
		return -EUCLEAN;
	}
	return 0;
}

static void extents_add(struct extents *e, uint64_t bytes, uint64_t age)
{
	e->n++;
	e->bytes += bytes;
	if (age > e->oldest_ns)
		e->oldest_ns = age;
}

static int peers_read(struct view *v, const struct copy *c)
{
	v->peer = calloc(SLUICE_MAX_PEERS, sizeof(*v->peer));
	if (!v->peer)
		return -ENOMEM;
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		struct view_peer *p = &v->peer[v->peers];
		uint64_t word = c->peer[i].word, comm[2];

		if (peer_state(word) == PEER_FREE)
			continue;
		p->slot = i;
		p->id = peer_id(word);
		p->pid = peer_pid(word);
		p->state = peer_state(word);
		p->consumer = c->peer[i].role == SLUICE_ROLE_CONSUMER;
		p->joined_ns = c->peer[i].joined_ns;
		comm[0] = c->peer[i].comm[0];
		comm[1] = c->peer[i].comm[1];
		memcpy(p->comm, comm, sizeof(comm));
		v->peers++;
	}
	return 0;
}

const struct view_peer *view_peer_at(const struct view *v, unsigned int slot)
{
	for (unsigned int i = 0; i < v->peers; i++) {
		if (v->peer[i].slot == slot)
			return &v->peer[i];
	}
	return NULL;
}

static unsigned int bits(const shm_u64 *map)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < SHM_MAP_WORDS; i++)
		n += __builtin_popcountll(map[i]);
	return n;
}

static void count_add(uint64_t *count, const struct shm_stats *stats)
{
	const shm_u64 *from = (const shm_u64 *)stats;

	for (unsigned int i = 0; i < SHM_NSTATS; i++)
		count[i] += from[i];
}

static int channels_read(struct view *v, const struct copy *c)
{
	v->channel = calloc(SLUICE_MAX_CHANNELS, sizeof(*v->channel));
	if (!v->channel)
		return -ENOMEM;
	for (unsigned int i = 0; i < SLUICE_MAX_CHANNELS; i++) {
		const struct shm_channel *from = &c->channel[i];
		struct view_channel *to = &v->channel[v->channels];
		uint32_t first = from->first_cell, capacity = from->capacity;

		if (!from->open)
			continue;
		for (unsigned int k = 0; k < SLUICE_LABEL_LEN / 8; k++) {
			uint64_t piece = from->name[k];

			memcpy(to->name + 8 * k, &piece, 8);
		}
		to->capacity = capacity;
		if (capacity <= SHM_NCELLS && first <= SHM_NCELLS - capacity) {
			for (uint32_t k = first; k < first + capacity; k++)
				to->queued += cell_kind(c->cell[k]) == CELL_FULL;
		}
		to->producers = bits(from->producers);
		to->consumers = bits(from->consumers);
		to->closing = from->closing;
		count_add(to->count, &from->retired);
		for (unsigned int k = 0; k < SLUICE_MAX_ENDPOINTS; k++) {
			uint64_t word = c->endpoint[k].word;

			if (endpoint_state(word) == ENDPOINT_OPEN && endpoint_channel(word) == i)
				count_add(to->count, &c->endpoint[k].stats);
		}
		v->channels++;
	}
	return 0;
}

static int extent_add(struct view *v, const struct view_extent *e)
{
	struct view_extent *more;

	/* A power of two of room, and no room at all at first. */
	if (!(v->extents & (v->extents - 1))) {
		more = reallocarray(v->extent, v->extents ? 2 * v->extents : 1, sizeof(*more));
		if (!more)
			return -ENOMEM;
		v->extent = more;
	}
	v->extent[v->extents++] = *e;
	return 0;
}

static void extent_count(struct view *v, const struct view_extent *e)
{
	struct view_peer *p = (struct view_peer *)view_peer_at(v, e->owner);

	switch (e->state) {
	case LEASE_WRITING:
	case LEASE_PENDING:
		extents_add(&v->writing, e->bytes, e->age_ns);
		if (p)
			extents_add(&p->writing, e->bytes, e->age_ns);
		break;
	case LEASE_READY:
		extents_add(&v->ready, e->bytes, e->age_ns);
		if (p)
			extents_add(&p->queued, e->bytes, e->age_ns);
		break;
	case LEASE_HELD:
		extents_add(&v->held, e->bytes, e->age_ns);
		if (p)
			extents_add(&p->held, e->bytes, e->age_ns);
		break;
	default:
		extents_add(&v->parked, e->bytes, e->age_ns);
		break;
	}
}

static void lease_read(const struct view *v, const struct shm_lease *l, struct view_extent *e)
{
	uint64_t since = l->since_ns, word = l->word;

	e->state = lease_state(word);
	e->owner = lease_owner(word);
	e->channel = lease_channel(word);
	e->shared = word & LEASE_SHARED;
	e->age_ns = since && since < v->now_ns ? v->now_ns - since : 0;
}

static int leases_read(struct view *v, const struct copy *c)
{
	uint64_t n;
	int ret;

	for (uint64_t i = 0; i < v->hdr.nblocks; i += n) {
		struct view_extent e = {.offset = i << v->hdr.block_shift};

		n = c->lease[i].nblocks;
		if (!n || n > v->hdr.nblocks - i) {
			v->damaged = true;
			return 0;
		}
		e.bytes = n << v->hdr.block_shift;
		lease_read(v, &c->lease[i], &e);
		if (e.state == LEASE_FREE) {
			extents_add(&v->free, e.bytes, 0);
			if (e.bytes > v->largest_free)
				v->largest_free = e.bytes;
			continue;
		}
		extent_count(v, &e);
		ret = extent_add(v, &e);
		if (ret)
			return ret;
	}

	/* References beyond the first are held by somebody too, but occupy nothing. */
	for (unsigned int i = 0; i < SHM_NALIAS; i++) {
		struct view_extent e = {0};
		struct view_peer *p;

		lease_read(v, &c->lease[v->hdr.nblocks + i], &e);
		if (e.state == LEASE_FREE)
			continue;
		v->aliases++;
		p = (struct view_peer *)view_peer_at(v, e.owner);
		if (p && e.state == LEASE_HELD)
			extents_add(&p->held, 0, e.age_ns);
	}
	return 0;
}

static int take(struct view *v, const struct source *s, char *why, unsigned int len)
{
	struct copy c = {0};
	ssize_t n;
	int ret;

	*v = (struct view){0};
	n = source_read(s, &v->hdr, sizeof(v->hdr), 0);
	/* The header is written when all memory is there, which takes seconds for a large arena. */
	if (!n || (n == sizeof(v->hdr) && !v->hdr.magic)) {
		snprintf(why, len, "it is still being created");
		return -EAGAIN;
	}
	if (n != sizeof(v->hdr)) {
		snprintf(why, len, "it cannot be read: %s", strerror(n < 0 ? errno : EIO));
		return -EBADF;
	}
	v->hdr.label[SLUICE_LABEL_LEN - 1] = '\0';
	ret = header_check(&v->hdr, s->bytes, why, len);
	if (ret)
		return ret;
	ret = copy_take(&c, s);
	v->now_ns = clock_ns();
	if (!ret)
		ret = peers_read(v, &c);
	if (!ret)
		ret = channels_read(v, &c);
	if (!ret)
		ret = leases_read(v, &c);
	if (ret) {
		snprintf(why, len, "copying its control region failed: %s", strerror(-ret));
		view_free(v);
	}
	v->inside = !ret;
	free(c.bytes);
	return ret;
}

int view_take(struct view *v, int fd, char *why, unsigned int why_len)
{
	struct source s = {.fd = fd};
	struct stat st;

	if (fstat(fd, &st)) {
		snprintf(why, why_len, "it cannot be read: %s", strerror(errno));
		return -EBADF;
	}
	s.bytes = st.st_size;
	return take(v, &s, why, why_len);
}

int view_take_mapped(struct view *v, const void *control, uint64_t bytes, char *why,
		     unsigned int why_len)
{
	struct source s = {.fd = -1, .mapped = control, .bytes = bytes};

	return take(v, &s, why, why_len);
}

void view_free(struct view *v)
{
	free(v->peer);
	free(v->channel);
	free(v->extent);
	*v = (struct view){0};
}
