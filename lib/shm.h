/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The control region as it stands in shared memory: the ABI between the processes of an arena.
 * PROTOCOL.md argues it.  Every field that changes after creation is atomic; nothing in here may be
 * used as an index, a length or a count before it was copied and checked.
 */
#ifndef SLUICE_SHM_H
#define SLUICE_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <sluice.h>

#define SHM_MAGIC     0x6165726165637573ULL
#define SHM_ABI_MAJOR 1
#define SHM_ABI_MINOR 1 /* 1: .quiet and .loops of a channel */

#define SHM_NALIAS    1024
#define SHM_NCELLS    32768
#define SHM_NEVENTS   64
#define SHM_MAP_WORDS (SLUICE_MAX_ENDPOINTS / 64)
#define SHM_LINE      64
#define SHM_NONE      0xfffu /* no peer slot */

typedef _Atomic uint64_t shm_u64;
typedef _Atomic uint32_t shm_u32;

/* Written once at creation; copied to private memory and checked at attach. */
struct shm_header {
	uint64_t magic;
	uint32_t abi_major;
	uint32_t abi_minor;
	uint64_t arena_id;
	uint64_t control_bytes;
	uint64_t data_bytes;
	uint64_t nblocks;
	uint32_t block_shift;
	uint32_t backend;
	uint32_t flags;
	int32_t numa_node;
	uint64_t huge_bytes;
	uint64_t huge_page_bytes;
	uint64_t create_ns;
	uint64_t pid_ns; /* inode of the creator's pid namespace */
	uint64_t data_dev; /* identity of the data memfd */
	uint64_t data_ino;
	int32_t data_fd; /* its number in the creator, a hint for those who inherit */
	uint32_t creator_pid;
	char label[SLUICE_LABEL_LEN];
};

/* The arena's own words, each group on a cache line of its own. */
struct shm_root {
	_Alignas(SHM_LINE) shm_u32 lock; /* allocator lock, see lock.c */
	_Alignas(SHM_LINE) shm_u32 rover; /* under the lock: where the next search starts */
	shm_u32 alias_rover; /* likewise, among the aliases */
	_Alignas(SHM_LINE) shm_u64 next_peer_id;
	shm_u32 joins; /* grows when a peer joins: others open a watch on it */
	_Alignas(SHM_LINE) shm_u64 space_sleepers[SHM_MAP_WORDS];
	_Alignas(SHM_LINE) shm_u64 ticket;
	_Alignas(SHM_LINE) shm_u64 events; /* under the lock: number written so far */
};

/* state:4 | by:8 | pid:22 | id:30 */
struct shm_peer {
	_Alignas(128) shm_u64 word;
	shm_u64 start_time; /* clock ticks, /proc/PID/stat */
	shm_u64 joined_ns;
	shm_u64 extents; /* what its recovery took back so far */
	shm_u64 bytes;
	shm_u64 lost;
	shm_u64 event_bell; /* name of the bell that its event descriptor polls; 0 = none */
	shm_u32 role;
	shm_u32 backend_id; /* memfd: number of the data descriptor there; kmod: the kernel's id */
	shm_u64 comm[2];
};

enum shm_peer_state {
	PEER_FREE,
	PEER_JOINING,
	PEER_ALIVE,
	PEER_RECOVERING, /* by peer slot .by; also a peer that is leaving, by itself */
};

static inline uint64_t peer_word(enum shm_peer_state st, unsigned int by, uint32_t pid, uint32_t id)
{
	return (uint64_t)st | (uint64_t)(by & 0xff) << 4 | (uint64_t)(pid & 0x3fffff) << 12 |
	       (uint64_t)(id & 0x3fffffff) << 34;
}

static inline enum shm_peer_state peer_state(uint64_t w)
{
	return w & 0xf;
}

static inline unsigned int peer_by(uint64_t w)
{
	return w >> 4 & 0xff;
}

static inline uint32_t peer_pid(uint64_t w)
{
	return w >> 12 & 0x3fffff;
}

static inline uint32_t peer_id(uint64_t w)
{
	return w >> 34;
}

/* Two words of the same peer differ at most in state and recoverer. */
static inline bool peer_same(uint64_t a, uint64_t b)
{
	return a >> 12 == b >> 12;
}

