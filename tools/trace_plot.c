// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Who talks to whom, as Graphviz text or as an SVG of its own: processes on a circle. */
#include <math.h>
#include <string.h>
#include "stat_write.h"
#include "trace_report.h"

#define MAX_NODES 64

static const char *const colours[MEDIUMS] = {"#c0392b", "#d68910", "#7d3c98", "#1e8449"};

static void write_label(FILE *f, const struct snapshot *s, int process)
{
	if (process < 0) {
		fputs("elsewhere", f);
		return;
	}
	/* Printable ASCII only (stat_read.c); both formats have their own special characters. */
	for (const char *c = s->processes[process].comm; *c; c++)
		fputc(strchr("<>&\"\\'", *c) ? '?' : *c, f);
	fprintf(f, " %d", s->processes[process].tgid);
}

static double width(const struct snapshot *s, const struct edge *e)
{
	return 1 + 5 * sqrt((double)e->bytes / s->edges[0].bytes);
}

static void write_dot(FILE *f, const struct snapshot *s)
{
	char bytes[24];

	fputs("digraph sluice {\n\trankdir=LR;\n\tnode [shape=box, fontname=\"sans-serif\"];\n"
	      "\tedge [fontname=\"sans-serif\"];\n",
	      f);
	for (int i = 0; i < s->num_edges; i++) {
		for (int end = 0; end < 2; end++) {
			int process = end ? s->edges[i].to : s->edges[i].from;

			fprintf(f, "\tp%d [label=\"", process + 1);
			write_label(f, s, process);
			fputs("\"];\n", f);
		}
	}
	for (int i = 0; i < s->num_edges; i++) {
		const struct edge *e = &s->edges[i];

		fprintf(f, "\tp%d -> p%d [label=\"%s%s %s\", color=\"%s\", penwidth=%.2f];\n",
			e->from + 1, e->to + 1, e->shared ? "about " : "",
			format_bytes(bytes, sizeof(bytes), e->bytes), medium_name(e->medium),
			colours[e->medium], width(s, e));
	}
	fputs("}\n", f);
}

/* Index of @process among the nodes of the picture, added if there is room; -1 if not. */
static int get_node(int *nodes, int *n, int process)
{
	for (int i = 0; i < *n; i++)
		if (nodes[i] == process)
			return i;
	if (*n == MAX_NODES)
		return -1;
	nodes[*n] = process;
	return (*n)++;
}

static void write_svg(FILE *f, const struct snapshot *s)
{
	double x[MAX_NODES], y[MAX_NODES], radius;
	int nodes[MAX_NODES], n = 0, size;
	char bytes[24];

	for (int i = 0; i < s->num_edges; i++) {
		get_node(nodes, &n, s->edges[i].from);
		get_node(nodes, &n, s->edges[i].to);
	}
	radius = n < 3 ? 180 : n * 40 > 180 ? n * 40 : 180;
	size = 2 * radius + 240;
	for (int i = 0; i < n; i++) {
		x[i] = size / 2.0 - radius * cos(2 * M_PI * i / n);
		y[i] = size / 2.0 - radius * sin(2 * M_PI * i / n);
	}
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
		"height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<defs>\n",
		size, size, size, size);
	for (int m = 0; m < MEDIUMS; m++)
		fprintf(f,
			"<marker id=\"m%d\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" "
			"markerWidth=\"10\" markerHeight=\"10\" markerUnits=\"userSpaceOnUse\" "
			"orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"%s\"/></marker>\n",
			m, colours[m]);
	fputs("</defs>\n", f);
	for (int i = 0; i < s->num_edges; i++) {
		const struct edge *e = &s->edges[i];
		int a = get_node(nodes, &n, e->from), b = get_node(nodes, &n, e->to);
		double dx, dy, len, x1, y1, x2, y2, cx, cy;

		if (a < 0 || b < 0)
			continue;
		dx = x[b] - x[a];
		dy = y[b] - y[a];
		len = hypot(dx, dy);
		/* From the edge of one box to the edge of the other; to oneself above the box. */
		x1 = a == b ? x[a] - 20 : x[a] + dx / len * 62;
		y1 = a == b ? y[a] - 15 : y[a] + dy / len * 22;
		x2 = a == b ? x[a] + 20 : x[b] - dx / len * 62;
		y2 = a == b ? y[a] - 15 : y[b] - dy / len * 22;
		/* Bent to one side, so that both directions can be seen. */
		cx = a == b ? x[a] : (x1 + x2) / 2 - dy / len * (30 + 22 * e->medium);
		cy = a == b ? y[a] - 70 : (y1 + y2) / 2 + dx / len * (30 + 22 * e->medium);
		fprintf(f,
			"<path d=\"M%.1f %.1fQ%.1f %.1f %.1f %.1f\" fill=\"none\" stroke=\"%s\" "
			"stroke-width=\"%.2f\" marker-end=\"url(#m%d)\"/>\n"
			"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"%s\">%s%s %s"
			"</text>\n",
			x1, y1, cx, cy, x2, y2, colours[e->medium], width(s, e), e->medium,
			(x1 + 2 * cx + x2) / 4, (y1 + 2 * cy + y2) / 4 - 4, colours[e->medium],
			e->shared ? "about " : "", format_bytes(bytes, sizeof(bytes), e->bytes),
			medium_name(e->medium));
	}
	for (int i = 0; i < n; i++) {
		fprintf(f,
			"<rect x=\"%.1f\" y=\"%.1f\" width=\"120\" height=\"30\" rx=\"4\" "
			"fill=\"#eef2f5\" stroke=\"#34495e\"/>\n"
			"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
			x[i] - 60, y[i] - 15, x[i], y[i] + 4);
		write_label(f, s, nodes[i]);
		fputs("</text>\n", f);
	}
	fputs("</svg>\n", f);
}

bool plot_is_svg(const char *path)
{
	size_t len = strlen(path);

	return len > 4 && !strcmp(path + len - 4, ".svg");
}

void plot_write(FILE *f, bool svg, const struct snapshot *s)
{
	if (svg)
		write_svg(f, s);
	else
		write_dot(f, s);
}
