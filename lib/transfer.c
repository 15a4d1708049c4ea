// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What waits: next, begin, publish, share, forward; and the caller's own loop. */
#include <liburing.h>
#include <poll.h>

#include "internal.h"
#include "usdt.h"

USDT_DEFINE(batch_next);
USDT_DEFINE(batch_wait);
USDT_DEFINE(space_wait);

#define PATIENCE_NS 10000000ull
#define NAP_MIN_NS  50000ull
#define NAP_MAX_NS  1000000ull

/* What a wait for a batch or for room took; its beginning is known only once it is over. */
static void count_wait(struct sluice_channel *ch, shm_u64 *waits, shm_u64 *wait_ns, uint64_t since)
{
	uint64_t ns = now_ns() - since;

	stat_add(waits, 1);
	stat_add(wait_ns, ns);
	if (waits == &ch->stats->batch_waits)
		USDT4(batch_wait, ns, ch->a->hdr.arena_id, ch->index, ch->a->hdr.backend);
	else
		USDT4(space_wait, ns, ch->a->hdr.arena_id, ch->index, ch->a->hdr.backend);
}

/*
 * Has everybody gone who ever joined this side?  The map is several words: unless nobody has joined
 * meanwhile, a successor may stand in one that was read before it came.
 */
static bool side_gone(const struct sluice_channel *ch, shm_u32 *joins, shm_u64 *members)
{
	uint32_t n = ld_acq(joins); /* pairs with endpoint_claim(): who is counted was in the map */

	return !ch->keep_open && n && !map_any(members) && ld_acq(joins) == n;
}

/* Every producer that there was has gone: nothing comes any more once the ring is empty. */
static bool producers_gone(const struct sluice_channel *ch)
{
	return side_gone(ch, &ch->shm->producer_joins, ch->shm->producers);
}

static bool consumers_gone(const struct sluice_channel *ch)
{
	return side_gone(ch, &ch->shm->consumer_joins, ch->shm->consumers);
}

static bool ready_to_consume(struct sluice_channel *ch)
{
	return ch->unread || ring_readable(ch) || producers_gone(ch);
}

/* Those who wait for room come first, or whoever has a CPU next to the consumer's has it all. */
static bool my_turn(struct sluice_channel *ch)
{
	return ch->turn || !map_any(ch->shm->producer_sleepers);
}

static bool ready_to_produce(struct sluice_channel *ch)
{
	return ring_writable(ch) || consumers_gone(ch);
}

static bool ready_for_me(struct sluice_channel *ch)
{
	return my_turn(ch) && ready_to_produce(ch);
}

/* A hint only: is the block under the allocator's rover free? */
static bool space_likely(struct sluice_channel *ch)
{
	uint32_t rover = ld_rlx(&ch->a->root->rover);

	return rover < ch->a->hdr.nblocks &&
	       lease_state(ld_acq(&ch->a->leases[rover].word)) == LEASE_FREE;
}

/*
 * An endpoint that armed itself for the caller's loop is awake again.  True when somebody rang for
 * it: what it leaves undone is then another sleeper's.
 */
static bool disarm(struct sluice_channel *ch)
{
	bool rung = ch->rung;

	ch->rung = false;
	if (!ch->armed)
		return rung;
	rung |= !map_clear(ch->armed, ch->number); /* S4 */
	ch->armed = NULL;
	return rung;
}

/*
 * Is something queued that nobody will ring for?  Pairs with sluice_batch_quiet(), whose position is
 * at most the tail; where a hostile peer wrote another, an empty queue is still one to sleep at.  To
 * be asked before what is ready: who takes a quiet batch in between rings nobody for one behind it.
 */
static bool quiet_ahead(struct sluice_channel *ch)
{
	return ld_sc(&ch->shm->quiet) > ld_acq(&ch->shm->head) && ring_ahead(ch);
}

/*
 * Spin, then sleep, until ready() may have become true.
 * @rung: set when somebody rang for us: what we leave undone is then another sleeper's
 *
 * Return: 0 (look), or why to look for the last time: -ETIMEDOUT, -EINTR, ...
 */
static int wait_for(struct sluice_channel *ch, shm_u64 *map, bool (*ready)(struct sluice_channel *),
		    uint64_t deadline, bool *rung)
{
	uint64_t until = deadline;
	bool quiet;
	int err = 0;

	if (sleep_spin(ch, ready, deadline))
		return 0;
	sleep_prepare(ch, map); /* S1 */
	quiet = quiet_ahead(ch);
	if (!ready(ch)) { /* S2 */
		if (quiet) {
			ch->nap_ns = min_u64(max_u64(2 * ch->nap_ns, NAP_MIN_NS), NAP_MAX_NS);
			until = min_u64(deadline, now_ns() + ch->nap_ns);
		}
		err = sleep_wait(ch, until);
		if (err == -ETIMEDOUT && until < deadline)
			err = 0;
	}
	if (!map_clear(map, ch->number)) /* S4 */
		*rung = true;
	return err;
}

