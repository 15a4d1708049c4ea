/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A checksum that a GPU can make: a sum over the 64-bit words of a file, each mixed with its place, so
 * that any number of threads may add up any part of it.  The last word is filled up with zeros.
 * cuda_sum.ptx computes the same.
 */
#ifndef SLUICE_TOOLS_PUMP_SUM_H
#define SLUICE_TOOLS_PUMP_SUM_H

#include <stdint.h>
#include <string.h>

static inline uint64_t sum_mix(uint64_t word, uint64_t place)
{
	uint64_t x = word ^ ((place + 1) * 0x9e3779b97f4a7c15ULL);

	x ^= x >> 31;
	x *= 0x7fb5d329728ea185ULL;
	x ^= x >> 27;
	x *= 0x81dadef4bc2dd44dULL;
	return x ^ x >> 33;
}

/* Of @bytes that begin at word @place of the file. */
static inline uint64_t sum_add(const void *data, uint64_t bytes, uint64_t place)
{
	const char *p = data;
	uint64_t sum = 0, w;

	for (; bytes >= sizeof(w); bytes -= sizeof(w), p += sizeof(w)) {
		memcpy(&w, p, sizeof(w));
		sum += sum_mix(w, place++);
	}
	if (!bytes)
		return sum;
	w = 0;
	memcpy(&w, p, bytes);
	return sum + sum_mix(w, place);
}

#endif
