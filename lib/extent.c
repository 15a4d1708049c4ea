// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The lease table: extents (runs of blocks) and aliases of them.
 *
 * The table is partitioned into runs; only the holder of the allocator lock changes the partition,
 * and each single write leaves a partition behind (PROTOCOL.md, Allocation).
 */
#include "internal.h"

#define LARGE_BYTES  (1 << 20)
#define LARGEST_RUNS 4096 /* how far to look for what is left after an allocation */

static int table_damaged(const struct sluice_arena *a, uint64_t at)
{
	return sluice_fail(EUCLEAN,
			   "arena %016llx: lease %llu of its table is damaged, a peer has written "
			   "over it",
			   (unsigned long long)a->hdr.arena_id, (unsigned long long)at);
}

/* Length of the run at @at, checked; 0 when damaged. */
static uint64_t run_length(const struct sluice_arena *a, uint64_t at)
{
	uint64_t n = ld_rlx(&a->leases[at].nblocks);

	return n <= a->hdr.nblocks - at ? n : 0;
}

static bool run_free(const struct sluice_arena *a, uint64_t at)
{
	/* seq_cst: S2 of the space sleepers; acquire pairs with R1. */
	return lease_state(ld_sc(&a->leases[at].word)) == LEASE_FREE;
}

/* Lengthen the free run at @at over the free runs behind it.  0 when damaged. */
static uint64_t run_merge(struct sluice_arena *a, uint64_t at, uint64_t enough)
{
	uint64_t n = run_length(a, at);

	while (n && n < enough && at + n < a->hdr.nblocks && run_free(a, at + n)) {
		uint64_t more = run_length(a, at + n);
		uint64_t rover = ld_rlx(&a->root->rover);

		if (!more)
			return 0;
		/* The rover must name a head at every moment. */
		if (rover >= at + n && rover < at + n + more)
			st_rlx(&a->root->rover, (uint32_t)at);
		CRASH_POINT("alloc_before_merge");
		n += more;
		st_rlx(&a->leases[at].nblocks, (uint32_t)n);
	}
	return n;
}

/* Cut @need blocks off the free run of @n at @at and take them. */
static int run_take(struct sluice_arena *a, uint64_t at, uint64_t n, uint64_t need,
		    struct extent_found *found)
{
	struct shm_lease *l = &a->leases[at];
	uint64_t w = ld_rlx(&l->word);

	if (n > need) {
		if (!run_free(a, at + need))
			return table_damaged(a, at + need);
		st_rlx(&a->leases[at + need].nblocks, (uint32_t)(n - need));
		CRASH_POINT("alloc_before_split");
		st_rlx(&l->nblocks, (uint32_t)need);
	}
	st_rlx(&l->naliases, 0);
	st_rlx(&l->since_ns, now_coarse_ns());
	CRASH_POINT("alloc_before_take");
	found->lease = (uint32_t)at;
	found->word = lease_to(w & ~LEASE_SHARED, LEASE_WRITING, a->slot, 0);
	if (!cas_sc(&l->word, w, found->word))
		return table_damaged(a, at);
	CRASH_POINT("alloc_before_rover");
	st_rlx(&a->root->rover, at + need < a->hdr.nblocks ? (uint32_t)(at + need) : 0);
	return 0;
}

/* The largest free run among the first LARGEST_RUNS; UINT64_MAX when there are more. */
static uint64_t run_largest(const struct sluice_arena *a)
{
	uint64_t largest = 0, free_here = 0, at = 0;

	for (unsigned int i = 0; i < LARGEST_RUNS; i++) {
		uint64_t n = run_length(a, at);

		if (!n)
			return UINT64_MAX;
		free_here = run_free(a, at) ? free_here + n : 0;
		largest = max_u64(largest, free_here);
		at += n;
		if (at >= a->hdr.nblocks)
			return largest;
	}
	return UINT64_MAX;
}

/*
 * Allocate @nblocks contiguous blocks.
 * @want_largest: on success too, find out what is left (for the next sleeper)
 *
 * Return: 0; -ENOSPC (found->largest says what there is), -ETIMEDOUT or -EAGAIN (the lock),
 * -EUCLEAN.
 */
int extent_alloc(struct sluice_arena *a, uint64_t nblocks, bool want_largest, uint64_t deadline,
		 struct extent_found *found)
{
	uint64_t at, n, seen = 0, largest = 0;
	int err;

