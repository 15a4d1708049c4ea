/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_TRACE_FIND_H
#define SLUICE_TRACE_FIND_H

#include <sys/types.h>
#include "stat_load.h"

#define MAX_LIBRARIES 16

/* The files whose probes are attached, so that none is attached twice. */
struct libraries {
	dev_t dev[MAX_LIBRARIES];
	ino_t ino[MAX_LIBRARIES];
	int n;
};

/*
 * Attaches to the libsluice that a program would load (@extra, LD_LIBRARY_PATH, the usual folders)
 * and to @command itself, which may have the library linked in. Both may be NULL.
 */
void libraries_find(struct libraries *libs, struct counters *c, const char *extra,
		    const char *command);

/* Attaches to a libsluice that @pid has mapped from somewhere else. */
void libraries_follow(struct libraries *libs, struct counters *c, pid_t pid);

#endif /* SLUICE_TRACE_FIND_H */
