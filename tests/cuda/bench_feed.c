// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Host to device, against cudaMemcpyAsync from cudaMallocHost memory. */
#include "bench.h"

#define ROUND_NS (600 * MSEC)

struct feed {
	struct sluice_cuda *c;
	struct sluice_cuda_feed *f;
	cudaStream_t s;
};

static void feed_open(struct feed *f, struct crew *crew, uint32_t depth, uint64_t buffer)
{
	struct sluice_cuda_feed_opts o = {
		.sz = sizeof(o),
		.depth = depth,
		.buffer_bytes = buffer,
	};

	CHECK(gpu_init(0));
	f->s = gpu_stream();
	CHECK_SLUICE(sluice_cuda_attach(&f->c, crew->a, NULL));
	CHECK_SLUICE(sluice_cuda_feed_open(&f->f, f->c, crew->in, &o));
}

static void feed_close(struct feed *f)
{
	sluice_cuda_feed_close(f->f);
	CHECK_SLUICE(sluice_cuda_detach(f->c));
	gpu_stream_free(f->s);
}

/*
 * Feed for a while; batches a second.  @cpu: what the process used of a CPU meanwhile, in per cent,
 * without the waits at both ends, which are the measurement's and spin.
 */
static double feed_measure(struct feed *f, uint64_t ns, double *cpu)
{
	uint64_t start, end, n = 0;
	struct sluice_cuda_batch *b;
	double used;

	/* What is copied ahead already does not count. */
	for (int i = 0; i < 8; i++) {
		CHECK_SLUICE(sluice_cuda_feed_next(f->f, &b, f->s, SLUICE_FOREVER));
		CHECK_SLUICE(sluice_cuda_batch_release(b, f->s));
	}
	gpu_sync(f->s);
	used = cpu_seconds();
	start = now_ns();
	do {
		CHECK_SLUICE(sluice_cuda_feed_next(f->f, &b, f->s, SLUICE_FOREVER));
		CHECK_SLUICE(sluice_cuda_batch_release(b, f->s));
		n++;
	} while (n % 8 || now_ns() < start + ns);
	*cpu = (cpu_seconds() - used) / ((now_ns() - start) / 1e9) * 100;
	gpu_sync(f->s);
	end = now_ns();
	return n / ((end - start) / 1e9);
}

static double feed_rate(struct feed *f, uint64_t ns)
{
	double cpu;

	return feed_measure(f, ns, &cpu);
}

/* Two pinned buffers into two device buffers, as fast as it goes. */
struct bare {
	void *host[2], *dev[2];
	cudaStream_t s;
	cudaEvent_t done[2];
	size_t bytes;
};

static void bare_open(struct bare *p, size_t bytes)
{
	p->bytes = bytes;
	p->s = gpu_stream();
	for (int i = 0; i < 2; i++) {
		CHECK_CUDA(cudaMallocHost(&p->host[i], bytes));
		memset(p->host[i], 1, bytes);
		p->dev[i] = gpu_alloc(bytes);
		CHECK_CUDA(cudaEventCreateWithFlags(&p->done[i], cudaEventDisableTiming |
									 cudaEventBlockingSync));
	}
}

static void bare_close(struct bare *p)
{
	gpu_sync(p->s);
	for (int i = 0; i < 2; i++) {
		CHECK_CUDA(cudaFreeHost(p->host[i]));
		gpu_free(p->dev[i]);
		CHECK_CUDA(cudaEventDestroy(p->done[i]));
	}
	gpu_stream_free(p->s);
}

