/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A table in columns: cells are collected, then printed as wide as the widest. */
#ifndef SLUICE_TOOLS_TABLE_H
#define SLUICE_TOOLS_TABLE_H

#include <stdio.h>

#include "term.h"

struct table;

/* @heads: NULL at the end; a head that begins with '>' stands to the right. */
struct table *table_new(const char *const *heads);
void table_free(struct table *t);
/* Cells fill rows from left to right. */
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with a tint, which only a terminal shows. */
void table_tinted(struct table *t, enum tint tint, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void table_print(const struct table *t, FILE *f);

#endif
