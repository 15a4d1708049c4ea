// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The ring of a channel: steps P2, P3, N1 to N4 of PROTOCOL.md.
 *
 * Cells are the truth, head and tail are hints that everybody moves on.  A loop that makes no
 * progress although nobody else does either has met a damaged ring: RING_TRIES bounds it.
 */
#include "internal.h"

#define RING_TRIES 100000u

/* How far lap @b is ahead of lap @a, in a circle of 2^22. */
static int lap_ahead(uint32_t a, uint32_t b)
{
	return (int)((b - a) << 10) >> 10;
}

struct position {
	uint64_t pos;
	uint32_t lap;
	shm_u64 *cell;
	uint64_t word;
};

/* A hint and the cell that it names.  Acquire: pairs with the push of that cell (P2). */
static struct position position_at(const struct sluice_channel *ch, shm_u64 *hint)
{
	struct position p = {.pos = ld_acq(hint)};

	p.lap = (p.pos / ch->capacity) & CELL_LAP_MASK;
	p.cell = &ch->cells[p.pos % ch->capacity];
	p.word = ld_sc(p.cell);
	return p;
}

static void move_on(shm_u64 *hint, uint64_t pos)
{
	/* Release: whoever reads the new hint sees what made us move it. */
	atomic_compare_exchange_strong_explicit(hint, &pos, pos + 1, memory_order_release,
						memory_order_relaxed);
}

/*
 * Queue a READY lease.
 *
 * Return: 0; -EAGAIN when the channel is full, -ESHUTDOWN, -EUCLEAN.
 */
int ring_push(struct sluice_channel *ch, uint32_t lease, uint64_t gen)
{
	shm_u64 *tail = &ch->shm->tail;

	for (unsigned int i = 0; i < RING_TRIES; i++) {
		struct position p = position_at(ch, tail);
		int ahead = lap_ahead(p.lap, cell_lap(p.word));

		if (ld_sc(&ch->shm->closing) || cell_kind(p.word) == CELL_CLOSED)
			return sluice_fail(ESHUTDOWN, "channel %s: it was shut down", ch->name);
		if (cell_kind(p.word) == CELL_EMPTY && ahead == 0) {
			CRASH_POINT("push_before_cell");
			if (!cas_sc(p.cell, p.word, cell_word(CELL_FULL, p.lap, gen, lease)))
				continue; /* P2 lost to another producer, or to CLOSED */
			CRASH_POINT("push_before_tail");
			move_on(tail, p.pos);
			return 0;
		}
		if ((cell_kind(p.word) == CELL_FULL && ahead == 0) ||
		    (cell_kind(p.word) == CELL_EMPTY && ahead == 1)) {
			move_on(tail, p.pos);
			continue;
		}
		if (ld_acq(tail) != p.pos)
			continue; /* the hint was stale */
		if (cell_kind(p.word) == CELL_FULL && ahead == -1)
			return -EAGAIN;
		cpu_relax();
	}
	return sluice_fail(EUCLEAN, "channel %s: its ring is damaged (push at %llu)", ch->name,
			   (unsigned long long)ld_rlx(tail));
}

/* The word of the READY or PENDING lease that the cell means, or 0. */
static uint64_t lease_of_cell(struct sluice_arena *a, unsigned int channel, uint64_t cell)
{
	uint64_t w;

	if (cell_index(cell) >= a->nleases)
		return 0;
	w = ld_sc(&a->leases[cell_index(cell)].word); /* S2, where the cell is posted */
	if ((lease_state(w) != LEASE_READY && lease_state(w) != LEASE_PENDING) ||
	    lease_channel(w) != channel || (lease_gen(w) & CELL_GEN_MASK) != cell_gen(cell))
		return 0;
	return w;
}

/*
 * Which producers to ring for a cell that was popped: not for each, so that who is rung finds room
 * for a while.  How full the queue is says a line that producers write: read where it matters.
 */
static enum shm_room wants_room(const struct sluice_channel *ch)
{
	bool half = !map_any(ch->shm->producer_sleepers) || ring_ahead(ch) <= ch->capacity / 2;

	return half ? ROOM_AT_HALF : ROOM_AT_ONCE;
}

/*
 * Take the lease at the head.
 *
 * Return: 0; -EAGAIN when the channel is empty, -EINPROGRESS when the batch at the head (*lease) is
 * not written yet, -ENODATA at its end, -EUCLEAN.
 */
