// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A peer that writes anything anywhere into the control and the data region, while others work.  They
 * may get errors; they must not crash, not read out of bounds (this runs under AddressSanitizer and
 * UndefinedBehaviorSanitizer) and not hang.
 */
#include "shm.h"
#include "util.h"

#include <kselftest_harness.h>

enum {
	WORKERS = 2,
	ROUND_MS = 150
};

/* What the hostile peer aims at. */
enum aim {
	AIM_ANYTHING,
	AIM_LEASES,
	AIM_CELLS,
	AIM_CHANNELS,
	AIM_ENDPOINTS,
	AIM_PEERS,
	AIM_ROOT,
	AIM_HEADER,
	AIM_EVENTS,
	AIM_DATA,
	NAIMS,
};

static const char *const aims[NAIMS] = {
	"anything", "leases", "cells",	"channels", "endpoints",
	"peers",    "root",   "header", "events",   "payload",
};

struct scene {
	volatile bool stop;
	uint64_t done[WORKERS], refused[WORKERS];
};

FIXTURE(hostile)
{
	struct scene *scene;
};

FIXTURE_VARIANT(hostile)
{
	enum aim aim;
};

/* clang-format off */
FIXTURE_VARIANT_ADD(hostile, anything) { .aim = AIM_ANYTHING };
FIXTURE_VARIANT_ADD(hostile, leases) { .aim = AIM_LEASES };
FIXTURE_VARIANT_ADD(hostile, cells) { .aim = AIM_CELLS };
FIXTURE_VARIANT_ADD(hostile, channels) { .aim = AIM_CHANNELS };
FIXTURE_VARIANT_ADD(hostile, endpoints) { .aim = AIM_ENDPOINTS };
FIXTURE_VARIANT_ADD(hostile, peers) { .aim = AIM_PEERS };
FIXTURE_VARIANT_ADD(hostile, root) { .aim = AIM_ROOT };
FIXTURE_VARIANT_ADD(hostile, header) { .aim = AIM_HEADER };
FIXTURE_VARIANT_ADD(hostile, events) { .aim = AIM_EVENTS };
FIXTURE_VARIANT_ADD(hostile, payload) { .aim = AIM_DATA };
/* clang-format on */

FIXTURE_SETUP(hostile)
{
	self->scene = mmap(NULL, sizeof(*self->scene), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->scene);
}

FIXTURE_TEARDOWN(hostile)
{
}

static void target(const struct sluice_arena_info *info, enum aim aim, char **at, uint64_t *len)
{
	static const struct {
		uint64_t from, to;
	} parts[NAIMS] = {
		[AIM_LEASES] = {SHM_LEASES_OFF, 0},
		[AIM_CELLS] = {SHM_CELLS_OFF, SHM_CELLS_OFF + 64},
		[AIM_CHANNELS] = {SHM_CHANNELS_OFF,
				  SHM_CHANNELS_OFF + 3 * sizeof(struct shm_channel)},
		[AIM_ENDPOINTS] = {SHM_ENDPOINTS_OFF,
				   SHM_ENDPOINTS_OFF + 8 * sizeof(struct shm_endpoint)},
		[AIM_PEERS] = {SHM_PEERS_OFF, SHM_PEERS_OFF + 8 * sizeof(struct shm_peer)},
		[AIM_ROOT] = {SHM_ROOT_OFF, SHM_ROOT_OFF + sizeof(struct shm_root)},
		[AIM_HEADER] = {0, sizeof(struct shm_header)},
		[AIM_EVENTS] = {SHM_EVENTS_OFF, SHM_CELLS_OFF},
	};

	if (aim == AIM_DATA) {
		*at = info->data;
		*len = info->data_bytes;
		return;
	}
	*at = (char *)info->control + parts[aim].from;
	*len = (parts[aim].to ? parts[aim].to : info->control_bytes) - parts[aim].from;
}

