// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Host to device, against cudaMemcpyAsync from cudaMallocHost memory. */
#include "bench.h"

#define ROUND_NS (200 * MSEC)

struct feed {
	struct sluice_cuda *c;
	struct sluice_cuda_feed *f;
	cudaStream_t s, copy; /* the user's, and the one that is copied on */
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
	f->copy = gpu_stream();
	o.stream = f->copy;
	CHECK_SLUICE(sluice_cuda_attach(&f->c, crew->a, NULL));
	CHECK_SLUICE(sluice_cuda_feed_open(&f->f, f->c, crew->in, &o));
}

static void feed_close(struct feed *f)
{
	sluice_cuda_feed_close(f->f);
	CHECK_SLUICE(sluice_cuda_detach(f->c));
	gpu_stream_free(f->copy);
	gpu_stream_free(f->s);
}

static void feed_turn(struct feed *f)
{
	struct sluice_cuda_batch *b;

	CHECK_SLUICE(sluice_cuda_feed_next(f->f, &b, f->s, SLUICE_FOREVER));
	CHECK_SLUICE(sluice_cuda_batch_release(b, f->s));
}

/* Wait for what is copied ahead, too.  Return: how many copies there have been. */
static uint64_t feed_sync(struct feed *f)
{
	struct sluice_cuda_feed_stats st = {.sz = sizeof(st)};

	gpu_sync(f->copy);
	gpu_sync(f->s);
	CHECK_SLUICE(sluice_cuda_feed_stats(f->f, &st));
	return st.batches;
}

/*
 * Feed for a while; copies a second, all of which began and ended within the time, so that none of
 * them runs beside what is measured next.  @cpu: what the process used of a CPU meanwhile, in per
 * cent, without the waits at both ends, which are the measurement's and spin.
 */
