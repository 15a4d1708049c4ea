/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Static probes that tracers (libbpf, bpftrace, perf, gdb, SystemTap) find in the ELF notes of the
 * program. The format is SystemTap's .note.stapsdt version 3; this emitter needs no package.
 *
 *	USDT_DEFINE(batch_publish);		once, at file scope, in one file of the library
 *	USDT_DECLARE(batch_publish);		wherever else the probe is used
 *	USDT3(batch_publish, bytes, id, ch);	the site
 *	if (USDT_ENABLED(batch_next))		only to guard work that an idle program must not do
 *
 * A site is one nop. Arguments are integers or pointers, passed as 64-bit values in registers: not
 * every tracer understands memory operands with an index or large constants, so the values should be
 * ones that the surrounding code holds anyway.
 */
#ifndef SLUICE_USDT_H
#define SLUICE_USDT_H

#include <stdint.h>

#define USDT_PROVIDER "sluice"

/* A tracer that attaches counts up this word in the target's memory, and down when it leaves. */
#define USDT_SEMAPHORE(name) sluice_##name##_semaphore

#define USDT_DECLARE(name)                                  \
	extern volatile unsigned short USDT_SEMAPHORE(name) \
		__attribute__((section(".probes"), visibility("hidden")))

#define USDT_DEFINE(name)                            \
	USDT_DECLARE(name);                          \
	volatile unsigned short USDT_SEMAPHORE(name) \
		__attribute__((section(".probes"), visibility("hidden"), used)) = 0

#define USDT_ENABLED(name) __builtin_expect(USDT_SEMAPHORE(name) != 0, 0)

#if defined(__x86_64__) || defined(__aarch64__)

/*
 * The note names three addresses: the site, a section that reveals prelinking, the semaphore.
 * "?" puts the note into the section group of the code, so a discarded function takes it along.
 */
#define USDT_SITE(name, args, ...)                                                      \
	__asm__ __volatile__(                                                           \
		"990:	nop\n"                                                            \
		".pushsection .note.stapsdt,\"?\",\"note\"\n"                           \
		".balign 4\n"                                                           \
		".4byte 992f-991f, 994f-993f, 3\n"                                      \
		"991:	.asciz \"stapsdt\"\n"                                             \
		"992:	.balign 4\n"                                                      \
		"993:	.8byte 990b\n"                                                    \
		".8byte _.stapsdt.base\n"                                               \
		".8byte sluice_" #name "_semaphore\n"                                   \
		".asciz \"" USDT_PROVIDER "\"\n"                                        \
		".asciz \"" #name "\"\n"                                                \
		".asciz \"" args "\"\n"                                                 \
		"994:	.balign 4\n"                                                      \
		".popsection\n"                                                         \
		".ifndef _.stapsdt.base\n"                                              \
		".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
		".weak _.stapsdt.base\n"                                                \
		".hidden _.stapsdt.base\n"                                              \
		"_.stapsdt.base: .space 1\n"                                            \
		".size _.stapsdt.base, 1\n"                                             \
		".popsection\n"                                                         \
		".endif\n" ::__VA_ARGS__)

#define USDT_ARG(x) "r"((uint64_t)(x))

#define USDT1(name, a)	  USDT_SITE(name, "8@%0", USDT_ARG(a))
#define USDT2(name, a, b) USDT_SITE(name, "8@%0 8@%1", USDT_ARG(a), USDT_ARG(b))
#define USDT3(name, a, b, c) \
	USDT_SITE(name, "8@%0 8@%1 8@%2", USDT_ARG(a), USDT_ARG(b), USDT_ARG(c))
#define USDT4(name, a, b, c, d) \
	USDT_SITE(name, "8@%0 8@%1 8@%2 8@%3", USDT_ARG(a), USDT_ARG(b), USDT_ARG(c), USDT_ARG(d))

#else

#define USDT1(name, a)		((void)(a))
#define USDT2(name, a, b)	((void)(a), (void)(b))
#define USDT3(name, a, b, c)	((void)(a), (void)(b), (void)(c))
#define USDT4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))

#endif

#endif /* SLUICE_USDT_H */
