// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "pysluice.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

unsigned int fork_gen;

/* Batches whose last view is gone, but which the GPU may still be reading. */
static _Atomic(struct anchor *) retired;

struct arena_ref *arena_ref_get(struct arena_ref *ar)
{
	atomic_fetch_add_explicit(&ar->refs, 1, memory_order_relaxed);
	return ar;
}

void arena_ref_put(struct arena_ref *ar)
{
	if (!ar || atomic_fetch_sub_explicit(&ar->refs, 1, memory_order_acq_rel) != 1)
		return;
	/* Inherited through fork: the mapping may have been taken over, the rest is the parent's. */
	if (ar->gen == fork_gen) {
		gpu_pin_destroy(ar->pin);
		sluice_arena_detach(ar->a);
	}
	free(ar);
}

struct anchor *anchor_new(enum anchor_kind kind, struct arena_ref *ar)
{
	struct anchor *an = calloc(1, sizeof(*an));

	if (!an)
		return NULL;
	atomic_init(&an->refs, 1);
	an->gen = fork_gen;
	an->kind = kind;
	if (ar)
		an->ar = arena_ref_get(ar);
	return an;
}

struct anchor *anchor_get(struct anchor *an)
{
	atomic_fetch_add_explicit(&an->refs, 1, memory_order_relaxed);
	return an;
}

void anchor_free(struct anchor *an)
{
	if (an->gen == fork_gen) {
		switch (an->kind) {
		case ANCHOR_BATCH:
			sluice_batch_release(an->batch);
			break;
		case ANCHOR_HEAP:
			free(an->mem);
			break;
		case ANCHOR_MAP:
			munmap(an->mem, an->len);
			break;
		case ANCHOR_ARENA:
			break;
		}
	}
	arena_ref_put(an->ar);
	free(an);
}

void anchor_put(struct anchor *an)
{
	if (!an || atomic_fetch_sub_explicit(&an->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (an->kind == ANCHOR_BATCH && an->ar->retire && an->gen == fork_gen) {
		an->next = atomic_load_explicit(&retired, memory_order_relaxed);
		while (!atomic_compare_exchange_weak_explicit(
			&retired, &an->next, an, memory_order_release, memory_order_relaxed))
			;
		return;
	}
	anchor_free(an);
}

struct anchor *anchor_retired_take(void)
{
	return atomic_exchange_explicit(&retired, NULL, memory_order_acquire);
}
