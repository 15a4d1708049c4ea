// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice bench: which rows, in which order, how often. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "cmd.h"
#include "opt.h"
#include "term.h"

#define MAX_CREWS 16
#define MAX_ROWS  64

#define MIN_ROUNDS 3

/* @group_ms: a group that takes longer than this on a loaded machine has fewer rounds */
struct plan {
	unsigned int rounds;
	unsigned int round_ms;
	unsigned int group_ms;
};

/* One crew of a group, and all its rounds. */
struct entrant {
	const struct bench_spec *spec;
	struct bench_crew crew;
	uint64_t n;
	int err;
	unsigned int rounds;
	struct bench_sample sample[BENCH_MAX_ROUNDS];
};

struct group {
	struct entrant *crews;
	unsigned int n;
};

static struct entrant *group_find(struct group *g, const struct bench_spec *spec)
{
	unsigned int i;

	for (i = 0; i < g->n && g->crews[i].spec != spec; i++)
		;
	return i < g->n ? &g->crews[i] : NULL;
}

static void group_add(struct group *g, const struct bench_spec *spec)
{
	if (spec && !group_find(g, spec))
		g->crews[g->n++].spec = spec;
}

static double round_ns(const struct bench_spec *spec, const struct plan *plan)
{
	return spec->round_us ? 1e3 * spec->round_us : 1e6 * plan->round_ms;
}

/* What takes microseconds is asked more often, so that most rounds are not disturbed at all. */
static unsigned int rounds_of(const struct bench_spec *spec, const struct plan *plan)
{
	if (spec->flags & BENCH_FIXED)
		return 1;
	return spec->round_us && spec->round_us < 10000 ? BENCH_MAX_ROUNDS - 1 : plan->rounds;
}

/* How many operations fill a round; the first ones also warm everything up. */
static int entrant_calibrate(struct entrant *e, const struct plan *plan)
{
	struct bench_sample s;
	uint64_t was = 0;
	int i, err = 0;

	e->n = e->spec->first;
	if (e->spec->flags & BENCH_FIXED)
		return 0;
	for (i = 0; i < 3 && (e->n > was + was / 4 || e->n < was - was / 4); i++) {
		was = e->n;
		err = bench_crew_run(&e->crew, e->n, &s);
		if (err)
			break;
		e->n = (uint64_t)((double)e->n * round_ns(e->spec, plan) / (s.ns + 1)) + 1;
		if (e->spec->flags & BENCH_EVEN)
			e->n = (e->n / e->spec->first + 1) * e->spec->first;
	}
	return err;
}

static void entrant_start(struct entrant *e, const struct plan *plan)
{
	e->err = bench_crew_start(&e->crew, e->spec);
	if (!e->err)
		e->err = entrant_calibrate(e, plan);
}

static void entrant_round(struct entrant *e)
{
	if (e->err)
		return;
	e->err = bench_crew_run(&e->crew, e->n, &e->sample[e->rounds]);
	if (!e->err)
		e->rounds++;
}

/* Each round has a crew of its own. */
static void entrant_fresh_rounds(struct entrant *e, const struct plan *plan, uint64_t deadline)
{
	unsigned int i;

	for (i = 0; i < plan->rounds && !e->err; i++) {
		if (i >= MIN_ROUNDS && bench_now() > deadline)
			break;
		if (i)
			bench_crew_stop(&e->crew);
		entrant_start(e, plan);
		if (e->err)
			break;
		if (e->spec->flags & BENCH_COUNT)
			e->err = bench_crew_count(&e->crew, e->n, &e->sample[i]);
		else
			e->err = bench_crew_run(&e->crew, e->n, &e->sample[i]);
		if (!e->err)
			e->rounds++;
	}
}

static void group_run(struct group *g, const struct plan *plan)
{
	uint64_t deadline = bench_now() + plan->group_ms * 1000000ULL;
	unsigned int i, round;

	for (i = 0; i < g->n; i++) {
		if (g->crews[i].spec->flags & BENCH_FRESH)
			entrant_fresh_rounds(&g->crews[i], plan, deadline);
		else
			entrant_start(&g->crews[i], plan);
	}
	for (round = 0; round < BENCH_MAX_ROUNDS; round++) {
		if (round >= MIN_ROUNDS && bench_now() > deadline)
			break;
		for (i = 0; i < g->n; i++) {
			const struct bench_spec *spec = g->crews[i].spec;

			if (!(spec->flags & BENCH_FRESH) && round < rounds_of(spec, plan))
				entrant_round(&g->crews[i]);
		}
	}
	for (i = 0; i < g->n; i++)
		bench_crew_stop(&g->crews[i].crew);
}

