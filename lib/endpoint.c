// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Channels and their endpoints: create, open, close, shut down.  All under the allocator lock. */
#include <stdio.h>
#include <unistd.h>

#include "internal.h"

#define DEFAULT_CAPACITY 64

void channel_name_load(const struct shm_channel *c, char name[SLUICE_LABEL_LEN])
{
	for (unsigned int i = 0; i < SLUICE_LABEL_LEN / 8; i++) {
		uint64_t part = ld_rlx(&c->name[i]);

		memcpy(name + 8 * i, &part, 8);
	}
	name[SLUICE_LABEL_LEN - 1] = '\0';
}

static int channel_find(struct sluice_arena *a, const char *name)
{
	char have[SLUICE_LABEL_LEN];

	for (unsigned int i = 0; i < SLUICE_MAX_CHANNELS; i++) {
		if (!ld_acq(&a->channels[i].open))
			continue;
		channel_name_load(&a->channels[i], have);
		if (!strcmp(have, name))
			return (int)i;
	}
	return -ENOENT;
}

/* The first gap of @capacity cells among the rings of open channels. */
static int cells_find(struct sluice_arena *a, uint32_t capacity, uint32_t *first)
{
	uint32_t start = 0, at, n;

	for (unsigned int i = 0; i < SLUICE_MAX_CHANNELS; i++) {
		struct shm_channel *c = &a->channels[i];

		if (!ld_rlx(&c->open) || !channel_geometry(a, c, &at, &n))
			continue;
		if (at < start + capacity && start < at + n) {
			start = at + n;
			if (start + capacity > SHM_NCELLS)
				return -ENOSPC;
			i = (unsigned int)-1; /* look at all of them again: start only grows */
		}
	}
	*first = start;
	return 0;
}

static void channel_destroy(struct sluice_arena *a, unsigned int index)
{
	struct shm_channel *c = &a->channels[index];

	for (uint64_t i = 0; i < a->nleases; i++) {
		uint64_t w = ld_acq(&a->leases[i].word);

		if (lease_state(w) != LEASE_READY || lease_channel(w) != index)
			continue;
		if (lease_is_alias(a, (uint32_t)i))
			alias_free_locked(a, (uint32_t)i, w);
		else
			parent_drop_locked(a, (uint32_t)i, w);
		CRASH_POINT("destroy_between_leases");
	}
	st_rel(&c->open, 0); /* pairs with channel_find() */
}

/* Channels that nobody is a member of any more.  Under the lock, so none is just being opened. */
void channels_sweep(struct sluice_arena *a)
{
	for (unsigned int i = 0; i < SLUICE_MAX_CHANNELS; i++) {
		struct shm_channel *c = &a->channels[i];

		if (ld_rlx(&c->open) && !map_any(c->consumers) && !map_any(c->producers))
			channel_destroy(a, i);
	}
}

/* Take an endpoint out of everything that names it.  Can be done again after a crash. */
void endpoint_retire(struct sluice_arena *a, unsigned int number, bool died)
{
	struct shm_endpoint *ep = &a->endpoints[number];
	unsigned int index = endpoint_channel(ld_rlx(&ep->word));
	shm_u64 *from = (shm_u64 *)&ep->stats, *to;
	struct shm_channel *c;

	map_clear(a->root->space_sleepers, number);
	if (index < SLUICE_MAX_CHANNELS) {
		c = &a->channels[index];
		map_clear(c->consumer_sleepers, number);
		map_clear(c->producer_sleepers, number);
		to = (shm_u64 *)&c->retired;
		for (unsigned int i = 0; i < SHM_NSTATS; i++)
			stat_add(&to[i], ld_rlx(&from[i]));
		if (ld_rlx(&c->producers[number / 64]) >> number % 64 & 1)
			st_rlx(&c->last_producer_died, died);
		CRASH_POINT("retire_before_members");
		/* Who sees the map empty sees last_producer_died, and what was published. */
		map_clear(c->producers, number);
		map_clear(c->consumers, number);
	}
	CRASH_POINT("retire_before_free");
	st_rel(&ep->word, 0); /* pairs with the claim in endpoint_claim() */
}

/* In the map first: whoever is counted and not in the map is taken to have left (side_gone()). */
static void member_join(struct sluice_channel *ch, shm_u64 *members, shm_u32 *joins)
{
	map_set(members, ch->number);
	CRASH_POINT("open_before_count");
	st_rel(joins, ld_rlx(joins) + 1);
}

