// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Why the rows are what they are: where the time of a registration goes and what changes it, and
 * what a host function for each batch costs.  The results decided what the library does; they are
 * measured again with "bench FILE try-register try-wake".
 */
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "bench.h"

#define GIB (1024 * MIB)

/* ------------------------------------------------------------------ where the kernel's time goes */

/*
 * Instruction addresses of the kernel while this thread runs, from a software clock, for machines
 * without perf and without a PMU.
 */
#define PROFILE_PAGES 256
#define MAX_SYMBOLS   400000

struct profile {
	int fd;
	struct perf_event_mmap_page *page;
};

static void profile_start(struct profile *p)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = 200000,
		.sample_type = PERF_SAMPLE_IP,
		.exclude_user = 0,
	};

	p->page = NULL;
	p->fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (p->fd < 0) {
		fprintf(stderr, "# no profile: %s\n", strerror(errno));
		return;
	}
	p->page = mmap(NULL, (1 + PROFILE_PAGES) * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd,
		       0);
	if (p->page == MAP_FAILED) {
		fprintf(stderr, "# no profile: %s\n", strerror(errno));
		p->page = NULL;
	}
}

struct symbol {
	uint64_t addr;
	unsigned int hits;
	char name[56];
};

static int by_addr(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static int by_hits(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return y->hits < x->hits ? -1 : y->hits > x->hits;
}

static unsigned int symbols_read(struct symbol *s)
{
	FILE *f = fopen("/proc/kallsyms", "re");
	unsigned int n = 0;
	char line[512];

	while (f && n < MAX_SYMBOLS && fgets(line, sizeof(line), f)) {
		char type;

		if (sscanf(line, "%lx %c %55s", &s[n].addr, &type, s[n].name) == 3 &&
		    (type == 't' || type == 'T') && s[n].addr)
			n++;
	}
	if (f)
		fclose(f);
	qsort(s, n, sizeof(*s), by_addr);
	return n;
}

static void profile_count(const struct profile *p, struct symbol *s, unsigned int n,
			  unsigned int *total, unsigned int *user)
{
	const char *data = (const char *)p->page + 4096;
	uint64_t head = __atomic_load_n(&p->page->data_head, __ATOMIC_ACQUIRE), at = 0;

	while (at < head && at + 16 <= PROFILE_PAGES * 4096ULL) {
		struct perf_event_header h;
		unsigned int low = 0, high = n;
		uint64_t ip;

		memcpy(&h, data + at, sizeof(h));
		memcpy(&ip, data + at + sizeof(h), sizeof(ip));
		at += h.size;
		if (h.type != PERF_RECORD_SAMPLE || !h.size)
			continue;
		(*total)++;
		if (!(ip >> 63)) {
			(*user)++;
			continue;
		}
		while (high > low + 1) {
			unsigned int mid = (low + high) / 2;

			if (s[mid].addr <= ip)
				low = mid;
			else
				high = mid;
		}
		if (n)
			s[low].hits++;
	}
}

static void profile_end(struct profile *p, const char *what)
{
	struct symbol *s;
	unsigned int n, total = 0, user = 0;

	if (p->fd >= 0)
		ioctl(p->fd, PERF_EVENT_IOC_DISABLE, 0);
	if (p->page) {
		s = calloc(MAX_SYMBOLS, sizeof(*s));
		CHECK(s);
		n = symbols_read(s);
		profile_count(p, s, n, &total, &user);
		qsort(s, n, sizeof(*s), by_hits);
		fprintf(stderr, "# profile of %s: %u samples, %u of them not the kernel's\n", what,
			total, user);
		for (unsigned int i = 0; i < n && i < 25 && s[i].hits; i++)
			fprintf(stderr, "#   %5.1f %% %s\n", 100.0 * s[i].hits / total, s[i].name);
		free(s);
		munmap(p->page, (1 + PROFILE_PAGES) * 4096);
	}
	if (p->fd >= 0)
		close(p->fd);
}

/* ------------------------------------------------------------------ registration */

#define TRIES 3

static double system_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6;
}

struct job {
	char *p;
	uint64_t bytes, chunk;
	unsigned int flags;
	_Atomic uint64_t next;
};

static void *job_work(void *arg)
{
	struct job *j = arg;
	uint64_t at;

	CHECK_CUDA(cudaSetDevice(0));
	while ((at = atomic_fetch_add(&j->next, j->chunk)) < j->bytes)
		CHECK_CUDA(cudaHostRegister(
			j->p + at, j->bytes - at < j->chunk ? j->bytes - at : j->chunk, j->flags));
	return NULL;
}