/* Counters of one endpoint; its owner is the only writer. */
struct shm_stats {
	shm_u64 published;
	shm_u64 published_bytes;
	shm_u64 consumed;
	shm_u64 consumed_bytes;
	shm_u64 space_waits;
	shm_u64 space_wait_ns;
	shm_u64 batch_waits;
	shm_u64 batch_wait_ns;
	shm_u64 spins;
	shm_u64 sleeps;
	shm_u64 doorbells;
	shm_u64 doorbells_suppressed;
};

#define SHM_NSTATS (sizeof(struct shm_stats) / sizeof(uint64_t))

enum shm_bell_kind {
	BELL_FUTEX, /* FUTEX_WAKE on .bell */
	BELL_SOCKET, /* a byte to the abstract AF_UNIX datagram socket .bell_name */
	BELL_KMOD, /* a record to the kernel's bell .bell_name */
};

/* When a producer that sleeps for room in the channel wants to be rung. */
enum shm_room {
	ROOM_AT_ONCE,
	ROOM_AT_HALF, /* once the queue is at most half full */
};

struct shm_endpoint {
	_Alignas(SHM_LINE) shm_u64 word; /* state:4 | flags:4 | peer:12 | channel:8 */
	shm_u64 ticket; /* order of going to sleep */
	shm_u32 need; /* blocks that it waits for in space_sleepers, else enum shm_room */
	shm_u32 bell_kind;
	shm_u64 bell_name; /* 5 hex digits of the socket, or the kernel's bell id */
	_Alignas(SHM_LINE) shm_u32 bell; /* 1 = rung */
	_Alignas(SHM_LINE) struct shm_stats stats;
};

enum shm_endpoint_state {
	ENDPOINT_FREE,
	ENDPOINT_OPEN,
};

static inline uint64_t endpoint_word(enum shm_endpoint_state st, unsigned int flags,
				     unsigned int slot, unsigned int channel)
{
	return (uint64_t)st | (uint64_t)(flags & 0xf) << 4 | (uint64_t)(slot & 0xfff) << 8 |
	       (uint64_t)(channel & 0xff) << 20;
}

static inline enum shm_endpoint_state endpoint_state(uint64_t w)
{
	return w & 0xf;
}

static inline unsigned int endpoint_slot(uint64_t w)
{
	return w >> 8 & 0xfff;
}

static inline unsigned int endpoint_channel(uint64_t w)
{
	return w >> 20 & 0xff;
}

struct shm_channel {
	/* Written under the allocator lock while .open is 0. */
	_Alignas(SHM_LINE) shm_u32 open;
	shm_u32 capacity;
	shm_u32 first_cell;
	shm_u32 keep_open;
	shm_u64 name[SLUICE_LABEL_LEN / 8];
	_Alignas(SHM_LINE) shm_u64 tail; /* hint: position of the next push */
	_Alignas(SHM_LINE) shm_u64 head; /* hint: position of the next pop */
	_Alignas(SHM_LINE) shm_u64 consumer_sleepers[SHM_MAP_WORDS];
	shm_u64 producer_sleepers[SHM_MAP_WORDS];
	/* Read often, changed when endpoints come and go. */
	_Alignas(SHM_LINE) shm_u64 consumers[SHM_MAP_WORDS];
	shm_u64 producers[SHM_MAP_WORDS];
	_Alignas(SHM_LINE) shm_u32 closing; /* no push from now on */
	shm_u32 producer_joins; /* under the lock: endpoints that were ever opened */
	shm_u32 consumer_joins;
	shm_u32 last_producer_died;
	shm_u32 loops; /* a consumer has slept in a loop of its own: it must be rung */
	shm_u64 quiet; /* nobody may ring for what is queued before this position */
	_Alignas(SHM_LINE) struct shm_stats retired; /* of endpoints that are gone */
};

/* One for each block of the data region, then SHM_NALIAS aliases. */
struct shm_lease {
	shm_u64 word; /* the truth, see below */
	shm_u64 since_ns; /* when it last changed hands, CLOCK_MONOTONIC_COARSE */
	shm_u32 nblocks; /* of a run's head, under the lock; 0 for an alias */
	shm_u32 naliases; /* of a parent, under the lock */
	shm_u32 manifest; /* where the manifest stands in the extent, in units of 64 bytes */
	shm_u32 parent; /* of an alias */
};

