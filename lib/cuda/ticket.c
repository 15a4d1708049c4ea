/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#include <stdlib.h>

#include "priv.h"

struct cuda_ticket *cuda_ticket_get(struct cuda_tickets *p, struct sluice_batch *b)
{
	struct cuda_ticket **at, *t;

	for (at = &p->idle; (t = *at); at = &t->next) {
		if (atomic_load_explicit(&t->armed, memory_order_acquire))
			continue;
		*at = t->next;
		atomic_store_explicit(&t->batch, b, memory_order_relaxed);
		return t;
	}
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->done = p->done;
	atomic_store_explicit(&t->batch, b, memory_order_relaxed);
	return t;
}

struct sluice_batch *cuda_ticket_take(struct cuda_ticket *t)
{
	return atomic_exchange(&t->batch, NULL);
}

bool cuda_ticket_settle(struct cuda_ticket *t)
{
	struct sluice_batch *b = atomic_exchange(&t->batch, NULL);

	if (b)
		t->done(b);
	return b;
}

static void CUDA_CB ticket_run(void *arg)
{
	struct cuda_ticket *t = arg;

	cuda_ticket_settle(t);
	atomic_store_explicit(&t->armed, false, memory_order_release);
}

CUresult cuda_ticket_arm(struct sluice_cuda *c, struct cuda_ticket *t, CUevent ev, CUstream s)
{
	CUresult r = CUDA_SUCCESS;

	if (ev)
		r = c->cu->StreamWaitEvent(s, ev, CU_EVENT_WAIT_DEFAULT);
	if (r != CUDA_SUCCESS)
		return r;
	atomic_store_explicit(&t->armed, true, memory_order_relaxed);
	r = c->cu->LaunchHostFunc(s, ticket_run, t);
	if (r != CUDA_SUCCESS)
		atomic_store_explicit(&t->armed, false, memory_order_relaxed);
	return r;
}

void cuda_ticket_put(struct cuda_tickets *p, struct cuda_ticket *t)
{
	t->next = p->idle;
	p->idle = t;
}

void cuda_tickets_free(struct cuda_tickets *p, bool quiet)
{
	struct cuda_ticket *t;

	while ((t = p->idle)) {
		p->idle = t->next;
		if (quiet || !atomic_load_explicit(&t->armed, memory_order_acquire))
			free(t);
	}
}
