// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sleeping and waking: steps S1 to S4, W2 of PROTOCOL.md.
 *
 * An endpoint sleeps in its own io_uring, on its bell and on the death of any peer at once.  The
 * bell is a futex word where the kernel's io_uring can wait on one (6.7), else a descriptor.
 */
#include <linux/futex.h>
#include <liburing.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define OP_FUTEX_WAIT  51 /* IORING_OP_FUTEX_WAIT: newer than the liburing that we build with */
#define FUTEX_SIZE_U32 2 /* FUTEX2_SIZE_U32 */

#define SPIN_MIN_NS 2000
#define SPIN_MAX_NS 50000

enum sleep_event {
	EVENT_BELL = 1,
	EVENT_WATCH,
};

struct sleeper {
	struct io_uring ring;
	bool have_ring;
	bool bell_armed;
	bool watch_armed;
};

/* ------------------------------------------------------------------ sleepers maps */

bool map_any(shm_u64 *map)
{
	uint64_t any = 0;

	for (unsigned int i = 0; i < SHM_MAP_WORDS; i++)
		any |= ld_sc(&map[i]); /* W2 or S2: pairs with map_set(), map_clear() */
	return any;
}

bool map_has(shm_u64 *map, unsigned int n)
{
	return ld_sc(&map[n / 64]) >> n % 64 & 1;
}

void map_set(shm_u64 *map, unsigned int n)
{
	/* S1: pairs with W2. */
	atomic_fetch_or_explicit(&map[n / 64], 1ULL << n % 64, memory_order_seq_cst);
}

/* True for the one caller that cleared the bit. */
bool map_clear(shm_u64 *map, unsigned int n)
{
	uint64_t bit = 1ULL << n % 64;

	/* W2 and S4: of a waker and the sleeper itself, one gets true. */
	return atomic_fetch_and_explicit(&map[n / 64], ~bit, memory_order_seq_cst) & bit;
}

/* ------------------------------------------------------------------ ringing */

