// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The protocol of lib/PROTOCOL.md: leases, the ring of one channel, sleepers and bells, death and
 * recovery.  A step (a statement or a d_step) is one access to one shared word and what is computed
 * from it; peers interleave, and die, between any two steps.
 *
 *   NP, NC, NW  producers, consumers, and watchers: peers that only wait for deaths
 *   NB          batches of each producer
 *   CAP, NL     capacity of the ring; leases in the arena (each batch takes one)
 *   CRASHES     0; 1: any peer at any step; 2: after it also the one that recovers it
 *   VICTIM      who dies first: 0 a producer, 1 a consumer, 2 a watcher (any of them when left out)
 *   LIMIT       a consumer takes that many batches at most; 0: no limit
 *   IDLE        1: who is done keeps its endpoint open and does nothing any more
 *   SHUTDOWN    1: the first producer that is done shuts the channel down
 *   COARSE      1: a hint, the cell that it names, and a helping hand for the hint are one step
 *   BUG_*       one deliberate mistake, which has to be found
 */
#ifndef NP
#define NP 2
#endif
#ifndef NC
#define NC 1
#endif
#ifndef NW
#define NW 0
#endif
#ifndef NB
#define NB 1
#endif
#ifndef CAP
#define CAP 1
#endif
#ifndef NL
#define NL 2
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LIMIT
#define LIMIT 0
#endif
#ifndef IDLE
#define IDLE 0
#endif
#ifndef COARSE
#define COARSE 0
#endif
#if COARSE
#define HINT atomic
#else
#define HINT
#endif
#ifndef SHUTDOWN
#define SHUTDOWN 0
#endif

#define NPEERS	 (NP + NC + NW) /* in this order */
#define MAXPEERS 5
#define BIT(i)	 (1 << (i))
#define NONE	 15

/* Lease words; the payload is the number of the batch + 1. */
#define FREE	0
#define WRITING 1
#define READY	2
#define HELD	3
byte l_state[NL], l_owner[NL], l_gen[NL], l_data[NL];

/* Ring cells, and the hints. */
#define EMPTY  0
#define FULL   1
#define CLOSED 2
byte c_kind[CAP], c_lap[CAP], c_gen[CAP], c_lease[CAP];
byte head, tail;

/* Sleepers maps: consumers for batches, producers for cells, producers for leases. */
#define BATCH 0
#define CELL  1
#define SPACE 2
byte sleepers[3];
bool bell[MAXPEERS];

/* Members of the channel. */
byte producers = BIT(NP) - 1;
byte consumers = (BIT(NC) - 1) << NP;
bool closing;

/* Peer slots: 0 is free.  The allocator lock: slot + 1. */
#define ALIVE	      1
#define RECOVERING(y) (2 + (y))
byte slot[MAXPEERS];
byte lock;

/* What only the kernel knows: who died, and which deaths a peer's pidfds have reported to it. */
byte dead, crashes;
byte seen[NPEERS];

/* What only the observer knows. */
byte finished;
bool ended; /* a consumer has seen the end of the stream */
bool published[NP * NB], taken[NP * NB];
byte last[NP]; /* of each producer, the last batch taken + 1 */

#define gone(p)	  (dead & BIT(p))
#define lock_open (!lock || gone(lock - 1))
#define slots_any(s)                                                                               \
	(slot[0] == (s) || slot[1] == (s) || slot[2] == (s) || slot[3] == (s) || slot[4] == (s))
#define members_left                                                                               \
	(!slot[0] && !slot[1] && (NP + NC < 3 || !slot[2]) && (NP + NC < 4 || !slot[3]))

#define LOCALS                                                                                     \
	byte pos, lap, gen, lease, x, n, mask, who, l;                                             \
	bool ok, rung, won

/* The cell of position pos. */
#define CELL_KIND  c_kind[pos % CAP]
#define CELL_LAP   c_lap[pos % CAP]
#define CELL_GEN   c_gen[pos % CAP]
#define CELL_LEASE c_lease[pos % CAP]
#define LAP	   (pos / CAP)

#define unreadable (CELL_KIND == EMPTY && CELL_LAP == LAP && !closing)
#define unwritable (CELL_KIND == FULL && CELL_LAP + 1 == LAP && !closing)

inline forget()
{
	pos = 0;
	lap = 0;
	gen = 0;
	lease = 0;
	ok = false
}

