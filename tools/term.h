/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What only a terminal gets, and numbers for people. */
#ifndef SLUICE_TOOLS_TERM_H
#define SLUICE_TOOLS_TERM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum tint {
	TINT_NONE,
	TINT_BOLD,
	TINT_DIM,
	TINT_GREEN,
	TINT_YELLOW,
	TINT_RED
};

/* Whether f is a terminal that may be redrawn. */
bool term_live(FILE *f);
/* The same, and the user has not set NO_COLOR. */
bool term_colour(FILE *f);
unsigned int term_width(FILE *f);
/* The escape sequence that begins a tint (TINT_NONE ends one) on f, or "". */
const char *term_tint(FILE *f, enum tint tint);

/* Large enough for every one of these. */
#define HUMAN_LEN 32

/* "12.0 MiB", "1.20 GB/s", "350 us", "2 h 05 min".  Return: buf. */
const char *human_bytes(char buf[HUMAN_LEN], uint64_t bytes);
const char *human_rate(char buf[HUMAN_LEN], double bytes_per_second);
const char *human_time(char buf[HUMAN_LEN], double seconds);
/* Text without control characters, for a terminal.  Return: buf. */
const char *human_path(char *buf, size_t len, const char *path);

uint64_t clock_ns(void); /* CLOCK_MONOTONIC */

#endif
