// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "term.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

bool term_live(FILE *f)
{
	const char *term = getenv("TERM");

	return isatty(fileno(f)) && term && strcmp(term, "dumb");
}

bool term_colour(FILE *f)
{
	const char *no = getenv("NO_COLOR");

	return term_live(f) && !(no && *no);
}

unsigned int term_width(FILE *f)
{
	struct winsize w;

	if (ioctl(fileno(f), TIOCGWINSZ, &w) || !w.ws_col)
		return 80;
	return w.ws_col;
}

const char *term_tint(FILE *f, enum tint tint)
{
	static const char *const codes[] = {
		[TINT_NONE] = "\033[0m",   [TINT_BOLD] = "\033[1m",    [TINT_DIM] = "\033[2m",
		[TINT_GREEN] = "\033[32m", [TINT_YELLOW] = "\033[33m", [TINT_RED] = "\033[31m",
	};

	return term_colour(f) ? codes[tint] : "";
}

const char *human_bytes(char buf[HUMAN_LEN], uint64_t bytes)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double n = bytes;
	int unit = -1;

	while (n >= 1024 && unit < 5) {
		n /= 1024;
		unit++;
	}
	if (unit < 0)
		snprintf(buf, HUMAN_LEN, "%u B", (unsigned int)bytes);
	else
		snprintf(buf, HUMAN_LEN, n < 10 ? "%.2f %s" : "%.1f %s", n, units[unit]);
	return buf;
}

const char *human_rate(char buf[HUMAN_LEN], double rate)
{
	if (rate >= 1e9)
		snprintf(buf, HUMAN_LEN, "%.2f GB/s", rate / 1e9);
	else if (rate >= 1e6)
		snprintf(buf, HUMAN_LEN, "%.1f MB/s", rate / 1e6);
	else
		snprintf(buf, HUMAN_LEN, "%.1f kB/s", rate / 1e3);
	return buf;
}

const char *human_time(char buf[HUMAN_LEN], double s)
{
	if (s < 1e-6)
		snprintf(buf, HUMAN_LEN, "%.0f ns", s * 1e9);
	else if (s < 1e-3)
		snprintf(buf, HUMAN_LEN, "%.3g us", s * 1e6);
	else if (s < 1)
		snprintf(buf, HUMAN_LEN, "%.3g ms", s * 1e3);
	else if (s < 60)
		snprintf(buf, HUMAN_LEN, "%.2f s", s);
	else if (s < 3600)
		snprintf(buf, HUMAN_LEN, "%d min %02d s", (int)s / 60, (int)s % 60);
	else
		snprintf(buf, HUMAN_LEN, "%llu h %02llu min", (unsigned long long)s / 3600,
			 (unsigned long long)s / 60 % 60);
	return buf;
}

const char *human_path(char *buf, size_t len, const char *path)
{
	size_t n = 0;

	for (; *path && n + 1 < len; path++)
		buf[n++] = (unsigned char)*path < 0x20 || *path == 0x7f ? '?' : *path;
	buf[n] = '\0';
	return buf;
}

uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}
