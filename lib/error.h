/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_ERROR_H
#define SLUICE_ERROR_H

#include <sluice.h>

/* Record the calling thread's error sentence and return -err.  The library's only way to fail. */
int sluice_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

/* The same for functions that return a pointer: sets errno and returns NULL. */
void *sluice_fail_null(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

/* Hand one line to the caller's log function, if there is one that wants this level. */
void sluice_log(enum sluice_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), cold));

#endif