static double bare_rate(struct bare *p, uint64_t ns)
{
	const unsigned int group = p->bytes < MIB ? 64 : 1;
	uint64_t start = now_ns(), n = 0;

	for (int i = 0; i < 2; i++)
		CHECK_CUDA(cudaEventRecord(p->done[i], p->s));
	do {
		const int i = n / group % 2;

		CHECK_CUDA(cudaEventSynchronize(p->done[i]));
		for (unsigned int k = 0; k < group; k++, n++)
			CHECK_CUDA(cudaMemcpyAsync(p->dev[i], p->host[i], p->bytes,
						   cudaMemcpyHostToDevice, p->s));
		CHECK_CUDA(cudaEventRecord(p->done[i], p->s));
	} while (now_ns() < start + ns);
	gpu_sync(p->s);
	return n / ((now_ns() - start) / 1e9);
}

static void copies_of(uint64_t bytes, const char *name, bool cpu_row)
{
	const struct crew_opts o = {
		.name = "copies",
		.producers = 1,
		.bytes = bytes,
		.tensors = 1,
		.slots = 12,
		.queue = 6,
	};
	struct samples ours = {0}, bare = {0}, cpu = {0};
	struct bare p;
	struct crew crew;
	struct feed f;
	struct row *r;

	crew_start(&crew, &o);
	feed_open(&f, &crew, 4, bytes);
	bare_open(&p, bytes);
	for (int i = 0; i < REPEATS; i++) {
		double used;

		sample(&ours, feed_measure(&f, ROUND_NS, &used) * bytes / 1e9);
		sample(&cpu, used);
		sample(&bare, bare_rate(&p, ROUND_NS) * bytes / 1e9);
	}
	r = row_add(name, "GB/s", median(&ours));
	row_peer(r, "cudaMemcpyAsync from cudaMallocHost memory", median(&bare));
	row_goal(r, r->ratio >= 0.98, "at least 0.98 of the peer");
	if (cpu_row) {
		r = row_add("consumer CPU while feeding", "% of a core", median(&cpu));
		row_goal(r, r->value < 10, "under 10 %%");
	}
	bare_close(&p);
	feed_close(&f);
	crew_stop(&crew);
}

void bench_copies(void)
{
	pid_t pid;

	/* A process each, because producers are forked before CUDA starts. */
	CHILD(pid) {
		copies_of(64 * MIB, "H2D, 64 MiB batches", false);
	}
	CHECK_OK(child_wait(pid));
	copies_of(BATCH_BYTES, "H2D, 403 MB batches", true);
}

/* ------------------------------------------------------------------ producers that write */

/* What the producers write when nothing is done with it. */
static double hand_off_rate(struct crew *c, uint64_t ns)
{
	uint64_t start = now_ns(), n = 0;
	struct sluice_batch *b;

	do {
		CHECK_OK(sluice_channel_next(c->in, &b, SLUICE_FOREVER));
		sluice_batch_release(b);
		n++;
	} while (now_ns() < start + ns);
	return n / ((now_ns() - start) / 1e9);
}

/*
 * The same with as much DMA beside it, from memory that nobody else uses: what the feed's copies take
 * from the producers because both use the host's memory, not because the feed holds extents.
 */
static double beside_dma_rate(struct crew *c, struct bare *p, uint64_t ns)
{
	uint64_t start = now_ns(), n = 0;
	struct sluice_batch *b;

	for (int i = 0; i < 2; i++)
		CHECK_CUDA(cudaEventRecord(p->done[i], p->s));
	do {
		CHECK_OK(sluice_channel_next(c->in, &b, SLUICE_FOREVER));
		sluice_batch_release(b);
		CHECK_CUDA(cudaEventSynchronize(p->done[n % 2]));
		CHECK_CUDA(cudaMemcpyAsync(p->dev[n % 2], p->host[n % 2], p->bytes,
					   cudaMemcpyHostToDevice, p->s));
		CHECK_CUDA(cudaEventRecord(p->done[n % 2], p->s));
		n++;
	} while (now_ns() < start + ns);
	return n / ((now_ns() - start) / 1e9);
}

/*
 * Crews take turns, and one that has not been asked for a while has its arena full of batches:
 * what it wrote before it is measured, and what the others still write then, does not count.
 */
#define IMAGES_WARM_NS	(500 * MSEC)
#define IMAGES_ROUND_NS (1 * SEC)

