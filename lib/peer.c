// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Peers: joining, leaving, watching each other, and the events that tell of deaths. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "internal.h"

#define LOOK_NS 50000000ull /* a busy process looks for deaths this often */

/* When a process started, in clock ticks since boot; 0 when /proc does not tell. */
uint64_t peer_start_time(uint32_t pid)
{
	unsigned long long start = 0;
	char path[32], buf[1024];
	const char *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	buf[n] = '\0';
	/* Field 2 is the name in parentheses and may hold anything; field 22 counts from there. */
	p = strrchr(buf, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (!p || sscanf(p, " %llu", &start) != 1)
		return 0;
	return start;
}

static int slot_claim(struct sluice_arena *a)
{
	/* Relaxed: only has to be unique. */
	uint32_t id = (uint32_t)atomic_fetch_add_explicit(&a->root->next_peer_id, 1,
							  memory_order_relaxed);
	uint64_t word;

	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		if (peer_state(ld_rlx(&a->peers[i].word)) != PEER_FREE)
			continue;
		word = peer_word(PEER_JOINING, 0, (uint32_t)getpid(), id + 1);
		if (!cas_sc(&a->peers[i].word, 0, word))
			continue;
		a->slot = i;
		a->word = word;
		return 0;
	}
	return -EUSERS;
}

/*
 * Become ALIVE.
 *
 * Return: 0; -EAGAIN when somebody took us for dead meanwhile: the slot is not ours any more.
 */
static int peer_join_once(struct sluice_arena *a)
{
	char comm[16] = "";
	struct shm_peer *p;
	uint64_t alive;
	int err;

	err = slot_claim(a);
	if (err)
		return sluice_fail(-err, "arena %016llx: all %u places for peers are taken",
				   (unsigned long long)a->hdr.arena_id, SLUICE_MAX_PEERS);
	CRASH_POINT("join_claimed");
	/* From here on others find us, should we die before we are ALIVE. */
	atomic_fetch_add_explicit(&a->root->joins, 1, memory_order_seq_cst);
	p = &a->peers[a->slot];
	prctl(PR_GET_NAME, comm);
	st_rlx(&p->start_time, peer_start_time((uint32_t)getpid()));
	st_rlx(&p->joined_ns, now_ns());
	st_rlx(&p->extents, 0);
	st_rlx(&p->bytes, 0);
	st_rlx(&p->lost, 0);
	st_rlx(&p->event_bell, 0);
	st_rlx(&p->role, a->role);
	for (int i = 0; i < 2; i++) {
		uint64_t half;

		memcpy(&half, comm + 8 * i, 8);
		st_rlx(&p->comm[i], half);
	}
	err = a->ops->join(a);
	if (err) {
		cas_sc(&p->word, a->word, 0);
		return err;
	}
	alive = peer_word(PEER_ALIVE, 0, peer_pid(a->word), peer_id(a->word));
	if (!cas_sc(&p->word, a->word, alive)) { /* pairs with ld_acq in peer_watch_all() */
		a->ops->leave(a);
		return -EAGAIN;
	}
	a->word = alive;
	return 0;
}

int peer_join(struct sluice_arena *a)
{
	int err;

	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++)
		a->watch[i] = (struct peer_watch){.pidfd = -1};
	do {
		err = peer_join_once(a);
	} while (err == -EAGAIN);
	if (err)
		return err;
	CRASH_POINT("join_alive");
	/* Those who sleep now do not watch us yet (S1): let them look. */
	atomic_fetch_add_explicit(&a->root->joins, 1, memory_order_seq_cst);
	wake_everybody(a);
	a->events_seen = ld_acq(&a->root->events);
	st_rlx(&a->events_told, a->events_seen);
	peer_watch_all(a);
	return 0;
}

void peer_leave(struct sluice_arena *a)
{
	recover_leave(a);
	pthread_mutex_lock(&a->watch_lock);
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++)
		if (a->watch[i].word)
			a->ops->unwatch(a, i);
	a->ops->leave(a);
	pthread_mutex_unlock(&a->watch_lock);
}

/* Watch what stands in a slot: -ESRCH when it turns out to be dead, or why it cannot be watched. */
static int watch_slot(struct sluice_arena *a, unsigned int slot, uint64_t word)
{
	struct peer_watch *w = &a->watch[slot];
	int err;

	if (w->word && !peer_same(w->word, word)) {
		/* It died, and others recovered it: for this process that is its death. */
		a->ops->unwatch(a, slot);
		w->word = 0;
		st_rlx(&a->missed, 1);
	}
	if (w->word || peer_state(word) == PEER_FREE || slot == a->slot)
		return 0;
	err = a->ops->watch(a, slot, word);
	if (!err)
		w->word = word;
	else if (err != -ESRCH && !ld_rlx(&a->unwatched))
		sluice_log(SLUICE_LOG_WARN, "peer %u (pid %u): cannot be watched: %s",
			   peer_id(word), peer_pid(word), strerror(-err));
	return err;
}