inline lease_free(i)
{
	l_state[i] = FREE;
	l_owner[i] = NONE;
	l_gen[i] = l_gen[i] + 1;
	l_data[i] = 0
}

inline hint_help(hint)
{
	if
	:: hint == pos -> hint = pos + 1
	:: else
	fi
}

/* ------------------------------------------------------------------ sleepers and bells */

inline ring()
{
	d_step {
		bell[who] = true;
		who = 0
	}
}

#define bit_take(map, p)                                                                           \
	(sleepers[map] & BIT(p)) ->                                                                \
		sleepers[map] = sleepers[map] & ~BIT(p);                                           \
		who = p

/* W2: clear some bit, then ring.  Who dies in between rings nobody. */
inline wake_one(map)
{
	if
	:: d_step { bit_take(map, 0) } -> ring()
	:: d_step { bit_take(map, 1) } -> ring()
	:: d_step { bit_take(map, 2) } -> ring()
	:: d_step { bit_take(map, 3) } -> ring()
	:: !sleepers[map]
	fi
}

/* For what is not a hand-off: ring all, and leave their bits. */
inline wake_all(maps)
{
	if
	:: d_step { (maps) -> mask = maps };
		d_step {
			bell[0] = bell[0] || (mask & 1);
			bell[1] = bell[1] || (mask & 2);
			bell[2] = bell[2] || (mask & 4);
			bell[3] = bell[3] || (mask & 8);
			mask = 0
		}
	:: !(maps)
	fi
}

#define EVERYBODY (sleepers[BATCH] | sleepers[CELL] | sleepers[SPACE])

/* S1; the bell has been silenced just before. */
inline sleep_prepare(map)
{
	d_step {
		bell[me] = false;
		sleepers[map] = sleepers[map] | BIT(me)
	}
}

/* S3 */
inline sleep()
{
	if
	:: bell[me]
#ifndef BUG_NO_DEATH_WAKE
	:: d_step { !bell[me] && (dead & ~seen[me]) -> mask = dead & ~seen[me]; seen[me] = dead }
		recover_list()
#endif
	fi
}

/* S4: who finds the bit cleared has had a ring that may have been meant for another. */
inline sleep_done(map)
{
	d_step {
		rung = rung || !(sleepers[map] & BIT(me));
		sleepers[map] = sleepers[map] & ~BIT(me)
	}
}

/* What was taken is one thing; if there is another, the ring is passed on. */
inline ring_pass(map, hint, nothing)
{
	if
	:: rung ->
		rung = false;
#ifndef BUG_RING_SWALLOWED
		HINT {
			pos = hint;
			if
			:: d_step { !(nothing) -> pos = 0; ok = true }
			:: d_step { nothing -> pos = 0 }
			fi
		}
		if
		:: ok -> ok = false; wake_one(map)
		:: !ok
		fi
#endif
	:: !rung
	fi
}

/* ------------------------------------------------------------------ recovery */

#define owned(i) (l_owner[i] == x && l_state[i] != FREE)

/* Every lease of the dead peer x; n is the lease. */
inline leases_recover()
{
	do
	:: d_step { n < NL && !owned(n) -> n++ }
	:: d_step { n < NL && owned(n) && l_state[n] != READY -> lease_free(n); n++ }
	:: d_step { n < NL && owned(n) && l_state[n] == READY -> gen = l_gen[n] }
		/* Does a cell name it?  One cell a step, while the ring moves. */
#ifndef BUG_RECOVERY_IGNORES_CELLS
		do
		:: d_step { pos < CAP && !ok ->
			ok = c_kind[pos] == FULL && c_lease[pos] == n && c_gen[pos] == gen;
			pos++
		}
		:: pos == CAP || ok -> break
		od;
#endif
		if
		:: d_step { owned(n) && l_gen[n] == gen && ok -> l_owner[n] = NONE; n++; forget() }
		:: d_step { owned(n) && l_gen[n] == gen && !ok -> lease_free(n); n++; forget() }
		:: d_step { !(owned(n) && l_gen[n] == gen) -> n++; forget() }
		fi
	:: n == NL -> break
	od;
	n = 0
}

/* The endpoint of the dead peer x. */
inline endpoint_recover()
{
	do
	:: d_step { (sleepers[BATCH] & BIT(x)) -> sleepers[BATCH] = sleepers[BATCH] & ~BIT(x) }
	:: d_step { (sleepers[CELL] & BIT(x)) -> sleepers[CELL] = sleepers[CELL] & ~BIT(x) }
	:: d_step { (sleepers[SPACE] & BIT(x)) -> sleepers[SPACE] = sleepers[SPACE] & ~BIT(x) }
	:: !(EVERYBODY & BIT(x)) -> break
	od;
	if
	:: x < NP -> producers = producers & ~BIT(x)
	:: x >= NP -> consumers = consumers & ~BIT(x)
	fi
}