static double cpu_s_per_gb(const struct entrant *e)
{
	double v[BENCH_MAX_ROUNDS];
	unsigned int i;

	for (i = 0; i < e->rounds; i++)
		v[i] = e->sample[i].cpu_ns / ((double)e->sample[i].n * (double)e->spec->bytes);
	return bench_median(v, e->rounds);
}

static bool goal_met(const struct bench_result *r)
{
	double goal = r->row->goal;

	switch (r->row->kind) {
	case BENCH_RATIO_MIN:
		return r->ratio >= goal;
	case BENCH_RATIO_MAX:
		return r->ratio <= goal;
	case BENCH_VALUE_NEAR:
		return r->value >= 1 - goal && r->value <= 1 + goal;
	case BENCH_VALUE_MIN:
		return r->value >= goal;
	case BENCH_VALUE_MAX:
		return r->value <= goal;
	case BENCH_NO_GOAL:
		break;
	}
	return false;
}

static void row_skip(struct bench_result *r, const struct entrant *e)
{
	/* What is not installed or not allowed is no fault of what is measured. */
	r->failed = e->err != -ENOPKG && e->err != -EPERM;
	snprintf(r->skipped, sizeof(r->skipped), "%s",
		 e->crew.why[0] ? e->crew.why : strerror(-e->err));
}

static void row_result(const struct bench_row *row, struct group *g, struct bench_result *r)
{
	const struct entrant *e = group_find(g, row->subject), *p = group_find(g, row->peer);
	double value[BENCH_MAX_ROUNDS], peer[BENCH_MAX_ROUNDS], ratio[BENCH_MAX_ROUNDS];
	unsigned int i;

	*r = (struct bench_result){.row = row, .rounds = e->rounds};
	if (e->err || (p && p->err)) {
		row_skip(r, e->err ? e : p);
		return;
	}
	for (i = 0; i < r->rounds; i++) {
		value[i] = row->value(&e->sample[i], e->spec);
		peer[i] = p ? row->value(&p->sample[i], p->spec) : 0;
		ratio[i] = p ? value[i] / peer[i] : value[i];
	}
	r->value = bench_median(value, r->rounds);
	r->peer_value = bench_median(peer, r->rounds);
	r->ratio = p ? bench_median(ratio, r->rounds) : 0;
	qsort(ratio, r->rounds, sizeof(*ratio), bench_compare);
	r->low = ratio[r->rounds / 4];
	r->high = ratio[r->rounds - 1 - r->rounds / 4];
	if (!strcmp(row->unit, "GB/s")) {
		r->cpu_s_per_gb = cpu_s_per_gb(e);
		r->peer_cpu_s_per_gb = p ? cpu_s_per_gb(p) : 0;
	}
	r->met = goal_met(r);
}

static unsigned int measure(const bool *wanted, const struct plan *plan, struct bench_result *out)
{
	static struct entrant crews[MAX_CREWS];
	unsigned int i, j, n = 0;
	bool live = term_live(stderr);

	for (i = 0; i < bench_nrows; i = j) {
		struct group g = {.crews = crews};

		memset(crews, 0, sizeof(crews));
		for (j = i; j < bench_nrows; j++) {
			if (strcmp(bench_rows[i].group, bench_rows[j].group))
				break;
			if (!wanted[j])
				continue;
			group_add(&g, bench_rows[j].subject);
			group_add(&g, bench_rows[j].peer);
		}
		if (!g.n)
			continue;
		if (live)
			fprintf(stderr, "\r\033[Kmeasuring: %s", bench_rows[i].title);
		group_run(&g, plan);
		for (; i < j; i++) {
			if (wanted[i])
				row_result(&bench_rows[i], &g, &out[n++]);
		}
	}
	if (live)
		fprintf(stderr, "\r\033[K");
	return n;
}

static void machine_text(char *buf, size_t len)
{
	char line[256], model[128] = "";
	FILE *f = fopen("/proc/cpuinfo", "re");
	const char *colon;

	while (f && fgets(line, sizeof(line), f)) {
		colon = strchr(line, ':');
		if (colon && !strncmp(line, "model name", 10)) {
			snprintf(model, sizeof(model), "%.*s", (int)strcspn(colon + 2, "\n"),
				 colon + 2);
			break;
		}
	}
	if (f)
		fclose(f);
	snprintf(buf, len, "%s, %d CPUs, %.0f GiB", model[0] ? model : "unknown CPU", bench_cpus(),
		 (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) /
			 (1024.0 * (double)BENCH_MIB));
}

