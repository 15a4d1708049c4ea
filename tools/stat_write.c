// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The counters for other programs: JSON, and OpenMetrics for the node exporter or a scrape. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "json.h"
#include "stat_write.h"

char *format_bytes(char *buf, size_t size, double bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	int unit = 0;

	while (bytes >= 999.5 && unit < 5) {
		bytes /= 1000;
		unit++;
	}
	snprintf(buf, size, "%.*f %s", unit && bytes < 99.95 ? (bytes < 9.995 ? 2 : 1) : 0, bytes,
		 units[unit]);
	return buf;
}

/* Names hold printable ASCII only (see stat_read.c); the backslash is what is left to escape. */
static void write_name(FILE *f, const char *name)
{
	for (; *name; name++) {
		if (*name == '\\' || *name == '"')
			fputc('\\', f);
		fputc(*name, f);
	}
}

static void write_json_count(struct json *j, enum sluice_kind kind, enum sluice_dir dir,
			     const struct sluice_count *c)
{
	json_object(j, NULL);
	json_text(j, "kind", kind_name(kind));
	json_text(j, "dir", dir ? "in" : "out");
	json_uint(j, "bytes", c->bytes);
	json_uint(j, "calls", c->calls);
	json_uint(j, "fails", c->fails);
	json_uint(j, "time_ns", c->time_ns);
	json_uint(j, "slept_ns", c->slept_ns);
	json_uint(j, "waits", c->waits);
	json_array(j, "slept_us_log2");
	for (int i = 0; i < SLUICE_HIST; i++)
		json_uint(j, NULL, c->slept_us_log2[i]);
	json_array_end(j);
	json_object_end(j);
}

static void write_json_process(struct json *j, const struct process *p)
{
	json_object(j, NULL);
	json_int(j, "pid", p->tgid);
	json_int(j, "ppid", p->ppid);
	json_uint(j, "start_ns", p->start_ns);
	json_uint(j, "exit_ns", p->exit_ns);
	json_text(j, "comm", p->comm);
	json_int(j, "threads", p->threads);
	json_array(j, "counts");
	for (int kind = 0; kind < SLUICE_KINDS; kind++) {
		for (int dir = 0; dir < 2; dir++) {
			const struct sluice_count *c = &p->kinds[kind][dir];

			if (c->calls || c->waits)
				write_json_count(j, kind, dir, c);
		}
	}
	json_array_end(j);
	json_object(j, "shared_memory");
	json_uint(j, "faults", p->memory.faults);
	json_uint(j, "fault_ns", p->memory.fault_ns);
	json_uint(j, "unmaps", p->memory.unmaps);
	json_uint(j, "unmap_bytes", p->memory.unmap_bytes);
	json_uint(j, "unmap_ns", p->memory.unmap_ns);
	json_object_end(j);
	json_object_end(j);
}

static void write_json_edge(struct json *j, const struct snapshot *s, const struct edge *e)
{
	json_object(j, NULL);
	json_int(j, "from", e->from >= 0 ? s->processes[e->from].tgid : 0);
	json_int(j, "to", e->to >= 0 ? s->processes[e->to].tgid : 0);
	json_text(j, "medium", medium_name(e->medium));
	json_uint(j, "bytes", e->bytes);
	json_bool(j, "exact", !e->shared);
	json_object_end(j);
}

static const char *backend_name(const struct arena_peer *a)
{
	return a->key.kind == SLUICE_ARENA_KMOD ? "kmod" : "memfd";
}

static void write_json_arena(struct json *j, const struct arena_peer *a)
{
	json_object(j, NULL);
	json_uint(j, "arena", a->key.arena);
	json_text(j, "backend", backend_name(a));
	json_int(j, "pid", a->key.tgid);
	json_uint(j, "published", a->count.published);
	json_uint(j, "published_bytes", a->count.published_bytes);
	json_uint(j, "taken", a->count.taken);
	json_uint(j, "taken_bytes", a->count.taken_bytes);
	json_uint(j, "released", a->count.released);
	json_uint(j, "released_bytes", a->count.released_bytes);
	json_uint(j, "waits", a->count.waits);
	json_uint(j, "wait_ns", a->count.wait_ns);
	json_object_end(j);
}

static void write_json_lost(struct json *j, const struct sluice_lost *l)
{
	json_object(j, "lost");
	json_uint(j, "counts", l->counts);
	json_uint(j, "ends", l->ends);
	json_uint(j, "tasks", l->tasks);
	json_uint(j, "memory", l->memory);
	json_uint(j, "arenas", l->arenas);
	json_uint(j, "targets", l->targets);
	json_uint(j, "calls", l->calls);
	json_uint(j, "records", l->records);
	json_object_end(j);
}