#define claim(p)                                                                                   \
	(mask & BIT(p)) && (slot[p] == ALIVE || (slot[p] > ALIVE && gone(slot[p] - 2))) ->         \
		slot[p] = RECOVERING(me);                                                          \
		x = p;                                                                             \
		won = true
#define claim_next(p)                                                                              \
	slot[p] == RECOVERING(x) -> slot[p] = RECOVERING(me)

/* The dead in mask, and those whom they were recovering. */
inline recover_list()
{
	do
	:: d_step { claim(0) }
	:: d_step { claim(1) }
	:: d_step { claim(2) }
	:: d_step { claim(3) }
	:: d_step { claim(4) }
	:: else -> break
	od;
	mask = 0;
	do
	:: won ->
#ifndef BUG_SLOT_FREED_EARLY
		/* No word may name a slot that is used again. */
		do
		:: d_step { claim_next(0) }
		:: d_step { claim_next(1) }
		:: d_step { claim_next(2) }
		:: d_step { claim_next(3) }
		:: d_step { claim_next(4) }
		:: else -> break
		od;
#endif
		if
		:: d_step { lock_open -> lock = me + 1 }
		fi;
		leases_recover();
		endpoint_recover();
		lock = 0;
		d_step {
			assert(!slots_any(RECOVERING(x)) && lock != x + 1);
			slot[x] = 0;
			x = 0;
			do
			:: x < MAXPEERS && slot[x] != RECOVERING(me) -> x++
			:: else -> break
			od;
			won = x < MAXPEERS;
			if
			:: !won -> x = 0
			:: else
			fi
		}
		wake_all(EVERYBODY)
	:: !won -> break
	od
}

/* ------------------------------------------------------------------ peers */

/* Allocate under the lock; won if there was a lease, ok if there is another. */
inline lease_alloc()
{
	if
	:: d_step { lock_open ->
		l = 0;
		do
		:: l < NL && l_state[l] != FREE -> l++
		:: else -> break
		od;
		won = l < NL;
		ok = false;
		if
		:: won ->
			l_state[l] = WRITING;
			l_owner[l] = me;
			l_data[l] = me * NB + batch + 1;
			n = l + 1;
			do
			:: n < NL -> ok = ok || l_state[n] == FREE; n++
			:: else -> break
			od;
			n = 0
		:: else -> l = 0
		fi
	}
	fi
}

/* The member bit goes, then everybody looks. */
inline leave()
{
#if !IDLE
	if
	:: me < NP -> producers = producers & ~BIT(me)
	:: me >= NP -> consumers = consumers & ~BIT(me)
	fi;
#ifndef BUG_CLOSE_RINGS_NOBODY
	wake_all(EVERYBODY);
#endif
#endif
	ok = false;
	d_step {
#if !IDLE
		slot[me] = 0;
#endif
		finished = finished | BIT(me)
	}
}