static void bell_ring(struct sluice_arena *a, unsigned int n)
{
	struct shm_endpoint *ep = &a->endpoints[n];

	/* Release: the sleeper that reads 1 sees what it was rung for. */
	st_rel(&ep->bell, 1);
	if (ld_rlx(&ep->bell_kind) == BELL_FUTEX)
		syscall(SYS_futex, &ep->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
	else
		a->ops->bell_ring(a, ep);
}

/* The sleeper that has slept longest among those that need no more than @fits. */
static int map_oldest(struct sluice_arena *a, shm_u64 *map, uint64_t fits)
{
	uint64_t best_ticket = UINT64_MAX;
	int best = -1;

	for (unsigned int i = 0; i < SHM_MAP_WORDS; i++) {
		for (uint64_t bits = ld_sc(&map[i]); bits; bits &= bits - 1) {
			int n = (int)(i * 64) + __builtin_ctzll(bits);
			uint64_t ticket = ld_rlx(&a->endpoints[n].ticket);

			if (ticket < best_ticket && ld_rlx(&a->endpoints[n].need) <= fits) {
				best_ticket = ticket;
				best = n;
			}
		}
	}
	return best;
}

/*
 * Ring one sleeper, if there is one.
 * @fits: of the space sleepers, one that needs no more blocks than this; of a channel's producers, one
 *	that wants to be rung now (enum shm_room)
 *
 * The common case is that nobody sleeps: four loads from a line that nobody writes.
 */
bool wake_one(struct sluice_arena *a, shm_u64 *map, uint64_t fits, struct shm_stats *st)
{
	while (map_any(map)) {
		int n = map_oldest(a, map, fits);

		if (n < 0)
			return false;
		if (!map_clear(map, (unsigned int)n))
			continue; /* somebody else rings it */
		CRASH_POINT("wake_before_ring");
		bell_ring(a, (unsigned int)n);
		if (st)
			stat_add(&st->doorbells, 1);
		return true;
	}
	if (st)
		stat_add(&st->doorbells_suppressed, 1);
	return false;
}

/* Ring all, and leave their bits: for what is not a hand-off (a join, a death, the end). */
void wake_all(struct sluice_arena *a, shm_u64 *map)
{
	for (unsigned int i = 0; i < SHM_MAP_WORDS; i++)
		for (uint64_t bits = ld_sc(&map[i]); bits; bits &= bits - 1)
			bell_ring(a, i * 64 + (unsigned int)__builtin_ctzll(bits));
}

/* Ring the endpoints of this process whether they sleep or not: somebody else saw a death. */
void wake_ourselves(struct sluice_arena *a)
{
	pthread_mutex_lock(&a->pool_lock);
	for (struct sluice_channel *ch = a->open; ch; ch = ch->next_open)
		bell_ring(a, ch->number);
	pthread_mutex_unlock(&a->pool_lock);
}

void wake_everybody(struct sluice_arena *a)
{
	wake_all(a, a->root->space_sleepers);
	for (unsigned int i = 0; i < SLUICE_MAX_CHANNELS; i++) {
		wake_all(a, a->channels[i].consumer_sleepers);
		wake_all(a, a->channels[i].producer_sleepers);
	}
	for (unsigned int i = 0; a->ops->event_ring && i < SLUICE_MAX_PEERS; i++) {
		uint64_t bell = ld_acq(&a->peers[i].event_bell);

		if (bell && i != a->slot)
			a->ops->event_ring(a, bell);
	}
}

/* ------------------------------------------------------------------ spinning */

static uint64_t spin_limit(void)
{
	static long cpus; /* a race writes the same value twice */

	/* Online, not allowed: a worker that is pinned to one CPU waits for others that are not. */
	if (!cpus)
		cpus = sysconf(_SC_NPROCESSORS_ONLN);
	return cpus > 1 ? SPIN_MAX_NS : 0;
}

/*
 * Spin for a while; true when the condition came true.  The time adapts: what pays is doubled,
 * what does not is halved.
 */
bool sleep_spin(struct sluice_channel *ch, bool (*ready)(struct sluice_channel *), uint64_t until)
{
	uint64_t start, now;

	if (ch->flags & SLUICE_CHANNEL_NO_SPIN)
		return false;
	if (!ch->spin_max_ns) {
		ch->spin_max_ns = spin_limit();
		ch->spin_ns = ch->spin_max_ns;
	}
	if (!ch->spin_max_ns)
		return false;
	start = now = now_ns();
	do {
		for (int i = 0; i < 32; i++) {
			if (ready(ch)) {
				ch->spin_ns = min_u64(max_u64(ch->spin_ns * 2, SPIN_MIN_NS),
						      ch->spin_max_ns);
				stat_add(&ch->stats->spins, 1);
				return true;
			}
			cpu_relax();
		}
		now = now_ns();
	} while (now - start < ch->spin_ns && now < until);
	ch->spin_ns = max_u64(ch->spin_ns / 2, min_u64(SPIN_MIN_NS, ch->spin_max_ns));
	return false;
}

/* ------------------------------------------------------------------ sleeping */

/* Does the kernel know IORING_OP_FUTEX_WAIT?  Asked of the kernel, not of its version. */
static bool ring_has_futex(struct io_uring *ring)
{
	struct io_uring_probe *p = io_uring_get_probe_ring(ring);
	bool has = p && io_uring_opcode_supported(p, OP_FUTEX_WAIT);

	io_uring_free_probe(p);
	return has;
}

static int sleeper_init(struct sluice_channel *ch)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
	};
	struct sleeper *s = calloc(1, sizeof(*s));

	if (!s)
		return sluice_fail(ENOMEM, "channel %s: no memory for its ring", ch->name);
	ch->sleeper = s;
	ch->mode = SLEEP_POLL;
	if (!(ch->flags & SLUICE_CHANNEL_POLL)) {
		int err = io_uring_queue_init_params(8, &s->ring, &params);

		if (err == -EINVAL) /* before 6.1 */
			err = io_uring_queue_init(8, &s->ring, 0);
		s->have_ring = !err;
		if (err)
			sluice_log(SLUICE_LOG_INFO,
				   "channel %s: io_uring is refused here (%s), using poll",
				   ch->name, strerror(-err));
	}
	if (s->have_ring) {
		io_uring_ring_dontfork(&s->ring);
		ch->mode = SLEEP_URING_POLL;
		if (ch->a->ops->id == SLUICE_BACKEND_MEMFD && ch->bell_fd < 0 &&
		    ring_has_futex(&s->ring))
			ch->mode = SLEEP_URING_FUTEX;
	}
	if (ch->bell_fd >= 0)
		return 0; /* this ring replaces that of another thread */
	if (ch->mode != SLEEP_URING_FUTEX)
		return ch->a->ops->bell_open(ch);
	st_rlx(&ch->ep->bell_kind, BELL_FUTEX);
	return 0;
}

