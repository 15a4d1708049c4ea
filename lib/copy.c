// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Copies into an extent.  One that is larger than the caches goes past them: an ordinary store
 * first reads the line that it overwrites, so that a third of the memory traffic is for nothing,
 * and throws out what the next copy reads.
 */
#include "copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* A shorter part costs more in its ends than it gains. */
#define PART_MIN 4096
#define LINE	 64
/* Prefetchers of the CPU stop at the end of a page. */
#define AHEAD 1024

static void ahead(const char *src)
{
	_mm_prefetch(src + AHEAD, _MM_HINT_T0);
}

static void lines_sse2(char *dst, const char *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE) {
		__m128i a = _mm_loadu_si128((const __m128i *)src);
		__m128i b = _mm_loadu_si128((const __m128i *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(src + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(src + 48));

		ahead(src);
		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(dst + 48), d);
	}
}

__attribute__((target("avx512f"))) static void lines_avx512(char *dst, const char *src,
							    size_t lines)
{
	for (; lines >= 4; lines -= 4, dst += 4 * LINE, src += 4 * LINE) {
		__m512i a = _mm512_loadu_si512(src);
		__m512i b = _mm512_loadu_si512(src + LINE);
		__m512i c = _mm512_loadu_si512(src + 2 * LINE);
		__m512i d = _mm512_loadu_si512(src + 3 * LINE);

		for (int i = 0; i < 4; i++)
			ahead(src + i * LINE);
		_mm512_stream_si512((void *)dst, a);
		_mm512_stream_si512((void *)(dst + LINE), b);
		_mm512_stream_si512((void *)(dst + 2 * LINE), c);
		_mm512_stream_si512((void *)(dst + 3 * LINE), d);
	}
	lines_sse2(dst, src, lines);
}

void copy_past(void *to, const void *from, size_t len)
{
	const char *src = from;
	char *dst = to;
	size_t head;

	if (len < PART_MIN) {
		memcpy(dst, src, len);
		return;
	}
	head = -(uintptr_t)dst & (LINE - 1);
	memcpy(dst, src, head);
	dst += head;
	src += head;
	len -= head;
	if (__builtin_cpu_supports("avx512f"))
		lines_avx512(dst, src, len / LINE);
	else
		lines_sse2(dst, src, len / LINE);
	/* These stores are in no order: before anybody is told of them they have to be. */
	_mm_sfence();
	memcpy(dst + len / LINE * LINE, src + len / LINE * LINE, len % LINE);
}

#else

void copy_past(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

#endif
