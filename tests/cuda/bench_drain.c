// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Device to host: bandwidth, and how soon a worker knows. */
#include <cuda.h>
#include <sched.h>
#include <sys/eventfd.h>

#include "bench.h"

#define ROUND_NS (200 * MSEC)

struct drain {
	struct sluice_arena *a;
	struct sluice_channel *out;
	struct sluice_cuda *c;
	struct sluice_cuda_drain *d;
	cudaStream_t s;
};

static void drain_open(struct drain *d, struct sluice_cuda_drain_opts *o)
{
	CHECK(gpu_init(0));
	d->s = gpu_stream();
	CHECK_SLUICE(sluice_cuda_attach(&d->c, d->a, NULL));
	CHECK_SLUICE(sluice_cuda_drain_open(&d->d, d->c, d->out, o));
}

static void drain_close(struct drain *d)
{
	CHECK_SLUICE(sluice_cuda_drain_close(d->d));
	CHECK_SLUICE(sluice_cuda_detach(d->c));
	gpu_stream_free(d->s);
}

static void worker_releases(struct sluice_arena *inherited, const char *name)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel *in = channel_join(a, name, SLUICE_CHANNEL_CONSUME);
	struct sluice_batch *b;

	while (!sluice_channel_next(in, &b, SLUICE_FOREVER))
		sluice_batch_release(b);
	_exit(0);
}

static double drain_rate(struct drain *d, void *const dev[2], int64_t bytes)
{
	uint64_t start = now_ns(), n = 0;

	do {
		const struct sluice_tensor t = {
			.sz = sizeof(t),
			.data = dev[n % 2],
			.dtype = SLUICE_U8,
			.ndim = 1,
			.shape = &bytes,
		};

		CHECK_SLUICE(sluice_cuda_drain_submit(d->d, &t, 1, d->s, NULL));
		n++;
	} while (now_ns() < start + ROUND_NS);
	CHECK_SLUICE(sluice_cuda_drain_flush(d->d, SLUICE_FOREVER));
	return n * bytes / ((now_ns() - start) / 1e9) / 1e9;
}

static double bare_rate(void *const dev[2], void *const host[2], size_t bytes, cudaStream_t s)
{
	uint64_t start = now_ns(), end, n = 0;
	cudaEvent_t done[2];

	for (int i = 0; i < 2; i++) {
		CHECK_CUDA(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming |
								      cudaEventBlockingSync));
		CHECK_CUDA(cudaEventRecord(done[i], s));
	}
	do {
		CHECK_CUDA(cudaEventSynchronize(done[n % 2]));
		CHECK_CUDA(
			cudaMemcpyAsync(host[n % 2], dev[n % 2], bytes, cudaMemcpyDeviceToHost, s));
		CHECK_CUDA(cudaEventRecord(done[n % 2], s));
		n++;
	} while (now_ns() < start + ROUND_NS);
	gpu_sync(s);
	end = now_ns();
	for (int i = 0; i < 2; i++)
		CHECK_CUDA(cudaEventDestroy(done[i]));
	return n * bytes / ((end - start) / 1e9) / 1e9;
}

#define SIZES 2