/* A descriptor for the caller's own loop: from now on the bell is a descriptor. */
int sleep_descriptor(struct sluice_channel *ch)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int err;

	if (ch->poll_fd >= 0)
		return ch->poll_fd;
	/* A loop of the caller's does not nap.  Pairs with sluice_batch_quiet(). */
	if (ch->flags & SLUICE_CHANNEL_CONSUME)
		atomic_store_explicit(&ch->shm->loops, 1, memory_order_seq_cst);
	if (!ch->sleeper) {
		err = sleeper_init(ch);
		if (err)
			return err;
	}
	if (ch->bell_fd < 0) {
		err = ch->a->ops->bell_open(ch);
		if (err)
			return err;
		if (ch->mode == SLEEP_URING_FUTEX) {
			/* What is armed waits on the futex, which nobody rings any more. */
			ch->mode = SLEEP_URING_POLL;
			ch->sleeper->bell_armed = false;
		}
	}
	ch->poll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (ch->poll_fd < 0 || epoll_ctl(ch->poll_fd, EPOLL_CTL_ADD, ch->bell_fd, &ev) ||
	    epoll_ctl(ch->poll_fd, EPOLL_CTL_ADD, ch->a->watch_fd, &ev)) {
		err = errno;
		if (ch->poll_fd >= 0)
			close(ch->poll_fd);
		ch->poll_fd = -1;
		return sluice_fail(err, "channel %s: no descriptor to poll: %s", ch->name,
				   strerror(err));
	}
	return ch->poll_fd;
}

void sleep_free(struct sluice_channel *ch)
{
	if (ch->poll_fd >= 0)
		close(ch->poll_fd);
	if (ch->bell_fd >= 0)
		close(ch->bell_fd);
	if (ch->sleeper && ch->sleeper->have_ring) {
		/* Its mappings did not come through fork(): those addresses may be others' now. */
		if (arena_forked(ch->a))
			close(ch->sleeper->ring.ring_fd);
		else
			io_uring_queue_exit(&ch->sleeper->ring);
	}
	free(ch->sleeper);
	ch->sleeper = NULL;
	ch->poll_fd = ch->bell_fd = -1;
}

/*
 * S1.  The bell is silenced first, never between S1 and S3.  A peer that joins after we looked
 * rings everybody whose bit is set, so no peer goes unwatched while we sleep.
 */
void sleep_prepare(struct sluice_channel *ch, shm_u64 *map)
{
	struct sluice_arena *a = ch->a;

	st_rlx(&ch->ep->bell, 0);
	if (ch->bell_fd >= 0)
		a->ops->bell_drain(ch);
	/* Relaxed: order among sleepers only. */
	st_rlx(&ch->ep->ticket,
	       atomic_fetch_add_explicit(&a->root->ticket, 1, memory_order_relaxed));
	map_set(map, ch->number);
	CRASH_POINT("sleep_after_bit");
	peer_watch_all(a);
}

static void arm_bell(struct sluice_channel *ch)
{
	struct sleeper *s = ch->sleeper;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&s->ring);

	if (!sqe)
		return;
	if (ch->mode == SLEEP_URING_FUTEX) {
		io_uring_prep_rw(OP_FUTEX_WAIT, sqe, FUTEX_SIZE_U32, &ch->ep->bell, 0, 0);
		sqe->addr3 = FUTEX_BITSET_MATCH_ANY;
	} else {
		io_uring_prep_poll_multishot(sqe, ch->bell_fd, POLLIN);
	}
	io_uring_sqe_set_data64(sqe, EVENT_BELL);
	s->bell_armed = true;
}