void write_json(FILE *f, const struct snapshot *s)
{
	struct json j = JSON(f);

	json_object(&j, NULL);
	json_uint(&j, "now_ns", s->now_ns);
	json_array(&j, "processes");
	for (int i = 0; i < s->num_processes; i++)
		write_json_process(&j, &s->processes[i]);
	json_array_end(&j);
	json_array(&j, "edges");
	for (int i = 0; i < s->num_edges; i++)
		write_json_edge(&j, s, &s->edges[i]);
	json_array_end(&j);
	json_array(&j, "arenas");
	for (int i = 0; i < s->num_arenas; i++)
		write_json_arena(&j, &s->arenas[i]);
	json_array_end(&j);
	write_json_lost(&j, &s->lost);
	json_uint(&j, "missed", s->missed);
	json_uint(&j, "missed_costs", s->missed_costs);
	json_object_end(&j);
	fflush(f);
}

static void write_family(FILE *f, const char *name, const char *type, const char *unit,
			 const char *help)
{
	fprintf(f, "# TYPE %s %s\n", name, type);
	if (unit)
		fprintf(f, "# UNIT %s %s\n", name, unit);
	fprintf(f, "# HELP %s %s\n", name, help);
}

static void write_sample(FILE *f, const char *name, const struct process *p, int kind, int dir,
			 double value)
{
	fprintf(f, "%s_total{pid=\"%d\",comm=\"", name, p->tgid);
	write_name(f, p->comm);
	fprintf(f, "\",kind=\"%s\",dir=\"%s\"} %.17g\n", kind_name(kind), dir ? "in" : "out",
		value);
}

enum field {
	BYTES,
	CALLS,
	FAILS,
	TIME,
	SLEPT,
};

static double get_field(const struct sluice_count *c, enum field field)
{
	switch (field) {
	case BYTES:
		return c->bytes;
	case CALLS:
		return c->calls;
	case FAILS:
		return c->fails;
	case TIME:
		return c->time_ns / 1e9;
	default:
		return c->slept_ns / 1e9;
	}
}

/* Ended processes are one line, or a pid used again would be the same series twice. */
static void write_counters(FILE *f, const struct snapshot *s, const struct process *ended,
			   const char *name, enum field field)
{
	for (int kind = 0; kind < SLUICE_KINDS; kind++) {
		for (int dir = 0; dir < 2; dir++) {
			for (int i = 0; i < s->num_processes; i++) {
				const struct process *p = &s->processes[i];
				const struct sluice_count *c = &p->kinds[kind][dir];

				if (!p->exit_ns && !p->exited && (c->calls || c->waits))
					write_sample(f, name, p, kind, dir, get_field(c, field));
			}
			write_sample(f, name, ended, kind, dir,
				     get_field(&ended->kinds[kind][dir], field));
		}
	}
}

static void write_histogram(FILE *f, const struct snapshot *s, int kind, int dir)
{
	__u64 sum = 0, slept = 0;

	for (int bucket = 0; bucket < SLUICE_HIST; bucket++) {
		for (int i = 0; i < s->num_processes; i++)
			sum += s->processes[i].kinds[kind][dir].slept_us_log2[bucket];
		if (bucket + 1 < SLUICE_HIST)
			fprintf(f,
				"sluice_sleep_seconds_bucket{kind=\"%s\",dir=\"%s\",le=\"%.6f\"} "
				"%llu\n",
				kind_name(kind), dir ? "in" : "out",
				(bucket ? 1ull << bucket : 0) / 1e6, sum);
	}
	for (int i = 0; i < s->num_processes; i++)
		slept += s->processes[i].kinds[kind][dir].slept_ns;
	fprintf(f, "sluice_sleep_seconds_bucket{kind=\"%s\",dir=\"%s\",le=\"+Inf\"} %llu\n",
		kind_name(kind), dir ? "in" : "out", sum);
	fprintf(f, "sluice_sleep_seconds_sum{kind=\"%s\",dir=\"%s\"} %.17g\n", kind_name(kind),
		dir ? "in" : "out", slept / 1e9);
	fprintf(f, "sluice_sleep_seconds_count{kind=\"%s\",dir=\"%s\"} %llu\n", kind_name(kind),
		dir ? "in" : "out", sum);
}

static bool same_arena(const struct arena_peer *a, const struct arena_peer *b)
{
	return a->key.arena == b->key.arena && a->key.kind == b->key.kind;
}

/* Releases of what was taken: a producer also releases what it began and did not publish. */
static __u64 released(__u64 taken, __u64 all)
{
	return all < taken ? all : taken;
}

