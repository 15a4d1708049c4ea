/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_STAT_WRITE_H
#define SLUICE_STAT_WRITE_H

#include <stdio.h>
#include "stat_read.h"

/* One JSON object on one line; its form is tests/bpf/stat.schema.json. */
void write_json(FILE *f, const struct snapshot *s);

/* The OpenMetrics text format, version 1.0.0. */
void write_openmetrics(FILE *f, const struct snapshot *s);

/* The same into a file that readers see either old or new. Returns 0 or a negative errno. */
int save_openmetrics(const char *path, const struct snapshot *s);

/* "1.2 GB": three digits and a decimal unit. Returns @buf. */
char *format_bytes(char *buf, size_t size, double bytes);

#endif /* SLUICE_STAT_WRITE_H */