static void arm_watch(struct sluice_channel *ch)
{
	struct sleeper *s = ch->sleeper;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&s->ring);

	if (!sqe)
		return;
	io_uring_prep_poll_multishot(sqe, ch->a->watch_fd, POLLIN);
	io_uring_sqe_set_data64(sqe, EVENT_WATCH);
	s->watch_armed = true;
}

/* Take every completion; true when a peer may have died. */
static bool reap(struct sleeper *s)
{
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;
	bool watch = false;

	io_uring_for_each_cqe(&s->ring, head, cqe)
	{
		bool more = cqe->flags & IORING_CQE_F_MORE;

		if (cqe->user_data == EVENT_BELL)
			s->bell_armed = more;
		if (cqe->user_data == EVENT_WATCH) {
			s->watch_armed = more;
			watch = true;
		}
		n++;
	}
	io_uring_cq_advance(&s->ring, n);
	return watch;
}

/*
 * One io_uring_enter() that submits and waits.  When it has submitted something it returns that
 * number, also if a signal or the timeout ended the wait: no completion tells.
 */
static int wait_ring(struct sluice_channel *ch, const struct timespec *left, uint64_t deadline)
{
	struct __kernel_timespec ts = {left ? left->tv_sec : 0, left ? left->tv_nsec : 0};
	struct sleeper *s = ch->sleeper;
	struct io_uring_cqe *cqe;
	int err;

	if (!s->bell_armed)
		arm_bell(ch);
	if (!s->watch_armed)
		arm_watch(ch);
	err = left ? io_uring_submit_and_wait_timeout(&s->ring, &cqe, 1, &ts, NULL)
		   : io_uring_submit_and_wait(&s->ring, 1);
	if (err == -EEXIST) {
		/* The ring belongs to the thread that slept first; this one makes its own. */
		io_uring_queue_exit(&s->ring);
		free(s);
		ch->sleeper = NULL;
		return 0;
	}
	if (err >= 0 && !io_uring_cq_ready(&s->ring))
		err = left && now_ns() >= deadline ? -ETIME : -EINTR;
	if (reap(s))
		peer_collect(ch->a);
	return err < 0 ? err : 0;
}

static int wait_poll(struct sluice_channel *ch, const struct timespec *left)
{
	struct pollfd fds[2] = {
		{.fd = ch->bell_fd, .events = POLLIN},
		{.fd = ch->a->watch_fd, .events = POLLIN},
	};
	int n = ppoll(fds, 2, left, NULL);

	if (n < 0)
		return -errno;
	if (fds[1].revents)
		peer_collect(ch->a);
	return n ? 0 : -ETIME;
}

/*
 * S3: sleep until the bell, the death of a peer, or the deadline.
 *
 * Return: 0 (look again), -ETIMEDOUT, -EINTR, or what the kernel refused.
 */
int sleep_wait(struct sluice_channel *ch, uint64_t deadline)
{
	uint64_t until = deadline;
	struct timespec left;
	int err;

	if (!ch->sleeper) {
		err = sleeper_init(ch);
		if (err)
			return err;
		/* The first sleep: the kind of bell may have changed since S1, look again. */
		return 0;
	}
	if (ld_rlx(&ch->a->unwatched))
		until = min_u64(deadline, now_ns() + UNWATCHED_NS);
	if (until != SLUICE_FOREVER) {
		uint64_t now = now_ns();

		if (now >= until)
			return -ETIMEDOUT;
		left.tv_sec = (time_t)((until - now) / 1000000000);
		left.tv_nsec = (long)((until - now) % 1000000000);
	}
	stat_add(&ch->stats->sleeps, 1);
	err = ch->mode == SLEEP_POLL ? wait_poll(ch, until == SLUICE_FOREVER ? NULL : &left)
				     : wait_ring(ch, until == SLUICE_FOREVER ? NULL : &left, until);
	if (err == -ETIME)
		return until < deadline ? 0 : -ETIMEDOUT;
	if (err == -EINTR || !err)
		return err;
	return sluice_fail(-err, "channel %s: cannot sleep: %s", ch->name, strerror(-err));
}
