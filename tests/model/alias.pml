// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * "Aliases" of lib/PROTOCOL.md, and the allocator lock that outlives its holder.  One extent, two
 * leases for aliases.  A step (a statement or a d_step) is one access to one shared word.
 *
 *   peer 0   holds the extent, may share it with peer 1, releases it
 *   peer 1   takes the alias that was shared, reads, releases it
 *   peer 2   opens the extent by token, reads, releases; when it is free already, allocates it anew
 *   others   recover the dead; the last frees what is still queued
 *
 *   CRASHES  0, 1, or 2: then also the one that recovers
 *   BUG_*    one deliberate mistake, which has to be found
 */
#ifndef CRASHES
#define CRASHES 1
#endif

#define NPEERS (3 + CRASHES) /* one recoverer survives */
#define BIT(i) (1 << (i))
#define NONE   15

/* Leases 0 and 1 are aliases, 2 is the extent. */
#define FREE	0
#define WRITING 1
#define READY	2
#define HELD	3
#define PARKED	4
#define EXTENT	2
byte l_state[3], l_owner[3], l_gen[3];
bool shared;
byte naliases;
byte lock; /* holder + 1 */

#define ALIVE	      1
#define RECOVERING(y) (2 + (y))
byte slot[5];
byte dead, finished, crashes;

#define gone(p)	  (dead & BIT(p))
#define recovering(p)                                                                              \
	(slot[0] == RECOVERING(p) || slot[1] == RECOVERING(p) || slot[2] == RECOVERING(p) ||       \
	 slot[3] == RECOVERING(p) || slot[4] == RECOVERING(p))

inline lease_free(i)
{
	l_state[i] = FREE;
	l_owner[i] = NONE;
	l_gen[i] = l_gen[i] + 1
}

inline extent_free()
{
	assert(l_state[EXTENT] != FREE && l_state[0] == FREE && l_state[1] == FREE);
	lease_free(EXTENT);
	shared = false
}

/* ------------------------------------------------------------------ the lock */

/* What the dead holder was doing to the counts is not known: count anew, free what it left. */
inline alias_recount()
{
	if
	:: shared -> naliases = 0
	:: !shared
	fi;
	i = 0;
	do
	:: d_step { i < EXTENT && l_state[i] == FREE -> i++ }
	:: d_step { i < EXTENT && l_state[i] != FREE -> naliases++; i++ }
	:: i == EXTENT -> break
	od;
	i = 0;
#ifndef BUG_PARKED_IS_KEPT
	if
	:: d_step { l_state[EXTENT] == PARKED && !naliases -> extent_free() }
	:: else
	fi
#endif
}

inline lock_take()
{
	if
	:: d_step { !lock -> lock = me + 1 }
	:: d_step { lock && gone(lock - 1) -> lock = me + 1 }
#ifndef BUG_NO_RECOUNT
		alias_recount()
#endif
	fi
}

/* ------------------------------------------------------------------ under the lock */

inline extent_drop()
{
	if
	:: naliases ->
		d_step { l_state[EXTENT] = PARKED; l_owner[EXTENT] = NONE }
	:: !naliases ->
		d_step { extent_free() }
	fi
}

inline alias_free(a)
{
	d_step { lease_free(a) }
	if
	:: naliases -> naliases--
	:: !naliases
	fi;
	if
	:: d_step { l_state[EXTENT] == PARKED && !naliases -> extent_free() }
	:: else
	fi
}

/* Sets ok; a lease number for an alias is always free here. */
inline alias_create(a, st)
{
	lock_take();
	if
	:: l_gen[EXTENT] != 0 || l_state[EXTENT] == FREE -> ok = false
	:: l_gen[EXTENT] == 0 && l_state[EXTENT] != FREE -> ok = true
	fi;
#ifdef BUG_SHARED_TOO_LATE
	if
	:: ok -> naliases++; l_state[a] = st; l_owner[a] = me; shared = true
#else
	/* Set while the extent is still in use, or not at all. */
	if
	:: d_step { ok && l_gen[EXTENT] == 0 && l_state[EXTENT] != FREE -> shared = true }
		naliases++;
		d_step { l_state[a] = st; l_owner[a] = me }
	:: d_step { ok && !(l_gen[EXTENT] == 0 && l_state[EXTENT] != FREE) -> ok = false }
#endif
	:: !ok
	fi;
	lock = 0
}

inline alias_release(a)
{
	lock_take();
	alias_free(a);
	lock = 0
}

/* ------------------------------------------------------------------ recovery */

#define owned(l) (l_owner[l] == x && l_state[l] != FREE && l_state[l] != PARKED)
#define claim(p)                                                                                   \
	(slot[p] == ALIVE && gone(p)) || (slot[p] > ALIVE && gone(slot[p] - 2)) ->                 \
		slot[p] = RECOVERING(me);                                                          \
		x = p

