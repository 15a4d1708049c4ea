// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What is sent, and how the receiver knows that it got that; medians. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"

#define HUGE (2 * BENCH_MIB)

static struct {
	uint64_t bytes;
	uint64_t *buf[BENCH_SOURCES];
	uint64_t sum[BENCH_SOURCES];
} payload;

void *bench_alloc(size_t bytes)
{
	size_t len = (bytes + HUGE - 1) & ~(HUGE - 1);
	char *p, *aligned;

	p = mmap(NULL, len + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	aligned = (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	if (aligned > p)
		munmap(p, (size_t)(aligned - p));
	if (aligned < p + HUGE)
		munmap(aligned + len, (size_t)(p + HUGE - aligned));
	madvise(aligned, len, MADV_HUGEPAGE);
	memset(aligned, 0x5a, len);
	return aligned;
}

void bench_free(void *p, size_t bytes)
{
	if (p)
		munmap(p, (bytes + HUGE - 1) & ~(HUGE - 1));
}

typedef uint64_t vec __attribute__((vector_size(32), aligned(8), may_alias));

uint64_t bench_sum(const void *p, size_t bytes)
{
	vec a = {0}, b = {0}, c = {0}, d = {0};
	const char *s = p;
	uint64_t sum, word;

	for (; bytes >= 128; bytes -= 128, s += 128) {
		a += *(const vec *)s;
		b += *(const vec *)(s + 32);
		c += *(const vec *)(s + 64);
		d += *(const vec *)(s + 96);
	}
	a += b + c + d;
	sum = a[0] + a[1] + a[2] + a[3];
	for (; bytes >= 8; bytes -= 8, s += 8) {
		memcpy(&word, s, 8);
		sum += word;
	}
	return sum;
}

int bench_payload_init(struct bench_crew *c)
{
	uint64_t x = 88172645463325252ULL, bytes = c->spec->bytes, words = bytes / 8, i;
	int k;

	if (payload.bytes == bytes)
		return 0;
	for (k = 0; k < BENCH_SOURCES; k++) {
		bench_free(payload.buf[k], payload.bytes);
		payload.buf[k] = bench_alloc(bytes);
		if (!payload.buf[k]) {
			payload.bytes = 0;
			return bench_fail(c, -ENOMEM, "no memory for %d payloads of %llu bytes",
					  BENCH_SOURCES, (unsigned long long)bytes);
		}
		for (i = 0; i < words; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			payload.buf[k][i] = x;
		}
		payload.buf[k][0] = 0;
		payload.buf[k][words - 1] = 0;
		payload.sum[k] = bench_sum(payload.buf[k], bytes);
	}
	payload.bytes = bytes;
	return 0;
}

void *bench_payload(uint64_t seq)
{
	uint64_t *p = payload.buf[seq % BENCH_SOURCES];

	p[0] = seq;
	p[payload.bytes / 8 - 1] = seq;
	return p;
}

bool bench_payload_ok(const void *p, uint64_t seq, bool all)
{
	const uint64_t *w = p;

	if (w[0] != seq || w[payload.bytes / 8 - 1] != seq)
		return false;
	return !all || bench_sum(p, payload.bytes) == payload.sum[seq % BENCH_SOURCES] + 2 * seq;
}

int bench_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(const double *v, unsigned int n)
{
	double sorted[BENCH_MAX_ROUNDS];

	if (!n)
		return 0;
	memcpy(sorted, v, n * sizeof(*v));
	qsort(sorted, n, sizeof(*sorted), bench_compare);
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}