/* A word that may pass for one of the protocol's. */
static uint64_t lie(uint64_t old)
{
	switch (random_u64() % 8) {
	case 0:
		return random_u64();
	case 1:
		return 0;
	case 2:
		return UINT64_MAX;
	case 3:
		return old ^ 1ULL << random_u64() % 64;
	case 4:
		return old + random_u64() % 16 - 8;
	case 5:
		return random_u64() % 300;
	case 6:
		return random_u64() % 5 | random_u64() % 8 << 4 | random_u64() % 4 << 16;
	default:
		return random_u64() & 0xffffffff;
	}
}

static void attack(struct sluice_arena *inherited, enum aim aim, const struct scene *scene)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_arena *a = arena_child(inherited);
	uint64_t len;
	char *at;

	CHECK_OK(sluice_arena_info(a, &info));
	target(&info, aim, &at, &len);
	while (!scene->stop) {
		uint64_t *word = (uint64_t *)(void *)(at + (random_u64() % len & ~7ULL));

		__atomic_store_n(word, lie(*word), __ATOMIC_RELAXED);
		/* Some lies stand alone, others come in crowds. */
		if (random_u64() % 8 == 0)
			usleep(random_u64() % 1000);
	}
}

/* Reads every byte that a view offers. */
static unsigned int look(struct sluice_batch *b)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	unsigned int sum = 0;
	const void *data;
	const char *name;
	uint64_t len;

	if (sluice_batch_info(b, &info))
		return 0;
	for (unsigned int i = 0; i < info.tensors && !sluice_batch_tensor(b, i, &t); i++) {
		sum += (unsigned int)strlen(t.name);
		for (uint64_t j = 0; j < t.bytes; j++)
			sum += ((const unsigned char *)t.data)[j];
		for (uint32_t d = 0; d < t.ndim; d++)
			sum += (unsigned int)(t.shape[d] + t.strides[d]);
	}
	for (unsigned int i = 0; i < info.blobs && !sluice_batch_blob(b, i, &name, &data, &len);
	     i++)
		for (uint64_t j = 0; j < len; j++)
			sum += ((const unsigned char *)data)[j];
	return sum;
}

static int try_everything(struct sluice_arena *a, struct sluice_channel *ch)
{
	struct sluice_channel_info ci[4] = {{.sz = sizeof(ci[0])}};
	struct sluice_channel_stats st = {.sz = sizeof(st)};
	struct sluice_peer_info p[4] = {{.sz = sizeof(p[0])}};
	struct sluice_arena_usage u = {.sz = sizeof(u)};
	struct sluice_event ev = {.sz = sizeof(ev)};
	static volatile unsigned int sink;
	struct sluice_channel *other;
	struct sluice_batch *b, *c;
	int64_t shape[1] = {500};
	uint64_t token;
	int ret;

	ret = sluice_batch_begin(ch, &b, 1000, MSEC);
	if (!ret) {
		void *x = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, shape, NULL);

		if (x)
			memset(x, 7, 500);
		sluice_batch_bytes_add(b, "m", "metadata", 8);
		ret = sluice_batch_publish_timeout(b, MSEC);
		if (ret)
			sluice_batch_abort(b);
	}
	ret = sluice_channel_next(ch, &b, MSEC);
	if (!ret) {
		sink += look(b);
		if (!sluice_batch_share(b, ch, 0) && !sluice_channel_next(ch, &c, 0))
			sluice_batch_release(c);
		if (!sluice_batch_token(b, &token) && !sluice_batch_open(a, &c, token)) {
			sink += look(c);
			sluice_batch_release(c);
		}
		if (random_u64() % 2 || sluice_batch_forward(b, ch, 0))
			sluice_batch_release(b);
	}
	switch (random_u64() % 32) {
	case 0:
		sluice_arena_usage(a, &u);
		break;
	case 1:
		sluice_peer_list(a, p, 4);
		break;
	case 2:
		sluice_channel_list(a, ci, 4);
		break;
	case 3:
		while (!sluice_event_next(a, &ev, 0))
			;
		break;
	case 4:
		sluice_channel_stats(ch, &st);
		break;
	case 5:
		if (!sluice_channel_create(&other, a, "other", NULL))
			sluice_channel_close(other);
		break;
	case 6:
		if (!sluice_channel_open(&other, a, "c", NULL))
			sluice_channel_close(other);
		break;
	case 7:
		sluice_channel_arm(ch);
		break;
	case 8:
		sluice_peer_stats(a, random_u64() % 10, &st);
		break;
	case 9:
		sluice_batch_open(a, &c, random_u64() % 2 ? random_u64() : token);
		break;
	}
	return ret;
}

