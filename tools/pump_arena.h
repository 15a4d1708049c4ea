/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The carrier of pump_arena.c, for those that differ in the consumer only. */
#ifndef SLUICE_TOOLS_PUMP_ARENA_H
#define SLUICE_TOOLS_PUMP_ARENA_H

#include "pump.h"

#define INDEX_NAME "files"

struct cuda_sums;

struct arena_carrier {
	struct sluice_arena *arena;
	struct sluice_channel *channel;
	struct sluice_batch *batch; /* being filled */
	uint64_t batch_bytes;
	struct cuda_sums *sums; /* of cuda_pump.c */
};

int arena_open(struct carrier *c, const struct pump_opts *o);
int arena_join(struct carrier *c, unsigned int producer);
int arena_begin(struct carrier *c);
void *arena_part(struct carrier *c, uint64_t bytes);
int arena_send(struct carrier *c, const void *index, uint64_t bytes);
void arena_close(struct carrier *c);

#endif