static void host_read(struct bench_host *h, int argc, char **argv)
{
	time_t now = time(NULL);
	struct utsname u;
	size_t len;
	int i;

	machine_text(h->machine, sizeof(h->machine));
	uname(&u);
	snprintf(h->kernel, sizeof(h->kernel), "%s %s", u.sysname, u.release);
	strftime(h->date, sizeof(h->date), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
	len = (size_t)snprintf(h->command, sizeof(h->command), "sluice");
	for (i = 0; i < argc && len < sizeof(h->command); i++)
		len += (size_t)snprintf(h->command + len, sizeof(h->command) - len, " %s", argv[i]);
	if (getloadavg(&h->load, 1) != 1)
		h->load = 0;
}

static int list(void)
{
	char goal[64];
	unsigned int i;

	for (i = 0; i < bench_nrows; i++) {
		const struct bench_row *row = &bench_rows[i];

		bench_goal_text(goal, sizeof(goal), row);
		printf("%-18s %s, %s%s%s%s%s\n", row->name, row->title, row->unit,
		       row->peer ? ", against " : "", row->peer ? row->peer->ops->name : "",
		       goal[0] ? "; goal " : "", goal);
	}
	return EXIT_OK;
}

static int row_choose(bool *wanted, const char *name)
{
	unsigned int i, found = 0;

	for (i = 0; i < bench_nrows; i++) {
		wanted[i] = !name || !strcmp(bench_rows[i].name, name);
		found += wanted[i];
	}
	if (found)
		return 0;
	complain("bench", "%s is none of its rows; see sluice bench --list", name);
	return EXIT_USAGE;
}

int cmd_bench(int argc, char **argv)
{
	static struct bench_result results[MAX_ROWS];
	bool quick = false, json = false, names = false, wanted[MAX_ROWS];
	struct plan plan = {.rounds = 11, .round_ms = 250, .group_ms = 30000};
	const char *plot = NULL, *row = NULL;
	const struct opt opts[] = {
		{.name = "quick",
		 .letter = 'q',
		 .kind = OPT_FLAG,
		 .to = &quick,
		 .help = "fewer and shorter rounds: less than 40 s in all on an idle machine"},
		{.name = "row",
		 .kind = OPT_TEXT,
		 .to = &row,
		 .arg = "NAME",
		 .help = "measure one row; --list has the names"},
		{.name = "list", .kind = OPT_FLAG, .to = &names, .help = "print the rows and exit"},
		{.name = "plot",
		 .kind = OPT_TEXT,
		 .to = &plot,
		 .arg = "FILE",
		 .help = "write a chart as SVG"},
		OPT_JSON(&json),
		{0},
	};
	const struct usage usage = {
		.verb = "bench",
		.operands = "",
		.what = "Measure this machine: batches through an arena, against pipes, sockets "
			"and other\n"
			"transports and against what the memory can do.  Everything that is "
			"compared\n"
			"runs in processes of its own and takes turns; figures are medians over "
			"the\n"
			"turns, ratios are taken turn by turn.",
		.opts = opts,
		.more = "Each process has a CPU of its own, as far as there are enough, but where "
			"a row says\n"
			"\"not pinned\": the scheduler then places them, often both on one CPU, "
			"where a pipe\n"
			"is fastest.\n\n"
			"Columns: value is sluice's; its is the value of what stands under "
			"against, measured\n"
			"in turn; CPU s/GB is CPU time of both sides for a gigabyte; goal is what "
			"the project\n"
			"asks of itself on an idle machine.\n\n"
			"Exit status: 0 measured, whether goals are met or not; 1 a row failed;\n"
			"2 wrong usage; 3 the chart could not be written.",
	};
	struct bench_host host = {.load = 0};
	unsigned int i, n;
	int ret = EXIT_OK;

	host_read(&host, argc, argv);
	i = (unsigned int)opt_parse(&usage, argc, argv);
	if (i < (unsigned int)argc) {
		complain("bench", "%s is not an option, and there are no operands", argv[i]);
		return EXIT_USAGE;
	}
	if (names)
		return list();
	if (row_choose(wanted, row))
		return EXIT_USAGE;
	if (quick)
		plan = (struct plan){.rounds = 5, .round_ms = 60, .group_ms = 1500};
	n = measure(wanted, &plan, results);
	if (json)
		bench_print_json(results, n, &host);
	else
		bench_print(results, n, &host);
	for (i = 0; i < n; i++) {
		if (results[i].failed)
			ret = EXIT_FINDINGS;
	}
	if (plot && bench_plot(plot, results, n, &host))
		ret = EXIT_BROKEN;
	return ret;
}