	err = lock_take(a, deadline);
	if (err)
		return err;
	CRASH_POINT("alloc_locked");
	/*
	 * Small extents go round the arena, where the oldest are free soonest.  Large ones start at the
	 * bottom: what was used last is still in the cache, and few runs have to be looked at.
	 */
	at = ld_rlx(&a->root->rover);
	if (at >= a->hdr.nblocks || nblocks << a->hdr.block_shift >= LARGE_BYTES)
		at = 0;
	err = -ENOSPC;
	while (seen < a->hdr.nblocks) {
		bool is_free = run_free(a, at);

		n = is_free ? run_merge(a, at, nblocks) : run_length(a, at);
		if (!n) {
			err = table_damaged(a, at);
			break;
		}
		if (is_free && n >= nblocks) {
			err = run_take(a, at, n, nblocks, found);
			largest = !err && want_largest ? run_largest(a) : UINT64_MAX;
			break;
		}
		if (is_free)
			largest = max_u64(largest, n);
		seen += n;
		at += n;
		if (at >= a->hdr.nblocks)
			at = 0;
	}
	found->largest = largest;
	lock_drop(a);
	return err;
}

/* The holder of an extent that may be shared lets go. */
void parent_drop_locked(struct sluice_arena *a, uint32_t lease, uint64_t word)
{
	if (ld_rlx(&a->leases[lease].naliases))
		cas_sc(&a->leases[lease].word, word, lease_to(word, LEASE_PARKED, SHM_NONE, 0));
	else
		cas_sc(&a->leases[lease].word, word, lease_freed(word)); /* R1 */
}

void alias_free_locked(struct sluice_arena *a, uint32_t lease, uint64_t word)
{
	uint32_t parent = ld_rlx(&a->leases[lease].parent);
	struct shm_lease *p;
	uint64_t w;

	if (!cas_sc(&a->leases[lease].word, word, lease_freed(word)))
		return;
	CRASH_POINT("alias_before_count");
	if (parent >= a->hdr.nblocks)
		return; /* damaged */
	p = &a->leases[parent];
	if (ld_rlx(&p->naliases))
		st_rlx(&p->naliases, ld_rlx(&p->naliases) - 1);
	CRASH_POINT("alias_before_parent");
	w = ld_acq(&p->word);
	if (lease_state(w) == LEASE_PARKED && !ld_rlx(&p->naliases))
		cas_sc(&p->word, w, lease_freed(w)); /* R1 */
}

/* Counts of aliases as the aliases themselves say it; and what a dead holder did not finish. */
void alias_recount(struct sluice_arena *a)
{
	uint64_t nblocks = a->hdr.nblocks;

	for (uint64_t i = 0; i < nblocks; i++)
		if (ld_rlx(&a->leases[i].word) & LEASE_SHARED)
			st_rlx(&a->leases[i].naliases, 0);
	for (uint64_t i = nblocks; i < a->nleases; i++) {
		uint32_t parent = ld_rlx(&a->leases[i].parent);

		if (lease_state(ld_acq(&a->leases[i].word)) == LEASE_FREE || parent >= nblocks)
			continue;
		st_rlx(&a->leases[parent].naliases, ld_rlx(&a->leases[parent].naliases) + 1);
	}
	CRASH_POINT("recount_before_parked");
	for (uint64_t i = 0; i < nblocks; i++) {
		uint64_t w = ld_acq(&a->leases[i].word);

		if (lease_state(w) == LEASE_PARKED && !ld_rlx(&a->leases[i].naliases))
			cas_sc(&a->leases[i].word, w, lease_freed(w)); /* R1 */
	}
}

/*
 * Give a lease back that this process owns (WRITING or HELD).
 * @word: as owned; somebody may have set the shared bit since
 */
int extent_release(struct sluice_arena *a, uint32_t lease, uint64_t word)
{
	if (!lease_is_alias(a, lease) && !(word & LEASE_SHARED)) {
		CRASH_POINT("release_before_free");
		if (cas_sc(&a->leases[lease].word, word, lease_freed(word))) { /* R1 */
			CRASH_POINT("release_before_wake");
			wake_one(a, a->root->space_sleepers, UINT64_MAX, NULL);
			return 0;
		}
		word |= LEASE_SHARED;
		if (ld_acq(&a->leases[lease].word) != word)
			return table_damaged(a, lease);
	}
	lock_take(a, SLUICE_FOREVER);
	CRASH_POINT("release_locked");
	if (lease_is_alias(a, lease))
		alias_free_locked(a, lease, word);
	else
		parent_drop_locked(a, lease, word);
	lock_drop(a);
	wake_one(a, a->root->space_sleepers, UINT64_MAX, NULL);
	return 0;
}

