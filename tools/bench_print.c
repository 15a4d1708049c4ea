// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What was measured, as a table and as JSON. */
#include <math.h>
#include <string.h>

#include <sluice.h>

#include "bench.h"
#include "json.h"
#include "table.h"

void bench_number(char *buf, size_t len, double v)
{
	if (fabs(v) >= 100)
		snprintf(buf, len, "%.0f", v);
	else if (fabs(v) >= 10)
		snprintf(buf, len, "%.1f", v);
	else if (fabs(v) >= 1 || v == 0)
		snprintf(buf, len, "%.2f", v);
	else
		snprintf(buf, len, "%.3f", v);
}

void bench_goal_text(char *buf, size_t len, const struct bench_row *row)
{
	static const char *const text[] = {
		[BENCH_NO_GOAL] = "",
		[BENCH_RATIO_MIN] = "ratio >= ",
		[BENCH_RATIO_MAX] = "ratio <= ",
		[BENCH_VALUE_NEAR] = "value = 1 +- ",
		[BENCH_VALUE_MIN] = "value >= ",
		[BENCH_VALUE_MAX] = "value <= ",
	};

	if (row->kind == BENCH_NO_GOAL)
		buf[0] = '\0';
	else
		snprintf(buf, len, "%s%.10g", text[row->kind], row->goal);
}

static void print_row(struct table *t, const struct bench_result *r)
{
	char value[32], peer[32], cpu[32], goal[64];
	const struct bench_row *row = r->row;

	bench_goal_text(goal, sizeof(goal), row);
	table_cell(t, "%s", row->title);
	if (r->skipped[0]) {
		table_cell(t, "-");
		table_cell(t, "%s", row->unit);
		table_cell(t, "-");
		table_cell(t, "%s", row->peer ? row->peer->ops->name : "");
		table_cell(t, "-");
		table_cell(t, "-");
		table_cell(t, "%s", goal);
		table_tinted(t, r->failed ? TINT_RED : TINT_YELLOW, "%s: %s",
			     r->failed ? "failed" : "skipped", r->skipped);
		return;
	}
	bench_number(value, sizeof(value), r->value);
	bench_number(peer, sizeof(peer), r->peer_value);
	bench_number(cpu, sizeof(cpu), r->cpu_s_per_gb);
	table_cell(t, "%s", value);
	table_cell(t, "%s", row->unit);
	table_cell(t, "%s", r->cpu_s_per_gb > 0 ? cpu : "");
	table_cell(t, "%s", row->peer ? row->peer->ops->name : "");
	table_cell(t, "%s", row->peer ? peer : "");
	if (row->peer)
		table_cell(t, "%.2f", r->ratio);
	else
		table_cell(t, "%s", "");
	table_cell(t, "%s", goal);
	if (row->kind == BENCH_NO_GOAL)
		table_cell(t, "%s", "");
	else
		table_tinted(t, r->met ? TINT_GREEN : TINT_RED, "%s", r->met ? "met" : "missed");
}

void bench_print(const struct bench_result *r, unsigned int n, const struct bench_host *host)
{
	static const char *const heads[] = {"row",  ">value", "unit", ">CPU s/GB", "against",
					    ">its", ">ratio", "goal", "",	   NULL};
	struct table *t = table_new(heads);
	unsigned int i;

	for (i = 0; i < n; i++)
		print_row(t, &r[i]);
	table_print(t, stdout);
	table_free(t);
	printf("\n%s; %s; sluice %s; %s; load %.1f\n", host->machine, host->kernel,
	       sluice_version(), host->date, host->load);
	/* Of the minute before: what ran then mostly runs on. */
	if (host->load > bench_cpus() / 2.0)
		printf("Other work ran just before: an idle machine gives other figures.\n");
}

static void json_row(struct json *j, const struct bench_result *r)
{
	const struct bench_row *row = r->row;
	char goal[64];

	bench_goal_text(goal, sizeof(goal), row);
	json_object(j, NULL);
	json_text(j, "name", row->name);
	json_text(j, "title", row->title);
	json_text(j, "unit", row->unit);
	json_text(j, "peer", row->peer ? row->peer->ops->name : NULL);
	json_text(j, "goal", goal[0] ? goal : NULL);
	if (r->skipped[0]) {
		json_null(j, "value");
		json_null(j, "ratio");
		json_null(j, "goal_met");
		json_text(j, r->failed ? "failed" : "skipped", r->skipped);
		json_object_end(j);
		return;
	}
	json_real(j, "value", r->value);
	if (row->peer) {
		json_real(j, "peer_value", r->peer_value);
		json_real(j, "ratio", r->ratio);
	} else {
		json_null(j, "ratio");
	}
	if (row->kind == BENCH_NO_GOAL)
		json_null(j, "goal_met");
	else
		json_bool(j, "goal_met", r->met);
	if (r->cpu_s_per_gb > 0)
		json_real(j, "cpu_s_per_gb", r->cpu_s_per_gb);
	if (r->peer_cpu_s_per_gb > 0)
		json_real(j, "peer_cpu_s_per_gb", r->peer_cpu_s_per_gb);
	json_real(j, "quartile_low", r->low);
	json_real(j, "quartile_high", r->high);
	json_uint(j, "rounds", r->rounds);
	json_object_end(j);
}

void bench_print_json(const struct bench_result *r, unsigned int n, const struct bench_host *host)
{
	struct json j = JSON(stdout);
	unsigned int i;

	json_object(&j, NULL);
	json_text(&j, "machine", host->machine);
	json_text(&j, "kernel", host->kernel);
	json_text(&j, "version", sluice_version());
	json_text(&j, "date", host->date);
	json_text(&j, "command", host->command);
	json_real(&j, "load", host->load);
	json_array(&j, "rows");
	for (i = 0; i < n; i++)
		json_row(&j, &r[i]);
	json_array_end(&j);
	json_object_end(&j);
}
