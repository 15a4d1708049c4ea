/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the files of the library share.  One file a verb family:
 *
 *	arena.c     create, attach, reattach, detach, send, receive
 *	region.c    the memory of a memfd arena
 *	memlimit.c  whether that memory can be had
 *	backend_*.c where memory, bells and death notices come from
 *	peer.c      joining, leaving, watching, events
 *	recover.c   taking back what a dead peer had
 *	lock.c      the allocator lock
 *	extent.c    the lease table: allocate, free, aliases
 *	ring.c      the cells of a channel: push, pop
 *	sleep.c     sleepers maps, bells, spinning, io_uring
 *	endpoint.c  opening and closing channels
 *	transfer.c  next, publish, share, forward: what waits
 *	batch.c     begin, add, look, retain, release
 *	manifest.c  the description of a batch in shared memory
 *	stats.c     counters and lists
 */
#ifndef SLUICE_INTERNAL_H
#define SLUICE_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sluice.h>

#include "crash.h"
#include "error.h"
#include "manifest.h"
#include "region.h"
#include "shm.h"

/*
 * Memory orders.  Words of the protocol use the three below; PROTOCOL.md's step names stand in the
 * comments beside them.  What only counts, or is under the allocator lock, is relaxed.
 */
#define ld_rlx(p)    atomic_load_explicit(p, memory_order_relaxed)
#define st_rlx(p, v) atomic_store_explicit(p, v, memory_order_relaxed)
#define ld_acq(p)    atomic_load_explicit(p, memory_order_acquire)
#define st_rel(p, v) atomic_store_explicit(p, v, memory_order_release)
#define ld_sc(p)     atomic_load_explicit(p, memory_order_seq_cst)

/* One step of the protocol: seq_cst when it succeeds, nothing learnt when it fails. */
static inline bool cas_sc(shm_u64 *p, uint64_t from, uint64_t to)
{
	return atomic_compare_exchange_strong_explicit(p, &from, to, memory_order_seq_cst,
						       memory_order_relaxed);
}

#define min_u64(a, b) ((uint64_t)(a) < (uint64_t)(b) ? (uint64_t)(a) : (uint64_t)(b))
#define max_u64(a, b) ((uint64_t)(a) > (uint64_t)(b) ? (uint64_t)(a) : (uint64_t)(b))

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

/* A few milliseconds coarse, several times cheaper. */
static inline uint64_t now_coarse_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

/* Timeouts of the interface become deadlines: 0 is now, SLUICE_FOREVER is never. */
static inline uint64_t deadline_ns(uint64_t timeout_ns)
{
	if (timeout_ns == SLUICE_FOREVER || timeout_ns == 0)
		return timeout_ns;
	if (timeout_ns & SLUICE_ABSTIME)
		return max_u64(timeout_ns & ~SLUICE_ABSTIME, 1);
	return now_ns() + timeout_ns;
}

struct sluice_backend_ops;

#define UNWATCHED_NS 100000000ull /* how long to sleep at most when no notice of a death may come */

/* What this process watches of another peer. */
struct peer_watch {
	uint64_t word; /* of the peer that is watched; 0 = nobody */
	int pidfd; /* -1 when the backend needs none */
	uint32_t kernel_id; /* kmod: what the kernel calls it; 0 while it is watched by its pidfd */
	uint32_t dead_pid; /* kmod: who was watched here and died last, */
	int status; /* and how, as of waitpid(); -1 = not known */
};

struct sluice_arena {
	struct sluice_region region;
	const struct sluice_backend_ops *ops;
	const uint8_t *alive; /* reads 0 in a forked child (MADV_WIPEONFORK) */

	/* Private copies, checked at attach. */
	struct shm_header hdr;
	uint64_t nleases; /* blocks and aliases */
	enum sluice_role role;

	/* Into the control region. */
	struct shm_root *root;
	struct shm_peer *peers;
	struct shm_endpoint *endpoints;
	struct shm_channel *channels;
	struct shm_event *events;
	shm_u64 *cells;
	struct shm_lease *leases;

	/* This process as a peer. */
	unsigned int slot;
	uint64_t word;
	int peer_fd; /* kmod: its death is this process' death */
	uint32_t peer_bell; /* kmod: the bell that peer_fd is */

	/* Watching the others. */
	pthread_mutex_t watch_lock;
	struct peer_watch watch[SLUICE_MAX_PEERS];
	int watch_fd; /* polls readable when a peer may have died */
	int event_fd; /* memfd: the bell for joins and recoveries, in watch_fd */
	int event_poll; /* polls watch_fd and event_tell, for who waits for events */
	_Atomic int event_tell; /* eventfd: some thread has seen to a death */
	shm_u64 events_told; /* private, as the two below */
	shm_u32 joins_seen; /* private; atomic because threads share the handle */
	shm_u32 missed; /* a watch was closed on a peer that others recovered */
	shm_u32 unwatched; /* there are peers that could not be watched: try again soon */
	shm_u64 last_look_ns;
	uint64_t events_seen;

