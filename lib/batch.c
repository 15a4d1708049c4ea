// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Batches: begin, fill, publish; look, retain, release; share and forward. */
#include "copy.h"
#include "internal.h"
#include "usdt.h"

USDT_DEFINE(batch_publish);
USDT_DEFINE(batch_release);
USDT_DECLARE(batch_next);

#define DEFAULT_TENSORS 16
#define DEFAULT_ALIGN	256
#define MANIFEST_UNIT	64 /* of shm_lease.manifest */
#define MAX_PAYLOAD	(255ULL << 30) /* shm_lease.manifest must reach behind it */
#define POISON		0xdb

#define round_up(x, to) (((x) + (to)-1) & ~((uint64_t)(to)-1))

/* ------------------------------------------------------------------ handles */

struct sluice_batch *batch_get(struct sluice_arena *a)
{
	struct sluice_batch *b;

	pthread_mutex_lock(&a->pool_lock);
	b = a->pool;
	if (b)
		a->pool = b->next;
	pthread_mutex_unlock(&a->pool_lock);
	if (!b)
		b = calloc(1, sizeof(*b));
	if (!b)
		return sluice_fail_null(ENOMEM, "no memory for a batch handle");
	b->a = a;
	b->ch = NULL;
	st_rlx(&b->refs, 1);
	return b;
}

void batch_put(struct sluice_batch *b)
{
	struct sluice_arena *a = b->a;

	pthread_mutex_lock(&a->pool_lock);
	b->next = a->pool;
	a->pool = b;
	pthread_mutex_unlock(&a->pool_lock);
}

/*
 * Make sure that nobody opens (by its token) what is going to be overwritten: WRITING extents cannot be.
 * False when somebody has a reference already.
 */
static bool poison_begin(struct sluice_batch *b)
{
	struct sluice_arena *a = b->a;
	uint64_t writing = lease_to(b->word, LEASE_WRITING, a->slot, 0);

	if (b->lease != b->extent || b->word & LEASE_SHARED ||
	    !cas_sc(&a->leases[b->lease].word, b->word, writing))
		return false;
	b->word = writing;
	return true;
}

/* For tracers: the end of what batch_next began, so that what a process holds is the difference. */
static void count_released(const struct sluice_batch *b)
{
	USDT4(batch_release, b->manifest.payload_bytes, b->a->hdr.arena_id, SHM_NONE,
	      b->a->hdr.backend);
}

static void batch_drop(struct sluice_batch *b)
{
	struct sluice_arena *a = b->a;

	if (a->hdr.flags & SLUICE_ARENA_POISON && !a->region.data_ro && poison_begin(b))
		memset(b->base, POISON, b->extent_bytes);
	if (b->taken)
		count_released(b);
	extent_release(a, b->lease, b->word);
	batch_put(b);
}

static int manifest_read(struct sluice_batch *b)
{
	uint64_t at = (uint64_t)ld_rlx(&b->a->leases[b->extent].manifest) * MANIFEST_UNIT;

	if (at >= b->extent_bytes)
		return sluice_fail(
			EBADMSG,
			"batch at block %u: its manifest stands at %llu, outside its %llu "
			"bytes",
			b->extent, (unsigned long long)at, (unsigned long long)b->extent_bytes);
	return sluice_manifest_decode(&b->manifest, b->base + at, b->extent_bytes - at, at);
}

/*
 * Of a PENDING lease only the payload is not there yet: have its manifest in the cache when it comes,
 * wherever that is said to be.
 */
void batch_expect(const struct sluice_arena *a, uint32_t lease)
{
	uint64_t at = ((uint64_t)lease << a->hdr.block_shift) +
		      (uint64_t)ld_rlx(&a->leases[lease].manifest) * MANIFEST_UNIT;

	for (unsigned int i = 0; i < 4 && at < a->hdr.data_bytes; i++, at += MANIFEST_UNIT)
		__builtin_prefetch((const char *)a->region.data + at);
}