/*
 * The same for room in the channel, in turns: who waits longest is rung first and may then queue
 * several batches.  Room while others wait is theirs: they are rung before we sleep.
 * @patient: the consumer need not ring before the queue is half empty.  For a while only: it may do
 *	something else meanwhile, perhaps wait for what we do next.
 */
static int wait_for_room(struct sluice_channel *ch, uint64_t deadline, bool *patient, bool *rung)
{
	shm_u64 *map = ch->shm->producer_sleepers;
	uint64_t until = deadline;
	int err = 0;

	if (!map_any(map) && sleep_spin(ch, ready_for_me, deadline))
		return 0;
	if (*patient)
		until = min_u64(deadline, now_ns() + PATIENCE_NS);
	st_rlx(&ch->ep->need, *patient ? ROOM_AT_HALF : ROOM_AT_ONCE);
	sleep_prepare(ch, map); /* S1 */
	if (ring_writable(ch)) /* S2 */
		wake_one(ch->a, map, UINT64_MAX, ch->stats); /* which may be us */
	if (map_has(map, ch->number) && !consumers_gone(ch) && !ld_sc(&ch->shm->closing))
		err = sleep_wait(ch, until);
	if (!map_clear(map, ch->number)) { /* S4 */
		*rung = true;
		ch->turn = (uint32_t)max_u64(ch->capacity / 8, 1);
	}
	if (err == -ETIMEDOUT && until < deadline) {
		err = 0;
		*patient = false;
		ch->turn = (uint32_t)max_u64(ch->turn, 1);
	}
	return err;
}

static int gave_up(const struct sluice_channel *ch, int err, const char *what)
{
	if (err == -ETIMEDOUT || err == -EAGAIN)
		return sluice_fail(-err, "channel %s: %s %s", ch->name, what,
				   err == -EAGAIN ? "now" : "until the timeout");
	if (err == -EINTR)
		return sluice_fail(EINTR, "channel %s: a signal came while waiting", ch->name);
	return err;
}

/* ------------------------------------------------------------------ consuming */

static int end_of_stream(struct sluice_channel *ch)
{
	if (ld_rlx(&ch->shm->last_producer_died) && !ld_rlx(&ch->shm->closing))
		return sluice_fail(EOWNERDEAD,
				   "channel %s: its last producer died, what it was writing is "
				   "missing (sluice_event_next() says who)",
				   ch->name);
	return sluice_fail(ENODATA, "channel %s: end of the stream", ch->name);
}

/* What was taken from the ring, and finds no memory for its description, waits for the next call. */
static int batch_hand_out(struct sluice_channel *ch, struct sluice_batch *b, uint32_t lease,
			  uint64_t word, struct sluice_batch **out)
{
	int err = batch_hold(b, lease, word);

	ch->unread = err == -ENOMEM ? b : NULL;
	if (err)
		return err;
	stat_add(&ch->stats->consumed, 1);
	stat_add(&ch->stats->consumed_bytes, b->manifest.payload_bytes);
	USDT4(batch_next, b->manifest.payload_bytes, ch->a->hdr.arena_id, ch->index,
	      ch->a->hdr.backend);
	*out = b;
	return 0;
}