struct dead_list {
	unsigned int n;
	unsigned int slot[SLUICE_MAX_PEERS];
	uint64_t word[SLUICE_MAX_PEERS];
};

/*
 * One thread took the notice of a death; another may sleep with its bit cleared by the dead peer,
 * which did not come to ring it.
 */
static void recover_list(struct sluice_arena *a, const struct dead_list *dead)
{
	for (unsigned int i = 0; i < dead->n; i++)
		recover_peer(a, dead->slot[i], dead->word[i]);
	if (dead->n)
		wake_ourselves(a);
}

/*
 * The thread that took the notice need not be the one that waits for events, whose descriptor is
 * then silent again.
 */
static void event_tell(struct sluice_arena *a)
{
	uint64_t one = 1, events = ld_acq(&a->root->events); /* pairs with event_write() */
	int fd = atomic_load_explicit(&a->event_tell, memory_order_acquire);

	if (fd < 0 || events == ld_rlx(&a->events_told))
		return;
	st_rlx(&a->events_told, events);
	if (write(fd, &one, sizeof(one)) < 0)
		sluice_log(SLUICE_LOG_DEBUG, "an eventfd is full: its reader is told already");
}

void peer_watch_all(struct sluice_arena *a)
{
	uint32_t joins = atomic_load_explicit(&a->root->joins, memory_order_seq_cst);
	struct dead_list dead;
	uint32_t missed;
	bool all = true;

	if (joins == ld_rlx(&a->joins_seen) && !ld_rlx(&a->missed) && !ld_rlx(&a->unwatched))
		return;
	dead.n = 0;
	pthread_mutex_lock(&a->watch_lock);
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		uint64_t word = ld_acq(&a->peers[i].word);
		int err = watch_slot(a, i, word);

		if (err == -ESRCH) {
			dead.slot[dead.n] = i;
			dead.word[dead.n++] = word;
		} else if (err) {
			all = false;
		}
	}
	st_rlx(&a->joins_seen, joins);
	/* Out of descriptors, perhaps: sleeps are short and try again. */
	st_rlx(&a->unwatched, !all);
	missed = atomic_exchange_explicit(&a->missed, 0, memory_order_relaxed);
	pthread_mutex_unlock(&a->watch_lock);
	recover_list(a, &dead);
	if (missed)
		wake_ourselves(a);
	event_tell(a);
}

struct collect {
	struct sluice_arena *a;
	struct dead_list dead;
};

static void collect_one(unsigned int slot, void *arg)
{
	struct collect *c = arg;

	if (!slot_ok(slot) || !c->a->watch[slot].word || c->dead.n == SLUICE_MAX_PEERS)
		return;
	c->dead.slot[c->dead.n] = slot;
	c->dead.word[c->dead.n++] = c->a->watch[slot].word;
	/* It stays readable for ever: stop watching.  Who recovers it is watched as well. */
	c->a->ops->unwatch(c->a, slot);
	c->a->watch[slot].word = 0;
}

void peer_collect(struct sluice_arena *a)
{
	struct collect c = {.a = a};

	pthread_mutex_lock(&a->watch_lock);
	a->ops->collect(a, collect_one, &c);
	pthread_mutex_unlock(&a->watch_lock);
	recover_list(a, &c.dead);
	/* The notice may have been that of a join, for all threads. */
	peer_watch_all(a);
	event_tell(a);
}

/* Called by operations that may go on for ever without sleeping. */
void peer_look(struct sluice_arena *a, uint64_t now)
{
	if (now - ld_rlx(&a->last_look_ns) < LOOK_NS)
		return;
	st_rlx(&a->last_look_ns, now);
	peer_watch_all(a);
	peer_collect(a);
}

bool peer_gone(struct sluice_arena *a, unsigned int slot)
{
	uint64_t word;
	bool gone;

	if (!slot_ok(slot))
		return true;
	if (slot == a->slot)
		return false;
	word = ld_acq(&a->peers[slot].word);
	if (peer_state(word) == PEER_FREE)
		return true;
	pthread_mutex_lock(&a->watch_lock);
	gone = watch_slot(a, slot, word) == -ESRCH ||
	       (a->watch[slot].word && a->ops->is_dead(a, slot));
	pthread_mutex_unlock(&a->watch_lock);
	return gone;
}

/* ------------------------------------------------------------------ events */

