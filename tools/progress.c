// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* On a terminal a bar that is redrawn, otherwise a line now and then. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "pump.h"
#include "term.h"

#define REDRAW_NS 100000000ULL
#define LINE_NS	  5000000000ULL

struct progress {
	const char *what;
	uint64_t total;
	uint64_t begin;
	uint64_t last;
	bool live;
	bool quiet;
};

struct progress *progress_begin(const char *what, uint64_t bytes, bool quiet)
{
	struct progress *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->what = what;
	p->total = bytes;
	p->begin = p->last = clock_ns();
	p->live = term_live(stderr);
	p->quiet = quiet && !p->live;
	return p;
}

static void draw(const struct progress *p, uint64_t bytes, uint64_t now)
{
	char done[HUMAN_LEN], all[HUMAN_LEN], rate[HUMAN_LEN], left[HUMAN_LEN], text[160];
	double seconds = (now - p->begin) / 1e9, speed = seconds > 0 ? bytes / seconds : 0;
	/* Files may have grown since they were counted. */
	uint64_t total = bytes > p->total ? bytes : p->total;
	unsigned int percent = total ? bytes * 100.0 / total : 100;
	int width, bar;

	snprintf(text, sizeof(text), "%3u %%  %s of %s  %s  %s left", percent,
		 human_bytes(done, bytes), human_bytes(all, total), human_rate(rate, speed),
		 speed > 0 ? human_time(left, (total - bytes) / speed) : "?");
	if (!p->live) {
		fprintf(stderr, "%s: %s\n", p->what, text);
		return;
	}
	width = (int)term_width(stderr) - (int)strlen(text) - (int)strlen(p->what) - 6;
	width = width > 40 ? 40 : width;
	fprintf(stderr, "\r%s ", p->what);
	if (width > 4) {
		bar = width * percent / 100;
		putc('[', stderr);
		for (int i = 0; i < width; i++)
			putc(i < bar ? '#' : ' ', stderr);
		fputs("] ", stderr);
	}
	fprintf(stderr, "%s\033[K", text);
	fflush(stderr);
}

void progress_show(struct progress *p, uint64_t bytes)
{
	uint64_t now;

	if (!p || p->quiet)
		return;
	now = clock_ns();
	if (now - p->last < (p->live ? REDRAW_NS : LINE_NS))
		return;
	p->last = now;
	draw(p, bytes, now);
}

void progress_end(struct progress *p)
{
	if (p && p->live)
		fputs("\r\033[K", stderr);
	free(p);
}
