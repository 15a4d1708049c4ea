// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "table.h"

#include <err.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

#define MAX_COLUMNS 16

struct cell {
	char *text;
	enum tint tint;
};

struct table {
	unsigned int columns;
	unsigned int cells;
	unsigned int room;
	const char *heads[MAX_COLUMNS];
	struct cell *cell;
};

struct table *table_new(const char *const *heads)
{
	struct table *t = calloc(1, sizeof(*t));

	if (!t)
		err(EXIT_BROKEN, "table");
	while (heads[t->columns] && t->columns < MAX_COLUMNS) {
		t->heads[t->columns] = heads[t->columns];
		t->columns++;
	}
	return t;
}

void table_free(struct table *t)
{
	for (unsigned int i = 0; i < t->cells; i++)
		free(t->cell[i].text);
	free(t->cell);
	free(t);
}

static void add(struct table *t, enum tint tint, const char *fmt, va_list ap)
{
	if (t->cells == t->room) {
		t->room = t->room ? 2 * t->room : 64;
		t->cell = reallocarray(t->cell, t->room, sizeof(*t->cell));
		if (!t->cell)
			err(EXIT_BROKEN, "table");
	}
	t->cell[t->cells].tint = tint;
	if (vasprintf(&t->cell[t->cells].text, fmt, ap) < 0)
		err(EXIT_BROKEN, "table");
	t->cells++;
}

void table_cell(struct table *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add(t, TINT_NONE, fmt, ap);
	va_end(ap);
}

void table_tinted(struct table *t, enum tint tint, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add(t, tint, fmt, ap);
	va_end(ap);
}

/* Characters, taking UTF-8 for granted. */
static unsigned int width_of(const char *s)
{
	unsigned int n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

static void put(FILE *f, const char *text, enum tint tint, unsigned int width, bool right,
		bool last)
{
	unsigned int pad = width - width_of(text);

	if (right)
		fprintf(f, "%*s", pad, "");
	fprintf(f, "%s%s%s", tint ? term_tint(f, tint) : "", text,
		tint ? term_tint(f, TINT_NONE) : "");
	if (last)
		putc('\n', f);
	else
		fprintf(f, "%*s", (right ? 0 : pad) + 2, "");
}

void table_print(const struct table *t, FILE *f)
{
	unsigned int width[MAX_COLUMNS];

	for (unsigned int c = 0; c < t->columns; c++)
		width[c] = width_of(t->heads[c] + (*t->heads[c] == '>'));
	for (unsigned int i = 0; i < t->cells; i++) {
		unsigned int n = width_of(t->cell[i].text);

		if (n > width[i % t->columns])
			width[i % t->columns] = n;
	}
	for (unsigned int c = 0; c < t->columns; c++) {
		bool right = *t->heads[c] == '>';

		put(f, t->heads[c] + right, TINT_BOLD, width[c], right, c + 1 == t->columns);
	}
	for (unsigned int i = 0; i < t->cells; i++) {
		unsigned int c = i % t->columns;

		put(f, t->cell[i].text, t->cell[i].tint, width[c], *t->heads[c] == '>',
		    c + 1 == t->columns);
	}
}
