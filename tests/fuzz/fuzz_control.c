// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A peer has written whatever it liked over the control region and the payload: every call of
 * another process returns, and reads nothing outside of the arena.
 *
 * The allocator lock is left alone: a peer that holds it for ever is alive and cannot be overruled.
 */
#include <stddef.h>
#include <stdio.h>

#include "internal.h"

#define DATA_BYTES  (1u << 20)
#define BLOCK_BYTES 4096u

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sluice_arena *arena;
static struct sluice_channel *producer, *consumer;
static struct sluice_arena_info info;
static void *control; /* as it was */
static uint64_t joins;

static void need(int ret, const char *what)
{
	if (ret) {
		fprintf(stderr, "%s: %s\n", what, sluice_strerror());
		exit(1);
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = DATA_BYTES,
		.block_bytes = BLOCK_BYTES,
		.flags = SLUICE_ARENA_NO_HUGE,
		.backend = SLUICE_BACKEND_MEMFD,
	};
	struct sluice_channel_opts copts = {.sz = sizeof(copts), .capacity = 4};

	need(sluice_arena_create(&arena, &opts), "arena");
	need(sluice_channel_create(&producer, arena, "fuzz", &copts), "channel");
	need(sluice_channel_open(&consumer, arena, "fuzz", &copts), "channel");
	info.sz = sizeof(info);
	need(sluice_arena_info(arena, &info), "info");
	control = malloc(info.control_bytes);
	memcpy(control, info.control, info.control_bytes);
	return 0;
}

/* Six bytes name a place that means something, eight the value. */
static void write_anywhere(const uint8_t *in)
{
	uint32_t at = (uint32_t)in[1] << 8 | in[2];
	uint64_t value;
	void *to;

	memcpy(&value, in + 3, 8);
	switch (in[0] % 8) {
	case 0: /* what is in use of the leases */
		to = (uint8_t *)arena->leases + at % (32 * sizeof(struct shm_lease)) / 8 * 8;
		break;
	case 1:
		to = &arena->leases[arena->hdr.nblocks + at % 8];
		break;
	case 2:
		to = &arena->cells[at % 4];
		break;
	case 3:
		to = (uint8_t *)arena->channels + at % (2 * sizeof(struct shm_channel)) / 8 * 8;
		break;
	case 4:
		to = (uint8_t *)arena->endpoints + at % (4 * sizeof(struct shm_endpoint)) / 8 * 8;
		break;
	case 5:
		to = (uint8_t *)arena->peers + at % (4 * sizeof(struct shm_peer)) / 8 * 8;
		break;
	case 6: /* the manifest stands somewhere in the first blocks */
		to = (uint8_t *)info.data + at % (4 * BLOCK_BYTES) / 8 * 8;
		break;
	default:
		to = (uint8_t *)arena->root + at % sizeof(struct shm_root) / 8 * 8;
		if (to == (void *)&arena->root->lock)
			return;
	}
	memcpy(to, &value, 8);
}

static uint64_t touch(const void *p, uint64_t bytes)
{
	const volatile uint8_t *b = p;

	return bytes ? b[0] + b[bytes - 1] : 0;
}

static uint64_t use(const struct sluice_batch *b)
{
	struct sluice_batch_info bi = {.sz = sizeof(bi)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	const char *name;
	const void *data;
	uint64_t len, sum = 0;

	if (sluice_batch_info(b, &bi))
		return 0;
	sum += touch(bi.payload, bi.payload_bytes);
	for (uint32_t i = 0; i < bi.tensors; i++)
		if (!sluice_batch_tensor(b, i, &t))
			sum += touch(t.data, t.bytes) + strlen(t.name);
	for (uint32_t i = 0; i < bi.blobs; i++)
		if (!sluice_batch_blob(b, i, &name, &data, &len))
			sum += touch(data, len) + strlen(name);
	return sum;
}

static struct sluice_batch *fill(void)
{
	const int64_t shape[] = {3, 5};
	struct sluice_batch *b;
	float *f;

	if (sluice_batch_begin(producer, &b, 1024, 0))
		return NULL;
	f = sluice_batch_tensor_add(b, "f", SLUICE_F32, 2, shape, NULL);
	if (f)
		f[14] = 1;
	sluice_batch_bytes_add(b, "k", "value", 5);
	return b;
}

static void publish(void)
{
	struct sluice_batch *b = fill();

	if (b && sluice_batch_publish_timeout(b, 0))
		sluice_batch_abort(b);
}

static void look(void)
{
	struct sluice_arena_usage usage = {.sz = sizeof(usage)};
	struct sluice_channel_info channels[4] = {{.sz = sizeof(channels[0])}};
	struct sluice_channel_stats stats = {.sz = sizeof(stats)};
	struct sluice_peer_info peers[4] = {{.sz = sizeof(peers[0])}};
	struct sluice_event event = {.sz = sizeof(event)};

	sluice_arena_usage(arena, &usage);
	sluice_channel_list(arena, channels, 4);
	sluice_channel_stats(consumer, &stats);
	sluice_peer_list(arena, peers, 4);
	sluice_peer_stats(arena, info.peer_id, &stats);
	sluice_event_next(arena, &event, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sluice_batch *held[3] = {0}, *writing, *opened = NULL;
	struct sluice_channel *third = NULL;
	uint64_t token;

	memcpy(info.control, control, info.control_bytes);
	/* Peers may have been written over: have them looked at each time. */
	st_rlx(&arena->root->joins, (uint32_t)++joins);
	st_rlx(&arena->last_look_ns, 0);
	publish();
	publish();
	writing = fill();
	for (; size >= 11; size -= 11, data += 11)
		write_anywhere(data);

	for (int i = 0; i < 3; i++) {
		if (sluice_channel_next(consumer, &held[i], 0))
			held[i] = NULL;
		else
			use(held[i]);
	}
	if (writing && sluice_batch_publish_timeout(writing, 0))
		sluice_batch_abort(writing);
	publish();
	look();
	if (held[0]) {
		sluice_batch_share(held[0], producer, 0);
		if (!sluice_batch_token(held[0], &token) &&
		    !sluice_batch_open(arena, &opened, token)) {
			use(opened);
			sluice_batch_release(opened);
		}
	}
	if (!sluice_channel_open(&third, arena, "fuzz", NULL))
		sluice_channel_close(third);
	for (int i = 0; i < 3; i++)
		sluice_batch_release(held[i]);
	return 0;
}