/* Register and unregister a few times; a row with the median, and what the first one took. */
static void try_once(const char *name, void *p, uint64_t bytes, unsigned int flags, uint64_t chunk,
		     unsigned int threads)
{
	struct samples on = {0}, off = {0}, sys = {0};
	struct row *r;
	char text[64];
	double first;

	for (int i = 0; i < TRIES; i++) {
		struct job j = {p, bytes, chunk ? chunk : bytes, flags, 0};
		double used = system_seconds();
		uint64_t start = now_ns();
		pthread_t t[16];

		for (unsigned int k = 1; k < threads; k++)
			CHECK_OK(pthread_create(&t[k], NULL, job_work, &j));
		job_work(&j);
		for (unsigned int k = 1; k < threads; k++)
			CHECK_OK(pthread_join(t[k], NULL));
		sample(&on, (now_ns() - start) / 1e9);
		sample(&sys, system_seconds() - used);
		start = now_ns();
		for (uint64_t at = 0; at < bytes; at += j.chunk)
			CHECK_CUDA(cudaHostUnregister((char *)p + at));
		sample(&off, (now_ns() - start) / 1e9);
	}
	first = on.v[0];
	r = row_add(name, "s", median(&on));
	snprintf(text, sizeof(text), "kernel CPU; first %.3f s, unregister %.3f s", first,
		 median(&off));
	row_peer(r, text, median(&sys));
}

static void *anonymous(uint64_t bytes, int flags)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1,
		       0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	if (madvise(p, bytes, MADV_POPULATE_WRITE)) {
		munmap(p, bytes);
		return NULL;
	}
	return p;
}

static void try_flags(void *p, uint64_t bytes)
{
	static const struct {
		const char *name;
		unsigned int flags;
	} sets[] = {
		{"flags: none", 0},
		{"flags: portable", cudaHostRegisterPortable},
		{"flags: mapped", cudaHostRegisterMapped},
		{"flags: portable, mapped", cudaHostRegisterPortable | cudaHostRegisterMapped},
		{"flags: read-only", cudaHostRegisterReadOnly},
	};

	for (size_t i = 0; i < ARRAY_SIZE(sets); i++)
		try_once(sets[i].name, p, bytes, sets[i].flags, 0, 1);
}

static void try_chunks(void *p, uint64_t bytes)
{
	static const unsigned int mib[] = {256, 1024, 2048, 4096};
	static const unsigned int threads[] = {1, 2, 4, 8};
	char name[64];

	for (size_t i = 0; i < ARRAY_SIZE(mib); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(threads); k++) {
			snprintf(name, sizeof(name), "chunks of %u MiB by %u threads", mib[i],
				 threads[k]);
			try_once(name, p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped,
				 mib[i] * MIB, threads[k]);
		}
	}
}

/* Ask for that many pages.  Return: how many there were. */
static unsigned long hugetlb_pages(unsigned long n)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", "r+e");
	unsigned long was = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%lu", &was) == 1) {
		rewind(f);
		fprintf(f, "%lu\n", n);
	}
	fclose(f);
	return was;
}

static void try_memory(void)
{
	const unsigned int flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
	struct samples s = {0};
	unsigned long was;
	void *p;

	p = anonymous(16 * GIB, 0);
	if (p) {
		try_once("anonymous, transparent huge pages", p, 16 * GIB, flags, 0, 1);
		munmap(p, 16 * GIB);
	}
	was = hugetlb_pages(16 * GIB >> 21);
	p = anonymous(16 * GIB, MAP_HUGETLB);
	if (p) {
		try_once("anonymous, hugetlb of 2 MiB", p, 16 * GIB, flags, 0, 1);
		munmap(p, 16 * GIB);
	} else {
		fprintf(stderr, "# no hugetlb pages here: %s\n", strerror(errno));
	}
	hugetlb_pages(was);
	for (int i = 0; i < TRIES; i++) {
		uint64_t start = now_ns();

		CHECK_CUDA(cudaHostAlloc(&p, 16 * GIB, cudaHostAllocPortable));
		sample(&s, (now_ns() - start) / 1e9);
		CHECK_CUDA(cudaFreeHost(p));
	}
	row_add("cudaHostAlloc of 16 GiB", "s", median(&s));
}

/* A consumer maps the arena of somebody else: its page table is empty when it registers. */
static void try_mapping(struct sluice_arena *inherited, bool populate)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_arena_info info = {.sz = sizeof(info)};
	uint64_t start;

	CHECK(gpu_init(0));
	CHECK_OK(sluice_arena_info(a, &info));
	if (populate) {
		start = now_ns();
		CHECK_OK(madvise(info.data, info.data_bytes, MADV_POPULATE_WRITE));
		row_add("populated first: populate", "s", (now_ns() - start) / 1e9);
	}
	try_once(populate ? "populated first: register" : "fresh mapping: register", info.data,
		 info.data_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped, 0, 1);
}