static double images_round(struct feed *f)
{
	feed_rate(f, IMAGES_WARM_NS);
	return feed_rate(f, IMAGES_ROUND_NS);
}

enum {
	WHOLE, /* one tensor, written image by image */
	PIECES, /* one tensor, written in pieces as large as the tensors of the next */
	SPLIT, /* 200 tensors */
	CREWS
};

void bench_images(void)
{
	struct crew_opts o = {
		.name = "images",
		.producers = 8,
		.bytes = BATCH_BYTES,
		.tensors = 1,
		.fill = true,
		.slots = 18,
		.queue = 4,
	};
	struct samples rate[CREWS] = {0}, ceiling = {0}, beside = {0}, ratio = {0}, split = {0};
	double pcie = row_value("H2D, 403 MB batches") * 1e9 / BATCH_BYTES;
	struct crew crew[CREWS];
	struct feed f[CREWS];
	struct bare p;
	struct row *r;

	for (int k = 0; k < CREWS; k++) {
		o.piece = k == WHOLE ? 0 : BATCH_BYTES / 200;
		o.tensors = k == SPLIT ? 200 : 1;
		crew_start(&crew[k], &o);
	}
	for (int k = 0; k < CREWS; k++)
		feed_open(&f[k], &crew[k], 4, BATCH_BYTES);
	bare_open(&p, BATCH_BYTES);
	/* The first touches of producers and arenas are over before anything is measured. */
	for (int k = 0; k < CREWS; k++)
		feed_rate(&f[k], SEC);
	for (int i = 0; i < REPEATS; i++) {
		double v[CREWS], bound = 0;

		for (int k = 0; k < CREWS; k++) {
			const int now = (i + k) % CREWS;

			v[now] = images_round(&f[now]);
			sample(&rate[now], v[now]);
			if (now != WHOLE)
				continue;
			/* Right behind it; what the feed copied ahead stays on the device. */
			hand_off_rate(&crew[WHOLE], IMAGES_WARM_NS);
			bound = hand_off_rate(&crew[WHOLE], IMAGES_ROUND_NS);
			sample(&ceiling, bound);
			sample(&beside, beside_dma_rate(&crew[WHOLE], &p, IMAGES_ROUND_NS));
		}
		sample(&ratio, v[WHOLE] / (pcie && pcie < bound ? pcie : bound));
		sample(&split, v[SPLIT] / v[PIECES]);
	}
	row_add("8 producers, their own ceiling", "batches/s", median(&ceiling));
	r = row_add("the same with as much DMA beside it", "batches/s", median(&beside));
	row_peer(r, "the producers' ceiling", median(&ceiling));
	r = row_add("8 producers writing, 403 MB, fed", "batches/s", median(&rate[WHOLE]));
	row_peer(r, "the smaller of PCIe and the producers' ceiling",
		 pcie && pcie < median(&ceiling) ? pcie : median(&ceiling));
	r->ratio = median(&ratio); /* of neighbours in time */
	row_goal(r, r->value >= 90 || r->ratio >= 0.95,
		 "at least 90 batches/s, or 0.95 of the peer");
	r = row_add("the same in 200 tensors", "batches/s", median(&rate[SPLIT]));
	row_peer(r, "one tensor, written in pieces of the same size", median(&rate[PIECES]));
	r->ratio = median(&split);
	row_goal(r, r->ratio >= 0.97, "within 3 %% of one tensor");
	bare_close(&p);
	for (int k = 0; k < CREWS; k++)
		feed_close(&f[k]);
	for (int k = 0; k < CREWS; k++)
		crew_stop(&crew[k]);
}