/*
 * Let a handle be that of a lease that we hold.  On failure lease and handle are given back, but for
 * -ENOMEM: then the handle still holds the lease, and batch_hold() can be called again.
 */
int batch_hold(struct sluice_batch *b, uint32_t lease, uint64_t word)
{
	int err;

	b->lease = lease;
	b->word = word;
	b->state = BATCH_HELD;
	err = extent_resolve(b->a, lease, &b->extent, &b->base, &b->extent_bytes);
	if (!err)
		err = manifest_read(b);
	b->taken = !err;
	if (err && err != -ENOMEM) {
		extent_release(b->a, lease, word);
		batch_put(b);
	}
	return err;
}

/* ------------------------------------------------------------------ writing */

int sluice_batch_begin(struct sluice_channel *ch, struct sluice_batch **out, uint64_t bytes,
		       uint64_t timeout_ns)
{
	const struct sluice_batch_opts o = {
		.sz = sizeof(o),
		.bytes = bytes,
		.timeout_ns = timeout_ns,
	};

	return sluice_batch_begin_opts(ch, out, &o);
}

static int begin_check(struct sluice_channel *ch, struct sluice_batch_opts *o, uint64_t *need)
{
	struct sluice_arena *a = ch->a;

	if (!(ch->flags & SLUICE_CHANNEL_PRODUCE))
		return sluice_fail(EPERM, "channel %s: this endpoint does not produce", ch->name);
	if (!o->tensors)
		o->tensors = DEFAULT_TENSORS;
	if (!o->align)
		o->align = DEFAULT_ALIGN;
	if (o->tensors > SLUICE_MAX_TENSORS + SLUICE_MAX_BLOBS)
		return sluice_fail(EINVAL, "batch: %u tensors and blobs are above the limit of %u",
				   o->tensors, SLUICE_MAX_TENSORS + SLUICE_MAX_BLOBS);
	if (o->align < 8 || o->align > 4096 || o->align & (o->align - 1))
		return sluice_fail(EINVAL,
				   "batch: alignment %u is not a power of two from 8 to 4096",
				   o->align);
	*need = sluice_manifest_room(o->tensors, o->align) + MANIFEST_UNIT;
	if (o->bytes > MAX_PAYLOAD)
		return sluice_fail(E2BIG, "batch: %llu bytes are above the limit of %llu",
				   (unsigned long long)o->bytes, MAX_PAYLOAD);
	if (o->bytes > a->hdr.data_bytes || *need + o->bytes > a->hdr.data_bytes)
		return sluice_fail(
			E2BIG,
			"batch: %llu bytes and %llu for the description of %u tensors can "
			"never fit the arena's %llu",
			(unsigned long long)o->bytes, (unsigned long long)*need, o->tensors,
			(unsigned long long)a->hdr.data_bytes);
	*need = (*need + o->bytes + (1ULL << a->hdr.block_shift) - 1) >> a->hdr.block_shift;
	return 0;
}

int sluice_batch_begin_opts(struct sluice_channel *ch, struct sluice_batch **out,
			    const struct sluice_batch_opts *opts)
{
	struct sluice_arena *a = ch->a;
	struct sluice_batch_opts o;
	struct extent_found found;
	struct sluice_batch *b;
	uint64_t need = 0, encoded;
	int err;

	err = arena_check(a);
	if (!err)
		err = opts_copy(&o, sizeof(o), opts, "sluice_batch_opts");
	if (!err)
		err = begin_check(ch, &o, &need);
	if (err)
		return err;
	peer_look(a, now_coarse_ns());
	err = publish_refused(ch);
	if (err)
		return err;
	b = batch_get(a);
	if (!b)
		return -ENOMEM;
	err = extent_wait(ch, need, o.timeout_ns, &found);
	if (err) {
		batch_put(b);
		return err;
	}
	b->ch = ch;
	b->state = BATCH_WRITING;
	b->taken = false;
	b->lease = b->extent = found.lease;
	b->word = found.word;
	b->align = o.align;
	b->base = (uint8_t *)a->region.data + ((uint64_t)found.lease << a->hdr.block_shift);
	b->extent_bytes = need << a->hdr.block_shift;
	encoded = sluice_manifest_encoded_max(o.tensors);
	b->payload_room = b->extent_bytes - encoded - MANIFEST_UNIT;
	sluice_manifest_reset(&b->manifest, encoded);
	*out = b;
	return 0;
}

