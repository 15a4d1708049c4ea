// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The allocator lock: a futex word that names its holder.
 *
 *	0, or slot + 1 : 8 | low bits of the peer id : 23 | somebody may sleep on it : 1
 *
 * The id is there so that a slot's next peer is not taken for the dead one: a waiter that is late
 * would take the lock away from it.
 *
 * A waiter that finds the holder dead takes the lock over.  The partition of the lease table needs
 * no repair (PROTOCOL.md, Allocation); the alias counts are computed anew.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define LOCK_WAITERS	  0x80000000u
#define LOCK_SPINS	  100
#define LOCK_LOOK_NS	  10000000ull /* how often a waiter looks whether the holder lives */
#define LOCK_NOWAIT_LOOKS 10 /* what "do not wait" waits at most: 100 ms of a stopped holder */

static bool lock_try(shm_u32 *lock, uint32_t from, uint32_t to)
{
	/* Acquire: pairs with the release in lock_drop(). */
	return atomic_compare_exchange_strong_explicit(lock, &from, to, memory_order_acquire,
						       memory_order_relaxed);
}

static void lock_sleep(shm_u32 *lock, uint32_t seen)
{
	struct timespec ts = {.tv_nsec = LOCK_LOOK_NS};

	syscall(SYS_futex, lock, FUTEX_WAIT, seen, &ts, NULL, 0);
}

static uint32_t lock_word(unsigned int slot, uint64_t peer)
{
	return (slot + 1) | (peer_id(peer) & 0x7fffff) << 8;
}

static unsigned int lock_slot(uint32_t word)
{
	return (word & 0xff) - 1;
}

/* Is the peer that the word names gone?  A damaged word names nobody. */
static bool holder_gone(struct sluice_arena *a, uint32_t word)
{
	unsigned int slot = lock_slot(word);

	if (!slot_ok(slot))
		return true;
	return lock_word(slot, ld_acq(&a->peers[slot].word)) != (word & ~LOCK_WAITERS) ||
	       peer_gone(a, slot);
}

/* The holder is dead: become the holder.  What it was doing to the counts is not known. */
static bool lock_take_over(struct sluice_arena *a, uint32_t seen)
{
	if (!lock_try(&a->root->lock, seen, lock_word(a->slot, a->word) | LOCK_WAITERS))
		return false;
	CRASH_POINT("lock_take_over");
	alias_recount(a);
	return true;
}

/* For recovery: take the lock, from this dead peer if it holds it. */
void lock_take_from(struct sluice_arena *a, unsigned int dead_slot)
{
	uint32_t seen = ld_rlx(&a->root->lock);

	while (lock_slot(seen) == dead_slot) {
		if (lock_take_over(a, seen))
			return;
		seen = ld_rlx(&a->root->lock);
	}
	lock_take(a, SLUICE_FOREVER);
}

int lock_take(struct sluice_arena *a, uint64_t deadline)
{
	shm_u32 *lock = &a->root->lock;
	uint32_t mine = lock_word(a->slot, a->word);
	unsigned int looks = 0;
	uint32_t seen, slot;

	for (int i = 0; i < LOCK_SPINS; i++) {
		if (!ld_rlx(lock) && lock_try(lock, 0, mine))
			return 0;
		cpu_relax();
	}
	for (;;) {
		seen = ld_rlx(lock);
		if (!seen) {
			/* Others may still sleep: keep the bit. */
			if (lock_try(lock, 0, mine | LOCK_WAITERS))
				return 0;
			continue;
		}
		if (!(seen & LOCK_WAITERS)) {
			if (!lock_try(lock, seen, seen | LOCK_WAITERS))
				continue;
			seen |= LOCK_WAITERS;
		}
		lock_sleep(lock, seen);
		if (ld_rlx(lock) != seen)
			continue;
		slot = lock_slot(seen);
		if (holder_gone(a, seen) && lock_take_over(a, seen))
			return 0;
		if (deadline == 0 ? ++looks >= LOCK_NOWAIT_LOOKS
				  : deadline != SLUICE_FOREVER && now_ns() >= deadline)
			return sluice_fail(
				deadline ? ETIMEDOUT : EAGAIN,
				"allocator lock: held by peer %u (pid %u), which runs no "
				"further: is it stopped?",
				slot_ok(slot) ? peer_id(ld_rlx(&a->peers[slot].word)) : 0,
				slot_ok(slot) ? peer_pid(ld_rlx(&a->peers[slot].word)) : 0);
	}
}

void lock_drop(struct sluice_arena *a)
{
	/* Release: pairs with the acquire in lock_try(). */
	uint32_t was = atomic_exchange_explicit(&a->root->lock, 0, memory_order_release);

	CRASH_POINT("lock_drop");
	if (was & LOCK_WAITERS)
		syscall(SYS_futex, &a->root->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}
