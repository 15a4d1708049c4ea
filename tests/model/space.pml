// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * "Sleeping for space" of lib/PROTOCOL.md: sleepers that want different amounts, and rings that are
 * passed on.  Which of those who fit is rung is left open here, so the tickets cannot be to blame.
 *
 *   UNITS       size of the arena
 *   NEEDS       three sizes: what each peer allocates
 *   TIMES       how often each of them does
 *   KEEP        1: peers 1 and 2 keep what they get last, so that no later release helps
 *   CRASHES     1: peer 0 may die at any step; a fourth peer recovers it
 *   PATIENCE    0: peer 0 may also stop waiting (a deadline, a signal)
 *   BUG_*       one deliberate mistake, which has to be found
 */
#ifndef UNITS
#define UNITS 2
#endif
#ifndef NEED0
#define NEED0 2
#define NEED1 1
#define NEED2 1
#endif
#ifndef TIMES
#define TIMES 2
#endif
#ifndef KEEP
#define KEEP 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef PATIENCE
#define PATIENCE 1
#endif

#define NP     3
#define BIT(i) (1 << (i))
#define ANY    15

byte room = UNITS; /* free units: without fragmentation, the largest run too */
byte held[NP];
byte sleepers;
bool bell[NP];
byte dead, seen, finished;

#define gone(p) (dead & BIT(p))
#define need(p) (p == 0 -> NEED0 : (p == 1 -> NEED1 : NEED2))

#define bit_take(p, fits)                                                                          \
	(sleepers & BIT(p)) && need(p) <= (fits) ->                                                \
		sleepers = sleepers & ~BIT(p);                                                     \
		who = p

inline ring()
{
	d_step {
		bell[who] = true;
		who = 0
	}
}

/* W2 */
inline wake_one(fits)
{
	if
	:: d_step { bit_take(0, fits) } -> ring()
	:: d_step { bit_take(1, fits) } -> ring()
	:: d_step { bit_take(2, fits) } -> ring()
	:: else
	fi
}

/* Under the allocator lock; left is what there is afterwards. */
inline extent_alloc()
{
	d_step {
		won = room >= need(me);
		if
		:: won ->
			room = room - need(me);
			held[me] = need(me)
		:: else
		fi;
		left = room
	}
}

proctype peer(byte me)
{
	byte who, left, times;
	bool won, rung, last;

	{
		left = 0;
		do
		:: times < TIMES ->
			last = false;
again:
			extent_alloc();
#ifndef BUG_RING_KEPT
			if
			:: rung -> wake_one(left)
			:: !rung
			fi;
#endif
			rung = false;
			if
			:: won -> goto have
			:: !won && last -> goto done
			:: !won && !last
			fi;
			d_step { /* S1 */
				bell[me] = false;
				sleepers = sleepers | BIT(me)
			}
#ifdef BUG_LOOK_BEFORE_BIT
			won = false;
#else
			extent_alloc(); /* S2 */
#endif
			if
			:: won
			:: !won ->
				if
				:: bell[me]
				:: d_step { !bell[me] && dead && !(seen & BIT(me)) -> seen = seen | BIT(me) }
				:: d_step { !PATIENCE && me == 0 -> last = true }
				fi
			fi;
			d_step { /* S4 */
				rung = !(sleepers & BIT(me));
				sleepers = sleepers & ~BIT(me)
			}
			if
			:: won && rung -> rung = false; wake_one(ANY)
			:: won && !rung
			:: !won -> goto again
			fi;
have:
			won = false;
			if
			:: KEEP && me && times + 1 == TIMES -> goto done
			:: !(KEEP && me && times + 1 == TIMES)
			fi;
			d_step { /* R1 */
				room = room + held[me];
				held[me] = 0;
				left = 0
			}
			wake_one(ANY); /* R2 */
			times++
		:: else -> break
		od;
done:
		won = false;
		d_step {
			finished = finished | BIT(me);
			left = 0
		}
	} unless {
		gone(me)
	}
}

/* Watches, recovers, and rings all whose bits are set. */
proctype watcher()
{
	byte mask;

end:
	gone(0);
	d_step {
		room = room + held[0];
		held[0] = 0;
		sleepers = sleepers & ~BIT(0)
	}
	mask = sleepers;
	d_step {
		bell[1] = bell[1] || (mask & 2);
		bell[2] = bell[2] || (mask & 4);
		mask = 0
	}
}

proctype killer()
{
	if
	:: d_step { CRASHES && !(finished & 1) -> dead = 1 }
	:: skip
	fi
}

/* Nobody can move any more: whoever sleeps then has no room. */
#define rests(p) (((finished | dead) & BIT(p)) || (KEEP && need(p) > room))

proctype observer()
{
	timeout;
	assert(rests(0) && rests(1) && rests(2));
	assert(room + held[0] + held[1] + held[2] == UNITS && (KEEP || room == UNITS))
}

init {
	atomic {
		run peer(0);
		run peer(1);
		run peer(2);
		run watcher();
		run killer();
		run observer()
	}
}