static int writing_check(const struct sluice_batch *b)
{
	int err = arena_check(b->a);

	if (err)
		return err;
	if (b->state != BATCH_WRITING)
		return sluice_fail(EROFS, "batch at block %u: it is published and read-only",
				   b->extent);
	return 0;
}

static void copy_in(const struct sluice_batch *b, void *to, const void *from, size_t bytes)
{
	if (b->extent_bytes >= COPY_PAST_BYTES)
		copy_past(to, from, bytes);
	else
		memcpy(to, from, bytes);
}

void *sluice_batch_tensor_add(struct sluice_batch *b, const char *name, struct sluice_dtype dtype,
			      uint32_t ndim, const int64_t *shape, const int64_t *strides)
{
	uint64_t offset, bytes;
	int err = writing_check(b);

	if (!err && ndim && !shape)
		err = sluice_fail(EINVAL, "tensor %s: %u dimensions and no shape", name ? name : "",
				  ndim);
	if (!err)
		err = sluice_manifest_add_tensor(&b->manifest, name, dtype, ndim, shape, strides,
						 b->align, b->payload_room, &offset, &bytes);
	if (err) {
		errno = -err;
		return NULL;
	}
	return b->base + offset;
}

void *sluice_batch_bytes_add(struct sluice_batch *b, const char *name, const void *data,
			     uint64_t len)
{
	int err = writing_check(b);
	uint64_t offset;

	if (!err)
		err = sluice_manifest_add_blob(&b->manifest, name, len, b->payload_room, &offset);
	if (err) {
		errno = -err;
		return NULL;
	}
	if (data && len)
		copy_in(b, b->base + offset, data, len);
	return b->base + offset;
}

int sluice_batch_copy(struct sluice_batch *b, void *to, const void *from, uint64_t bytes)
{
	const uint64_t at = (uint64_t)((uintptr_t)to - (uintptr_t)b->base);
	int err = writing_check(b);

	if (err)
		return err;
	if (at > b->payload_room || bytes > b->payload_room - at)
		return sluice_fail(
			EINVAL,
			"batch at block %u: %llu bytes at %p are not all within its %llu bytes",
			b->extent, (unsigned long long)bytes, to,
			(unsigned long long)b->payload_room);
	if (bytes)
		copy_in(b, to, from, bytes);
	return 0;
}

int sluice_batch_tag(struct sluice_batch *b, uint64_t tag)
{
	int err = writing_check(b);

	if (!err)
		b->manifest.tag = tag;
	return err;
}

static void count_published(struct sluice_channel *ch, const struct sluice_batch *b)
{
	stat_add(&ch->stats->published, 1);
	stat_add(&ch->stats->published_bytes, b->manifest.payload_bytes);
	USDT4(batch_publish, b->manifest.payload_bytes, ch->a->hdr.arena_id, ch->index,
	      ch->a->hdr.backend);
}

/* The manifest goes behind the payload, so that the payload starts on a block. */
static void manifest_write(struct sluice_batch *b)
{
	uint64_t at = round_up(b->manifest.payload_bytes, MANIFEST_UNIT);

	b->manifest.producer = peer_id(b->a->word);
	b->manifest.sequence = b->ch->sequence;
	sluice_manifest_encode(&b->manifest, b->base + at);
	st_rlx(&b->a->leases[b->lease].manifest, (uint32_t)(at / MANIFEST_UNIT));
}