void bench_drain_copies(void)
{
	static const uint64_t bytes[SIZES] = {64 * MIB, BATCH_BYTES};
	static const char *const name[SIZES] = {"D2H, 64 MiB batches", "D2H, 403 MB batches"};
	struct sluice_cuda_drain_opts o = {.sz = sizeof(o), .depth = 4};
	struct samples ours[SIZES] = {0}, peer[SIZES] = {0}, ratio[SIZES] = {0};
	void *dev[SIZES][2], *host[SIZES][2];
	struct drain d[SIZES] = {0};
	pid_t pid[SIZES];
	struct row *r;

	for (int k = 0; k < SIZES; k++) {
		d[k].a = arena_huge(8 * (bytes[k] + 2 * MIB));
		d[k].out = channel_new(d[k].a, "drain", 6,
				       SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_KEEP_OPEN);
		CHILD(pid[k]) {
			worker_releases(d[k].a, "drain");
		}
	}
	for (int k = 0; k < SIZES; k++) {
		drain_open(&d[k], &o);
		for (int i = 0; i < 2; i++) {
			dev[k][i] = gpu_alloc(bytes[k]);
			CHECK_CUDA(cudaMallocHost(&host[k][i], bytes[k]));
		}
		drain_rate(&d[k], dev[k], bytes[k]);
	}
	for (int i = 0; i < REPEATS * SIZES; i++) {
		const int k = i % SIZES;
		double drained = 0, bare = 0;

		/* Each comes first in every other round. */
		for (int turn = 0; turn < 2; turn++) {
			if ((i / SIZES + turn) % 2)
				bare = bare_rate(dev[k], host[k], bytes[k], d[k].s);
			else
				drained = drain_rate(&d[k], dev[k], bytes[k]);
		}
		sample(&ours[k], drained);
		sample(&peer[k], bare);
		sample(&ratio[k], drained / bare);
	}
	for (int k = 0; k < SIZES; k++) {
		r = row_add(name[k], "GB/s", median(&ours[k]));
		row_peer(r, "cudaMemcpyAsync into cudaMallocHost memory", median(&peer[k]));
		r->ratio = median(&ratio[k]);
		row_goal(r, r->ratio >= 0.98, "at least 0.98 of the peer");
		drain_close(&d[k]);
		child_kill(pid[k]);
	}
}

/* ------------------------------------------------------------------ doorbells */

/*
 * A kernel on the GPU runs until a flag is set; everything behind it is on the stream already.  The
 * clock starts when the flag is set and stops when the other process knows.
 */
struct shared {
	_Alignas(64) uint32_t flag;
	_Alignas(64) uint32_t word; /* the bare reference's */
	_Alignas(64) _Atomic uint64_t at; /* when the other process knew */
	_Alignas(64) _Atomic uint32_t seen;
};

static CUresult (*write_value)(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int flags);

static void *driver_entry(const char *name)
{
	enum cudaDriverEntryPointQueryResult found;
	void *fn = NULL;

	CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &found));
	CHECK(fn);
	return fn;
}

/* Let the GPU go; microseconds until the other process knew. */
static double let_go(struct shared *sh, uint32_t shot)
{
	uint64_t start;

	usleep(150); /* everything is on the stream, and whoever sleeps does */
	start = now_ns();
	__atomic_store_n(&sh->flag, shot, __ATOMIC_SEQ_CST);
	while (sh->seen != shot)
		sched_yield();
	return (sh->at - start) / 1e3;
}

static void knew(struct shared *sh, uint32_t shot)
{
	sh->at = now_ns();
	sh->seen = shot;
}

static void ring_eventfd(void *arg)
{
	uint64_t one = 1;

	CHECK(write((int)(intptr_t)arg, &one, sizeof(one)) == sizeof(one));
}

static void wait_eventfd(int fd)
{
	uint64_t n;

	CHECK(read(fd, &n, sizeof(n)) == sizeof(n));
}

/* The CPUs that the GPU has interrupted. */
static void interrupted(cpu_set_t *set)
{
	FILE *f = fopen("/proc/interrupts", "re");
	char *line = NULL;
	size_t room = 0;
	int cpus = 0, cpu[CPU_SETSIZE];

	CPU_ZERO(set);
	if (!f)
		return;
	/* The first line names the columns, the others end in the name of a driver. */
	if (getline(&line, &room, f) > 0)
		for (char *at = line; cpus < CPU_SETSIZE && (at = strstr(at, "CPU")); at += 3)
			cpu[cpus++] = atoi(at + 3);
	while (getline(&line, &room, f) > 0) {
		char *at = strchr(line, ':');

		if (!at || !strstr(at, "nvidia"))
			continue;
		at++;
		for (int i = 0; i < cpus; i++)
			if (strtoull(at, &at, 10) && cpu[i] < CPU_SETSIZE)
				CPU_SET(cpu[i], set);
	}
	free(line);
	fclose(f);
}