int sluice_channel_next(struct sluice_channel *ch, struct sluice_batch **out, uint64_t timeout_ns)
{
	uint64_t deadline = 0, since = 0, now, word;
	struct sluice_arena *a = ch->a;
	struct sluice_batch *b;
	int err, last = 0;
	uint32_t lease;
	bool rung;

	err = arena_check(a);
	if (err)
		return err;
	if (!(ch->flags & SLUICE_CHANNEL_CONSUME))
		return sluice_fail(EPERM, "channel %s: this endpoint does not consume", ch->name);
	now = now_coarse_ns();
	peer_look(a, now);
	b = ch->unread ? ch->unread : batch_get(a); /* first: what is taken must go somewhere */
	if (!b)
		return -ENOMEM;
	rung = disarm(ch);
	if (ch->unread) {
		if (rung && ring_readable(ch))
			wake_one(a, ch->shm->consumer_sleepers, UINT64_MAX, ch->stats);
		return batch_hand_out(ch, b, b->lease, b->word, out);
	}
	for (;;) {
		bool over = false;

		err = ring_pop(ch, &lease, &word);
		if (err == -EAGAIN && producers_gone(ch)) {
			/* Who is gone has published before it went: look again. */
			over = true;
			err = ring_pop(ch, &lease, &word);
		}
		if (!err)
			break;
		if (err == -ENODATA || (err == -EAGAIN && over)) {
			err = end_of_stream(ch);
			break;
		}
		if (err != -EAGAIN && err != -EINPROGRESS)
			break;
		if (err == -EINPROGRESS)
			batch_expect(a, lease);
		if (last || !timeout_ns) {
			err = gave_up(ch, last ? last : -EAGAIN, "no batch");
			break;
		}
		if (!since) {
			since = now_ns();
			deadline = deadline_ns(timeout_ns);
		}
		now = 0;
		/*
		 * Nothing is queued: no producer must wait for room in the channel, and who was rung
		 * for room in the arena may be stopped.
		 */
		if (map_any(ch->shm->producer_sleepers))
			wake_one(a, ch->shm->producer_sleepers, UINT64_MAX, ch->stats);
		if (map_any(a->root->space_sleepers))
			wake_one(a, a->root->space_sleepers, UINT64_MAX, ch->stats);
		last = wait_for(ch, ch->shm->consumer_sleepers, ready_to_consume, deadline, &rung);
	}
	if (rung && ring_readable(ch))
		wake_one(a, ch->shm->consumer_sleepers, UINT64_MAX, ch->stats);
	if (since)
		count_wait(ch, &ch->stats->batch_waits, &ch->stats->batch_wait_ns, since);
	if (err) {
		batch_put(b);
		return err;
	}
	ch->nap_ns = 0;
	st_rlx(&a->leases[lease].since_ns, now ? now : now_coarse_ns());
	return batch_hand_out(ch, b, lease, word, out);
}

/* ------------------------------------------------------------------ room in the arena */

/* Is there no point in waiting for room? */
int publish_refused(const struct sluice_channel *ch)
{
	if (ld_sc(&ch->shm->closing))
		return sluice_fail(ESHUTDOWN, "channel %s: it was shut down", ch->name);
	if (consumers_gone(ch))
		return sluice_fail(EPIPE, "channel %s: every consumer is gone", ch->name);
	return 0;
}

/*
 * Allocate, waiting for room.  PROTOCOL.md, "Sleeping for space": a ring that was consumed is passed
 * on to the oldest sleeper that what is left would satisfy.
 */
int extent_wait(struct sluice_channel *ch, uint64_t nblocks, uint64_t timeout_ns,
		struct extent_found *found)
{
	struct sluice_arena *a = ch->a;
	shm_u64 *map = a->root->space_sleepers;
	uint64_t deadline = deadline_ns(timeout_ns), since = 0;
	bool rung = false, spun = false;
	int err, last = 0;

	for (;;) {
		err = extent_alloc(a, nblocks, rung, deadline, found);
		/* Without the lock nothing is known about what is left. */
		if (rung)
			wake_one(a, map, !err || err == -ENOSPC ? found->largest : UINT64_MAX,
				 ch->stats);
		if (err != -ENOSPC || last || !timeout_ns)
			break;
		err = publish_refused(ch);
		if (err)
			break;
		if (!since)
			since = now_ns();
		rung = false;
		/* The hint says nothing about length: believe it once between two sleeps. */
		if (!spun && sleep_spin(ch, space_likely, deadline)) {
			spun = true;
			continue;
		}
		spun = false;
		st_rlx(&ch->ep->need, (uint32_t)min_u64(nblocks, UINT32_MAX));
		sleep_prepare(ch, map); /* S1 */
		err = extent_alloc(a, nblocks, false, deadline, found); /* S2 */
		if (err == -ENOSPC && !publish_refused(ch))
			last = sleep_wait(ch, deadline);
		rung = !map_clear(map, ch->number); /* S4 */
		if (err != -ENOSPC) {
			if (rung)
				wake_one(a, map, UINT64_MAX, ch->stats);
			break;
		}
	}
	if (since)
		count_wait(ch, &ch->stats->space_waits, &ch->stats->space_wait_ns, since);
	if (err == -ENOSPC)
		return holders_fail(a, last ? last : -EAGAIN, nblocks, found->largest);
	return err;
}

/* ------------------------------------------------------------------ publishing */

/*
 * Take P1 back.  False when it cannot be: a stale cell has delivered the batch.  A shared bit that
 * came meanwhile (sluice_batch_open()) is no such thing.
 */
static bool publish_undo(shm_u64 *word, uint64_t *ready, uint64_t *from)
{
	if (cas_sc(word, *ready, *from))
		return true;
	*ready |= LEASE_SHARED;
	*from |= LEASE_SHARED;
	return cas_sc(word, *ready, *from);
}

