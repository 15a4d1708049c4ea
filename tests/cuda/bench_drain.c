// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Device to host: bandwidth, and how soon a worker knows. */
#include <cuda.h>
#include <sched.h>
#include <sys/eventfd.h>

#include "bench.h"

#define ROUND_NS (600 * MSEC)

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
	uint64_t start = now_ns(), n = 0;
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
	return n * bytes / ((now_ns() - start) / 1e9) / 1e9;
}

static void copies_of(uint64_t bytes, const char *name)
{
	struct sluice_cuda_drain_opts o = {.sz = sizeof(o), .depth = 4};
	struct samples ours = {0}, bare = {0};
	void *dev[2], *host[2];
	struct drain d = {.a = arena_huge(8 * (bytes + 2 * MIB))};
	struct row *r;
	pid_t pid;

	d.out = channel_new(d.a, "drain", 6, SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_KEEP_OPEN);
	CHILD(pid) {
		worker_releases(d.a, "drain");
	}
	drain_open(&d, &o);
	for (int i = 0; i < 2; i++) {
		dev[i] = gpu_alloc(bytes);
		CHECK_CUDA(cudaMallocHost(&host[i], bytes));
	}
	drain_rate(&d, dev, bytes);
	for (int i = 0; i < REPEATS; i++) {
		sample(&ours, drain_rate(&d, dev, bytes));
		sample(&bare, bare_rate(dev, host, bytes, d.s));
	}
	r = row_add(name, "GB/s", median(&ours));
	row_peer(r, "cudaMemcpyAsync into cudaMallocHost memory", median(&bare));
	row_goal(r, r->ratio >= 0.98, "at least 0.98 of the peer");
	drain_close(&d);
	child_kill(pid);
	for (int i = 0; i < 2; i++) {
		gpu_free(dev[i]);
		CHECK_CUDA(cudaFreeHost(host[i]));
	}
}

void bench_drain_copies(void)
{
	pid_t pid;

	CHILD(pid) {
		copies_of(64 * MIB, "D2H, 64 MiB batches");
	}
	CHECK_OK(child_wait(pid));
	copies_of(BATCH_BYTES, "D2H, 403 MB batches");
}

/* ------------------------------------------------------------------ doorbells */

/*
 * The GPU is held by a stream that waits for a flag; everything behind it is on the stream already.
 * The clock starts when the flag is set and stops when the other process knows.
 */
struct shared {
	_Alignas(64) uint32_t flag;
	_Alignas(64) uint32_t word; /* the bare reference's */
	_Alignas(64) _Atomic uint64_t at; /* when the other process knew */
	_Alignas(64) _Atomic uint32_t seen;
	_Atomic uint32_t quit;
};

#define ROUNDS 600

static CUresult (*wait_value)(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int flags);
static CUresult (*write_value)(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int flags);

static void *driver_entry(const char *name)
{
	enum cudaDriverEntryPointQueryResult found;
	void *fn = NULL;

	CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &found));
	CHECK(fn);
	return fn;
}

static void *shared_new(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static void shared_register(struct shared *sh)
{
	CHECK_CUDA(cudaHostRegister(sh, 4096, cudaHostRegisterDefault));
	wait_value = (__typeof__(wait_value))driver_entry("cuStreamWaitValue32");
	write_value = (__typeof__(write_value))driver_entry("cuStreamWriteValue32");
}

static void hold(struct shared *sh, cudaStream_t s, uint32_t i)
{
	CHECK_OK(wait_value(s, (uintptr_t)&sh->flag, i, CU_STREAM_WAIT_VALUE_EQ));
}

/* Let the GPU go; microseconds until the other process knew. */
static double let_go(struct shared *sh, uint32_t i)
{
	uint64_t start;

	usleep(150); /* everything is on the stream, and whoever sleeps does */
	start = now_ns();
	__atomic_store_n(&sh->flag, i, __ATOMIC_SEQ_CST);
	while (sh->seen != i)
		sched_yield();
	return (sh->at - start) / 1e3;
}

static void knew(struct shared *sh, uint32_t i)
{
	sh->at = now_ns();
	sh->seen = i;
}

static void ring_eventfd(void *arg)
{
	uint64_t one = 1;

	CHECK(write((int)(intptr_t)arg, &one, sizeof(one)) == sizeof(one));
}

/*
 * Nothing else runs where the worker spins.  The driver's threads are made later and stay with us;
 * a CPU's sibling is most often its neighbour, which nobody uses then.
 */
static void worker_apart(bool worker)
{
	cpu_set_t set, mine;
	int cpu = -1;

	CHECK_OK(sched_getaffinity(0, sizeof(set), &set));
	if (CPU_COUNT(&set) < 8)
		return;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			cpu = i;
	CPU_ZERO(&mine);
	CPU_SET(cpu, &mine);
	CPU_CLR(cpu, &set);
	CPU_CLR(cpu ^ 1, &set);
	CHECK_OK(sched_setaffinity(0, sizeof(set), worker ? &mine : &set));
}

/*
 * Rounds of the reference (a bare write, or a host function and an eventfd) and of ours in turn, so
 * that whatever the machine does meanwhile it does to both.
 */
struct bell_case {
	bool asleep;
	bool own_stream;
	int64_t bytes;
};

struct bell_result {
	struct samples ours, ref;
};

static void bell_worker(struct shared *sh, const struct bell_case *k,
			struct sluice_arena *inherited, int fd)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel_opts in = {
		.sz = sizeof(in),
		.flags = SLUICE_CHANNEL_CONSUME | (k->asleep ? SLUICE_CHANNEL_NO_SPIN : 0),
		.spin_ns = k->asleep ? 0 : 10 * SEC,
	};
	struct sluice_channel *ch;
	struct sluice_batch *b;

	worker_apart(true);
	CHECK_OK(sluice_channel_open(&ch, a, "bell", &in));
	for (uint32_t i = 1;; i += 2) {
		uint64_t n;

		if (k->asleep)
			CHECK(read(fd, &n, sizeof(n)) == sizeof(n));
		else
			while (__atomic_load_n(&sh->word, __ATOMIC_ACQUIRE) != i)
				__builtin_ia32_pause();
		knew(sh, i);
		CHECK_OK(sluice_channel_next(ch, &b, SLUICE_FOREVER));
		knew(sh, i + 1);
		sluice_batch_release(b);
	}
}

