/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Loading, attaching, pinning and finding the counters. */
#ifndef SLUICE_STAT_LOAD_H
#define SLUICE_STAT_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>
#include <linux/types.h>
#include "counters.h"

enum stat_map {
	STAT_COUNTS,
	STAT_ENDS,
	STAT_TASKS,
	STAT_MEMORY,
	STAT_ARENAS,
	STAT_TARGETS,
	STAT_CONFIG,
	STAT_LOST,
	STAT_MAPS,
};

struct counters;

/**
 * struct counters_opts - how to load
 * @size: sizeof(struct counters_opts)
 * @only_targets: count the processes given to counters_add_target() and their children, not all
 * @trampolines: count by trampolines even where the kernel can keep calls from them (for tests)
 * @pin: leave programs and maps behind, using maps that are pinned already; the caller has the lock of
 *       pins_make()
 * @max_entries: entries of each map that grows with the number of threads; 0 for the default
 * @library: the libsluice whose probes to attach to; NULL for none
 */
struct counters_opts {
	size_t size;
	bool only_targets;
	bool trampolines;
	bool pin;
	unsigned int max_entries;
	const char *library;
};

/**
 * counters_load() - load and attach the programs
 * @out: the counters, to be given to counters_close()
 * @opts: see there
 *
 * A hook that this kernel lacks or refuses is named on stderr and left out, the rest counts.
 *
 * Return: 0; -EPERM, -ENOENT (no BTF in this kernel) or another negative errno, said on stderr.
 */
int counters_load(struct counters **out, const struct counters_opts *opts);

/**
 * counters_open() - open the counters that are pinned, for reading
 * @out: the counters, to be given to counters_close()
 *
 * Return: 0, or -ENOENT if none are pinned, -EPROTO if another version pinned them or a load did not
 * come to its end, or another negative errno. Prints nothing.
 */
int counters_open(struct counters **out);

/* Detaches what counters_load() attached, unless it is pinned. */
void counters_close(struct counters *c);

/**
 * counters_iterate() - open a map for reading
 * @c: the counters
 * @map: neither STAT_TARGETS nor STAT_CONFIG
 *
 * Return: a descriptor from which read() gets key and value of one entry after the other, for the
 * caller to close, or a negative errno. Costs those who are counted nothing: see bpf/read.bpf.c.
 */
int counters_iterate(const struct counters *c, enum stat_map map);

/* Counts @tgid and the processes that it forks from now on. Returns 0 or a negative errno. */
int counters_add_target(struct counters *c, pid_t tgid);

/* Counts it no longer. */
void counters_drop_target(struct counters *c, pid_t tgid);

/* Attaches to the probes of the libsluice at @path. Returns the number of sites or -errno. */
int counters_add_library(struct counters *c, const char *path);

/**
 * counters_missed() - what the kernel did not show to a program that was already running on that CPU
 * @c: the counters
 * @calls: calls that are not counted at all
 * @costs: page faults, waits in poll, or the time of calls
 */
void counters_missed(const struct counters *c, __u64 *calls, __u64 *costs);

/* One line: how many hooks are pinned, which it returns, and which are not. */
int counters_print_hooks(FILE *f);

#endif /* SLUICE_STAT_LOAD_H */