void try_register(void)
{
	struct sluice_arena *a = arena_huge(16 * GIB);
	const unsigned int flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct profile p;
	char name[64];
	pid_t pid;

	CHECK_OK(sluice_arena_info(a, &info));
	for (int populate = 0; populate < 2; populate++) {
		CHILD(pid) {
			try_mapping(a, populate);
		}
		CHECK_OK(child_wait(pid));
	}
	CHECK(gpu_init(0));
	fprintf(stderr, "# %.0f %% of the arena on huge pages\n",
		100.0 * info.huge_bytes / info.data_bytes);
	for (uint64_t gib = 1; gib <= 16; gib *= 2) {
		snprintf(name, sizeof(name), "%u GiB in one piece", (unsigned int)gib);
		try_once(name, info.data, gib * GIB, flags, 0, 1);
	}
	profile_start(&p);
	CHECK_CUDA(cudaHostRegister(info.data, info.data_bytes, flags));
	profile_end(&p, "registering 16 GiB");
	CHECK_CUDA(cudaHostUnregister(info.data));
	try_flags(info.data, info.data_bytes);
	try_chunks(info.data, info.data_bytes);
	sluice_arena_detach(a);
	try_memory();
}

/* ------------------------------------------------------------------ host functions */

#define WAKE_ROUND_NS (400 * MSEC)

struct wake {
	const char *name;
	uint32_t flags;
	struct sluice_cuda_drain *d;
	struct sluice_channel *out;
	struct samples rate, submit, process;
};

static double thread_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

static void wake_round(struct wake *w, void *dev, int64_t bytes, cudaStream_t s)
{
	const struct sluice_tensor t = {
		.sz = sizeof(t),
		.data = dev,
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = &bytes,
	};
	double thread = thread_seconds(), process = cpu_seconds();
	uint64_t start = now_ns(), n = 0;

	do {
		CHECK_SLUICE(sluice_cuda_drain_submit(w->d, &t, 1, s, NULL));
		n++;
	} while (n % 8 || now_ns() < start + WAKE_ROUND_NS);
	CHECK_SLUICE(sluice_cuda_drain_flush(w->d, SLUICE_FOREVER));
	sample(&w->rate, n / ((now_ns() - start) / 1e9));
	sample(&w->submit, (thread_seconds() - thread) / n * 1e6);
	sample(&w->process, (cpu_seconds() - process) / n * 1e6);
}

/* One for each drain; it spins, so that nobody needs the host function. */
static void wake_worker(struct sluice_arena *inherited, const char *name)
{
	struct sluice_arena *a = arena_child(inherited);
	struct sluice_channel_opts in = {
		.sz = sizeof(in),
		.flags = SLUICE_CHANNEL_CONSUME,
		.spin_ns = SEC,
	};
	struct sluice_channel *ch;
	struct sluice_batch *b;

	CHECK_OK(sluice_channel_open(&ch, a, name, &in));
	while (!sluice_channel_next(ch, &b, SLUICE_FOREVER))
		sluice_batch_release(b);
	_exit(0);
}

static void wake_of(int64_t bytes)
{
	struct wake w[] = {
		{.name = "none", .flags = SLUICE_CUDA_DRAIN_NO_WAKE},
		{.name = "wakes"},
		{.name = "signals", .flags = SLUICE_CUDA_DRAIN_HOST_SIGNAL},
	};
	struct sluice_arena *a = arena_huge(256 * MIB);
	struct sluice_cuda_drain_opts o = {.sz = sizeof(o), .depth = 64};
	struct sluice_cuda *c;
	pid_t pid[ARRAY_SIZE(w)];
	char name[64];
	cudaStream_t s;
	void *dev;

	for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
		w[i].out = channel_new(a, w[i].name, 128,
				       SLUICE_CHANNEL_PRODUCE | SLUICE_CHANNEL_KEEP_OPEN);
		CHILD(pid[i]) {
			wake_worker(a, w[i].name);
		}
	}
	CHECK(gpu_init(0));
	s = gpu_stream();
	dev = gpu_alloc(bytes);
	CHECK_SLUICE(sluice_cuda_attach(&c, a, NULL));
	for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
		o.flags = w[i].flags;
		CHECK_SLUICE(sluice_cuda_drain_open(&w[i].d, c, w[i].out, &o));
	}
	for (int k = 0; k < REPEATS; k++)
		for (size_t i = 0; i < ARRAY_SIZE(w); i++)
			wake_round(&w[i], dev, bytes, s);
	for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
		struct row *r;

		snprintf(name, sizeof(name), "drain, %u KiB, host function %s",
			 (unsigned int)(bytes / KIB), w[i].name);
		r = row_add(name, "batches/s", median(&w[i].rate));
		row_peer(r, "without", median(&w[0].rate));
		snprintf(name, sizeof(name), "  CPU of the submitter, %s", w[i].name);
		r = row_add(name, "us/batch", median(&w[i].submit));
		row_peer(r, "CPU of the process", median(&w[i].process));
		CHECK_SLUICE(sluice_cuda_drain_close(w[i].d));
		child_kill(pid[i]);
	}
	CHECK_SLUICE(sluice_cuda_detach(c));
}

void try_wake(void)
{
	static const int64_t sizes[] = {4 * KIB, 64 * KIB, 1 * MIB};
	pid_t pid;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		CHILD(pid) {
			wake_of(sizes[i]);
		}
		CHECK_OK(child_wait(pid));
	}
}