int sluice_batch_publish(struct sluice_batch *b)
{
	return sluice_batch_publish_timeout(b, b->ch ? b->ch->publish_timeout_ns : 0);
}

int sluice_batch_publish_timeout(struct sluice_batch *b, uint64_t timeout_ns)
{
	struct sluice_channel *ch = b->ch;
	int err = writing_check(b);

	if (err)
		return err;
	manifest_write(b);
	CRASH_POINT("publish_before_queue");
	err = lease_publish(ch, b->lease, &b->word, LEASE_READY, timeout_ns);
	if (err)
		return err;
	ch->sequence++;
	count_published(ch, b);
	batch_put(b);
	return 0;
}

int sluice_batch_post(struct sluice_batch *b, uint64_t **word, uint64_t *value, uint64_t timeout_ns)
{
	struct sluice_channel *ch = b->ch;
	struct sluice_arena *a = b->a;
	int err = writing_check(b);

	if (err)
		return err;
	manifest_write(b);
	CRASH_POINT("post_before_queue");
	err = lease_publish(ch, b->lease, &b->word, LEASE_PENDING, timeout_ns);
	if (err)
		return err;
	ch->sequence++;
	count_published(ch, b);
	b->word = lease_to(b->word, LEASE_PENDING, a->slot, ch->index);
	b->state = BATCH_POSTED;
	*word = (uint64_t *)&a->leases[b->lease].word;
	*value = lease_to(b->word, LEASE_READY, a->slot, ch->index);
	return 0;
}

int sluice_batch_quiet(struct sluice_batch *b)
{
	struct sluice_arena *a = b->a;
	struct shm_channel *c;
	uint64_t tail, was;

	if (arena_forked(a) || b->state != BATCH_POSTED || a->hdr.abi_minor < 1)
		return 0;
	c = b->ch->shm;
	if (ld_sc(&c->loops) || map_any(c->consumer_sleepers))
		return 0;
	tail = ld_acq(&c->tail); /* behind our cell: ring_push() saw to that */
	for (int tries = 0; (was = ld_sc(&c->quiet)) < tail; tries++) {
		if (cas_sc(&c->quiet, was, tail)) /* Q1: pairs with S2 */
			break;
		if (tries == 8)
			return 0;
	}
	return !ld_sc(&c->loops) && !map_any(c->consumer_sleepers); /* Q2: pairs with S1 */
}

void sluice_batch_posted(struct sluice_batch *b)
{
	struct sluice_arena *a;

	if (!b || arena_forked(b->a) || b->state != BATCH_POSTED)
		return;
	a = b->a;
	CRASH_POINT("posted_before_ready");
	/* Fails when the device was here before; seq_cst as W1 when not. */
	cas_sc(&a->leases[b->lease].word, b->word,
	       lease_to(b->word, LEASE_READY, a->slot, b->ch->index));
	CRASH_POINT("posted_before_wake");
	ring_resolved(b->ch);
	batch_put(b);
}

int sluice_batch_unpost(struct sluice_batch *b)
{
	struct sluice_arena *a = b->a;
	int err = arena_check(a);
	uint64_t writing;

	if (err)
		return err;
	if (b->state != BATCH_POSTED)
		return sluice_fail(EINVAL, "batch at block %u: it was not posted", b->extent);
	writing = lease_to(b->word, LEASE_WRITING, a->slot, 0);
	if (!cas_sc(&a->leases[b->lease].word, b->word, writing)) {
		sluice_batch_posted(b);
		return sluice_fail(EALREADY, "a posted batch is complete: consumers have it");
	}
	b->word = writing;
	b->state = BATCH_WRITING;
	CRASH_POINT("unpost_before_wake");
	/* Its cell names nothing now: consumers go past it. */
	wake_all(a, b->ch->shm->consumer_sleepers);
	return 0;
}

void sluice_batch_abort(struct sluice_batch *b)
{
	if (!b || arena_forked(b->a) || b->state != BATCH_WRITING)
		return;
	batch_drop(b);
}

