// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The same figures as a bar chart: one SVG, nothing to load, readable on light and on dark. */
#include <errno.h>
#include <string.h>

#include <sluice.h>

#include "bench.h"
#include "cmd.h"

#define WIDTH  820
#define LEFT   210 /* where bars begin */
#define LENGTH 480 /* of the longest bar */
#define BAR    18
#define STEP   26
#define HEAD   52

/* One panel shows what a row measures, and all its peers that are measured in the same way. */
struct panel {
	const char *row;
	const char *heading;
	const char *better;
};

static const struct panel panels[] = {
	{"stream_copy", "12 MiB batches copied in, each process on a CPU of its own, GB/s",
	 "longer is better"},
	{"stream_read", "the same, every byte read by the consumer, GB/s", "longer is better"},
	{"stream_read_free", "every byte written and read, placed by the scheduler, GB/s",
	 "longer is better"},
	{"latency_awake", "one way, both awake, ns", "shorter is better"},
	{"latency_asleep", "round trip, both asleep, us", "shorter is better"},
};

#define PANELS (sizeof(panels) / sizeof(panels[0]))

struct bar {
	const char *name;
	double value;
	bool own;
};

static void put_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '&')
			fputs("&amp;", f);
		else if (*s == '<')
			fputs("&lt;", f);
		else
			putc(*s, f);
	}
}

static unsigned int panel_bars(const struct panel *p, const struct bench_result *r, unsigned int n,
			       struct bar *bars)
{
	const struct bench_result *first = NULL;
	unsigned int i, count = 0;

	for (i = 0; i < n; i++) {
		if (!first && !strcmp(r[i].row->name, p->row))
			first = &r[i];
		if (!first || r[i].skipped[0] || !r[i].row->peer ||
		    strcmp(r[i].row->group, first->row->group) ||
		    strcmp(r[i].row->title, first->row->title))
			continue;
		if (!count)
			bars[count++] =
				(struct bar){r[i].row->subject->ops->name, r[i].value, true};
		bars[count++] = (struct bar){r[i].row->peer->ops->name, r[i].peer_value, false};
	}
	return count;
}

static unsigned int put_panel(FILE *f, const struct panel *p, const struct bar *bars,
			      unsigned int n, unsigned int y)
{
	double longest = 0;
	char value[32];
	unsigned int i;

	for (i = 0; i < n; i++)
		longest = bars[i].value > longest ? bars[i].value : longest;
	fprintf(f, "<text x=\"24\" y=\"%u\" class=\"head\">%s</text>\n", y + 22, p->heading);
	fprintf(f, "<text x=\"%d\" y=\"%u\" class=\"note end\">%s</text>\n", WIDTH - 24, y + 22,
		p->better);
	y += HEAD - STEP + 10;
	for (i = 0; i < n; i++, y += STEP) {
		double len = bars[i].value / longest * LENGTH;

		bench_number(value, sizeof(value), bars[i].value);
		fprintf(f, "<text x=\"%d\" y=\"%u\" class=\"%s end\">", LEFT - 10, y + BAR - 5,
			bars[i].own ? "own" : "name");
		put_text(f, bars[i].name);
		fprintf(f,
			"</text><rect x=\"%d\" y=\"%u\" width=\"%.1f\" height=\"%d\" rx=\"2\" "
			"class=\"%s\"/>",
			LEFT, y, len > 1 ? len : 1, BAR, bars[i].own ? "bar us" : "bar");
		fprintf(f, "<text x=\"%.1f\" y=\"%u\" class=\"%s\">%s</text>\n", LEFT + len + 8,
			y + BAR - 5, bars[i].own ? "own" : "name", value);
	}
	return y + 14;
}

static void put_style(FILE *f)
{
	fputs("<style>\n"
	      "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#444c56}\n"
	      ".head{font-weight:600;fill:#1f2328}.own{font-weight:600;fill:#0a58a8}\n"
	      ".note{font-size:12px;fill:#6e7781}.end{text-anchor:end}\n"
	      ".bar{fill:#a9b4c0}.us{fill:#1f7ad1}\n"
	      "@media (prefers-color-scheme:dark){text{fill:#b1bac4}.head{fill:#f0f3f6}\n"
	      ".own{fill:#6cb6ff}.note{fill:#8b949e}.bar{fill:#57606a}.us{fill:#388bfd}}\n"
	      "</style>\n",
	      f);
}

int bench_plot(const char *path, const struct bench_result *r, unsigned int n,
	       const struct bench_host *host)
{
	static struct bar bars[PANELS][32];
	unsigned int count[PANELS], i, y = 12, height = 12 + 34;
	FILE *f;

	for (i = 0; i < PANELS; i++) {
		count[i] = panel_bars(&panels[i], r, n, bars[i]);
		height += count[i] ? HEAD - STEP + 10 + count[i] * STEP + 14 : 0;
	}
	f = fopen(path, "we");
	if (!f) {
		complain("bench", "%s: %s", path, strerror(errno));
		return -errno;
	}
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
		"viewBox=\"0 0 %d %u\" role=\"img\">\n<title>sluice bench</title>\n",
		WIDTH, height, WIDTH, height);
	put_style(f);
	for (i = 0; i < PANELS; i++) {
		if (count[i])
			y = put_panel(f, &panels[i], bars[i], count[i], y);
	}
	fprintf(f, "<text x=\"24\" y=\"%u\" class=\"note\">", y + 14);
	put_text(f, host->machine);
	fputs("; ", f);
	put_text(f, host->kernel);
	fprintf(f, "; sluice %s; %.10s</text>\n</svg>\n", sluice_version(), host->date);
	if (fclose(f)) {
		complain("bench", "%s: %s", path, strerror(errno));
		return -errno;
	}
	return 0;
}
