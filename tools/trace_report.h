/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_TRACE_REPORT_H
#define SLUICE_TRACE_REPORT_H

#include <stdio.h>
#include "stat_read.h"

/* What a trace found: a table of processes, who talks to whom, and the verdict. */
void report_print(FILE *f, const struct snapshot *s, __u64 start_ns);

/* The verdict alone: one sentence without a newline. */
void report_verdict(FILE *f, const struct snapshot *s);

/* Who talks to whom, for Graphviz or as SVG. */
void plot_write(FILE *f, bool svg, const struct snapshot *s);
bool plot_is_svg(const char *path);

#endif /* SLUICE_TRACE_REPORT_H */