static int endpoint_claim(struct sluice_channel *ch)
{
	struct sluice_arena *a = ch->a;
	struct shm_channel *c = ch->shm;
	shm_u64 *stats;
	unsigned int i;

	for (i = 0; i < SLUICE_MAX_ENDPOINTS; i++)
		if (endpoint_state(ld_acq(&a->endpoints[i].word)) == ENDPOINT_FREE)
			break;
	if (i == SLUICE_MAX_ENDPOINTS)
		return sluice_fail(ENOSPC, "channel %s: all %u endpoints of the arena are open",
				   ch->name, SLUICE_MAX_ENDPOINTS);
	ch->number = i;
	ch->ep = &a->endpoints[i];
	ch->stats = &ch->ep->stats;
	stats = (shm_u64 *)ch->stats;
	for (unsigned int k = 0; k < SHM_NSTATS; k++)
		st_rlx(&stats[k], 0);
	st_rlx(&ch->ep->bell_kind, BELL_FUTEX);
	st_rlx(&ch->ep->need, 0);
	st_rel(&ch->ep->word, endpoint_word(ENDPOINT_OPEN, ch->flags, a->slot, ch->index));
	CRASH_POINT("open_claimed");
	if (ch->flags & SLUICE_CHANNEL_PRODUCE)
		member_join(ch, c->producers, &c->producer_joins);
	if (ch->flags & SLUICE_CHANNEL_CONSUME)
		member_join(ch, c->consumers, &c->consumer_joins);
	return 0;
}

static int channel_init(struct sluice_channel *ch, uint32_t capacity)
{
	struct sluice_arena *a = ch->a;
	uint32_t first;
	unsigned int i;

	if (channel_find(a, ch->name) >= 0)
		return sluice_fail(EEXIST, "channel %s: it exists already in this arena", ch->name);
	for (i = 0; i < SLUICE_MAX_CHANNELS; i++)
		if (!ld_rlx(&a->channels[i].open))
			break;
	if (i == SLUICE_MAX_CHANNELS)
		return sluice_fail(ENOSPC, "channel %s: the arena has its %u channels already",
				   ch->name, SLUICE_MAX_CHANNELS);
	if (cells_find(a, capacity, &first))
		return sluice_fail(ENOSPC,
				   "channel %s: no room for a capacity of %u, all channels of an "
				   "arena share %u",
				   ch->name, capacity, SHM_NCELLS);
	memset(&a->channels[i], 0, sizeof(a->channels[i]));
	ch->index = i;
	ch->shm = &a->channels[i];
	for (uint32_t k = 0; k < capacity; k++)
		st_rlx(&a->cells[first + k], cell_word(CELL_EMPTY, 0, 0, 0));
	for (unsigned int k = 0; k < SLUICE_LABEL_LEN / 8; k++) {
		uint64_t part;

		memcpy(&part, ch->name + 8 * k, 8);
		st_rlx(&ch->shm->name[k], part);
	}
	st_rlx(&ch->shm->first_cell, first);
	st_rlx(&ch->shm->capacity, capacity);
	st_rlx(&ch->shm->keep_open, ch->keep_open);
	return 0;
}