/* state:3 | shared:1 | owner:12 | channel:8 | gen:40 */
enum lease_state {
	LEASE_FREE,
	LEASE_WRITING,
	LEASE_READY,
	LEASE_HELD,
	LEASE_PARKED,
	LEASE_PENDING, /* queued, not yet written: a device makes it READY */
};

#define LEASE_SHARED   (1ULL << 3)
#define LEASE_GEN_MASK ((1ULL << 40) - 1)

static inline enum lease_state lease_state(uint64_t w)
{
	return w & 7;
}

static inline unsigned int lease_owner(uint64_t w)
{
	return w >> 4 & 0xfff;
}

static inline unsigned int lease_channel(uint64_t w)
{
	return w >> 16 & 0xff;
}

static inline uint64_t lease_gen(uint64_t w)
{
	return w >> 24;
}

/* The same lease, generation and shared bit in another state. */
static inline uint64_t lease_to(uint64_t w, enum lease_state st, unsigned int owner,
				unsigned int channel)
{
	return (w & (LEASE_SHARED | LEASE_GEN_MASK << 24)) | (uint64_t)st |
	       (uint64_t)(owner & 0xfff) << 4 | (uint64_t)(channel & 0xff) << 16;
}

/* Free, in the next generation. */
static inline uint64_t lease_freed(uint64_t w)
{
	return (lease_gen(w) + 1) << 24 | LEASE_FREE;
}

/* kind:2 | lap:22 | gen:12 | lease index:28 */
enum cell_kind {
	CELL_EMPTY, /* zero: a new ring is all EMPTY(lap 0) */
	CELL_FULL,
	CELL_CLOSED,
};

#define CELL_LAP_MASK 0x3fffffu
#define CELL_GEN_MASK 0xfffu

static inline uint64_t cell_word(enum cell_kind kind, uint64_t lap, uint64_t gen, uint32_t index)
{
	return (uint64_t)kind | (lap & CELL_LAP_MASK) << 2 | (gen & CELL_GEN_MASK) << 24 |
	       (uint64_t)index << 36;
}

static inline enum cell_kind cell_kind(uint64_t c)
{
	return c & 3;
}

static inline uint32_t cell_lap(uint64_t c)
{
	return c >> 2 & CELL_LAP_MASK;
}

static inline uint32_t cell_gen(uint64_t c)
{
	return c >> 24 & CELL_GEN_MASK;
}

static inline uint32_t cell_index(uint64_t c)
{
	return c >> 36;
}

/* Written under the allocator lock; entry (number % SHM_NEVENTS). */
struct shm_event {
	_Alignas(SHM_LINE) shm_u64 peer_word;
	shm_u64 extents;
	shm_u64 bytes;
	shm_u64 lost;
	shm_u32 signal;
	shm_u32 exit_code;
	shm_u64 time_ns;
	shm_u64 number; /* written last */
};

/* Offsets in the control region: all fixed but the end of the lease table. */
#define SHM_ROOT_OFF	  4096
#define SHM_PEERS_OFF	  8192
#define SHM_ENDPOINTS_OFF (SHM_PEERS_OFF + SLUICE_MAX_PEERS * sizeof(struct shm_peer))
#define SHM_CHANNELS_OFF  (SHM_ENDPOINTS_OFF + SLUICE_MAX_ENDPOINTS * sizeof(struct shm_endpoint))
#define SHM_EVENTS_OFF	  (SHM_CHANNELS_OFF + SLUICE_MAX_CHANNELS * sizeof(struct shm_channel))
#define SHM_CELLS_OFF	  (SHM_EVENTS_OFF + SHM_NEVENTS * sizeof(struct shm_event))
#define SHM_LEASES_OFF	  (SHM_CELLS_OFF + SHM_NCELLS * sizeof(uint64_t))

_Static_assert(sizeof(struct shm_header) <= SHM_ROOT_OFF, "header fits its page");
_Static_assert(SHM_ROOT_OFF + sizeof(struct shm_root) <= SHM_PEERS_OFF, "root fits its page");
_Static_assert(sizeof(struct shm_lease) == 32, "0.1 % of a 32 KiB block");
_Static_assert(SHM_LEASES_OFF + SHM_NALIAS * sizeof(struct shm_lease) < 1 << 20, "fixed part");

#endif