/* Where the bytes behind a lease stand. */
int extent_resolve(struct sluice_arena *a, uint32_t lease, uint32_t *extent, uint8_t **base,
		   uint64_t *bytes)
{
	uint64_t n, at = lease;

	if (lease_is_alias(a, lease))
		at = ld_rlx(&a->leases[lease].parent);
	n = at < a->hdr.nblocks ? run_length(a, at) : 0;
	if (!n)
		return table_damaged(a, lease);
	*extent = (uint32_t)at;
	*base = (uint8_t *)a->region.data + (at << a->hdr.block_shift);
	*bytes = n << a->hdr.block_shift;
	return 0;
}

/* Set the shared bit of a live extent of this generation, whatever state it passes through. */
static int parent_mark(struct sluice_arena *a, uint32_t parent, uint64_t gen)
{
	struct shm_lease *p = &a->leases[parent];

	for (;;) {
		uint64_t w = ld_acq(&p->word);

		if (lease_gen(w) != gen || lease_state(w) == LEASE_FREE ||
		    lease_state(w) == LEASE_WRITING || lease_state(w) == LEASE_PENDING)
			return sluice_fail(ESTALE, "batch at block %u: it has been freed already",
					   parent);
		if (w & LEASE_SHARED || cas_sc(&p->word, w, w | LEASE_SHARED))
			return 0;
	}
}

/*
 * Make an alias of a live extent.
 * @gen: the generation of the parent that is meant
 * @st: LEASE_WRITING to publish it, LEASE_HELD to read it
 */
int alias_create(struct sluice_arena *a, uint32_t parent, uint64_t gen, enum lease_state st,
		 uint32_t *lease, uint64_t *word)
{
	uint64_t first = a->hdr.nblocks, w = 0, at = 0;
	unsigned int i;
	int err;

	lock_take(a, SLUICE_FOREVER);
	CRASH_POINT("alias_locked");
	err = parent_mark(a, parent, gen);
	if (err)
		goto out;
	for (i = 0; i < SHM_NALIAS; i++) {
		at = first + (ld_rlx(&a->root->alias_rover) + i) % SHM_NALIAS;
		w = ld_acq(&a->leases[at].word);
		if (lease_state(w) == LEASE_FREE)
			break;
	}
	if (i == SHM_NALIAS) {
		err = sluice_fail(ENOSPC,
				  "batch at block %u: all %u shared references of the arena are "
				  "out",
				  parent, SHM_NALIAS);
		goto out;
	}
	st_rlx(&a->root->alias_rover, (uint32_t)(at - first + 1));
	st_rlx(&a->leases[at].parent, parent);
	st_rlx(&a->leases[at].since_ns, now_coarse_ns());
	st_rlx(&a->leases[parent].naliases, ld_rlx(&a->leases[parent].naliases) + 1);
	CRASH_POINT("alias_before_take");
	*lease = (uint32_t)at;
	*word = lease_to(w & ~LEASE_SHARED, st, a->slot, 0);
	if (!cas_sc(&a->leases[at].word, w, *word))
		err = table_damaged(a, at);
out:
	lock_drop(a);
	return err;
}

int sluice_arena_usage(struct sluice_arena *a, struct sluice_arena_usage *usage)
{
	struct sluice_arena_usage u = {.sz = usage->sz};
	uint64_t n, free_here = 0;
	int err = arena_check(a);

	if (!err)
		err = lock_take(a, deadline_ns(1000000000));
	if (err)
		return err;
	for (uint64_t at = 0; at < a->hdr.nblocks; at += n) {
		uint64_t w = ld_acq(&a->leases[at].word);

		n = run_length(a, at);
		if (!n) {
			lock_drop(a);
			return table_damaged(a, at);
		}
		if (lease_state(w) == LEASE_FREE) {
			u.free_runs += !free_here;
			free_here += n << a->hdr.block_shift;
			u.free_bytes += n << a->hdr.block_shift;
			u.largest_free_bytes = max_u64(u.largest_free_bytes, free_here);
			continue;
		}
		free_here = 0;
		u.reserved_bytes += n << a->hdr.block_shift;
		u.writing += lease_state(w) == LEASE_WRITING || lease_state(w) == LEASE_PENDING;
		u.ready += lease_state(w) == LEASE_READY;
		u.held += lease_state(w) == LEASE_HELD;
		u.parked += lease_state(w) == LEASE_PARKED;
	}
	lock_drop(a);
	for (uint64_t i = a->hdr.nblocks; i < a->nleases; i++)
		u.shared += lease_state(ld_rlx(&a->leases[i].word)) != LEASE_FREE;
	return info_copy(usage, &u, sizeof(u), "sluice_arena_usage");
}
