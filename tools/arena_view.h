/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What an arena looks like from outside.  The control region is copied before it is looked at, and
 * nobody joins: looking changes nothing, and a peer that damages the region damages only what is
 * shown.
 */
#ifndef SLUICE_TOOLS_ARENA_VIEW_H
#define SLUICE_TOOLS_ARENA_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "../lib/shm.h"

/* Extents of one state, or of one peer. */
struct extents {
	uint64_t n;
	uint64_t bytes;
	uint64_t oldest_ns; /* how long the oldest has been so */
};

struct view_peer {
	unsigned int slot;
	uint32_t id;
	uint32_t pid;
	enum shm_peer_state state;
	bool consumer; /* data region read-only */
	uint64_t joined_ns;
	char comm[17];
	struct extents writing, held, queued;
};

struct view_channel {
	char name[SLUICE_LABEL_LEN + 1];
	uint32_t capacity;
	uint32_t queued;
	unsigned int producers;
	unsigned int consumers;
	bool closing;
	uint64_t count
		[SHM_NSTATS]; /* in the order of struct shm_stats, endpoints that are gone included */
};

struct view_extent {
	uint64_t offset;
	uint64_t bytes;
	enum lease_state state;
	unsigned int owner; /* peer slot or SHM_NONE */
	unsigned int channel;
	uint64_t age_ns;
	bool shared;
};

struct view {
	bool inside; /* false: only the header is filled, with what is known from elsewhere */
	struct shm_header hdr;
	uint64_t now_ns;
	struct extents free, writing, ready, held, parked;
	uint64_t largest_free;
	uint64_t aliases;
	bool damaged; /* the partition of the block table does not add up: what follows is left out */
	struct view_peer *peer;
	unsigned int peers;
	struct view_channel *channel;
	unsigned int channels;
	struct view_extent *extent; /* all that are not free */
	uint64_t extents;
};

/*
 * Takes a copy through a descriptor.  Return: 0, -EAGAIN for an arena that is still being created,
 * or another negative errno, with a sentence in why.
 */
int view_take(struct view *v, int fd, char *why, unsigned int why_len);
/* The same of a mapping. */
int view_take_mapped(struct view *v, const void *control, uint64_t bytes, char *why,
		     unsigned int why_len);
void view_free(struct view *v);
const struct view_peer *view_peer_at(const struct view *v, unsigned int slot);

#endif
