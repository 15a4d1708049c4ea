/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_BENCH_BOOST_H
#define SLUICE_BENCH_BOOST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL, or a queue of @slots messages of @bytes that forked processes share. */
void *bench_boost_open(const char *name, size_t slots, size_t bytes);
int bench_boost_send(void *q, const void *data, size_t bytes);
long bench_boost_recv(void *q, void *data, size_t bytes);
void bench_boost_close(void *q);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_BENCH_BOOST_H */