proctype producer(byte me)
{
	LOCALS;
	byte batch;

	{
		ok = false;
begin:
		lease_alloc();
		if
		:: ok && rung -> rung = false; wake_one(SPACE)
		:: !(ok && rung) -> rung = false
		fi;
		if
		:: won -> won = false
		:: !won && !consumers -> goto close
		:: !won && consumers ->
			sleep_prepare(SPACE);
			lease_alloc(); /* S2 */
			if
			:: won ->
				won = false;
				sleep_done(SPACE);
				if
				:: rung -> rung = false; wake_one(SPACE)
				:: !rung
				fi
			:: !won ->
				if
				:: consumers -> sleep()
				:: !consumers
				fi;
				sleep_done(SPACE);
				goto begin
			fi
		fi;
publish:
		ok = false;
		if
		:: !consumers -> goto abort
		:: consumers
		fi;
		HINT {
			pos = tail;
			if
			:: unwritable -> goto wait
			:: !unwritable
			fi
		}
		d_step { /* P1 */
			l_state[l] = READY;
			gen = l_gen[l]
		}
push:
		HINT {
			pos = tail;
			if
			:: closing || CELL_KIND == CLOSED ->
				l_state[l] = WRITING;
				goto abort
			:: !closing && CELL_KIND != CLOSED &&
				(CELL_LAP > LAP || (CELL_LAP == LAP && CELL_KIND == FULL)) ->
				d_step { hint_help(tail) }
				goto push
			:: d_step { !closing && CELL_LAP < LAP && CELL_KIND != CLOSED ->
				assert(CELL_KIND == FULL && CELL_LAP + 1 == LAP)
			}
				if
				:: tail != pos -> goto push
				:: tail == pos ->
					d_step { /* full: take P1 back */
						assert(l_state[l] == READY && l_owner[l] == me);
						l_state[l] = WRITING
					}
					goto wait
				fi
			:: !closing && CELL_KIND == EMPTY && CELL_LAP == LAP
			fi
		}
		d_step { /* P2 */
			ok = CELL_KIND == EMPTY && CELL_LAP == LAP;
			if
			:: ok ->
				CELL_KIND = FULL;
				CELL_GEN = gen;
				CELL_LEASE = l;
				published[me * NB + batch] = true
			:: else
			fi
		}
		if
		:: ok
		:: !ok -> goto push
		fi;
		d_step { /* P3 */
			hint_help(tail);
			forget();
			l = 0;
			batch++
		}
		wake_one(BATCH); /* P4 */
		ring_pass(CELL, tail, unwritable);
		if
		:: batch < NB -> goto begin
		:: batch == NB -> goto close
		fi;
wait:
		sleep_prepare(CELL);
		HINT { /* S2 */
			pos = tail;
			if
			:: d_step { unwritable && consumers -> forget(); ok = true }
			:: d_step { !(unwritable && consumers) -> forget() }
			fi
		}
		if
		:: ok -> ok = false; sleep()
		:: !ok
		fi;
		sleep_done(CELL);
		goto publish;
abort:
		ok = false;
		d_step {
			lease_free(l);
			l = 0;
			forget()
		}
		wake_one(SPACE);
close:
#if SHUTDOWN
		closing = true;
		wake_all(sleepers[BATCH] | sleepers[CELL]);
#endif
		leave()
	} unless {
		gone(me)
	}
}

/* N2, and what the observer has to say to it. */
inline lease_take()
{
	d_step {
		won = l_state[lease] == READY && l_gen[lease] == gen;
		if
		:: won ->
			l_state[lease] = HELD;
			l_owner[lease] = me;
			l = lease;
			n = l_data[l];
			assert(n && published[n - 1] && !taken[n - 1]);
			taken[n - 1] = true;
			assert(last[(n - 1) / NB] < n);
			last[(n - 1) / NB] = n;
			n = 0
		:: else
		fi
	}
}

/* N3 to N5 */
inline cell_pop()
{
	d_step {
		ok = CELL_KIND == FULL && CELL_LAP == lap && CELL_GEN == gen && CELL_LEASE == lease;
		if
		:: ok ->
			CELL_KIND = EMPTY;
			CELL_LAP = lap + 1;
			CELL_GEN = 0;
			CELL_LEASE = 0
		:: else
		fi
	}
	if
	:: d_step { ok -> hint_help(head); ok = false } wake_one(CELL)
	:: !ok
	fi
}