/*
 * Nothing else runs where the worker spins, if possible not even interrupts.  The driver's threads are
 * made later and stay with us; a CPU's sibling is most often its neighbour, which nobody uses then.
 */
static int apart;

static void apart_choose(void)
{
	cpu_set_t set, busy;

	apart = -1;
	interrupted(&busy);
	CHECK_OK(sched_getaffinity(0, sizeof(set), &set));
	if (CPU_COUNT(&set) < 8)
		return;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set) &&
		    (apart < 0 || !CPU_ISSET(i, &busy) || CPU_ISSET(apart, &busy)))
			apart = i;
	fprintf(stderr, "# the workers spin on CPU %d, which the GPU has %s\n", apart,
		CPU_ISSET(apart, &busy) ? "interrupted" : "never interrupted");
}

static void worker_apart(bool worker)
{
	cpu_set_t set;

	if (apart < 0)
		return;
	CHECK_OK(sched_getaffinity(0, sizeof(set), &set));
	CPU_CLR(apart, &set);
	CPU_CLR(apart ^ 1, &set);
	if (worker) {
		CPU_ZERO(&set);
		CPU_SET(apart, &set);
	}
	CHECK_OK(sched_setaffinity(0, sizeof(set), &set));
}

/*
 * Single shots of the reference (a bare write, or a host function and an eventfd) and of ours in
 * turn, so that whatever the machine does meanwhile it does to both; in blocks, each with streams of
 * its own, because it matters which queues of the GPU a stream gets.  The cases take turns, too.
 */
#define SHOTS 400 /* of either in a block */

struct bell {
	const char *name;
	bool asleep;
	bool own_stream;
	int64_t bytes;
	const char *tail; /* of a case with a goal: the name of the row for 9 of 10 */
	struct samples ours, ref, ratio;
	struct sluice_arena *a;
	struct sluice_channel *out;
	struct sluice_cuda *c;
	struct shared *sh;
	int go, fd; /* for a block, and what the reference rings */
	pid_t pid;
	uint32_t shot;
};

/* Which of two comes first changes from pair to pair. */
static bool shot_is_ours(uint32_t shot)
{
	return (shot / 2 + shot) % 2;
}

static void bell_worker(const struct bell *k)
{
	struct sluice_arena *a = arena_child(k->a);
	struct sluice_channel_opts in = {
		.sz = sizeof(in),
		.flags = SLUICE_CHANNEL_CONSUME | (k->asleep ? SLUICE_CHANNEL_NO_SPIN : 0),
		.spin_ns = k->asleep ? 0 : 10 * SEC,
	};
	struct sluice_channel *ch;
	struct sluice_batch *b;

	worker_apart(true);
	CHECK_OK(sluice_channel_open(&ch, a, "bell", &in));
	for (uint32_t shot = 1;; shot++) {
		if (shot % (2 * SHOTS) == 1)
			wait_eventfd(k->go);
		if (shot_is_ours(shot)) {
			CHECK_OK(sluice_channel_next(ch, &b, SLUICE_FOREVER));
			knew(k->sh, shot);
			sluice_batch_release(b);
			continue;
		}
		if (k->asleep)
			wait_eventfd(k->fd);
		else
			while (__atomic_load_n(&k->sh->word, __ATOMIC_ACQUIRE) != shot)
				__builtin_ia32_pause();
		knew(k->sh, shot);
	}
}

static void bell_fork(struct bell *k)
{
	k->a = arena_huge(64 * MIB);
	k->out = channel_new(k->a, "bell", 16, SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_KEEP_OPEN);
	CHECK(k->out);
	k->sh = shared_new(4096);
	k->go = eventfd(0, 0);
	k->fd = eventfd(0, 0);
	CHILD(k->pid) {
		bell_worker(k);
	}
}

