// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A process dies at each crash point: between any two writes to shared memory.  Survivors must lose
 * no published batch and get none twice, find every block free again, and hang nowhere.
 *
 * Built with -DSLUICE_CRASH_POINTS only.
 */
#include "crash.h"
#include "util.h"

#include <kselftest_harness.h>

enum {
	QUEUED = 6, /* batches that wait for the victims */
	ROUNDS = 4, /* batches that each publishes */
	DEPTH = 3, /* the first to third time that it comes by */
	LIVES = 2,
};

/* What was done, in memory that outlives who did it. */
struct log {
	struct {
		uint64_t tried, published; /* batches on "out" */
		bool survived; /* came to its end */
	} life[LIVES];
	unsigned char taken[QUEUED]; /* of "in" */
	unsigned char got[LIVES * ROUNDS]; /* of "out" */
	unsigned int killed; /* as peers: each is worth an event */
	unsigned char reached[256];
};

static struct log *log_new(void)
{
	void *p = mmap(NULL, sizeof(struct log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* The victim's private channel: sharing, forwarding, sealing, posting, overflowing. */
static void juggle(struct sluice_arena *a, struct sluice_channel *own, struct sluice_channel *bell)
{
	struct sluice_batch *b, *c, *d;
	uint64_t token, *word, value;
	int n = 0;

	CHECK(sluice_channel_arm(bell) >= 0);
	CHECK_OK(batch_send(own, 5000, 1, 0));
	CHECK_OK(batch_take(own, &b, NULL, 0));
	CHECK_OK(sluice_batch_share(b, own, 0));
	CHECK_OK(sluice_batch_share(b, own, 0));
	CHECK_OK(batch_take(own, &c, NULL, 0));
	CHECK_OK(sluice_batch_token(b, &token));
	CHECK_OK(sluice_batch_open(a, &d, token));
	sluice_batch_release(b);
	sluice_batch_release(d);
	CHECK_OK(sluice_batch_forward(c, own, 0));
	CHECK_OK(batch_recv(own, NULL, 0));
	CHECK_OK(batch_recv(own, NULL, 0));

	CHECK_OK(sluice_batch_begin(own, &b, 9000, 0));
	CHECK_OK(sluice_batch_seal(b));
	sluice_batch_release(b);
	CHECK_OK(sluice_batch_begin(own, &b, 9000, 0));
	sluice_batch_abort(b);

	CHECK_OK(sluice_batch_begin(own, &b, 64, 0));
	CHECK(sluice_batch_tensor_add(b, "x", SLUICE_F32, 0, NULL, NULL));
	CHECK_OK(sluice_batch_post(b, &word, &value, 0));
	sluice_batch_posted(b);
	CHECK_OK(sluice_channel_next(own, &b, 0));
	sluice_batch_release(b);
	CHECK_OK(sluice_batch_begin(own, &b, 64, 0));
	CHECK_OK(sluice_batch_post(b, &word, &value, 0));
	CHECK_OK(sluice_batch_unpost(b));
	sluice_batch_abort(b);

	/* Two neighbours that must become one. */
	CHECK_OK(sluice_batch_begin(own, &b, 300 * KIB, 0));
	CHECK_OK(sluice_batch_begin(own, &c, 300 * KIB, 0));
	sluice_batch_abort(b);
	sluice_batch_abort(c);
	CHECK_OK(sluice_batch_begin(own, &b, 600 * KIB, 0));
	sluice_batch_abort(b);

	while (!batch_send(own, 100, 1, 0))
		n++;
	while (n--)
		CHECK_OK(batch_recv(own, NULL, 0));
	CHECK(batch_recv(own, NULL, 1000) == -ETIMEDOUT);
}

/* Everything that the library does, in one life. */
static void live(struct sluice_arena *inherited, struct log *log, unsigned int who)
{
	struct sluice_channel *out, *in, *own, *bell, *shut;
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_batch *b;
	uint64_t seed;

	out = channel_join(a, "out", SLUICE_CHANNEL_PRODUCE);
	in = channel_join(a, "in", SLUICE_CHANNEL_CONSUME);
	own = channel_new(a, "own", 3, 0);
	bell = channel_join(a, "own", SLUICE_CHANNEL_CONSUME);
	CHECK(out && in && own && bell);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		log->life[who].tried++;
		CHECK_OK(batch_send(out, 6000, who * ROUNDS + i, LONG_WAIT));
		log->life[who].published++;
		if (!batch_take(in, &b, &seed, 0)) {
			CHECK(seed < QUEUED && !log->taken[seed]);
			log->taken[seed] = 1;
			sluice_batch_release(b);
		}
		juggle(a, own, bell);
	}
	shut = channel_new(a, "shut", 3, 0);
	CHECK(shut);
	CHECK_OK(batch_send(shut, 10, 1, 0));
	CHECK_OK(batch_send(shut, 10, 2, 0));
	CHECK_OK(sluice_batch_begin(shut, &b, 10, 0));
	CHECK_OK(sluice_channel_shutdown(shut));
	CHECK(sluice_batch_publish(b) == -ESHUTDOWN);
	sluice_batch_abort(b);
	sluice_channel_close(shut);
	sluice_channel_close(bell);
	sluice_channel_close(own);
	sluice_channel_close(in);
	sluice_channel_close(out);
	sluice_arena_detach(a);
	log->life[who].survived = true;
}

static void take_out(struct sluice_channel *out, struct log *log, uint64_t timeout_ns, int *ret)
{
	uint64_t seed;

	while (!(*ret = batch_recv(out, &seed, timeout_ns))) {
		if (seed >= ARRAY_SIZE(log->got) || log->got[seed]) {
			*ret = -EILSEQ;
			return;
		}
		log->got[seed] = 1;
	}
}

/* Sleeps on "out" until its end; every sleep must be ended by a ring or by a death. */
static void drain(struct sluice_arena *inherited, struct log *log, struct gate *ready)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel *out = channel_join(a, "out", SLUICE_CHANNEL_CONSUME);
	int ret;

	CHECK(out);
	gate_open(ready);
	take_out(out, log, LONG_WAIT, &ret);
	CHECK(ret == -ENODATA || ret == -EOWNERDEAD);
	sluice_channel_close(out);
	sluice_arena_detach(a);
}

/* Where the lives take place; the test itself is the survivor. */
struct scene {
	struct sluice_arena *a;
	struct sluice_channel *out, *in;
	struct log *log;
};

static const char *scene_set(struct scene *s, uint32_t out_capacity)
{
	memset(s->log, 0, offsetof(struct log, reached));
	s->a = arena_new(MIB);
	if (!s->a)
		return "no arena";
	s->out = channel_new(s->a, "out", out_capacity, SLUICE_CHANNEL_CONSUME);
	s->in = channel_new(s->a, "in", QUEUED, SLUICE_CHANNEL_KEEP_OPEN);
	if (!s->out || !s->in)
		return "no channel";
	for (uint64_t i = 0; i < QUEUED; i++)
		if (batch_send(s->in, 3000, i, 0))
			return "nothing queued";
	return NULL;
}

/* Everything can be had at once, and a newcomer can do everything again. */
static const char *scene_repeat(struct scene *s)
{
	struct sluice_batch *b;
	pid_t pid;

	if (sluice_batch_begin(s->in, &b, MIB - 64 * KIB, 0))
		return "the whole arena cannot be had";
	sluice_batch_abort(b);
	s->out = channel_new(s->a, "out", 2 * ROUNDS, SLUICE_CHANNEL_KEEP_OPEN);
	if (!s->out)
		return "the channel cannot be made again";
	CHILD(pid)
		live(s->a, log_new(), 0);
	if (child_wait(pid))
		return "a newcomer fails";
	while (!batch_recv(s->out, NULL, 0))
		;
	sluice_channel_close(s->out);
	return arena_all_free(s->a);
}

/* NULL, or what is wrong after the deaths. */
static const char *scene_check(struct scene *s)
{
	struct sluice_event ev = {.sz = sizeof(ev)};
	struct log *log = s->log;
	unsigned int missing = 0, deaths = 0, events = 0;
	uint64_t seed;
	int ret;

	while (!sluice_event_next(s->a, &ev, 0))
		events++;
	if (events < log->killed)
		return "a death has no event";
	for (uint64_t who = 0; who < LIVES; who++) {
		deaths += log->life[who].tried && !log->life[who].survived;
		for (uint64_t i = 0; i < ROUNDS; i++) {
			bool got = log->got[who * ROUNDS + i];

			if (i < log->life[who].published && !got)
				return "a published batch is lost";
			if (i >= log->life[who].tried && got)
				return "a batch came from nowhere";
		}
	}
	while (!(ret = batch_recv(s->in, &seed, 0))) {
		if (seed >= QUEUED || log->taken[seed])
			return "a batch was delivered twice";
		log->taken[seed] = 1;
	}
	if (ret != -EAGAIN)
		return "the rest of the queue cannot be read";
	for (int i = 0; i < QUEUED; i++)
		missing += !log->taken[i];
	/* Each may have had one in its hands. */
	if (missing > deaths)
		return "a queued batch is lost";
	sluice_channel_close(s->out);
	if (arena_all_free(s->a))
		return arena_all_free(s->a);
	if (sluice_peer_list(s->a, NULL, 0) != 1)
		return "a dead peer is still listed";
	return scene_repeat(s);
}

static void scene_end(struct scene *s)
{
	sluice_channel_close(s->in);
	sluice_arena_detach(s->a);
}

/* Live until the crash point is met; false when it ended in another way than these two. */
static bool live_until(struct scene *s, unsigned int who, int point, unsigned int nth)
{
	const char *name = sluice_crash_names()[point];
	pid_t pid;
	int status;

	CHILD(pid) {
		sluice_crash_arm(name, nth);
		live(s->a, s->log, who);
	}
	status = child_wait(pid);
	if (status && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)) {
		fprintf(stderr, "# %s:%u: life %u ended with status %x\n", name, nth, who, status);
		return false;
	}
	s->log->reached[point] |= WIFSIGNALED(status);
	/* Past that point who leaves is no peer any more. */
	s->log->killed += WIFSIGNALED(status) && strcmp(name, "recover_before_wake");
	return true;
}