static void work(struct sluice_arena *inherited, struct scene *scene, int number)
{
	struct sluice_channel *ch = NULL;
	struct sluice_arena *a = NULL;

	/* Even joining may fail; then another tries. */
	if (sluice_arena_reattach(&a, inherited))
		return;
	while (!scene->stop) {
		if (!ch && sluice_channel_open(&ch, a, "c", NULL)) {
			ch = NULL;
			scene->refused[number]++;
			usleep(1000);
			continue;
		}
		if (try_everything(a, ch))
			scene->refused[number]++;
		else
			scene->done[number]++;
	}
	sluice_channel_close(ch);
	sluice_arena_detach(a);
}

/* Waits until it has come to an end; 0 when it has not in time. */
static bool ended(pid_t pid, int *status, uint64_t until)
{
	while (now_ns() < until) {
		if (waitpid(pid, status, WNOHANG) == pid)
			return true;
		usleep(1000);
	}
	return false;
}

TEST_F_TIMEOUT(hostile, others_go_on_or_get_errors, 240)
{
	unsigned int rounds = 10;
	uint64_t done = 0, refused = 0;

	for (unsigned int r = 0; r < rounds; r++) {
		struct sluice_arena *a = arena_new(MIB), *again;
		struct sluice_channel *ch;
		pid_t pid[WORKERS], enemy;
		uint64_t until;
		int status;

		random_u64(); /* another beginning for all that fork from here */
		ASSERT_NE(NULL, a);
		ch = channel_new(a, "c", 4, SLUICE_CHANNEL_KEEP_OPEN);
		ASSERT_NE(NULL, ch);
		memset(self->scene, 0, sizeof(*self->scene));
		for (int i = 0; i < WORKERS; i++) {
			CHILD(pid[i])
				work(a, self->scene, i);
		}
		CHILD(enemy) {
			attack(a, variant->aim, self->scene);
		}
		for (int i = 0; i < ROUND_MS; i++) {
			/* Attaching under fire, too. */
			if (i % 50 == 0 && !sluice_arena_attach(&again, sluice_arena_fd(a), NULL))
				sluice_arena_detach(again);
			usleep(1000);
		}
		self->scene->stop = true;
		until = now_ns() + LONG_WAIT;
		for (int i = 0; i < WORKERS; i++) {
			ASSERT_TRUE(ended(pid[i], &status, until))
			{
				TH_LOG("%s, round %u: worker %d (pid %d) hangs", aims[variant->aim],
				       r, i, pid[i]);
			}
			ASSERT_EQ(0, status)
			{
				TH_LOG("%s, round %u: worker %d ended with status %x",
				       aims[variant->aim], r, i, status);
			}
			done += self->scene->done[i];
			refused += self->scene->refused[i];
		}
		ASSERT_TRUE(ended(enemy, &status, until));
		sluice_channel_close(ch);
		sluice_arena_detach(a);
	}
	printf("# %s: %llu cycles went well, %llu met an error\n", aims[variant->aim],
	       (unsigned long long)done, (unsigned long long)refused);
	fflush(stdout);
	/* Neither an attack on nothing, nor, where words steer, one without effect. */
	EXPECT_LT(0, done);
	EXPECT_TRUE(refused > 0 || variant->aim > AIM_CHANNELS);
}

TEST_HARNESS_MAIN