proctype consumer(byte me)
{
	LOCALS;
	byte batches;
	bool over;

	{
		ok = false;
next:
#ifdef BUG_END_ASKED_LATE
		over = false;
#else
		over = !producers;
#endif
look:
		pos = head; /* N1 */
		if
		:: CELL_LAP > LAP ->
			d_step { hint_help(head) }
			goto look
		:: d_step { CELL_LAP == LAP && CELL_KIND == FULL ->
			lap = CELL_LAP;
			gen = CELL_GEN;
			lease = CELL_LEASE
		}
#ifdef BUG_POP_BEFORE_CLAIM
			cell_pop();
			lease_take();
#else
			lease_take();
			cell_pop();
#endif
			d_step { forget() }
			if
			:: won -> goto have
			:: !won -> goto look
			fi
		:: CELL_LAP == LAP && CELL_KIND == EMPTY ->
			if
			:: closing ->
				d_step {
					if
					:: CELL_LAP == LAP && CELL_KIND == EMPTY -> CELL_KIND = CLOSED
					:: else
					fi
				}
				goto look
			:: !closing
			fi
		:: CELL_LAP == LAP && CELL_KIND == CLOSED -> goto end
		:: CELL_LAP < LAP -> assert(false)
		fi;
#ifdef BUG_END_ASKED_LATE
		over = !producers;
#endif
		if
		:: over -> goto end
		:: !over
		fi;
#ifdef BUG_LOOK_BEFORE_BIT
		sleep_prepare(BATCH);
		sleep();
#else
		sleep_prepare(BATCH);
		HINT { /* S2 */
			pos = head;
			if
			:: d_step { unreadable && producers -> pos = 0; ok = true }
			:: d_step { !(unreadable && producers) -> pos = 0 }
			fi
		}
		if
		:: ok -> ok = false; sleep()
		:: !ok
		fi;
#endif
		sleep_done(BATCH);
		goto next;
have:
		ring_pass(BATCH, head, unreadable);
		d_step { /* R1 */
			assert(l_state[l] == HELD && l_owner[l] == me);
			lease_free(l);
			l = 0;
			won = false;
			batches = batches + (LIMIT > 0)
		}
		wake_one(SPACE); /* R2 */
		if
		:: !LIMIT || batches < LIMIT -> goto next
		:: LIMIT && batches == LIMIT -> goto close
		fi;
end:
		ended = true;
close:
		ok = false;
		d_step {
			pos = 0;
			over = false;
			batches = 0
		}
		leave()
	} unless {
		gone(me)
	}
}

proctype watcher(byte me)
{
	LOCALS;

	{
		do
		:: d_step { (dead & ~seen[me]) -> mask = dead & ~seen[me]; seen[me] = dead }
			recover_list()
		:: !(dead & ~seen[me]) && members_left -> break
		od;
		leave()
	} unless {
		gone(me)
	}
}

/* ------------------------------------------------------------------ the world */

/*
 * Producers are alike, and so are consumers and watchers: killing the first of each is enough.
 * Not killing anybody is a run as well: a death wakes everybody, and so would hide a lost ring.
 */
#define kill(p)                                                                                    \
	!((dead | finished) & BIT(p)) && (!crashes || slots_any(RECOVERING(p))) ->                 \
		dead = dead | BIT(p);                                                              \
		crashes++

proctype killer()
{
	do
	:: crashes == CRASHES -> break
	:: crashes < CRASHES ->
		if
#if !defined(VICTIM) || VICTIM == 0
		:: d_step { kill(0) }
#endif
#if !defined(VICTIM) || VICTIM == 1
		:: d_step { kill(NP) }
#endif
#if NW && (!defined(VICTIM) || VICTIM == 2)
		:: d_step { kill(NP + NC) }
#endif
#if CRASHES > 1
		:: d_step { crashes && kill(0) }
		:: d_step { crashes && kill(1) }
		:: d_step { crashes && kill(2) }
		:: d_step { crashes && kill(3) }
		:: d_step { crashes && kill(4) }
#endif
		:: break
		fi
	od
}

/* Nobody can move any more: this has to be a good end. */
proctype observer()
{
	byte i, c;
	bool named, all;

	timeout;
	atomic {
		/*
		 * Whoever watches recovers the others.  A peer that dies when all others have left is
		 * recovered by nobody, and a consumer that reaches the end has seen producers recovered.
		 */
#if NW
		all = dead >> (NP + NC) != BIT(NW) - 1;
#else
		all = !(dead >> NP);
#endif
		i = 0;
		do
		:: i < NPEERS ->
			assert(((dead | finished) & BIT(i)) || (IDLE && i >= NP));
			assert(!NW || IDLE || i >= NP + NC || !slot[i] || !all);
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NP * NB ->
			assert(!published[i] || taken[i] || !(ended || IDLE));
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NL ->
			named = false;
			c = 0;
			do
			:: c < CAP ->
				named = named ||
					(c_kind[c] == FULL && c_lease[c] == i && c_gen[c] == l_gen[i]);
				c++
			:: else -> break
			od;
			assert(l_state[i] == FREE || (l_state[i] == READY && named && !consumers) || !all);
			i++
		:: else -> break
		od
	}
}

init {
	byte p;

	atomic {
		do
		:: p < NPEERS ->
			slot[p] = ALIVE;
			if
			:: p < NP -> run producer(p)
			:: p >= NP && p < NP + NC -> run consumer(p)
			:: p >= NP + NC -> run watcher(p)
			fi;
			p++
		:: else -> break
		od;
		p = 0;
		do
		:: p < NL ->
			l_owner[p] = NONE;
			p++
		:: else -> break
		od;
		run killer();
		run observer()
	}
}
