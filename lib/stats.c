// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Counters and lists: what any peer can see of the others. */
#include <stdio.h>

#include "internal.h"

static void stats_add(struct sluice_channel_stats *to, const struct shm_stats *from)
{
	to->published += ld_rlx(&from->published);
	to->published_bytes += ld_rlx(&from->published_bytes);
	to->consumed += ld_rlx(&from->consumed);
	to->consumed_bytes += ld_rlx(&from->consumed_bytes);
	to->space_waits += ld_rlx(&from->space_waits);
	to->space_wait_ns += ld_rlx(&from->space_wait_ns);
	to->batch_waits += ld_rlx(&from->batch_waits);
	to->batch_wait_ns += ld_rlx(&from->batch_wait_ns);
	to->spins += ld_rlx(&from->spins);
	to->sleeps += ld_rlx(&from->sleeps);
	to->doorbells += ld_rlx(&from->doorbells);
	to->doorbells_suppressed += ld_rlx(&from->doorbells_suppressed);
}

static uint32_t map_count(const shm_u64 *map)
{
	uint32_t n = 0;

	for (unsigned int i = 0; i < SHM_MAP_WORDS; i++)
		n += (uint32_t)__builtin_popcountll(ld_rlx(&map[i]));
	return n;
}

static void stats_channel(struct sluice_arena *a, unsigned int index,
			  struct sluice_channel_stats *to)
{
	const struct shm_channel *c = &a->channels[index];

	to->queued = ring_queued(a, c);
	to->capacity = ld_rlx(&c->capacity);
	to->producers = map_count(c->producers);
	to->consumers = map_count(c->consumers);
}

int sluice_channel_stats(struct sluice_channel *ch, struct sluice_channel_stats *st)
{
	struct sluice_channel_stats s = {.sz = st->sz};
	int err = arena_check(ch->a);

	if (err)
		return err;
	stats_add(&s, ch->stats);
	stats_channel(ch->a, ch->index, &s);
	return info_copy(st, &s, sizeof(s), "sluice_channel_stats");
}

int sluice_channel_list(struct sluice_arena *a, struct sluice_channel_info *info, unsigned int n)
{
	int err = arena_check(a), found = 0;
	size_t sz = n ? info[0].sz : 0;

	if (err)
		return err;
	if (n && (sz < 2 * sizeof(size_t) || sz > sizeof(*info)))
		return sluice_fail(EINVAL,
				   "sluice_channel_info.sz: %zu is not its size, which is %zu", sz,
				   sizeof(*info));
	for (unsigned int i = 0; i < SLUICE_MAX_CHANNELS; i++) {
		const struct shm_channel *c = &a->channels[i];
		struct sluice_channel_info one = {.sz = sz};

		if (!ld_acq(&c->open))
			continue;
		if ((unsigned int)found++ >= n)
			continue;
		channel_name_load(c, one.name);
		one.closed = ld_rlx(&c->closing);
		one.stats.sz = sizeof(one.stats);
		stats_add(&one.stats, &c->retired);
		for (unsigned int e = 0; e < SLUICE_MAX_ENDPOINTS; e++) {
			uint64_t w = ld_acq(&a->endpoints[e].word);

			if (endpoint_state(w) == ENDPOINT_OPEN && endpoint_channel(w) == i)
				stats_add(&one.stats, &a->endpoints[e].stats);
		}
		stats_channel(a, i, &one.stats);
		memcpy((uint8_t *)info + (size_t)(found - 1) * sz, &one, sz);
	}
	return found;
}

int sluice_peer_stats(struct sluice_arena *a, uint64_t id, struct sluice_channel_stats *st)
{
	struct sluice_channel_stats s = {.sz = st->sz};
	int err = arena_check(a);
	unsigned int slot;
	uint64_t w = 0;

	if (err)
		return err;
	for (slot = 0; slot < SLUICE_MAX_PEERS; slot++) {
		w = ld_acq(&a->peers[slot].word);
		if (peer_state(w) != PEER_FREE && peer_id(w) == id)
			break;
	}
	if (slot == SLUICE_MAX_PEERS)
		return sluice_fail(ESRCH, "peer %llu: it is not attached", (unsigned long long)id);
	for (unsigned int e = 0; e < SLUICE_MAX_ENDPOINTS; e++) {
		w = ld_acq(&a->endpoints[e].word);
		if (endpoint_state(w) == ENDPOINT_OPEN && endpoint_slot(w) == slot)
			stats_add(&s, &a->endpoints[e].stats);
	}
	return info_copy(st, &s, sizeof(s), "sluice_channel_stats");
}

/* ------------------------------------------------------------------ who holds what */

struct holding {
	uint32_t extents;
	uint64_t bytes;
	uint64_t oldest_ns; /* when it was taken; 0 = never */
};