static double feed_measure(struct feed *f, uint64_t ns, double *cpu)
{
	uint64_t start, copies, n = 0;
	double used;

	for (int i = 0; i < 8; i++)
		feed_turn(f);
	copies = feed_sync(f);
	used = cpu_seconds();
	start = now_ns();
	do {
		feed_turn(f);
		n++;
	} while (n % 8 || now_ns() < start + ns);
	*cpu = (cpu_seconds() - used) / ((now_ns() - start) / 1e9) * 100;
	copies = feed_sync(f) - copies;
	return copies / ((now_ns() - start) / 1e9);
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

enum {
	MIB_64,
	MB_403,
	SIZES
};

void bench_copies(void)
{
	static const uint64_t bytes[SIZES] = {64 * MIB, BATCH_BYTES};
	static const char *const name[SIZES] = {"H2D, 64 MiB batches", "H2D, 403 MB batches"};
	struct crew_opts o = {
		.name = "copies",
		.producers = 1,
		.slots = 12,
		.queue = 6,
	};
	struct samples ours[SIZES] = {0}, peer[SIZES] = {0}, ratio[SIZES] = {0}, cpu = {0};
	struct bare p[SIZES];
	struct crew crew[SIZES];
	struct feed f[SIZES];
	struct row *r;

	/* Producers are forked before CUDA starts. */
	for (int k = 0; k < SIZES; k++) {
		o.bytes = bytes[k];
		crew_start(&crew[k], &o);
	}
	for (int k = 0; k < SIZES; k++) {
		feed_open(&f[k], &crew[k], 4, bytes[k]);
		bare_open(&p[k], bytes[k]);
	}
	for (int i = 0; i < 2 * REPEATS; i++) {
		const int k = i % SIZES;
		double used = 0, fed = 0, bare = 0;

		/* Each comes first in every other round. */
		for (int turn = 0; turn < 2; turn++) {
			if ((i / SIZES + turn) % 2)
				bare = bare_rate(&p[k], ROUND_NS) * bytes[k] / 1e9;
			else
				fed = feed_measure(&f[k], ROUND_NS, &used) * bytes[k] / 1e9;
		}
		sample(&ours[k], fed);
		sample(&peer[k], bare);
		sample(&ratio[k], fed / bare);
		if (k == MB_403)
			sample(&cpu, used);
	}
	for (int k = 0; k < SIZES; k++) {
		r = row_add(name[k], "GB/s", median(&ours[k]));
		row_peer(r, "cudaMemcpyAsync from cudaMallocHost memory", median(&peer[k]));
		r->ratio = median(&ratio[k]);
		row_goal(r, r->ratio >= 0.98, "at least 0.98 of the peer");
	}
	r = row_add("consumer CPU while feeding", "% of a core", median(&cpu));
	row_goal(r, r->value < 10, "under 10 %%");
	for (int k = 0; k < SIZES; k++) {
		bare_close(&p[k]);
		feed_close(&f[k]);
		crew_stop(&crew[k]);
	}
}

/* ------------------------------------------------------------------ producers that write */

#define PRODUCERS 8
#define SLOTS	  18
#define CYCLES	  6
#define CYCLE_NS  (600 * MSEC)
#define SETTLE	  8 /* batches, after which what took them before no longer shows */
/* In 200 tensors that begin where pieces of the same size would, without gaps between them. */
#define TENSORS 200
#define SPLIT	(BATCH_BYTES / TENSORS / 256 * 256)

/* Batches that arrive in a while, from one arrival to another, behind those of @settle. */
static double fed_rate(struct feed *f, int settle, uint64_t ns)
{
	uint64_t start, end, n = 0;

	while (settle--)
		feed_turn(f);
	start = now_ns();
	do {
		feed_turn(f);
		n++;
		end = now_ns();
	} while (end < start + ns);
	return n / ((end - start) / 1e9);
}

/*
 * What the producers write when nothing is done with it.  With @p as much DMA runs beside it, from
 * memory that nobody else uses: what the feed's copies take from the producers because both use the
 * host's memory, not because the feed holds extents.
 */
static double ceiling_rate(struct crew *c, struct bare *p, uint64_t ns)
{
	uint64_t start = 0, end, n = 0;
	struct sluice_batch *b;

	for (int i = 0; p && i < 2; i++)
		CHECK_CUDA(cudaEventRecord(p->done[i], p->s));
	for (int i = -SETTLE;; i++) {
		CHECK_OK(sluice_channel_next(c->in, &b, SLUICE_FOREVER));
		sluice_batch_release(b);
		end = now_ns();
		if (p) {
			const int k = i & 1;

			CHECK_CUDA(cudaEventSynchronize(p->done[k]));
			CHECK_CUDA(cudaMemcpyAsync(p->dev[k], p->host[k], p->bytes,
						   cudaMemcpyHostToDevice, p->s));
			CHECK_CUDA(cudaEventRecord(p->done[k], p->s));
		}
		if (i < 0) {
			start = end;
			continue;
		}
		n++;
		if (end >= start + ns)
			break;
	}
	if (p)
		gpu_sync(p->s);
	return n / ((end - start) / 1e9);
}

struct images {
	struct samples fed, ceiling, beside, whole, split;
	struct samples of_bound, of_ceiling, of_beside, of_whole; /* ratios of neighbours in time */
	double pcie;
};

/* One crew, one arena and one feed do it all in turn: whatever memory they got, all got the same. */
static void images_cycle(struct images *m, int cycle, struct crew *crew, struct feed *f,
			 struct bare *p)
{
	static const struct crew_style image = {0}, piece = {.piece = SPLIT},
				       split = {.tensors = TENSORS, .piece = SPLIT};
	double fed = 0, ceiling = 0, beside, whole = 0, parts = 0;

	crew_restyle(crew, &image);
	fed_rate(f, SLOTS, 0);
	for (int turn = 0; turn < 2; turn++) {
		if ((cycle + turn) % 2)
			ceiling = ceiling_rate(crew, NULL, CYCLE_NS);
		else
			fed = fed_rate(f, SETTLE, CYCLE_NS);
	}
	beside = ceiling_rate(crew, p, CYCLE_NS);
	for (int turn = 0; turn < 2; turn++) {
		const bool now = (cycle + turn) % 2;

		crew_restyle(crew, now ? &split : &piece);
		*(now ? &parts : &whole) = fed_rate(f, SLOTS + SETTLE, CYCLE_NS);
	}
	sample(&m->fed, fed);
	sample(&m->ceiling, ceiling);
	sample(&m->beside, beside);
	sample(&m->whole, whole);
	sample(&m->split, parts);
	sample(&m->of_bound, fed / (m->pcie < ceiling ? m->pcie : ceiling));
	sample(&m->of_ceiling, beside / ceiling);
	sample(&m->of_beside, fed / beside);
	sample(&m->of_whole, parts / whole);
}

static void images_rows(struct images *m)
{
	struct row *r;

	row_add("8 producers, their own ceiling", "batches/s", median(&m->ceiling));
	r = row_add("8 producers, as much DMA beside them", "batches/s", median(&m->beside));
	row_peer(r, "the producers' ceiling", median(&m->ceiling));
	r->ratio = median(&m->of_ceiling);
	r = row_add("8 producers writing, 403 MB, fed", "batches/s", median(&m->fed));
	row_peer(r, "the smaller of PCIe and the producers' ceiling",
		 m->pcie < median(&m->ceiling) ? m->pcie : median(&m->ceiling));
	r->ratio = median(&m->of_bound);
	row_goal(r, r->value >= 90 || r->ratio >= 0.95,
		 "at least 90 batches/s, or 0.95 of the peer");
	r = row_add("8 producers, fed, against DMA beside", "batches/s", median(&m->fed));
	row_peer(r, "the producers' ceiling with as much DMA beside it", median(&m->beside));
	r->ratio = median(&m->of_beside);
	r = row_add("8 producers, fed, 200 tensors", "batches/s", median(&m->split));
	row_peer(r, "one tensor, written in pieces of the same size", median(&m->whole));
	r->ratio = median(&m->of_whole);
	row_goal(r, r->ratio >= 0.97, "within 3 %% of one tensor");
}

#define STEPS	10
#define STEP_US 60000

static double idle_percent(struct feed *f, cudaEvent_t from, cudaEvent_t to)
{
	uint64_t start = now_ns();
	struct sluice_cuda_batch *b;
	double busy = 0;

	for (int i = 0; i < STEPS; i++) {
		float ms;

		CHECK_SLUICE(sluice_cuda_feed_next(f->f, &b, f->s, SLUICE_FOREVER));
		CHECK_CUDA(cudaEventRecord(from, f->s));
		gpu_busy(f->s, STEP_US);
		CHECK_CUDA(cudaEventRecord(to, f->s));
		CHECK_SLUICE(sluice_cuda_batch_release(b, f->s));
		/* A step that reads its loss: the host never runs ahead of the GPU. */
		gpu_sync(f->s);
		CHECK_CUDA(cudaEventElapsedTime(&ms, from, to));
		busy += ms / 1e3;
	}
	return (1 - busy / ((now_ns() - start) / 1e9)) * 100;
}

static void idle_row(struct feed *f)
{
	struct samples idle = {0};
	cudaEvent_t from, to;
	struct row *r;

	CHECK_CUDA(cudaEventCreate(&from));
	CHECK_CUDA(cudaEventCreate(&to));
	idle_percent(f, from, to);
	for (int i = 0; i < REPEATS; i++)
		sample(&idle, idle_percent(f, from, to));
	r = row_add("GPU idle between steps of 60 ms", "%", median(&idle));
	row_goal(r, r->value < 1, "under 1 %%");
}

void bench_images(void)
{
	const struct crew_opts o = {
		.name = "images",
		.producers = PRODUCERS,
		.bytes = TENSORS * SPLIT,
		.tensors = TENSORS,
		.fill = true,
		.slots = SLOTS,
		.queue = 4,
	};
	struct images m = {0};
	struct samples pcie = {0};
	struct crew crew;
	struct feed f;
	struct bare p;

	crew_start(&crew, &o);
	feed_open(&f, &crew, 4, o.bytes);
	bare_open(&p, o.bytes);
	/* The first touches of producers and arena are over before anything is measured. */
	fed_rate(&f, SLOTS, SEC);
	idle_row(&f);
	feed_sync(&f);
	for (int i = 0; i < REPEATS; i++)
		sample(&pcie, bare_rate(&p, ROUND_NS));
	m.pcie = median(&pcie);
	for (int i = 0; i < CYCLES; i++)
		images_cycle(&m, i, &crew, &f, &p);
	images_rows(&m);
	bare_close(&p);
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
		.slots = 1024,
		.queue = 256,
	};
	struct samples ours = {0}, bare = {0}, ratio = {0};
	struct bare p;
	struct crew crew;
	struct feed f;
	struct row *r;

	crew_start(&crew, &o);
	feed_open(&f, &crew, 128, SMALL);
	bare_open(&p, SMALL);
	for (int i = 0; i < REPEATS; i++) {
		double cpu, fed = feed_measure(&f, ROUND_NS, &cpu);
		double alone = bare_rate(&p, ROUND_NS);

		sample(&ours, fed);
		sample(&bare, alone);
		sample(&ratio, fed / alone);
	}
	r = row_add("H2D, 64 KiB batches", "batches/s", median(&ours));
	row_peer(r, "cudaMemcpyAsync from cudaMallocHost memory", median(&bare));
	r->ratio = median(&ratio);
	row_goal(r, r->value >= 150000, "at least 150,000 batches/s");
	bare_close(&p);
	feed_close(&f);
	crew_stop(&crew);
}