/* Published by anyone and not released by anyone: what lies in rings and what readers hold. */
static void write_arenas(FILE *f, const struct snapshot *s)
{
	write_family(f, "sluice_arena_occupied_bytes", "gauge", "bytes",
		     "Published to an arena and not yet released.");
	for (int i = 0; i < s->num_arenas; i++) {
		const struct arena_peer *a = &s->arenas[i];
		double bytes = 0;
		bool first = true;

		for (int j = 0; j < s->num_arenas; j++) {
			const struct arena_peer *b = &s->arenas[j];

			if (!same_arena(a, b))
				continue;
			first &= j >= i;
			bytes += (double)b->count.published_bytes -
				 released(b->count.taken_bytes, b->count.released_bytes);
		}
		if (first)
			fprintf(f,
				"sluice_arena_occupied_bytes{arena=\"%llu\",backend=\"%s\"} "
				"%.17g\n",
				a->key.arena, backend_name(a), bytes > 0 ? bytes : 0);
	}
	write_family(f, "sluice_arena_held_batches", "gauge", NULL,
		     "Taken by a process and not yet released.");
	for (int i = 0; i < s->num_arenas; i++) {
		const struct arena_peer *a = &s->arenas[i];

		if (a->process >= 0 && s->processes[a->process].exit_ns)
			continue;
		fprintf(f,
			"sluice_arena_held_batches{arena=\"%llu\",backend=\"%s\",pid=\"%d\"} "
			"%lld\n",
			a->key.arena, backend_name(a), a->key.tgid,
			(long long)(a->count.taken - released(a->count.taken, a->count.released)));
	}
}

void write_openmetrics(FILE *f, const struct snapshot *s)
{
	static const struct {
		const char *name, *unit, *help;
		enum field field;
	} families[] = {
		{"sluice_moved_bytes", "bytes", "Bytes that crossed an end of a channel.", BYTES},
		{"sluice_calls", NULL, "Calls that move bytes.", CALLS},
		{"sluice_failed_calls", NULL, "Calls that returned an error.", FAILS},
		{"sluice_call_seconds", "seconds", "Time inside the calls.", TIME},
		{"sluice_slept_seconds", "seconds", "Time asleep inside the calls.", SLEPT},
	};
	struct process ended = {.comm = "(ended)"};

	for (int i = 0; i < s->num_processes; i++) {
		const struct process *p = &s->processes[i];

		if (!p->exit_ns && !p->exited)
			continue;
		for (int kind = 0; kind < SLUICE_KINDS; kind++) {
			for (int dir = 0; dir < 2; dir++) {
				struct sluice_count *c = &ended.kinds[kind][dir];

				c->bytes += p->kinds[kind][dir].bytes;
				c->calls += p->kinds[kind][dir].calls;
				c->fails += p->kinds[kind][dir].fails;
				c->time_ns += p->kinds[kind][dir].time_ns;
				c->slept_ns += p->kinds[kind][dir].slept_ns;
			}
		}
	}
	/* pid 0 is the line of those that found no room: the ended ones need another. */
	ended.tgid = -1;
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		write_family(f, families[i].name, "counter", families[i].unit, families[i].help);
		write_counters(f, s, &ended, families[i].name, families[i].field);
	}
	write_family(f, "sluice_sleep_seconds", "histogram", "seconds",
		     "How long calls slept, all processes together.");
	for (int kind = 0; kind < SLUICE_KINDS; kind++)
		for (int dir = 0; dir < 2; dir++)
			write_histogram(f, s, kind, dir);
	write_arenas(f, s);
	write_family(f, "sluice_lost_events", "counter", NULL,
		     "Events without an entry of their own: the map was full.");
	fprintf(f,
		"sluice_lost_events_total{map=\"counts\"} %llu\n"
		"sluice_lost_events_total{map=\"ends\"} %llu\n"
		"sluice_lost_events_total{map=\"tasks\"} %llu\n"
		"sluice_lost_events_total{map=\"memory\"} %llu\n"
		"sluice_lost_events_total{map=\"arenas\"} %llu\n"
		"sluice_lost_events_total{map=\"targets\"} %llu\n"
		"sluice_lost_events_total{map=\"records\"} %llu\n",
		s->lost.counts, s->lost.ends, s->lost.tasks, s->lost.memory, s->lost.arenas,
		s->lost.targets, s->lost.records);
	write_family(f, "sluice_missed_calls", "counter", NULL,
		     "Calls that the kernel did not show to a counter that was interrupted.");
	fprintf(f, "sluice_missed_calls_total %llu\n# EOF\n", s->missed);
	fflush(f);
}

int save_openmetrics(const char *path, const struct snapshot *s)
{
	char tmp[4096];
	int fd, err = 0;
	FILE *f;

	/* The node exporter reads *.prom; this name it leaves alone. */
	if (snprintf(tmp, sizeof(tmp), "%s.XXXXXX.tmp", path) >= (int)sizeof(tmp))
		return -ENAMETOOLONG;
	fd = mkostemps(tmp, strlen(".tmp"), O_CLOEXEC);
	if (fd < 0)
		return -errno;
	f = fdopen(fd, "w");
	/* Whatever the umask: the node exporter is another user. */
	if (!f || fchmod(fd, 0644))
		err = -errno;
	if (f) {
		write_openmetrics(f, s);
		if (ferror(f) && !err)
			err = -EIO;
		if (fclose(f) && !err)
			err = -errno;
	} else {
		close(fd);
	}
	if (!err && rename(tmp, path))
		err = -errno;
	if (err)
		unlink(tmp);
	return err;
}