static void bell_rounds(const struct bell_case *k, struct bell_result *res)
{
	struct drain d = {.a = arena_huge(64 * MIB)};
	struct sluice_cuda_drain_opts o = {.sz = sizeof(o)};
	struct sluice_tensor t = {
		.sz = sizeof(t),
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = &k->bytes,
	};
	struct shared *sh = shared_new(sizeof(*sh));
	int fd = eventfd(0, 0);
	pid_t pid;

	d.out = channel_new(d.a, "bell", 16, SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_KEEP_OPEN);
	CHILD(pid) {
		bell_worker(sh, k, d.a, fd);
	}
	worker_apart(false);
	CHECK(gpu_init(0));
	shared_register(sh);
	d.s = gpu_stream();
	o.stream = k->own_stream ? NULL : d.s;
	CHECK_SLUICE(sluice_cuda_attach(&d.c, d.a, NULL));
	CHECK_SLUICE(sluice_cuda_drain_open(&d.d, d.c, d.out, &o));
	t.data = gpu_alloc(4096);
	for (uint32_t i = 1; i <= 2 * ROUNDS; i += 2) {
		hold(sh, d.s, i);
		if (k->asleep)
			CHECK_CUDA(cudaLaunchHostFunc(d.s, ring_eventfd, (void *)(intptr_t)fd));
		else
			CHECK_OK(write_value(d.s, (uintptr_t)&sh->word, i, 0));
		sample(&res->ref, let_go(sh, i));
		hold(sh, d.s, i + 1);
		CHECK_SLUICE(sluice_cuda_drain_submit(d.d, &t, 1, d.s, NULL));
		sample(&res->ours, let_go(sh, i + 1));
	}
	child_kill(pid);
}

static struct row *bell_row(const char *name, const struct bell_case *k)
{
	struct bell_result *res = shared_new(sizeof(*res));
	struct row *r;
	pid_t pid;

	/* Each repetition forks a worker before CUDA starts, hence a process of its own. */
	for (int i = 0; i < REPEATS; i++) {
		CHILD(pid) {
			bell_rounds(k, res);
		}
		CHECK_OK(child_wait(pid));
	}
	r = row_add(name, "us", median(&res->ours));
	row_peer(r, k->asleep ? "host function and eventfd" : "cuStreamWriteValue",
		 median(&res->ref));
	return r;
}

void bench_doorbell(void)
{
	struct bell_case k = {0};
	struct row *r;

	r = bell_row("GPU done to worker awake, spinning", &k);
	row_goal(r, r->ratio <= 1.2, "at most 1.2 of the peer");
	k.own_stream = true;
	bell_row("across two streams, spinning", &k);
	k.bytes = 4096;
	bell_row("with a copy of 4 KiB, spinning", &k);
	k = (struct bell_case){.asleep = true};
	r = bell_row("GPU done to worker awake, sleeping", &k);
	row_goal(r, r->ratio <= 1.2, "at most 1.2 of the peer");
	k.own_stream = true;
	bell_row("across two streams, sleeping", &k);
	k.bytes = 4096;
	bell_row("with a copy of 4 KiB, sleeping", &k);
}