FIXTURE(crash)
{
	struct scene s;
	struct gate ready;
};

FIXTURE_SETUP(crash)
{
	self->s.log = log_new();
	ASSERT_NE(NULL, self->s.log);
	gate_init(&self->ready);
}

FIXTURE_TEARDOWN(crash)
{
}

/* Points that only a process meets which comes after a death, or races with another. */
static bool not_in_one_life(const char *name)
{
	static const char *const names[] = {
		"lock_take_over",      "recount_before_parked", "recover_claimed",
		"recover_before_free", "recover_before_event",	"recover_before_count",
		"publish_before_undo",
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

/* A consumer sleeps meanwhile, so that rings are missed. */
TEST_F_TIMEOUT(crash, at_every_point_of_a_life, 900)
{
	const char *const *names = sluice_crash_names();

	for (int i = 0; names[i]; i++) {
		for (unsigned int nth = 1; nth <= DEPTH; nth++) {
			const char *wrong = scene_set(&self->s, 2);
			pid_t drainer;

			ASSERT_EQ(NULL, wrong);
			CHILD(drainer)
				drain(self->s.a, self->s.log, &self->ready);
			gate_pass(&self->ready);
			ASSERT_TRUE(live_until(&self->s, 0, i, nth));
			/* The end of a stream that never began. */
			if (!self->s.log->life[0].tried) {
				ASSERT_EQ(0, sluice_channel_shutdown(self->s.out));
			}
			ASSERT_EQ(0, child_wait(drainer))
			{
				TH_LOG("%s:%u: the consumer failed", names[i], nth);
			}
			wrong = scene_check(&self->s);
			ASSERT_EQ(NULL, wrong)
			{
				TH_LOG("%s:%u: %s", names[i], nth, wrong);
			}
			scene_end(&self->s);
		}
		EXPECT_TRUE(self->s.log->reached[i] || not_in_one_life(names[i]))
		{
			TH_LOG("%s is not on the way", names[i]);
		}
	}
}

/* The second comes after the first has died anywhere, and dies while it cleans up. */
TEST_F_TIMEOUT(crash, at_every_point_of_recovery, 900)
{
	const char *const *names = sluice_crash_names();
	int ret;

	for (int second = 0; names[second]; second++) {
		bool recovers = !strncmp(names[second], "recover", 7) ||
				!strncmp(names[second], "recount", 7) ||
				!strncmp(names[second], "retire", 6) ||
				!strncmp(names[second], "lock", 4);

		if (!recovers)
			continue;
		for (int first = 0; names[first]; first++) {
			const char *wrong = scene_set(&self->s, LIVES * ROUNDS);

			ASSERT_EQ(NULL, wrong);
			/* In its third round, when it has much of everything. */
			ASSERT_TRUE(live_until(&self->s, 0, first, 3));
			ASSERT_TRUE(live_until(&self->s, 1, second, 1));
			take_out(self->s.out, self->s.log, 0, &ret);
			EXPECT_NE(-EILSEQ, ret);
			wrong = scene_check(&self->s);
			ASSERT_EQ(NULL, wrong)
			{
				TH_LOG("%s, then %s: %s", names[first], names[second], wrong);
			}
			scene_end(&self->s);
		}
		EXPECT_TRUE(self->s.log->reached[second])
		{
			TH_LOG("%s is not on the way", names[second]);
		}
	}
}

/*
 * Two producers and a channel for one batch: between the look and the push the other was faster.
 * Chance decides when, so this tries until it has happened a few times.
 */
TEST_F_TIMEOUT(crash, while_it_takes_back_what_did_not_fit, 120)
{
	uint64_t until = now_ns() + 60 * SEC;
	unsigned int times = 0;

	while (times < 5 && now_ns() < until) {
		struct sluice_arena *a = arena_new(MIB);
		struct sluice_channel *c, *p;
		pid_t pid, other;
		int status = 0;

		ASSERT_NE(NULL, a);
		c = channel_new(a, "c", 1, SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_KEEP_OPEN);
		ASSERT_NE(NULL, c);
		CHILD(pid) {
			sluice_crash_arm("publish_before_undo", 1);
			p = channel_join(arena_child(a), "c", SLUICE_CHANNEL_PRODUCE);
			for (uint64_t n = 0;; n++)
				batch_send(p, 8, n, MSEC);
		}
		CHILD(other) {
			p = channel_join(arena_child(a), "c", SLUICE_CHANNEL_PRODUCE);
			for (uint64_t n = 0;; n++)
				batch_send(p, 8, n, MSEC);
		}
		while (now_ns() < until && waitpid(pid, &status, WNOHANG) != pid)
			batch_recv(c, NULL, 0);
		child_kill(other);
		if (!WIFSIGNALED(status)) {
			child_kill(pid);
			break;
		}
		times++;
		for (int dead = 0; dead < 2; dead++) {
			struct sluice_event ev = {.sz = sizeof(ev)};

			ASSERT_EQ(0, sluice_event_next(a, &ev, LONG_WAIT));
		}
		while (!batch_recv(c, NULL, 0))
			;
		sluice_channel_close(c);
		EXPECT_EQ(NULL, arena_all_free(a))
		{
			TH_LOG("%s", arena_all_free(a));
		}
		sluice_arena_detach(a);
	}
	if (!times)
		SKIP(return, "the race did not happen within a minute");
}

TEST_HARNESS_MAIN
