// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Processes are killed at random moments while they work: nothing published by a producer is lost but
 * what a dead consumer held, nothing is delivered twice or damaged, nothing hangs, and in the end
 * every block is free.
 */
#include "util.h"

#include <kselftest_harness.h>

enum {
	WORKERS = 4,
	MAX_LIVES = 4096,
	MAX_EACH = 1 << 16, /* batches of one life */
};

/*
 * One life of a worker: it produces, consumes and shares at the same time.  .published counts after
 * the call returned, so that each batch below it is certain.
 */
struct life {
	uint64_t published;
	uint64_t taken;
	pid_t pid;
	bool dead;
};

struct world {
	struct life life[MAX_LIVES];
	unsigned char state[MAX_LIVES][MAX_EACH / 8]; /* a bit for each batch that was taken */
	uint64_t twice, damaged, failed;
};

static void bit_set(struct world *w, uint64_t seed)
{
	uint64_t life = seed >> 32, n = seed & 0xffffffff;
	unsigned char bit = (unsigned char)(1U << n % 8);

	if (life >= MAX_LIVES || n >= MAX_EACH) {
		__atomic_fetch_add(&w->damaged, 1, __ATOMIC_RELAXED);
		return;
	}
	if (__atomic_fetch_or(&w->state[life][n / 8], bit, __ATOMIC_RELAXED) & bit)
		__atomic_fetch_add(&w->twice, 1, __ATOMIC_RELAXED);
}

static bool bit_get(const struct world *w, uint64_t life, uint64_t n)
{
	return w->state[life][n / 8] >> n % 8 & 1;
}

static void work(struct sluice_arena *inherited, struct world *w, unsigned int number)
{
	uint32_t flags = number % 2 ? 0 : SLUICE_CHANNEL_NO_SPIN;
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel *ch = channel_join(a, "c", flags);
	struct sluice_channel *side = channel_join(a, "side", flags);
	struct life *me = &w->life[number];
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_tensor t = {.sz = sizeof(t)};
	struct sluice_batch *b;
	int ret;

	CHECK(ch && side);
	while (me->published < MAX_EACH) {
		size_t bytes = random_u64() % (random_u64() % 16 ? 2000 : 200000);

		ret = batch_send(ch, bytes, (uint64_t)number << 32 | me->published,
				 random_u64() % 2 ? 0 : MSEC);
		if (!ret)
			__atomic_store_n(&me->published, me->published + 1, __ATOMIC_RELEASE);
		else
			CHECK(ret == -EAGAIN || ret == -ETIMEDOUT);
		ret = sluice_channel_next(ch, &b, random_u64() % 2 ? 0 : MSEC);
		if (ret) {
			CHECK(ret == -EAGAIN || ret == -ETIMEDOUT);
			continue;
		}
		/* Noted at once: what dies between these two lines counts as lost. */
		CHECK_OK(sluice_batch_info(b, &info));
		bit_set(w, info.tag);
		CHECK_OK(sluice_batch_tensor(b, 0, &t));
		CHECK(pattern_is(t.data, t.bytes, info.tag));
		__atomic_fetch_add(&me->taken, 1, __ATOMIC_RELAXED);
		/* Now and then by way of a shared reference. */
		if (random_u64() % 4 == 0 && !sluice_batch_share(b, side, 0)) {
			sluice_batch_release(b);
			ret = batch_recv(side, NULL, 0);
			CHECK(!ret || ret == -EAGAIN);
		} else {
			sluice_batch_release(b);
		}
	}
	sluice_arena_detach(a);
}

FIXTURE(kill)
{
	struct sluice_arena *a;
	struct sluice_channel *ch, *side;
	struct world *w;
	unsigned int lives;
};