/* Single shots in turn, each kind as often first as last. */
#define SHOTS 2000

enum {
	OWN, /* a feed that copies on a stream of its own */
	CALLER, /* one that copies on the caller's */
	BARE,
	KINDS
};

static int shot_kind(int shot)
{
	return (shot / KINDS + shot) % KINDS;
}

static void pause_awake(void)
{
	const uint64_t start = now_ns();

	while (now_ns() < start + MSEC / 10)
		;
}

static void latency_producer(struct sluice_arena *inherited, struct gate *go)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel *out[BARE] = {
		channel_join(a, "own", SLUICE_CHANNEL_PRODUCE),
		channel_join(a, "caller", SLUICE_CHANNEL_PRODUCE),
	};
	int64_t shape = SMALL;

	for (int i = 0; i < KINDS * SHOTS; i++) {
		struct sluice_batch *b;

		if (shot_kind(i) == BARE)
			continue;
		CHECK_OK(sluice_batch_begin(out[shot_kind(i)], &b, SMALL, SLUICE_FOREVER));
		CHECK(sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, &shape, NULL));
		gate_pass(go);
		/* The consumer waits by then.  Who writes batches does not come out of a sleep. */
		pause_awake();
		CHECK_OK(sluice_batch_tag(b, now_ns()));
		CHECK_OK(sluice_batch_publish(b));
	}
	gate_pass(go); /* until we are killed */
}