	pthread_mutex_t pool_lock; /* batch handles */
	struct sluice_batch *pool;
	struct sluice_channel *open; /* endpoints of this handle */
};

/* Where memory, bells and death notices come from. */
struct sluice_backend_ops {
	enum sluice_backend id;
	const char *name;
	/* 0 when it can be used here, else a negative errno with the sentence */
	int (*usable)(void);
	int (*create)(struct sluice_region *r, const struct sluice_region_req *req);
	int (*attach)(struct sluice_region *r, int fd, int data_fd, enum sluice_role role);
	void (*detach)(struct sluice_region *r);
	/* descriptors to send for a role: returns how many; *own must be closed after sending */
	int (*pass)(struct sluice_arena *a, enum sluice_role role, int fds[2], int *own);
	/* this process becomes a peer: fills a->watch_fd and backend_id of the slot */
	int (*join)(struct sluice_arena *a);
	void (*leave)(struct sluice_arena *a);
	/* bell of an endpoint that needs a descriptor: opens it, fills kind and name */
	int (*bell_open)(struct sluice_channel *ch);
	void (*bell_ring)(struct sluice_arena *a, struct shm_endpoint *to);
	void (*bell_drain)(struct sluice_channel *ch);
	/* watch_fd becomes readable for joins and recoveries too; NULL when it always does */
	int (*event_open)(struct sluice_arena *a);
	void (*event_ring)(struct sluice_arena *a, uint64_t bell);
	/* open what is needed to learn of the death of this peer; -ESRCH when it is dead already */
	int (*watch)(struct sluice_arena *a, unsigned int slot, uint64_t word);
	void (*unwatch)(struct sluice_arena *a, unsigned int slot);
	/* call dead() for each watched peer that died */
	void (*collect)(struct sluice_arena *a, void (*dead)(unsigned int slot, void *arg),
			void *arg);
	/* is this watched peer dead, asked without sleeping? */
	bool (*is_dead)(struct sluice_arena *a, unsigned int slot);
	/* signal and exit code of a dead peer; untouched where the kernel does not tell */
	void (*death_reason)(struct sluice_arena *a, uint32_t pid, int *sig, int *code);
};

extern const struct sluice_backend_ops sluice_backend_memfd;
extern const struct sluice_backend_ops sluice_backend_kmod;

/* How an endpoint sleeps. */
enum sleep_mode {
	SLEEP_UNSET,
	SLEEP_URING_FUTEX, /* IORING_OP_FUTEX_WAIT on the bell, and a poll of watch_fd */
	SLEEP_URING_POLL, /* polls of the bell's descriptor and of watch_fd */
	SLEEP_POLL, /* the same with poll(2) */
};

struct sleeper; /* sleep.c: the io_uring and what is armed in it */

struct sluice_channel {
	struct sluice_arena *a;
	struct sluice_channel *next_open;
	unsigned int index; /* of the channel */
	unsigned int number; /* of the endpoint */
	uint32_t flags;
	struct shm_channel *shm;
	struct shm_endpoint *ep;
	struct shm_stats *stats;

	/* Private copies of the ring's geometry. */
	shm_u64 *cells;
	uint32_t capacity;
	bool keep_open;
	char name[SLUICE_LABEL_LEN];

	struct sluice_batch *unread; /* taken from the ring when memory ran out */
	uint64_t publish_timeout_ns;
	uint64_t sequence;
	uint64_t spin_max_ns;
	uint64_t spin_ns; /* adapts */
	uint64_t nap_ns; /* the last sleep in front of a quiet batch; 0 when there was none */
	uint32_t turn; /* batches that it may still queue before those who wait for room */

	bool rung; /* while it was armed, and not yet made use of */
	shm_u64 *armed; /* the sleepers map that sluice_channel_arm() put us into */
	enum sleep_mode mode;
	struct sleeper *sleeper;
	int bell_fd; /* -1 while the bell is a futex */
	int poll_fd; /* epoll over bell_fd and watch_fd, for the caller's loop */
};

enum batch_state {
	BATCH_WRITING,
	BATCH_POSTED, /* queued, and still being written */
	BATCH_HELD,
};

struct sluice_batch {
	struct sluice_arena *a;
	struct sluice_channel *ch; /* while it is being written */
	struct sluice_batch *next; /* in the pool */
	enum batch_state state;
	bool taken; /* came by a channel or a token: this process did not make it */
	shm_u32 refs; /* local references */
	uint32_t lease; /* the lease that this process owns */
	uint32_t extent; /* the lease of the extent: the same, or the alias' parent */
	uint64_t word; /* of the lease as owned */
	uint8_t *base;
	uint64_t extent_bytes;
	uint64_t payload_room; /* while it is being written */
	uint32_t align;
	struct sluice_manifest manifest;
};

/* arena.c */
int arena_check(const struct sluice_arena *a);
int opts_copy(void *to, size_t size, const void *from, const char *name);
int info_copy(void *to, const void *from, size_t size, const char *name);

static inline bool arena_forked(const struct sluice_arena *a)
{
	return !*a->alive;
}