inline alias_recover(a)
{
	if
	:: d_step { owned(a) && l_state[a] == READY -> l_owner[a] = NONE }
	:: owned(a) && l_state[a] != READY -> alias_free(a)
	:: !owned(a)
	fi
}

inline recover()
{
	lock_take();
	alias_recover(0);
	alias_recover(1);
	if
	:: owned(EXTENT) -> extent_drop()
	:: !owned(EXTENT)
	fi;
	lock = 0;
	d_step {
		assert(lock != x + 1);
		slot[x] = 0;
		x = 0
	}
}

/* ------------------------------------------------------------------ peers */

inline leave()
{
	d_step {
		slot[me] = 0;
		finished = finished | BIT(me)
	}
}

proctype holder(byte me)
{
	byte i;
	bool ok;

	{
		ok = false;
		if
		:: alias_create(0, WRITING) -> assert(ok); l_state[0] = READY
		:: ok = false
		fi;
		/* Release: without the lock as long as nobody has shared. */
		if
		:: d_step { l_state[EXTENT] == HELD && !shared -> extent_free() }
#ifdef BUG_RELEASE_WITHOUT_LOCK
		:: d_step { shared -> extent_free() }
#else
		:: shared ->
			lock_take();
			extent_drop();
			lock = 0
#endif
		fi;
		leave()
	} unless {
		gone(me)
	}
}

proctype reader(byte me)
{
	byte i;
	bool ok;

	{
		if
		:: d_step { l_state[0] == READY -> l_state[0] = HELD; l_owner[0] = me }
			assert(l_gen[EXTENT] == 0 && l_state[EXTENT] != FREE);
			alias_release(0)
		:: slot[0] == 0 && l_state[0] != READY
		fi;
		leave()
	} unless {
		gone(me)
	}
}

proctype opener(byte me)
{
	byte i;
	bool ok;

	{
		alias_create(1, HELD);
		if
		:: ok ->
			assert(l_gen[EXTENT] == 0 && l_state[EXTENT] != FREE);
			alias_release(1)
		:: !ok ->
			/* It is free: allocate and abort it, the counts of the first life are gone. */
			lock_take();
			if
			:: l_state[EXTENT] == FREE ->
				naliases = 0;
				d_step { l_state[EXTENT] = WRITING; l_owner[EXTENT] = me }
				lock = 0;
				if
				:: d_step { !shared -> lease_free(EXTENT) }
				fi
			:: l_state[EXTENT] != FREE -> lock = 0
			fi
		fi;
		leave()
	} unless {
		gone(me)
	}
}

proctype watcher(byte me)
{
	byte i, x;

	{
		do
		:: d_step { claim(0) } -> recover()
		:: d_step { claim(1) } -> recover()
		:: d_step { claim(2) } -> recover()
		:: !slot[0] && !slot[1] && !slot[2] -> break
		od;
		/* The channel goes with its last member, and what is queued in it. */
		lock_take();
		if
		:: l_state[0] == READY -> alias_free(0)
		:: l_state[0] != READY
		fi;
		lock = 0;
		leave()
	} unless {
		gone(me)
	}
}

/* ------------------------------------------------------------------ the world */

#define kill(p)                                                                                    \
	p < NPEERS && !((dead | finished) & BIT(p)) && (!crashes || recovering(p)) ->              \
		dead = dead | BIT(p);                                                              \
		crashes++

proctype killer()
{
	do
	:: crashes == CRASHES -> break
	:: crashes < CRASHES ->
		if
		:: d_step { kill(0) }
		:: d_step { kill(1) }
		:: d_step { kill(2) }
		:: d_step { kill(3) }
		:: d_step { kill(4) }
		:: break
		fi
	od
}

proctype observer()
{
	timeout;
	if
	:: dead >> 3 != BIT(CRASHES) - 1 || !CRASHES ->
		assert((finished | dead) == BIT(NPEERS) - 1);
		assert(l_state[0] == FREE && l_state[1] == FREE);
		assert(l_state[EXTENT] == FREE && !shared)
	:: else
	fi
}

init {
	byte p;

	atomic {
		l_state[EXTENT] = HELD;
		l_owner[0] = NONE;
		l_owner[1] = NONE;
		do
		:: p < NPEERS ->
			slot[p] = ALIVE;
			if
			:: p == 0 -> run holder(p)
			:: p == 1 -> run reader(p)
			:: p == 2 -> run opener(p)
			:: p > 2 -> run watcher(p)
			fi;
			p++
		:: else -> break
		od;
		run killer();
		run observer()
	}
}
