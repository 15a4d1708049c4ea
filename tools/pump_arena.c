// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Parcels as batches of one arena: each part is a tensor of bytes, the index is a blob. */
#include <errno.h>
#include <stdlib.h>

#include "pump_arena.h"

int arena_begin(struct carrier *c)
{
	struct arena_carrier *a = c->own;

	return sluice_batch_begin_opts(a->channel, &a->batch,
				       &(struct sluice_batch_opts){
					       .sz = sizeof(struct sluice_batch_opts),
					       .bytes = a->batch_bytes + PARCEL_INDEX_BYTES,
					       .tensors = PARCEL_MAX_PARTS + 1,
					       .align = 64,
					       .timeout_ns = SLUICE_FOREVER,
				       });
}

static int channel_open(struct arena_carrier *a, uint32_t flags)
{
	struct sluice_channel_opts opts = {.sz = sizeof(opts), .flags = flags};

	if (flags & SLUICE_CHANNEL_KEEP_OPEN)
		return sluice_channel_create(&a->channel, a->arena, "files", &opts);
	return sluice_channel_open(&a->channel, a->arena, "files", &opts);
}

int arena_open(struct carrier *c, const struct pump_opts *o)
{
	struct arena_carrier *a = calloc(1, sizeof(*a));
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts), .data_bytes = o->arena_bytes, .label = "pump"};
	struct sluice_channel *consume;
	int ret;

	if (!a)
		return -ENOMEM;
	c->own = a;
	a->batch_bytes = o->parcel_bytes;
	ret = sluice_arena_create(&a->arena, &opts);
	if (ret)
		return ret;
	/* Producers come when they come: that none has come yet is not the end of the stream. */
	ret = channel_open(a, SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_KEEP_OPEN);
	if (ret)
		return ret;

	/* A batch that can never fit is better known now than to every producer. */
	consume = a->channel;
	a->channel = NULL;
	ret = channel_open(a, SLUICE_CHANNEL_PRODUCE);
	if (!ret)
		ret = arena_begin(c);
	sluice_batch_abort(a->batch);
	a->batch = NULL;
	sluice_channel_close(a->channel);
	a->channel = consume;
	return ret;
}

static void arena_about(struct carrier *c, struct sluice_arena_info *info)
{
	struct arena_carrier *a = c->own;

	info->sz = sizeof(*info);
	sluice_arena_info(a->arena, info);
}

static int arena_forked(struct carrier *c)
{
	return 0;
}

int arena_join(struct carrier *c, unsigned int producer)
{
	struct arena_carrier *a = c->own;
	struct sluice_arena *inherited = a->arena;
	int ret;

	a->arena = NULL;
	a->channel = NULL;
	ret = sluice_arena_reattach(&a->arena, inherited);
	return ret ? ret : channel_open(a, SLUICE_CHANNEL_PRODUCE);
}

void *arena_part(struct carrier *c, uint64_t bytes)
{
	struct arena_carrier *a = c->own;
	int64_t shape = bytes;

	return sluice_batch_tensor_add(a->batch, NULL, SLUICE_U8, 1, &shape, NULL);
}

int arena_send(struct carrier *c, const void *index, uint64_t bytes)
{
	struct arena_carrier *a = c->own;
	int ret;

	if (!sluice_batch_bytes_add(a->batch, INDEX_NAME, index, bytes))
		return -errno;
	ret = sluice_batch_publish(a->batch);
	if (!ret)
		a->batch = NULL;
	return ret;
}

static int arena_next(struct carrier *c, struct parcel *p, uint64_t timeout_ns)
{
	struct arena_carrier *a = c->own;
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_batch *b;
	int ret;

	ret = sluice_channel_next(a->channel, &b, timeout_ns);
	if (ret)
		return ret;
	ret = sluice_batch_info(b, &info);
	if (!ret)
		ret = sluice_batch_bytes(b, INDEX_NAME, &p->index, &p->index_bytes);
	if (ret) {
		sluice_batch_release(b);
		return -EBADMSG;
	}
	p->parts = info.tensors;
	p->from = b;
	return 0;
}

static int arena_data(struct carrier *c, const struct parcel *p, unsigned int part,
		      const void **data, uint64_t *bytes)
{
	struct sluice_tensor t = {.sz = sizeof(t)};
	int ret = sluice_batch_tensor(p->from, part, &t);

	if (ret)
		return ret;
	*data = t.data;
	*bytes = t.bytes;
	return 0;
}

static void arena_release(struct carrier *c, struct parcel *p)
{
	sluice_batch_release(p->from);
}

void arena_close(struct carrier *c)
{
	struct arena_carrier *a = c->own;

	if (!a)
		return;
	sluice_batch_abort(a->batch);
	sluice_channel_close(a->channel);
	sluice_arena_detach(a->arena);
	free(a);
	c->own = NULL;
}

static const char *arena_sentence(struct carrier *c)
{
	return sluice_strerror();
}

const struct carrier_ops carrier_arena = {
	.name = "arena",
	.open = arena_open,
	.about = arena_about,
	.forked = arena_forked,
	.join = arena_join,
	.begin = arena_begin,
	.part = arena_part,
	.send = arena_send,
	.leave = arena_close,
	.next = arena_next,
	.data = arena_data,
	.release = arena_release,
	.close = arena_close,
	.sentence = arena_sentence,
};
