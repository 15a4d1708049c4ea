// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Taking back what a peer had that died or leaves: "Death" in PROTOCOL.md.
 *
 * The recoverer works under the allocator lock.  It may die as well: every step can be done again.
 */
#include "internal.h"

static void lease_recover(struct sluice_arena *a, uint32_t lease, uint64_t w, struct shm_peer *p)
{
	uint64_t bytes = ld_rlx(&a->leases[lease].nblocks);
	uint64_t counted = lease_is_alias(a, lease) ? 0 : bytes << a->hdr.block_shift;
	unsigned int c = lease_channel(w);

	if (lease_state(w) == LEASE_READY && c < SLUICE_MAX_CHANNELS &&
	    ring_names(a, &a->channels[c], lease, w)) {
		/* Published: it stays readable, without an owner.  Lost to a consumer is fine. */
		cas_sc(&a->leases[lease].word, w, lease_to(w, LEASE_READY, SHM_NONE, c));
		return;
	}
	/* Counted first: dying in between counts twice, never loses an extent. */
	stat_add(&p->extents, 1);
	stat_add(&p->bytes, counted);
	if (lease_state(w) != LEASE_HELD)
		stat_add(&p->lost, 1);
	CRASH_POINT("recover_before_free");
	if (lease_is_alias(a, lease))
		alias_free_locked(a, lease, w);
	else
		parent_drop_locked(a, lease, w);
}

static void leases_recover(struct sluice_arena *a, unsigned int slot)
{
	for (uint64_t i = 0; i < a->nleases; i++) {
		uint64_t w = ld_acq(&a->leases[i].word);

		if (lease_state(w) == LEASE_FREE || lease_state(w) == LEASE_PARKED ||
		    lease_owner(w) != slot)
			continue;
		lease_recover(a, (uint32_t)i, w, &a->peers[slot]);
	}
}

static void endpoints_recover(struct sluice_arena *a, unsigned int slot, bool died)
{
	for (unsigned int i = 0; i < SLUICE_MAX_ENDPOINTS; i++) {
		uint64_t w = ld_acq(&a->endpoints[i].word);

		if (endpoint_state(w) == ENDPOINT_OPEN && endpoint_slot(w) == slot)
			endpoint_retire(a, i, died);
	}
	channels_sweep(a);
}

static void event_write(struct sluice_arena *a, unsigned int slot, uint64_t word)
{
	uint64_t n = ld_rlx(&a->root->events);
	struct shm_peer *p = &a->peers[slot];
	int sig = 0, code = -1;
	struct shm_event *e;

	for (unsigned int i = 0; i < SHM_NEVENTS; i++) {
		uint64_t number = ld_rlx(&a->events[i].number);

		if (!number || peer_id(ld_rlx(&a->events[i].peer_word)) != peer_id(word))
			continue;
		/* The recoverer before us wrote it, and may not have come to count it. */
		if (number == n + 1)
			st_rel(&a->root->events, number); /* pairs with event_read() */
		return;
	}
	a->ops->death_reason(a, peer_pid(word), &sig, &code);
	e = &a->events[n % SHM_NEVENTS];
	st_rlx(&e->number, 0);
	/* Release: who reads one of these sees that the number is gone (event_copy()). */
	st_rel(&e->peer_word, word);
	st_rel(&e->extents, ld_rlx(&p->extents));
	st_rel(&e->bytes, ld_rlx(&p->bytes));
	st_rel(&e->lost, ld_rlx(&p->lost));
	st_rel(&e->signal, (uint32_t)sig);
	st_rel(&e->exit_code, (uint32_t)code);
	st_rel(&e->time_ns, now_ns());
	CRASH_POINT("recover_before_event");
	st_rel(&e->number, n + 1); /* pairs with event_copy() */
	CRASH_POINT("recover_before_count");
	st_rel(&a->root->events, n + 1); /* pairs with event_read() */
}

/* Free everything of a slot that is RECOVERING(by us). */
static void slot_recover(struct sluice_arena *a, unsigned int slot, uint64_t word, bool died)
{
	/* No word may name the slot when it is used again: the peers that it was recovering... */
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		uint64_t w = ld_acq(&a->peers[i].word);

		if (died && i != slot && peer_state(w) == PEER_RECOVERING && peer_by(w) == slot)
			recover_peer(a, i, w);
	}
	/* ...and the lock. */
	if (died)
		lock_take_from(a, slot);
	else
		lock_take(a, SLUICE_FOREVER);
	CRASH_POINT("recover_locked");
	leases_recover(a, slot);
	endpoints_recover(a, slot, died);
	if (died)
		event_write(a, slot, word);
	lock_drop(a);
	CRASH_POINT("recover_before_slot");
	/* Or the next peer here would be taken for dead until it has written its own. */
	st_rlx(&a->peers[slot].start_time, 0);
	st_rlx(&a->peers[slot].event_bell, 0);
	st_rel(&a->peers[slot].word, 0);
	CRASH_POINT("recover_before_wake");
	wake_everybody(a);
}

/* May a slot in this state be recovered by us?  The CAS on its word decides among several. */
static bool may_recover(struct sluice_arena *a, unsigned int slot, uint64_t word)
{
	if (peer_state(word) == PEER_FREE)
		return false;
	if (peer_state(word) != PEER_RECOVERING || peer_by(word) == slot)
		return true;
	return peer_by(word) != a->slot && peer_gone(a, peer_by(word));
}

/* @word: of the peer that is known to be dead; another one in its slot is left alone */
void recover_peer(struct sluice_arena *a, unsigned int slot, uint64_t word)
{
	uint64_t mine, w = ld_acq(&a->peers[slot].word);

	while (peer_same(w, word) && may_recover(a, slot, w)) {
		mine = peer_word(PEER_RECOVERING, a->slot, peer_pid(w), peer_id(w));
		if (cas_sc(&a->peers[slot].word, w, mine)) {
			CRASH_POINT("recover_claimed");
			sluice_log(SLUICE_LOG_INFO,
				   "peer %u (pid %u) is dead: taking back what it had", peer_id(w),
				   peer_pid(w));
			slot_recover(a, slot, mine, true);
			return;
		}
		w = ld_acq(&a->peers[slot].word);
	}
}

void recover_leave(struct sluice_arena *a)
{
	uint64_t mine = peer_word(PEER_RECOVERING, a->slot, peer_pid(a->word), peer_id(a->word));

	if (cas_sc(&a->peers[a->slot].word, a->word, mine))
		slot_recover(a, a->slot, mine, false);
}
