// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Quiet posting of lib/PROTOCOL.md: a device makes posted batches READY in the order in which they were
 * posted, and only for some of them somebody rings.  Ring and leases are those of sluice.pml and taken
 * as they come out: one step pushes, one step pops.  Nobody dies.
 *
 *   NC     consumers, each of which takes LIMIT batches and then does nothing any more
 *   NB     batches, each published, posted, or posted quietly if that may be
 *   LOOPS  of the consumers, those that sleep in a loop of their own
 *   BUG_*  one deliberate mistake, which has to be found
 */
#ifndef NC
#define NC 2 /* at most 3 */
#endif
#ifndef NB
#define NB 2
#endif
#ifndef LIMIT
#define LIMIT NB
#endif
#ifndef LOOPS
#define LOOPS 0
#endif

#define BIT(i)	(1 << (i))
#define NOWHERE	0
#define PENDING 1
#define READY	2
#define TAKEN	3

byte batch[NB];
byte head, tail, quiet;
bool loops;
byte sleepers;
bool bell[3];

/* What the device has been given, and for which of it a host function comes. */
byte submitted, arrived;
bool posted[NB], rings[NB];

byte taken;

#define readable (head < tail && batch[head] == READY)

#define bit_take(c)                                                                                \
	(sleepers & BIT(c)) ->                                                                     \
		sleepers = sleepers & ~BIT(c);                                                     \
		who = c

inline ring()
{
	d_step {
		bell[who] = true;
		who = 0
	}
}

/* W2: clear some bit, then ring. */
inline wake_one()
{
	if
	:: d_step { bit_take(0) } -> ring()
	:: d_step { bit_take(1) } -> ring()
	:: d_step { bit_take(2) } -> ring()
	:: !sleepers
	fi
}

inline push(state)
{
	d_step {
		batch[tail] = state;
		tail++
	}
}

/* Q1 and Q2. */
inline post_quietly()
{
	d_step {
		if
		:: quiet < tail -> quiet = tail
		:: else
		fi
	};
#ifdef BUG_NO_SECOND_LOOK
	rings[mine] = false
#else
	ok = !loops;
	d_step {
		rings[mine] = !ok || sleepers;
		ok = false
	}
#endif
}

active proctype poster()
{
	byte mine, who;
	bool ok;

	do
	:: mine < NB ->
		if
		:: push(READY);
			wake_one()
		:: push(PENDING);
			posted[mine] = true;
			if
			:: rings[mine] = true
			:: !sleepers && !loops -> post_quietly()
			fi
		fi;
		mine++;
		submitted = mine
	:: else -> break
	od
}

/* O3. */
active proctype device()
{
	do
	:: arrived < NB ->
		submitted > arrived;
		if
		:: posted[arrived] -> batch[arrived] = READY
		:: else
		fi;
		arrived++
	:: else -> break
	od
}

/* O5, on a stream of its own. */
active proctype host()
{
	byte i, pos, who;

	do
	:: i < NB ->
		arrived > i;
		if
		:: posted[i] && rings[i] ->
			pos = head;
			do
			:: pos < tail && sleepers && batch[pos] == READY ->
				wake_one();
				pos++
			:: pos < tail && sleepers && batch[pos] == TAKEN -> pos++
			:: else -> break
			od;
			pos = 0
		:: else
		fi;
		i++
	:: else -> break
	od
}

/* What was left undone is another sleeper's, if somebody rang for it. */
inline pass_on()
{
	if
	:: rung && readable -> wake_one()
	:: else
	fi
}

active [NC] proctype consumer()
{
	byte me = _pid - 3, n, q, who;
	bool rung, got, mine = me >= NC - LOOPS;

	if
	:: mine ->
		loops = true
	:: else
	fi;
	do
	:: n < LIMIT ->
		d_step {
			got = readable;
			if
			:: got -> batch[head] = TAKEN; head++; taken++
			:: else
			fi
		};
		if
		:: got || mine ->
			pass_on();
			d_step {
				n = n + got;
				rung = false;
				got = got && !mine
			}
		:: else
		fi;
		if
		:: got || n == LIMIT -> got = false
		:: else ->
			bell[me] = false;
			sleepers = sleepers | BIT(me); /* S1 */
			q = quiet; /* S2: first what nobody may ring for, then what is there */
#ifdef BUG_QUIET_ASKED_LATE
			q = 0;
#endif
#ifdef BUG_NO_NAP
			q = 0;
#endif
			q = (q > head && head < tail);
			if
			:: readable
			:: else ->
#ifdef BUG_QUIET_ASKED_LATE
				q = quiet;
				q = (q > head && head < tail);
#endif
				if
				:: q /* a nap; a loop looks again */
				:: !q -> bell[me]
				fi
			fi;
			q = 0;
			d_step { /* S4 */
				rung = rung || !(sleepers & BIT(me));
				sleepers = sleepers & ~BIT(me)
			}
		fi
	:: else -> break
	od
}

/* When nobody can go on, not even one that naps, everything has been taken. */
active proctype observer()
{
	timeout -> assert(taken == NB)
}