int sluice_batch_seal(struct sluice_batch *b)
{
	struct sluice_arena *a = b->a;
	int err = writing_check(b);
	uint64_t held;

	if (!err)
		err = sluice_manifest_index(&b->manifest);
	if (err)
		return err;
	manifest_write(b);
	held = lease_to(b->word, LEASE_HELD, a->slot, 0);
	CRASH_POINT("seal_before_held");
	if (!cas_sc(&a->leases[b->lease].word, b->word, held))
		return sluice_fail(EUCLEAN, "batch at block %u: its lease changed hands",
				   b->extent);
	b->word = held;
	b->state = BATCH_HELD;
	b->ch = NULL;
	return 0;
}

/* ------------------------------------------------------------------ passing on */

static int passing_check(const struct sluice_batch *b, const struct sluice_channel *ch)
{
	int err = arena_check(b->a);

	if (err)
		return err;
	if (b->state != BATCH_HELD)
		return sluice_fail(EINVAL, "batch at block %u: it is still being written: seal it",
				   b->extent);
	if (ch && ch->a != b->a)
		return sluice_fail(EXDEV, "channel %s: it belongs to another arena than the batch",
				   ch->name);
	if (ch && !(ch->flags & SLUICE_CHANNEL_PRODUCE))
		return sluice_fail(EPERM, "channel %s: this endpoint does not produce", ch->name);
	return 0;
}

static uint64_t extent_gen(const struct sluice_batch *b)
{
	/* We keep it alive, so its generation does not change. */
	return lease_gen(ld_acq(&b->a->leases[b->extent].word));
}

int sluice_batch_share(struct sluice_batch *b, struct sluice_channel *ch, uint64_t timeout_ns)
{
	struct sluice_arena *a = b->a;
	uint64_t word;
	uint32_t lease;
	int err = passing_check(b, ch);

	/* Who only looks leaves the lock and the count alone: consumers use both. */
	if (!err && !timeout_ns)
		err = publish_room(ch);
	if (!err)
		err = alias_create(a, b->extent, extent_gen(b), LEASE_WRITING, &lease, &word);
	if (err)
		return err;
	CRASH_POINT("share_before_publish");
	err = lease_publish(ch, lease, &word, LEASE_READY, timeout_ns);
	if (err) {
		extent_release(a, lease, word);
		return err;
	}
	count_published(ch, b);
	return 0;
}

int sluice_batch_forward(struct sluice_batch *b, struct sluice_channel *ch, uint64_t timeout_ns)
{
	int err = passing_check(b, ch);

	if (err)
		return err;
	if (ld_rlx(&b->refs) != 1)
		return sluice_fail(EBUSY,
				   "batch at block %u: %u local references, forwarding needs 1",
				   b->extent, ld_rlx(&b->refs));
	err = lease_publish(ch, b->lease, &b->word, LEASE_READY, timeout_ns);
	if (err)
		return err;
	if (b->taken)
		count_released(b);
	count_published(ch, b);
	batch_put(b);
	return 0;
}

/* index:28 | gen:36 */
int sluice_batch_token(const struct sluice_batch *b, uint64_t *token)
{
	int err = passing_check(b, NULL);

	if (!err)
		*token = b->extent | extent_gen(b) << 28;
	return err;
}