/*
 * Queue a lease that we own.
 * @from: its word as owned, WRITING or HELD; on failure it is that again
 * @to: LEASE_READY, or LEASE_PENDING, of which no consumer is told yet
 */
int lease_publish(struct sluice_channel *ch, uint32_t lease, uint64_t *from, enum lease_state to,
		  uint64_t timeout_ns)
{
	struct sluice_arena *a = ch->a;
	shm_u64 *word = &a->leases[lease].word;
	uint64_t deadline = 0, since = 0;
	uint64_t ready = lease_to(*from, to, a->slot, ch->index);
	bool rung, patient = true;
	int err = 0, last = 0;

	rung = disarm(ch);
	for (;;) {
		err = publish_refused(ch);
		if (err)
			break;
		err = -EAGAIN;
		if (ring_writable(ch) && (!timeout_ns || last || my_turn(ch))) {
			CRASH_POINT("publish_before_ready");
			/* P1; a shared bit may have come since we took it */
			if (!cas_sc(word, *from, ready)) {
				*from |= LEASE_SHARED;
				ready |= LEASE_SHARED;
				if (!cas_sc(word, *from, ready)) {
					err = sluice_fail(EUCLEAN,
							  "channel %s: lease %u changed hands, a "
							  "peer has written over the lease table",
							  ch->name, lease);
					break;
				}
			}
			err = ring_push(ch, lease, lease_gen(ready)); /* P2, P3 */
			if (!err) {
				CRASH_POINT("publish_before_wake");
				if (to == LEASE_READY)
					wake_one(a, ch->shm->consumer_sleepers, UINT64_MAX,
						 ch->stats);
				break;
			}
			CRASH_POINT("publish_before_undo");
			if (!publish_undo(word, &ready, from)) {
				err = 0;
				break;
			}
		}
		if (err != -EAGAIN)
			break;
		if (last || !timeout_ns) {
			err = gave_up(ch, last ? last : -EAGAIN, "no room for a batch");
			break;
		}
		if (!since) {
			since = now_ns();
			deadline = deadline_ns(timeout_ns);
		}
		last = wait_for_room(ch, deadline, &patient, &rung);
	}
	if (!err && ch->turn && !--ch->turn)
		rung = true; /* our turn is over */
	else if (!err)
		rung = false; /* the consumer that takes this batch rings the next */
	if (rung && ring_writable(ch))
		wake_one(a, ch->shm->producer_sleepers, UINT64_MAX, ch->stats);
	if (since)
		count_wait(ch, &ch->stats->space_waits, &ch->stats->space_wait_ns, since);
	return err;
}

/* What lease_publish() would say that does not wait, to who has no ring to pass on; 0: try it. */
int publish_room(const struct sluice_channel *ch)
{
	int err = publish_refused(ch);

	if (err || ch->armed || ch->rung || ring_writable(ch))
		return err;
	return gave_up(ch, -EAGAIN, "no room for a batch");
}

/* ------------------------------------------------------------------ the caller's own loop */

int sluice_channel_pollfd(struct sluice_channel *ch)
{
	int err = arena_check(ch->a);

	return err ? err : sleep_descriptor(ch);
}

int sluice_channel_arm(struct sluice_channel *ch)
{
	bool consume = ch->flags & SLUICE_CHANNEL_CONSUME;
	int fd = sluice_channel_pollfd(ch);

	if (fd < 0)
		return fd;
	peer_collect(ch->a);
	ch->rung = disarm(ch);
	ch->armed = consume ? ch->shm->consumer_sleepers : ch->shm->producer_sleepers;
	st_rlx(&ch->ep->need, ROOM_AT_ONCE); /* nobody times how patient a caller's loop is */
	sleep_prepare(ch, ch->armed);
	if (consume ? !quiet_ahead(ch) && !ready_to_consume(ch) : !ready_to_produce(ch))
		return 0;
	ch->rung = disarm(ch);
	return 1;
}

int sluice_channel_arm_ring(struct sluice_channel *ch, struct io_uring *ring, uint64_t user_data)
{
	struct io_uring_sqe *sqe;
	int armed = sluice_channel_arm(ch);

	if (armed)
		return armed;
	sqe = io_uring_get_sqe(ring);
	if (!sqe) {
		ch->rung = disarm(ch);
		return sluice_fail(EBUSY, "channel %s: the caller's ring has no free sqe",
				   ch->name);
	}
	io_uring_prep_poll_add(sqe, ch->poll_fd, POLLIN);
	io_uring_sqe_set_data64(sqe, user_data);
	return 0;
}