int ring_pop(struct sluice_channel *ch, uint32_t *lease, uint64_t *word)
{
	struct sluice_arena *a = ch->a;
	shm_u64 *head = &ch->shm->head;

	for (unsigned int i = 0; i < RING_TRIES; i++) {
		struct position p = position_at(ch, head); /* N1 */
		int ahead = lap_ahead(p.lap, cell_lap(p.word));

		if (cell_kind(p.word) == CELL_FULL && ahead == 0) {
			uint64_t w = lease_of_cell(a, ch->index, p.word);
			uint64_t mine = lease_to(w, LEASE_HELD, a->slot, ch->index);

			if (lease_state(w) == LEASE_PENDING) {
				if (ld_acq(head) != p.pos)
					continue;
				*lease = cell_index(p.word);
				return -EINPROGRESS;
			}
			if (w && !cas_sc(&a->leases[cell_index(p.word)].word, w, mine))
				continue; /* N2 lost: look at the cell again */
			CRASH_POINT("pop_before_cell");
			if (cas_sc(p.cell, p.word,
				   cell_word(CELL_EMPTY, p.lap + 1, 0, 0))) { /* N3 */
				CRASH_POINT("pop_before_head");
				move_on(head, p.pos); /* N4 */
				CRASH_POINT("pop_before_wake");
				wake_one(a, ch->shm->producer_sleepers, wants_room(ch), ch->stats);
			}
			if (w) {
				*lease = cell_index(p.word);
				*word = mine;
				return 0;
			}
			continue;
		}
		/* Popped, and perhaps filled again, before N4 of whoever popped it. */
		if (cell_kind(p.word) != CELL_CLOSED && ahead == 1) {
			move_on(head, p.pos);
			continue;
		}
		if (ld_acq(head) != p.pos)
			continue;
		if (cell_kind(p.word) == CELL_EMPTY && ahead == 0) {
			if (!ld_sc(&ch->shm->closing))
				return -EAGAIN;
			cas_sc(p.cell, p.word, cell_word(CELL_CLOSED, p.lap, 0, 0));
			continue;
		}
		if (cell_kind(p.word) == CELL_CLOSED)
			return -ENODATA;
		cpu_relax();
	}
	return sluice_fail(EUCLEAN, "channel %s: its ring is damaged (pop at %llu)", ch->name,
			   (unsigned long long)ld_rlx(head));
}

/* How many are queued, as the hints have it. */
uint64_t ring_ahead(const struct sluice_channel *ch)
{
	uint64_t head = ld_acq(&ch->shm->head), tail = ld_acq(&ch->shm->tail);

	return tail > head ? tail - head : 0;
}

/* Would ring_pop() do anything but -EAGAIN? */
bool ring_readable(const struct sluice_channel *ch)
{
	struct position p = position_at(ch, &ch->shm->head);

	if (cell_kind(p.word) == CELL_FULL && p.lap == cell_lap(p.word) &&
	    lease_state(lease_of_cell(ch->a, ch->index, p.word)) == LEASE_PENDING)
		return false;
	return cell_kind(p.word) != CELL_EMPTY || lap_ahead(p.lap, cell_lap(p.word)) != 0 ||
	       ld_sc(&ch->shm->closing);
}

/*
 * A batch that was PENDING has become READY: ring a consumer for it, and for each one behind it
 * whose own ring a consumer may have used up to find this one in the way.
 */
void ring_resolved(struct sluice_channel *ch)
{
	uint64_t head = ld_acq(&ch->shm->head);

	for (uint32_t i = 0; i < ch->capacity && map_any(ch->shm->consumer_sleepers); i++) {
		uint64_t cell = ld_sc(&ch->cells[(head + i) % ch->capacity]);
		uint32_t lap = (head + i) / ch->capacity & CELL_LAP_MASK;
		uint64_t w;

		if (cell_kind(cell) == CELL_EMPTY && lap_ahead(lap, cell_lap(cell)) == 1)
			continue; /* popped: head is behind */
		if (cell_kind(cell) != CELL_FULL || lap_ahead(lap, cell_lap(cell)))
			break;
		w = lease_of_cell(ch->a, ch->index, cell);
		if (lease_state(w) == LEASE_PENDING)
			break;
		if (w && !wake_one(ch->a, ch->shm->consumer_sleepers, UINT64_MAX, NULL))
			break;
	}
}

/* Would ring_push() do anything but -EAGAIN? */
bool ring_writable(const struct sluice_channel *ch)
{
	struct position p = position_at(ch, &ch->shm->tail);

	return cell_kind(p.word) != CELL_FULL || lap_ahead(p.lap, cell_lap(p.word)) != -1 ||
	       ld_sc(&ch->shm->closing);
}

/* Copy and check where the ring of a channel stands: a hostile peer may have written there. */
bool channel_geometry(struct sluice_arena *a, const struct shm_channel *c, uint32_t *first,
		      uint32_t *capacity)
{
	*first = ld_rlx(&c->first_cell);
	*capacity = ld_rlx(&c->capacity);
	return *capacity && *capacity <= SLUICE_MAX_CAPACITY && *first < SHM_NCELLS &&
	       *first + *capacity <= SHM_NCELLS;
}

/* Does any cell of the channel name this READY lease?  Used by recovery only. */
bool ring_names(struct sluice_arena *a, const struct shm_channel *c, uint32_t lease, uint64_t word)
{
	uint32_t first, capacity;

	if (!channel_geometry(a, c, &first, &capacity))
		return false;
	for (uint32_t i = 0; i < capacity; i++) {
		uint64_t cell = ld_sc(&a->cells[first + i]);

		if (cell_kind(cell) == CELL_FULL && cell_index(cell) == lease &&
		    cell_gen(cell) == (lease_gen(word) & CELL_GEN_MASK))
			return true;
	}
	return false;
}

uint32_t ring_queued(struct sluice_arena *a, const struct shm_channel *c)
{
	uint32_t first, capacity, n = 0;

	if (!channel_geometry(a, c, &first, &capacity))
		return 0;
	for (uint32_t i = 0; i < capacity; i++)
		n += cell_kind(ld_rlx(&a->cells[first + i])) == CELL_FULL;
	return n;
}