int sluice_batch_open(struct sluice_arena *a, struct sluice_batch **out, uint64_t token)
{
	uint32_t extent = token & 0xfffffff, lease;
	struct sluice_batch *b;
	uint64_t gen, word;
	int err = arena_check(a);

	if (err)
		return err;
	if (extent >= a->hdr.nblocks)
		return sluice_fail(ESTALE, "token %016llx: the arena has no block %u",
				   (unsigned long long)token, extent);
	gen = lease_gen(ld_acq(&a->leases[extent].word));
	if (gen << 28 != (token & ~0xfffffffULL))
		return sluice_fail(ESTALE, "token %016llx: its batch has been freed already",
				   (unsigned long long)token);
	b = batch_get(a);
	if (!b)
		return -ENOMEM;
	err = alias_create(a, extent, gen, LEASE_HELD, &lease, &word);
	if (err) {
		batch_put(b);
		return err;
	}
	err = batch_hold(b, lease, word);
	if (err == -ENOMEM) {
		/* Nothing is lost: the token is good as long as it was before. */
		extent_release(a, lease, word);
		batch_put(b);
	}
	if (err)
		return err;
	USDT4(batch_next, b->manifest.payload_bytes, a->hdr.arena_id, SHM_NONE, a->hdr.backend);
	*out = b;
	return 0;
}

/* ------------------------------------------------------------------ reading */

struct sluice_batch *sluice_batch_retain(struct sluice_batch *b)
{
	/* Relaxed: the caller has a reference already. */
	atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
	return b;
}

void sluice_batch_release(struct sluice_batch *b)
{
	if (!b || arena_forked(b->a) || b->state != BATCH_HELD)
		return;
	/* Release and acquire: every thread's reads come before the memory is free. */
	if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1)
		batch_drop(b);
}

int sluice_batch_info(const struct sluice_batch *b, struct sluice_batch_info *info)
{
	struct sluice_batch_info i = {
		.sz = info->sz,
		.tensors = b->manifest.ntensors,
		.blobs = b->manifest.nblobs,
		.payload = b->base,
		.payload_bytes = b->manifest.payload_bytes,
		.payload_offset = (uint64_t)b->extent << b->a->hdr.block_shift,
		.extent_bytes = b->extent_bytes,
		.producer = b->manifest.producer,
		.sequence = b->manifest.sequence,
		.tag = b->manifest.tag,
	};
	int err = arena_check(b->a);

	return err ? err : info_copy(info, &i, sizeof(i), "sluice_batch_info");
}

int sluice_batch_tensor(const struct sluice_batch *b, unsigned int i, struct sluice_tensor *view)
{
	struct sluice_tensor t = {.sz = view->sz};
	const struct sluice_manifest_tensor *m;
	int err = arena_check(b->a);

	if (err)
		return err;
	if (b->state != BATCH_HELD || i >= b->manifest.ntensors)
		return sluice_fail(EINVAL, "batch at block %u: tensor %u of %u", b->extent, i,
				   b->state == BATCH_HELD ? b->manifest.ntensors : 0);
	m = &b->manifest.tensors[i];
	t.name = m->name;
	t.data = m->bytes ? b->base + m->offset : NULL;
	t.dtype = m->dtype;
	t.ndim = m->ndim;
	t.shape = m->shape;
	t.strides = m->strides;
	t.bytes = m->bytes;
	t.offset = m->offset;
	return info_copy(view, &t, sizeof(t), "sluice_tensor");
}

int sluice_batch_blob(const struct sluice_batch *b, unsigned int i, const char **name,
		      const void **data, uint64_t *len)
{
	const struct sluice_manifest_blob *m;
	int err = arena_check(b->a);

	if (err)
		return err;
	if (b->state != BATCH_HELD || i >= b->manifest.nblobs)
		return sluice_fail(EINVAL, "batch at block %u: blob %u of %u", b->extent, i,
				   b->state == BATCH_HELD ? b->manifest.nblobs : 0);
	m = &b->manifest.blobs[i];
	if (name)
		*name = m->name;
	*data = b->base + m->offset;
	*len = m->bytes;
	return 0;
}

int sluice_batch_bytes(const struct sluice_batch *b, const char *name, const void **data,
		       uint64_t *len)
{
	for (unsigned int i = 0; b->state == BATCH_HELD && i < b->manifest.nblobs; i++)
		if (!strcmp(b->manifest.blobs[i].name, name))
			return sluice_batch_blob(b, i, NULL, data, len);
	return sluice_fail(ENOENT, "batch at block %u: it has no blob named %s", b->extent, name);
}
