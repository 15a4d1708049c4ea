/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_BENCH_BOOST_H
#define SLUICE_BENCH_BOOST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * struct bench_boost - a queue of messages that forked processes share
 * @open: NULL, or a queue of @slots messages of @bytes
 * @send: 0, or -1
 * @recv: bytes, or -1
 * @close: of what @open returned
 */
struct bench_boost {
	void *(*open)(const char *name, size_t slots, size_t bytes);
	int (*send)(void *q, const void *data, size_t bytes);
	long (*recv)(void *q, void *data, size_t bytes);
	void (*close)(void *q);
};

#pragma GCC visibility push(default)
extern const struct bench_boost bench_boost_queue;
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_BENCH_BOOST_H */