static int endpoint_new(struct sluice_channel **out, struct sluice_arena *a, const char *name,
			const struct sluice_channel_opts *opts, bool create)
{
	struct sluice_channel_opts o = {0};
	uint32_t first, roles = SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_CONSUME;
	struct sluice_channel *ch;
	int err = arena_check(a);

	if (err)
		return err;
	err = opts_copy(&o, sizeof(o), opts, "sluice_channel_opts");
	if (err)
		return err;
	if (!name || !*name || strlen(name) >= SLUICE_LABEL_LEN)
		return sluice_fail(EINVAL, "channel name \"%s\": must have 1 to %u bytes",
				   name ? name : "", SLUICE_LABEL_LEN - 1);
	if (o.flags & ~0x1fu)
		return sluice_fail(EINVAL, "channel %s: flags 0x%x are not known", name, o.flags);
	if (o.capacity > SLUICE_MAX_CAPACITY)
		return sluice_fail(EINVAL, "channel %s: capacity %u is above the limit of %u", name,
				   o.capacity, SLUICE_MAX_CAPACITY);
	if (!(o.flags & roles))
		o.flags |= a->role == SLUICE_ROLE_CONSUMER ? SLUICE_CHANNEL_CONSUME : roles;
	if (o.flags & SLUICE_CHANNEL_PRODUCE && a->role == SLUICE_ROLE_CONSUMER)
		return sluice_fail(EPERM, "channel %s: this process may only consume", name);
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		return sluice_fail(ENOMEM, "channel %s: no memory for an endpoint", name);
	ch->a = a;
	ch->flags = o.flags;
	ch->keep_open = o.flags & SLUICE_CHANNEL_KEEP_OPEN;
	ch->spin_max_ns = ch->spin_ns = o.spin_ns;
	ch->publish_timeout_ns = o.publish_timeout_ns ? o.publish_timeout_ns : SLUICE_FOREVER;
	ch->bell_fd = ch->poll_fd = -1;
	snprintf(ch->name, sizeof(ch->name), "%s", name);

	err = lock_take(a, SLUICE_FOREVER);
	if (!err) {
		int found = create ? channel_init(ch, o.capacity ? o.capacity : DEFAULT_CAPACITY)
				   : channel_find(a, name);

		err = found < 0 ? found : 0;
		if (found == -ENOENT && !create)
			sluice_fail(ENOENT, "channel %s: there is none of this name", name);
		if (!create && !err) {
			ch->index = (unsigned int)found;
			ch->shm = &a->channels[found];
			ch->keep_open = ld_rlx(&ch->shm->keep_open);
		}
		if (!err && !channel_geometry(a, ch->shm, &first, &ch->capacity))
			err = sluice_fail(EUCLEAN, "channel %s: its ring is damaged", name);
		if (!err) {
			ch->cells = a->cells + first;
			err = endpoint_claim(ch);
		}
		CRASH_POINT("open_before_open");
		if (!err)
			st_rel(&ch->shm->open, 1); /* pairs with channel_find() */
		lock_drop(a);
	}
	if (err) {
		free(ch);
		return err;
	}
	pthread_mutex_lock(&a->pool_lock);
	ch->next_open = a->open;
	a->open = ch;
	pthread_mutex_unlock(&a->pool_lock);
	*out = ch;
	return 0;
}

int sluice_channel_create(struct sluice_channel **out, struct sluice_arena *a, const char *name,
			  const struct sluice_channel_opts *opts)
{
	return endpoint_new(out, a, name, opts, true);
}

int sluice_channel_open(struct sluice_channel **out, struct sluice_arena *a, const char *name,
			const struct sluice_channel_opts *opts)
{
	return endpoint_new(out, a, name, opts, false);
}

/* What is private to this process; also for endpoints inherited through fork(). */
void endpoint_free(struct sluice_channel *ch)
{
	struct sluice_channel **p;

	if (ch->unread)
		batch_put(ch->unread);
	pthread_mutex_lock(&ch->a->pool_lock);
	for (p = &ch->a->open; *p; p = &(*p)->next_open)
		if (*p == ch) {
			*p = ch->next_open;
			break;
		}
	pthread_mutex_unlock(&ch->a->pool_lock);
	sleep_free(ch);
	free(ch);
}

void sluice_channel_close(struct sluice_channel *ch)
{
	struct sluice_arena *a;

	if (!ch)
		return;
	a = ch->a;
	if (arena_forked(a))
		return; /* sluice_arena_reattach() frees it */
	sluice_batch_release(ch->unread);
	ch->unread = NULL;
	lock_take(a, SLUICE_FOREVER);
	endpoint_retire(a, ch->number, false);
	channels_sweep(a);
	lock_drop(a);
	CRASH_POINT("close_before_wake");
	/* The end of the stream, and the rings that this endpoint may have taken with it. */
	wake_all(a, ch->shm->consumer_sleepers);
	wake_all(a, ch->shm->producer_sleepers);
	wake_all(a, a->root->space_sleepers);
	endpoint_free(ch);
}

int sluice_channel_shutdown(struct sluice_channel *ch)
{
	int err = arena_check(ch->a);

	if (err)
		return err;
	/* seq_cst: pairs with the loads in ring_push() and ring_pop(). */
	atomic_store_explicit(&ch->shm->closing, 1, memory_order_seq_cst);
	CRASH_POINT("shutdown_before_wake");
	wake_all(ch->a, ch->shm->consumer_sleepers);
	wake_all(ch->a, ch->shm->producer_sleepers);
	wake_all(ch->a, ch->a->root->space_sleepers);
	return 0;
}