void bench_idle(void)
{
	const struct crew_opts o = {
		.name = "idle",
		.producers = 8,
		.bytes = BATCH_BYTES,
		.tensors = 1,
		.fill = true,
		.slots = 18,
		.queue = 4,
	};
	const unsigned int steps = 20;
	struct sluice_cuda_batch *b;
	cudaEvent_t from, to;
	struct samples idle = {0};
	struct crew crew;
	struct feed f;
	struct row *r;

	crew_start(&crew, &o);
	feed_open(&f, &crew, 4, BATCH_BYTES);
	feed_rate(&f, ROUND_NS);
	CHECK_CUDA(cudaEventCreate(&from));
	CHECK_CUDA(cudaEventCreate(&to));
	for (int i = 0; i < REPEATS; i++) {
		uint64_t start = now_ns();
		double busy = 0;

		for (unsigned int k = 0; k < steps; k++) {
			float ms;

			CHECK_SLUICE(sluice_cuda_feed_next(f.f, &b, f.s, SLUICE_FOREVER));
			CHECK_CUDA(cudaEventRecord(from, f.s));
			gpu_busy(f.s, 60000);
			CHECK_CUDA(cudaEventRecord(to, f.s));
			CHECK_SLUICE(sluice_cuda_batch_release(b, f.s));
			/* A step that reads its loss: the host never runs ahead of the GPU. */
			gpu_sync(f.s);
			CHECK_CUDA(cudaEventElapsedTime(&ms, from, to));
			busy += ms / 1e3;
		}
		sample(&idle, (1 - busy / ((now_ns() - start) / 1e9)) * 100);
	}
	r = row_add("GPU idle between steps of 60 ms", "%", median(&idle));
	row_goal(r, r->value < 1, "under 1 %%");
	feed_close(&f);
	crew_stop(&crew);
}

/* ------------------------------------------------------------------ small batches */

#define SMALL (64 * KIB)

static void small_rate(void)
{
	const struct crew_opts o = {
		.name = "small",
		.producers = 2,
		.bytes = SMALL,
		.tensors = 1,
		.slots = 1024,
		.queue = 256,
	};
	struct samples ours = {0}, bare = {0};
	struct bare p;
	struct crew crew;
	struct feed f;
	struct row *r;

	crew_start(&crew, &o);
	feed_open(&f, &crew, 128, SMALL);
	bare_open(&p, SMALL);
	for (int i = 0; i < REPEATS; i++) {
		sample(&ours, feed_rate(&f, ROUND_NS));
		sample(&bare, bare_rate(&p, ROUND_NS));
	}
	r = row_add("H2D, 64 KiB batches", "batches/s", median(&ours));
	row_peer(r, "cudaMemcpyAsync from cudaMallocHost memory", median(&bare));
	row_goal(r, r->value >= 150000, "at least 150,000 batches/s");
	bare_close(&p);
	feed_close(&f);
	crew_stop(&crew);
}

static void small_latency(void)
{
	struct sluice_arena *a = arena_huge(64 * MIB);
	struct sluice_channel_opts in = {
		.sz = sizeof(in),
		.flags = SLUICE_CHANNEL_CONSUME,
		.spin_ns = SEC,
	};
	struct samples ours = {0}, bare = {0};
	struct sluice_cuda_batch *b;
	struct crew crew = {.a = a};
	struct bare p;
	struct gate go;
	struct feed f;
	struct row *r;
	pid_t pid;

	gate_init(&go);
	CHECK_OK(sluice_channel_create(&crew.in, a, "latency", &in));
	CHILD(pid) {
		struct sluice_arena *mine = arena_child(a);
		struct sluice_channel *out = channel_join(mine, "latency", SLUICE_CHANNEL_PRODUCE);
		int64_t shape = SMALL;
		struct sluice_batch *w;

		for (;;) {
			CHECK_OK(sluice_batch_begin(out, &w, SMALL, SLUICE_FOREVER));
			CHECK(sluice_batch_tensor_add(w, "x", SLUICE_U8, 1, &shape, NULL));
			gate_pass(&go);
			usleep(100);
			sluice_batch_tag(w, now_ns());
			CHECK_OK(sluice_batch_publish(w));
		}
	}
	feed_open(&f, &crew, 4, SMALL);
	bare_open(&p, SMALL);
	for (int i = 0; i < 1000; i++) {
		struct sluice_batch_info info = {.sz = sizeof(info)};
		uint64_t start;

		gate_open(&go);
		CHECK_SLUICE(sluice_cuda_feed_next(f.f, &b, f.s, SLUICE_FOREVER));
		gpu_sync(f.s);
		start = now_ns();
		CHECK_SLUICE(sluice_cuda_batch_info(b, &info));
		sample(&ours, (start - info.tag) / 1e3);
		CHECK_SLUICE(sluice_cuda_batch_release(b, f.s));
		start = now_ns();
		CHECK_CUDA(
			cudaMemcpyAsync(p.dev[0], p.host[0], SMALL, cudaMemcpyHostToDevice, p.s));
		gpu_sync(p.s);
		sample(&bare, (now_ns() - start) / 1e3);
	}
	r = row_add("64 KiB, published to on the GPU", "us", median(&ours));
	row_peer(r, "cudaMemcpyAsync and synchronise", median(&bare));
	row_goal(r, r->value - r->peer_value < 10, "under 10 us more than the peer");
	child_kill(pid);
	bare_close(&p);
	feed_close(&f);
}