static void latency_shot(struct feed *f, struct gate *go, struct samples *all, struct samples *call)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};
	struct sluice_cuda_batch *b;
	uint64_t returned, arrived;

	gate_open(go);
	CHECK_SLUICE(sluice_cuda_feed_next(f->f, &b, f->s, SLUICE_FOREVER));
	returned = now_ns();
	gpu_sync(f->s);
	arrived = now_ns();
	CHECK_SLUICE(sluice_cuda_batch_info(b, &info));
	sample(all, (arrived - info.tag) / 1e3);
	sample(call, (returned - info.tag) / 1e3);
	CHECK_SLUICE(sluice_cuda_batch_release(b, f->s));
}

static double bare_shot(struct bare *p)
{
	uint64_t start;

	pause_awake(); /* as long as the others had to wait for the producer */
	start = now_ns();
	CHECK_CUDA(cudaMemcpyAsync(p->dev[0], p->host[0], p->bytes, cudaMemcpyHostToDevice, p->s));
	gpu_sync(p->s);
	return (now_ns() - start) / 1e3;
}

static void latency_rows(struct samples all[KINDS], struct samples call[BARE])
{
	static const char peer[] = "cudaMemcpyAsync and synchronise";
	struct row *r;

	r = row_add("64 KiB, published to on the GPU", "us", median(&all[OWN]));
	row_peer(r, peer, median(&all[BARE]));
	row_goal(r, r->value - r->peer_value < 10, "under 10 us more than the peer");
	r = row_add("64 KiB latency, 9 of 10 within", "us", most(&all[OWN]));
	row_peer(r, peer, most(&all[BARE]));
	row_add("64 KiB latency, when the call returns", "us", median(&call[OWN]));
	r = row_add("64 KiB latency, on the caller's stream", "us", median(&all[CALLER]));
	row_peer(r, peer, median(&all[BARE]));
}

static void small_latency(void)
{
	static const char *const name[BARE] = {"own", "caller"};
	struct sluice_arena *a = arena_huge(64 * MIB);
	struct sluice_channel_opts in = {
		.sz = sizeof(in),
		.flags = SLUICE_CHANNEL_CONSUME,
		.spin_ns = SEC,
	};
	struct sluice_cuda_feed_opts o = {.sz = sizeof(o), .buffer_bytes = SMALL};
	static struct samples all[KINDS], call[BARE];
	struct sluice_channel *ch[BARE];
	struct feed f[BARE];
	struct bare p;
	struct gate go;
	pid_t pid;

	gate_init(&go);
	for (int k = 0; k < BARE; k++)
		CHECK_OK(sluice_channel_create(&ch[k], a, name[k], &in));
	CHILD(pid) {
		latency_producer(a, &go);
	}
	CHECK(gpu_init(0));
	for (int k = 0; k < BARE; k++) {
		f[k].s = gpu_stream();
		o.stream = k == CALLER ? f[k].s : NULL;
		CHECK_SLUICE(sluice_cuda_attach(&f[k].c, a, NULL));
		CHECK_SLUICE(sluice_cuda_feed_open(&f[k].f, f[k].c, ch[k], &o));
	}
	bare_open(&p, SMALL);
	for (int i = 0; i < KINDS * SHOTS; i++) {
		const int k = shot_kind(i);

		if (k == BARE)
			sample(&all[k], bare_shot(&p));
		else
			latency_shot(&f[k], &go, &all[k], &call[k]);
	}
	latency_rows(all, call);
	child_kill(pid);
	bare_close(&p);
	for (int k = 0; k < BARE; k++) {
		sluice_cuda_feed_close(f[k].f);
		CHECK_SLUICE(sluice_cuda_detach(f[k].c));
	}
}

