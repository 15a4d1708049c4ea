/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of the driver share.
 *
 * Lifetime: an arena is held by its handles (the descriptors of ARENA_CREATE and ARENA_RESTRICT),
 * by its peers and by the files behind its mappings. A peer is held by its bells and by what
 * watches its process. Nothing points back, so nothing can keep itself alive.
 *
 * Locking: arena->attach_lock serialises what allocates ids and may sleep. arena->lock guards the
 * peers, the bells with their queues and the log of deaths; it nests outside the waitqueues of the
 * bells and is never taken with interrupts off. sluice_arena_lock() takes it, so that nobody who
 * holds it sees a peer alive that has exited. One lock is enough: a bell is rung only when the
 * other side sleeps, all else goes through shared memory.
 */
#ifndef _SLUICE_H
#define _SLUICE_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/llist.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "uapi/sluice.h"

#define SLUICE_DEATHS	 256 /* power of two */
#define SLUICE_QUEUE	 64 /* records of a bell, power of two */
#define SLUICE_MAX_PEERS 4096
#define SLUICE_MAX_BELLS 1024 /* of one peer */

struct sluice_user;

struct sluice_region {
	struct file *shmem;
	u64 bytes;
	u64 huge_bytes;
	pgoff_t pinned; /* pages before this one carry our reference */
};

enum {
	SLUICE_CONTROL,
	SLUICE_DATA,
	SLUICE_REGIONS
};

struct sluice_death {
	struct pid *pid;
	u32 peer;
	u64 arg;
};

struct sluice_arena {
	struct kref ref;
	u64 id;
	int node;
	char label[SLUICE_IOC_LABEL_SIZE];
	u64 data_offset;
	struct sluice_region region[SLUICE_REGIONS];
	struct sluice_user *user;
	u64 charged;
	bool announced; /* the trace has seen it */

	struct mutex attach_lock; /* ids of bells */
	u32 last_peer;
	u32 last_bell;

	struct llist_head gone; /* peers that exited and are not in the log yet */
	spinlock_t lock; /* all below, and the peers and bells themselves */
	struct list_head peers;
	u32 nr_peers;
	struct xarray bells;
	u64 nr_deaths;
	struct sluice_death deaths[SLUICE_DEATHS];
};

struct sluice_peer {
	struct kref ref;
	struct sluice_arena *arena;
	u32 id;
	u32 role;
	u32 first_bell;
	u32 nr_bells;
	bool dead;
	struct list_head entry;

	struct pid *pid;
	struct mm_struct *mm;
	unsigned long watched;
	struct wait_queue_entry exit_wait;
	struct llist_node gone;
	struct work_struct exit_work;
	struct mmu_notifier mm_notifier;
	int status;
};

struct sluice_bell {
	struct sluice_peer *peer;
	u32 id;
	bool overflow;
	u32 head;
	u32 tail;
	u64 seen; /* deaths */
	wait_queue_head_t wait;
	struct sluice_bell_record queue[SLUICE_QUEUE];
};

static inline u64 sluice_arena_bytes(const struct sluice_arena *arena)
{
	return arena->region[SLUICE_CONTROL].bytes + arena->region[SLUICE_DATA].bytes;
}

static inline u64 sluice_arena_huge_bytes(const struct sluice_arena *arena)
{
	return arena->region[SLUICE_DATA].huge_bytes;
}

/* main.c */
int sluice_copy_in(void *to, size_t known, size_t least, const void __user *from);
int sluice_copy_out(void __user *to, const void *from, size_t known);
int sluice_install_fd(struct file *file, void __user *to, const void *from, size_t size);

/* arena.c */
int sluice_arena_create(const struct sluice_ioc_arena_create *args);
int sluice_arena_info(struct sluice_arena *arena, u32 role, void __user *arg);
void sluice_arena_show(struct seq_file *m, struct sluice_arena *arena, u32 role);
void sluice_arena_put(struct sluice_arena *arena);

/* region.c */
int sluice_region_create(struct sluice_region *region, const char *label, u64 bytes, int node,
			 u32 flags);
void sluice_region_destroy(struct sluice_region *region);
void sluice_region_exit(void);

/* peer.c */
long sluice_peer_attach(struct sluice_arena *arena, u32 rights, void __user *arg);
long sluice_peer_list(struct sluice_arena *arena, void __user *arg);
void sluice_arena_lock(struct sluice_arena *arena) __acquires(&arena->lock);
void sluice_arena_unlock(struct sluice_arena *arena) __releases(&arena->lock);
void sluice_peer_put(struct sluice_peer *peer);
void sluice_peer_leave(struct sluice_peer *peer);
int sluice_peer_init(void);
void sluice_peer_exit(void);

/* bell.c */
struct file *sluice_bell_create(struct sluice_peer *peer, u32 *id);
void sluice_bells_wake(struct sluice_arena *arena);

/* limits.c */
int sluice_limits_charge(struct sluice_arena *arena, u64 bytes);
void sluice_limits_uncharge(struct sluice_arena *arena);

#endif