void bench_small(void)
{
	pid_t pid;

	CHILD(pid) {
		small_rate();
	}
	CHECK_OK(child_wait(pid));
	small_latency();
}

/* ------------------------------------------------------------------ registration */

#define REGISTERED_GIB 16ULL

static struct sluice_arena *arena_large(uint32_t flags, unsigned int *huge_percent)
{
	const struct sluice_arena_opts o = {
		.sz = sizeof(o),
		.data_bytes = REGISTERED_GIB << 30,
		.flags = flags,
		.label = "bench",
	};
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_arena *a;

	CHECK_OK(sluice_arena_create(&a, &o));
	CHECK_OK(sluice_arena_info(a, &info));
	*huge_percent = info.huge_bytes / (info.data_bytes / 100);
	return a;
}

static void register_once(struct sluice_arena *a, uint32_t chunks, uint32_t threads,
			  struct samples *seconds)
{
	const struct sluice_cuda_opts o = {
		.sz = sizeof(o),
		.chunk_bytes = chunks > 1 ? (REGISTERED_GIB << 30) / chunks : 0,
		.threads = threads,
	};
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_cuda *c;

	CHECK_SLUICE(sluice_cuda_attach(&c, a, &o));
	CHECK_SLUICE(sluice_cuda_stats(c, &st));
	sample(seconds, st.register_ns / 1e9);
	CHECK_SLUICE(sluice_cuda_detach(c));
}

void bench_register(void)
{
	struct samples whole = {0}, many = {0}, eight = {0}, small = {0};
	struct sluice_arena *a;
	unsigned int huge;
	struct row *r;

	CHECK(gpu_init(0));
	a = arena_large(0, &huge);
	for (int i = 0; i < REPEATS; i++) {
		register_once(a, 1, 1, &whole);
		register_once(a, 64, 1, &many);
		register_once(a, 8, 8, &eight);
	}
	sluice_arena_detach(a);
	r = row_add("registration of 16 GiB, huge pages", "s", median(&whole));
	row_goal(r, huge == 100 && r->value <= 0.35, "at most 0.35 s (%u %% on huge pages)", huge);
	r = row_add("the same, 64 chunks", "s", median(&many));
	row_peer(r, "in one piece", median(&whole));
	r = row_add("the same, 8 chunks by 8 threads", "s", median(&eight));
	row_peer(r, "in one piece", median(&whole));
	a = arena_large(SLUICE_ARENA_NO_HUGE, &huge);
	for (int i = 0; i < REPEATS; i++)
		register_once(a, 1, 1, &small);
	sluice_arena_detach(a);
	row_add("registration of 16 GiB, 4 KiB pages", "s", median(&small));
}