static void bell_block(struct bell *k, void *dev)
{
	struct drain d = {.a = k->a, .out = k->out, .c = k->c, .s = gpu_stream()};
	struct sluice_cuda_drain_opts o = {
		.sz = sizeof(o),
		.stream = k->own_stream ? NULL : d.s,
	};
	const struct sluice_tensor t = {
		.sz = sizeof(t),
		.data = dev,
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = &k->bytes,
	};
	struct samples ours = {0}, ref = {0};

	CHECK_SLUICE(sluice_cuda_drain_open(&d.d, d.c, d.out, &o));
	ring_eventfd((void *)(intptr_t)k->go);
	for (int i = 0; i < 2 * SHOTS; i++) {
		const uint32_t shot = ++k->shot;
		const bool mine = shot_is_ours(shot);

		gpu_hold(d.s, &k->sh->flag, shot);
		if (mine)
			CHECK_SLUICE(sluice_cuda_drain_submit(d.d, &t, 1, d.s, NULL));
		else if (k->asleep)
			CHECK_CUDA(cudaLaunchHostFunc(d.s, ring_eventfd, (void *)(intptr_t)k->fd));
		else
			CHECK_OK(write_value(d.s, (uintptr_t)&k->sh->word, shot, 0));
		sample(mine ? &ours : &ref, let_go(k->sh, shot));
	}
	for (unsigned int i = 0; i < ours.n; i++) {
		sample(&k->ours, ours.v[i]);
		sample(&k->ref, ref.v[i]);
	}
	sample(&k->ratio, median(&ours) / median(&ref));
	CHECK_SLUICE(sluice_cuda_drain_close(d.d));
	gpu_stream_free(d.s);
}

static void bell_rows(struct bell *k)
{
	const char *peer = k->asleep ? "host function and eventfd" : "cuStreamWriteValue";
	char name[64];
	struct row *r;

	snprintf(name, sizeof(name), "%s, %s", k->name, k->asleep ? "sleeping" : "spinning");
	r = row_add(name, "us", median(&k->ours));
	row_peer(r, peer, median(&k->ref));
	r->ratio = median(&k->ratio);
	if (!k->tail)
		return;
	row_goal(r, r->ratio <= 1.2, "at most 1.2 of the peer");
	r = row_add(k->tail, "us", most(&k->ours));
	row_peer(r, peer, most(&k->ref));
}

void bench_doorbell(void)
{
	static const char done[] = "GPU done to worker awake", across[] = "across two streams",
			  copy[] = "with a copy of 4 KiB";
	static struct bell bells[] = {
		{.name = done, .tail = "GPU done to awake, spinning, 9 of 10 within"},
		{.name = across, .own_stream = true},
		{.name = copy, .own_stream = true, .bytes = 4096},
		{.name = done,
		 .asleep = true,
		 .tail = "GPU done to awake, sleeping, 9 of 10 within"},
		{.name = across, .asleep = true, .own_stream = true},
		{.name = copy, .asleep = true, .own_stream = true, .bytes = 4096},
	};
	void *dev;

	apart_choose();
	for (size_t i = 0; i < ARRAY_SIZE(bells); i++)
		bell_fork(&bells[i]);
	worker_apart(false);
	CHECK(gpu_init(0));
	write_value = (__typeof__(write_value))driver_entry("cuStreamWriteValue32");
	dev = gpu_alloc(4096);
	for (size_t i = 0; i < ARRAY_SIZE(bells); i++) {
		CHECK_CUDA(cudaHostRegister(bells[i].sh, 4096, cudaHostRegisterMapped));
		CHECK_SLUICE(sluice_cuda_attach(&bells[i].c, bells[i].a, NULL));
	}
	for (int block = 0; block < REPEATS; block++)
		for (size_t i = 0; i < ARRAY_SIZE(bells); i++)
			bell_block(&bells[i], dev);
	for (size_t i = 0; i < ARRAY_SIZE(bells); i++) {
		child_kill(bells[i].pid);
		bell_rows(&bells[i]);
	}
}