void bench_small(void)
{
	pid_t pid;

	/* A process each, because producers are forked before CUDA starts. */
	CHILD(pid) {
		small_rate();
	}
	CHECK_OK(child_wait(pid));
	small_latency();
}

/* ------------------------------------------------------------------ registration */

#define REGISTERED  (16ULL << 30)
#define SMALL_PAGES (4ULL << 30) /* making these takes longer than all the rest */

static struct sluice_arena *arena_large(uint64_t bytes, uint32_t flags,
					struct sluice_arena_info *info)
{
	const struct sluice_arena_opts o = {
		.sz = sizeof(o),
		.data_bytes = bytes,
		.flags = flags,
		.label = "bench",
	};
	struct sluice_arena *a;

	CHECK_OK(sluice_arena_create(&a, &o));
	CHECK_OK(sluice_arena_info(a, info));
	return a;
}

static double register_once(struct sluice_arena *a, uint64_t chunk)
{
	const struct sluice_cuda_opts o = {.sz = sizeof(o), .chunk_bytes = chunk};
	struct sluice_cuda_stats st = {.sz = sizeof(st)};
	struct sluice_cuda *c;

	CHECK_SLUICE(sluice_cuda_attach(&c, a, &o));
	CHECK_SLUICE(sluice_cuda_stats(c, &st));
	CHECK_SLUICE(sluice_cuda_detach(c));
	return st.register_ns / 1e9;
}

static double register_bare(const struct sluice_arena_info *info)
{
	uint64_t start = now_ns(), end;

	CHECK_CUDA(cudaHostRegister(info->data, info->data_bytes,
				    cudaHostRegisterPortable | cudaHostRegisterMapped));
	end = now_ns();
	CHECK_CUDA(cudaHostUnregister(info->data));
	return (end - start) / 1e9;
}

void bench_register(void)
{
	struct samples whole = {0}, many = {0}, bare = {0}, small = {0}, ratio = {0},
		       of_whole = {0};
	static const char peer[] = "cudaHostRegister of the same memory";
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_arena *a;
	unsigned int huge;
	struct row *r;

	CHECK(gpu_init(0));
	a = arena_large(REGISTERED, 0, &info);
	huge = info.huge_bytes / (info.data_bytes / 100);
	for (int i = 0; i < REPEATS; i++) {
		double took[3] = {0};

		for (int turn = 0; turn < 3; turn++) {
			const int k = (i + turn) % 3;

			took[k] = k == 0   ? register_once(a, 0)
				  : k == 1 ? register_once(a, REGISTERED / 64)
					   : register_bare(&info);
		}
		sample(&whole, took[0]);
		sample(&many, took[1]);
		sample(&bare, took[2]);
		sample(&ratio, took[0] / took[2]);
		sample(&of_whole, took[1] / took[0]);
	}
	sluice_arena_detach(a);
	r = row_add("registration of 16 GiB, huge pages", "s", median(&whole));
	row_peer(r, peer, median(&bare));
	r->ratio = median(&ratio);
	row_goal(r, huge == 100 && r->value <= 0.35, "at most 0.35 s (%u %% on huge pages)", huge);
	r = row_add("registration of 16 GiB, 64 chunks", "s", median(&many));
	row_peer(r, "in one piece", median(&whole));
	r->ratio = median(&of_whole);
	a = arena_large(SMALL_PAGES, SLUICE_ARENA_NO_HUGE, &info);
	for (int i = 0; i < REPEATS; i++)
		sample(&small, register_once(a, 0));
	sluice_arena_detach(a);
	row_add("registration of 4 GiB, 4 KiB pages", "s", median(&small));
}