/* Copy event number @number; false when a later one is being, or was, written over it. */
static bool event_copy(const struct shm_event *e, uint64_t number, struct sluice_event *ev)
{
	uint64_t word;

	if (ld_acq(&e->number) != number) /* pairs with event_write() */
		return false;
	/* Acquire: the number is read again after each of these. */
	word = ld_acq(&e->peer_word);
	ev->type = SLUICE_EVENT_PEER_DEAD;
	ev->pid = peer_pid(word);
	ev->peer_id = peer_id(word);
	ev->extents = ld_acq(&e->extents);
	ev->bytes = ld_acq(&e->bytes);
	ev->lost = ld_acq(&e->lost);
	ev->signal = (int32_t)ld_acq(&e->signal);
	ev->exit_code = (int32_t)ld_acq(&e->exit_code);
	ev->time_ns = ld_acq(&e->time_ns);
	return ld_rlx(&e->number) == number;
}

static int event_read(struct sluice_arena *a, struct sluice_event *out)
{
	uint64_t written = ld_acq(&a->root->events); /* pairs with event_write() */
	uint64_t seen = a->events_seen, lost = 0;
	struct sluice_event ev = {.sz = out->sz};
	int err;

	if (seen == written)
		return -EAGAIN;
	if (written - seen > SHM_NEVENTS)
		lost = written - seen - SHM_NEVENTS;
	else if (!event_copy(&a->events[seen % SHM_NEVENTS], seen + 1, &ev))
		lost = 1;
	if (lost)
		ev = (struct sluice_event){
			.sz = out->sz, .type = SLUICE_EVENT_OVERRUN, .peer_id = lost};
	err = info_copy(out, &ev, sizeof(ev), "sluice_event");
	if (!err)
		a->events_seen += lost ? lost : 1;
	return err;
}

/* The descriptors of who waits for events, opened when first wanted. */
static int event_poll_open(struct sluice_arena *a)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int ep, tell, err;

	if (a->event_poll >= 0)
		return 0;
	ep = epoll_create1(EPOLL_CLOEXEC);
	tell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ep < 0 || tell < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, tell, &ev) ||
	    epoll_ctl(ep, EPOLL_CTL_ADD, a->watch_fd, &ev)) {
		err = errno;
		if (ep >= 0)
			close(ep);
		if (tell >= 0)
			close(tell);
		return sluice_fail(err, "arena %016llx: no descriptor for events: %s",
				   (unsigned long long)a->hdr.arena_id, strerror(err));
	}
	a->event_poll = ep;
	atomic_store_explicit(&a->event_tell, tell, memory_order_release);
	return 0;
}

static int event_prepare(struct sluice_arena *a)
{
	int err = arena_check(a);

	if (err)
		return err;
	pthread_mutex_lock(&a->watch_lock);
	if (a->ops->event_open)
		err = a->ops->event_open(a);
	if (!err)
		err = event_poll_open(a);
	pthread_mutex_unlock(&a->watch_lock);
	return err;
}

static int event_none(const struct sluice_arena *a, int err, const char *until)
{
	return sluice_fail(err, "arena %016llx: no event %s", (unsigned long long)a->hdr.arena_id,
			   until);
}

int sluice_event_next(struct sluice_arena *a, struct sluice_event *ev, uint64_t timeout_ns)
{
	uint64_t deadline = deadline_ns(timeout_ns), until;
	int err = event_prepare(a);

	while (!err) {
		struct pollfd p = {.fd = a->event_poll, .events = POLLIN};
		struct timespec left, *ts = NULL;
		uint64_t told;

		if (read(a->event_tell, &told, sizeof(told)) < 0 && errno != EAGAIN)
			return sluice_fail(errno, "arena %016llx: its eventfd: %s",
					   (unsigned long long)a->hdr.arena_id, strerror(errno));
		peer_watch_all(a);
		peer_collect(a);
		err = event_read(a, ev);
		if (err != -EAGAIN)
			break;
		if (deadline == 0)
			return event_none(a, EAGAIN, "now");
		err = 0;
		until = deadline;
		if (ld_rlx(&a->unwatched))
			until = min_u64(deadline, now_ns() + UNWATCHED_NS);
		if (until != SLUICE_FOREVER) {
			uint64_t now = now_ns();

			if (now >= deadline)
				return event_none(a, ETIMEDOUT, "until the timeout");
			until = max_u64(until, now);
			left.tv_sec = (time_t)((until - now) / 1000000000);
			left.tv_nsec = (long)((until - now) % 1000000000);
			ts = &left;
		}
		if (ppoll(&p, 1, ts, NULL) < 0)
			return event_none(a, errno, "until a signal came");
	}
	return err;
}

int sluice_event_fd(struct sluice_arena *a)
{
	int err = event_prepare(a);

	if (err)
		return err;
	peer_watch_all(a);
	event_tell(a);
	return a->event_poll;
}