static void holdings(struct sluice_arena *a, struct holding h[SLUICE_MAX_PEERS])
{
	memset(h, 0, SLUICE_MAX_PEERS * sizeof(*h));
	for (uint64_t i = 0; i < a->nleases; i++) {
		uint64_t w = ld_acq(&a->leases[i].word), since;
		uint64_t n = ld_rlx(&a->leases[i].nblocks);
		unsigned int slot = lease_owner(w);

		if ((lease_state(w) != LEASE_WRITING && lease_state(w) != LEASE_PENDING &&
		     lease_state(w) != LEASE_HELD) ||
		    !slot_ok(slot))
			continue;
		h[slot].extents++;
		if (!lease_is_alias(a, (uint32_t)i))
			h[slot].bytes += min_u64(n, a->hdr.nblocks) << a->hdr.block_shift;
		since = ld_rlx(&a->leases[i].since_ns);
		if (!h[slot].oldest_ns || since < h[slot].oldest_ns)
			h[slot].oldest_ns = since;
	}
}

static void comm_load(const struct shm_peer *p, char comm[16])
{
	for (int k = 0; k < 2; k++) {
		uint64_t part = ld_rlx(&p->comm[k]);

		memcpy(comm + 8 * k, &part, 8);
	}
	comm[15] = '\0';
}

int sluice_peer_list(struct sluice_arena *a, struct sluice_peer_info *peers, unsigned int n)
{
	int err = arena_check(a), found = 0;
	size_t sz = n ? peers[0].sz : 0;
	uint64_t now = now_coarse_ns();
	struct holding *h;

	if (err)
		return err;
	if (n && (sz < 2 * sizeof(size_t) || sz > sizeof(*peers)))
		return sluice_fail(EINVAL, "sluice_peer_info.sz: %zu is not its size, which is %zu",
				   sz, sizeof(*peers));
	h = malloc(SLUICE_MAX_PEERS * sizeof(*h));
	if (!h)
		return sluice_fail(ENOMEM, "no memory to list %u peers", SLUICE_MAX_PEERS);
	holdings(a, h);
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		const struct shm_peer *p = &a->peers[i];
		uint64_t w = ld_acq(&p->word);
		struct sluice_peer_info one = {
			.sz = sz,
			.id = peer_id(w),
			.pid = peer_pid(w),
			.state = peer_state(w) != PEER_RECOVERING ? SLUICE_PEER_ALIVE
				 : peer_by(w) == i		  ? SLUICE_PEER_LEFT
								  : SLUICE_PEER_DEAD,
			.role = ld_rlx(&p->role),
			.extents = h[i].extents,
			.bytes = h[i].bytes,
			.joined_ns = ld_rlx(&p->joined_ns),
		};

		if (peer_state(w) == PEER_FREE)
			continue;
		if ((unsigned int)found++ >= n)
			continue;
		if (h[i].oldest_ns && h[i].oldest_ns < now)
			one.oldest_ns = now - h[i].oldest_ns;
		comm_load(p, one.comm);
		memcpy((uint8_t *)peers + (size_t)(found - 1) * sz, &one, sz);
	}
	free(h);
	return found;
}

/* "No room", with who has it. */
int holders_fail(struct sluice_arena *a, int err, uint64_t nblocks, uint64_t largest)
{
	unsigned int shift = a->hdr.block_shift, most = 0, n = 0;
	struct holding *h = malloc(SLUICE_MAX_PEERS * sizeof(*h));
	uint64_t now = now_coarse_ns();
	char comm[16], of[24] = "";

	if (err == -EINTR)
		sluice_fail(EINTR, "a signal came while waiting for room in the arena");
	if (!h || (err != -EAGAIN && err != -ETIMEDOUT)) {
		free(h);
		return err;
	}
	holdings(a, h);
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		n += !!h[i].extents;
		if (h[i].bytes > h[most].bytes)
			most = i;
	}
	comm_load(&a->peers[most], comm);
	if (n > 1)
		snprintf(of, sizeof(of), "of %u holders ", n);
	if (n)
		sluice_fail(
			-err,
			"arena %016llx: no room for %llu KiB (largest free run %llu KiB of %llu); "
			"%speer %u (pid %u, %s) has %s%u extent%s, %llu KiB, the oldest for "
			"%llu ms",
			(unsigned long long)a->hdr.arena_id,
			(unsigned long long)(nblocks << shift >> 10),
			(unsigned long long)(largest << shift >> 10),
			(unsigned long long)(a->hdr.data_bytes >> 10), of,
			peer_id(ld_rlx(&a->peers[most].word)),
			peer_pid(ld_rlx(&a->peers[most].word)), comm, n > 1 ? "most: " : "",
			h[most].extents, h[most].extents == 1 ? "" : "s",
			(unsigned long long)(h[most].bytes >> 10),
			(unsigned long long)(h[most].oldest_ns && h[most].oldest_ns < now
						     ? (now - h[most].oldest_ns) / 1000000
						     : 0));
	else
		sluice_fail(
			-err,
			"arena %016llx: no room for %llu KiB (largest free run %llu KiB of %llu); "
			"all of it is queued and not yet taken by a consumer",
			(unsigned long long)a->hdr.arena_id,
			(unsigned long long)(nblocks << shift >> 10),
			(unsigned long long)(largest << shift >> 10),
			(unsigned long long)(a->hdr.data_bytes >> 10));
	free(h);
	return err;
}