FIXTURE_SETUP(kill)
{
	self->a = arena_new(2 * MIB);
	ASSERT_NE(NULL, self->a);
	self->ch = channel_new(self->a, "c", 16, SLUICE_CHANNEL_KEEP_OPEN);
	self->side = channel_new(self->a, "side", 16, SLUICE_CHANNEL_KEEP_OPEN);
	ASSERT_NE(NULL, self->ch);
	ASSERT_NE(NULL, self->side);
	self->w = mmap(NULL, sizeof(*self->w), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, self->w);
	random_u64();
}

FIXTURE_TEARDOWN(kill)
{
}

static pid_t worker_start(FIXTURE_DATA(kill) * self)
{
	unsigned int number = self->lives++;
	pid_t pid;

	CHILD(pid) {
		/* Not the parent's random numbers again. */
		for (unsigned int i = 0; i < number % 1000; i++)
			random_u64();
		work(self->a, self->w, number);
	}
	self->w->life[number].pid = pid;
	return pid;
}

TEST_F_TIMEOUT(kill, five_hundred_times_under_load, 240)
{
	unsigned int kills = scaled(500), deaths = 0, lost = 0;
	struct sluice_event ev = {.sz = sizeof(ev)};
	pid_t pid[WORKERS];
	uint64_t seed, total = 0, before = 0;
	int status;

	for (int i = 0; i < WORKERS; i++)
		pid[i] = worker_start(self);
	for (unsigned int k = 0; k < kills; k++) {
		int victim = (int)(random_u64() % WORKERS);

		/* Long enough for the newcomer to get to work, at odd moments. */
		usleep(1000 + random_u64() % 8000);
		kill(pid[victim], SIGKILL);
		status = child_wait(pid[victim]);
		ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		{
			TH_LOG("after %u kills a worker ended with status %x", k, status);
		}
		pid[victim] = worker_start(self);
		/* A survivor that works as well. */
		while (!sluice_event_next(self->a, &ev, 0))
			deaths += ev.type == SLUICE_EVENT_PEER_DEAD ? 1 : (unsigned int)ev.peer_id;
		if (!batch_recv(self->ch, &seed, 0))
			bit_set(self->w, seed);
		if (k % 50 == 49) {
			uint64_t now = 0;

			for (unsigned int i = 0; i < self->lives; i++)
				now += self->w->life[i].taken;
			ASSERT_LT(before, now)
			{
				TH_LOG("nothing moves any more after %u kills", k);
			}
			before = now;
		}
	}
	for (int i = 0; i < WORKERS; i++)
		child_kill(pid[i]);
	while (deaths < kills && !sluice_event_next(self->a, &ev, LONG_WAIT))
		deaths += ev.type == SLUICE_EVENT_PEER_DEAD ? 1 : (unsigned int)ev.peer_id;
	while (!sluice_event_next(self->a, &ev, 10 * MSEC))
		;
	while (!batch_recv(self->side, NULL, 0))
		;
	while (!(status = batch_recv(self->ch, &seed, 0)))
		bit_set(self->w, seed);
	EXPECT_EQ(-EAGAIN, status);
	for (unsigned int i = 0; i < self->lives; i++) {
		uint64_t n = __atomic_load_n(&self->w->life[i].published, __ATOMIC_ACQUIRE);

		total += n;
		for (uint64_t j = 0; j < n; j++)
			lost += !bit_get(self->w, i, j);
	}
	printf("# %u kills, %llu batches published, %u lost in the hands of the dead\n", kills,
	       (unsigned long long)total, lost);
	fflush(stdout);
	EXPECT_EQ(0, self->w->twice);
	EXPECT_EQ(0, self->w->damaged);
	/* Each death may cost the one batch that was between the queue and the dead one's notes. */
	EXPECT_LE(lost, self->lives);
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	EXPECT_EQ(1, sluice_peer_list(self->a, NULL, 0));
	sluice_channel_close(self->ch);
	sluice_channel_close(self->side);
	sluice_arena_detach(self->a);
}

TEST_HARNESS_MAIN