static inline bool slot_ok(unsigned int slot)
{
	return slot < SLUICE_MAX_PEERS;
}

/* peer.c */
int peer_join(struct sluice_arena *a);
void peer_leave(struct sluice_arena *a);
void peer_watch_all(struct sluice_arena *a); /* watch peers that joined since */
void peer_collect(struct sluice_arena *a); /* recover those that died */
void peer_look(struct sluice_arena *a, uint64_t now); /* the same, at most every 50 ms */
bool peer_gone(struct sluice_arena *a, unsigned int slot); /* dead, or no peer at all */
uint64_t peer_start_time(uint32_t pid);

/* recover.c */
void recover_peer(struct sluice_arena *a, unsigned int slot, uint64_t word);
void recover_leave(struct sluice_arena *a);

/* lock.c */
int lock_take(struct sluice_arena *a, uint64_t deadline);
void lock_take_from(struct sluice_arena *a, unsigned int dead_slot);
void lock_drop(struct sluice_arena *a);

/* extent.c */
struct extent_found {
	uint32_t lease;
	uint64_t word;
	uint64_t largest; /* blocks of the largest free run that is left; UINT64_MAX = not known */
};

static inline bool lease_is_alias(const struct sluice_arena *a, uint32_t lease)
{
	return lease >= a->hdr.nblocks;
}

int extent_alloc(struct sluice_arena *a, uint64_t nblocks, bool want_largest, uint64_t deadline,
		 struct extent_found *found);
int extent_release(struct sluice_arena *a, uint32_t lease, uint64_t word);
int extent_resolve(struct sluice_arena *a, uint32_t lease, uint32_t *extent, uint8_t **base,
		   uint64_t *bytes);
int alias_create(struct sluice_arena *a, uint32_t parent, uint64_t gen, enum lease_state st,
		 uint32_t *lease, uint64_t *word);
void alias_recount(struct sluice_arena *a); /* under the lock */
void alias_free_locked(struct sluice_arena *a, uint32_t lease, uint64_t word);
void parent_drop_locked(struct sluice_arena *a, uint32_t lease, uint64_t word);

/* ring.c */
int ring_push(struct sluice_channel *ch, uint32_t lease, uint64_t gen);
int ring_pop(struct sluice_channel *ch, uint32_t *lease, uint64_t *word);
void ring_resolved(struct sluice_channel *ch);
bool ring_readable(const struct sluice_channel *ch);
uint64_t ring_ahead(const struct sluice_channel *ch);
bool ring_writable(const struct sluice_channel *ch);
bool ring_names(struct sluice_arena *a, const struct shm_channel *c, uint32_t lease, uint64_t word);
uint32_t ring_queued(struct sluice_arena *a, const struct shm_channel *c);
bool channel_geometry(struct sluice_arena *a, const struct shm_channel *c, uint32_t *first,
		      uint32_t *capacity);

/* sleep.c */
bool map_has(shm_u64 *map, unsigned int n);
bool map_any(shm_u64 *map);
void map_set(shm_u64 *map, unsigned int n);
bool map_clear(shm_u64 *map, unsigned int n);
bool wake_one(struct sluice_arena *a, shm_u64 *map, uint64_t fits, struct shm_stats *st);
void wake_all(struct sluice_arena *a, shm_u64 *map);
void wake_everybody(struct sluice_arena *a);
void wake_ourselves(struct sluice_arena *a);
bool sleep_spin(struct sluice_channel *ch, bool (*ready)(struct sluice_channel *), uint64_t until);
void sleep_prepare(struct sluice_channel *ch, shm_u64 *map);
int sleep_wait(struct sluice_channel *ch, uint64_t deadline);
int sleep_descriptor(struct sluice_channel *ch);
void sleep_free(struct sluice_channel *ch);

/* endpoint.c */
void endpoint_retire(struct sluice_arena *a, unsigned int number, bool died);
void endpoint_free(struct sluice_channel *ch);
void channels_sweep(struct sluice_arena *a);
void channel_name_load(const struct shm_channel *c, char name[SLUICE_LABEL_LEN]);

/* transfer.c */
int publish_refused(const struct sluice_channel *ch);
int publish_room(const struct sluice_channel *ch);
int extent_wait(struct sluice_channel *ch, uint64_t nblocks, uint64_t timeout_ns,
		struct extent_found *found);
int lease_publish(struct sluice_channel *ch, uint32_t lease, uint64_t *from, enum lease_state to,
		  uint64_t timeout_ns);

/* stats.c */
int holders_fail(struct sluice_arena *a, int err, uint64_t nblocks, uint64_t largest);

/* batch.c */
struct sluice_batch *batch_get(struct sluice_arena *a);
void batch_put(struct sluice_batch *b);
int batch_hold(struct sluice_batch *b, uint32_t lease, uint64_t word);
void batch_expect(const struct sluice_arena *a, uint32_t lease);

static inline void stat_add(shm_u64 *p, uint64_t n)
{
	st_rlx(p, ld_rlx(p) + n); /* one writer, readers only look */
}

#endif
