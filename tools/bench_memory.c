// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Physical limits of memory, and what an arena costs before the first batch: faults, footprint. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sluice.h>

#include "bench.h"

#define HUGE (2 * BENCH_MIB)

/* One process copies the same bytes from the same sources into as many slots. */
static int memcpy_run(struct bench_crew *c, int side, uint64_t n)
{
	size_t bytes = c->spec->bytes;
	char *slots = c->priv;

	for (; n; n--, c->seq++) {
		memcpy(slots + c->seq % c->spec->slots * bytes, bench_payload(c->seq), bytes);
		/* Or the compiler may see that nobody reads them. */
		__asm__ volatile("" ::: "memory");
	}
	return 0;
}

static int memcpy_open(struct bench_crew *c, int side)
{
	c->priv = bench_alloc(c->spec->slots * c->spec->bytes);
	return c->priv ? 0 : bench_fail(c, -ENOMEM, "no memory to copy to");
}

const struct bench_ops bench_memcpy = {
	.name = "memcpy",
	.init = bench_payload_init,
	.open = memcpy_open,
	.run = memcpy_run,
};

/* One process reads what a slow consumer reads, with nobody sending: the pace of that consumer. */
static int reader_run(struct bench_crew *c, int side, uint64_t n)
{
	int pass;

	for (; n; n--, c->seq++) {
		for (pass = 0; pass < BENCH_PASSES; pass++) {
			if (!bench_payload_ok(bench_payload(c->seq), c->seq, true))
				return bench_fail(c, -EBADMSG, "a private buffer changed");
		}
	}
	return 0;
}

const struct bench_ops bench_reader = {
	.name = "the consumer alone",
	.init = bench_payload_init,
	.run = reader_run,
};

static int memset_run(struct bench_crew *c, int side, uint64_t n)
{
	size_t bytes = c->spec->bytes;
	uint64_t start;
	char *p, *aligned;

	for (; n; n--) {
		p = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);
		if (p == MAP_FAILED)
			return bench_fail(c, -errno, "mmap: %s", strerror(errno));
		madvise(p, bytes + HUGE, MADV_HUGEPAGE);
		aligned = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
		start = bench_now();
		memset(aligned, 1, bytes);
		c->sh->own_ns += bench_now() - start;
		munmap(p, bytes + HUGE);
	}
	return 0;
}

const struct bench_ops bench_memset = {
	.name = "memset of fresh huge pages",
	.run = memset_run,
};

static int arena_make(struct bench_crew *c, struct sluice_arena **a)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = c->spec->bytes,
		.label = "bench",
	};
	int err = sluice_arena_create(a, &opts);

	return err < 0 ? bench_fail(c, err, "%s", sluice_strerror()) : 0;
}

/* .extra: bytes of the control region. */
static int create_run(struct bench_crew *c, int side, uint64_t n)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct sluice_arena *a;
	uint64_t start;
	int err;

	for (; n; n--) {
		start = bench_now();
		err = arena_make(c, &a);
		c->sh->own_ns += bench_now() - start;
		if (err)
			return err;
		sluice_arena_info(a, &info);
		c->sh->side[side].extra = (double)info.control_bytes;
		sluice_arena_detach(a);
	}
	return 0;
}

const struct bench_ops bench_create = {
	.name = "sluice",
	.run = create_run,
};

/* A process that attaches and reads an arena that another one filled. */
struct filled {
	struct sluice_arena *a;
	int fd, data_fd;
};

static int pass_init(struct bench_crew *c)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};
	struct filled *f = calloc(1, sizeof(*f));
	int err;

	if (!f)
		return bench_fail(c, -ENOMEM, "out of memory");
	c->priv = f;
	err = arena_make(c, &f->a);
	if (err)
		return err;
	sluice_arena_info(f->a, &info);
	memset(info.data, 1, info.data_bytes);
	f->fd = sluice_arena_fd(f->a);
	f->data_fd = sluice_arena_data_fd(f->a);
	if (f->data_fd < 0)
		f->data_fd = 0;
	return 0;
}

static int pass_run(struct bench_crew *c, int side, uint64_t n)
{
	uint64_t want = c->spec->bytes / 8 * 0x0101010101010101ULL, start, sum;
	struct sluice_arena_info info = {.sz = sizeof(info)};
	bool later = c->spec->flags & BENCH_LATER;
	const struct filled *f = c->priv;
	struct sluice_attach_opts opts = {
		.sz = sizeof(opts),
		.role = SLUICE_ROLE_CONSUMER,
		.data_fd = f->data_fd,
	};
	struct sluice_arena *a;
	int err;

	for (; n; n--) {
		start = bench_now();
		err = sluice_arena_attach(&a, f->fd, &opts);
		if (err < 0)
			return bench_fail(c, err, "%s", sluice_strerror());
		sluice_arena_info(a, &info);
		sum = bench_sum(info.data, info.data_bytes);
		if (later) {
			start = bench_now();
			sum = bench_sum(info.data, info.data_bytes);
		}
		c->sh->own_ns += bench_now() - start;
		sluice_arena_detach(a);
		if (sum != want)
			return bench_fail(c, -EBADMSG, "the arena holds something else");
	}
	return 0;
}

static void pass_exit(struct bench_crew *c)
{
	struct filled *f = c->priv;

	if (f)
		sluice_arena_detach(f->a);
	free(f);
}

const struct bench_ops bench_first_pass = {
	.name = "sluice",
	.init = pass_init,
	.run = pass_run,
	.exit = pass_exit,
};

const struct bench_ops bench_later_pass = {
	.name = "the same, mapped already",
	.init = pass_init,
	.run = pass_run,
	.exit = pass_exit,
};
