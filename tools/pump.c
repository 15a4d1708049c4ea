// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice pump: the command line, and the report. */
#include "pump.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd.h"
#include "json.h"
#include "opt.h"
#include "table.h"
#include "term.h"

/* What fits the caches is fastest. */
#define MIN_ARENA (32ULL << 20)

enum {
	BY_ARENA,
	BY_PIPE,
	BY_BOTH
};

struct run {
	const struct carrier_ops *ops;
	struct pump_result res;
	uint64_t troubles;
};

/* ------------------------------------------------------------------ words */

static const char *trouble_name(enum trouble t)
{
	static const char *const names[] = {
		[TROUBLE_NONE] = "none",	 [TROUBLE_UNREADABLE] = "unreadable",
		[TROUBLE_VANISHED] = "vanished", [TROUBLE_NOT_REGULAR] = "not-regular",
		[TROUBLE_GREW] = "grew",	 [TROUBLE_SHRANK] = "shrank",
		[TROUBLE_CHANGED] = "changed",	 [TROUBLE_MISMATCH] = "mismatch",
		[TROUBLE_LOST] = "lost",	 [TROUBLE_NOT_READ] = "not-read",
	};

	return names[t];
}

static void trouble_text(char *buf, size_t len, const struct pump_file *f)
{
	switch ((enum trouble)f->trouble) {
	case TROUBLE_NONE:
		snprintf(buf, len, "verified");
		break;
	case TROUBLE_UNREADABLE:
		snprintf(buf, len, "cannot be read: %s", strerror(f->detail));
		break;
	case TROUBLE_VANISHED:
		snprintf(buf, len, "vanished before it was read");
		break;
	case TROUBLE_NOT_REGULAR:
		snprintf(buf, len, "is no regular file any more");
		break;
	case TROUBLE_GREW:
		snprintf(buf, len,
			 "grew while it was read: %" PRIu64
			 " bytes verified, now at least %" PRIu64,
			 f->size, f->detail);
		break;
	case TROUBLE_SHRANK:
		snprintf(buf, len,
			 "shrank while it was read: %" PRIu64 " bytes verified, now %" PRIu64,
			 f->size, f->detail);
		break;
	case TROUBLE_CHANGED:
		snprintf(buf, len,
			 "was written to while it was read: %" PRIu64 " bytes verified as read",
			 f->size);
		break;
	case TROUBLE_MISMATCH:
		snprintf(buf, len, "arrived damaged: its hash is not the one of what was read");
		break;
	case TROUBLE_LOST:
		if (f->detail)
			snprintf(buf, len, "lost with producer %" PRIu64 ", which died",
				 f->detail - 1);
		else
			snprintf(buf, len, "lost with a producer that died");
		break;
	case TROUBLE_NOT_READ:
		snprintf(buf, len, "not read: no producer was left");
		break;
	}
}

static void producer_text(char *buf, size_t len, const struct producer *p)
{
	if (WIFSIGNALED(p->status))
		snprintf(buf, len, "was killed by signal %d (%s)", WTERMSIG(p->status),
			 strsignal(WTERMSIG(p->status)));
	else
		snprintf(buf, len, "ended with status %d", WEXITSTATUS(p->status));
}

/* ------------------------------------------------------------------ the report */

static void report_unwalked(const struct pump_list *l)
{
	char path[512];

	for (uint32_t i = 0; i < l->unwalked_count; i++)
		complain("pump", "%s: cannot be entered: %s",
			 human_path(path, sizeof(path), l->unwalked[i].path),
			 strerror(l->unwalked[i].err));
}

static void report_run(const struct run *r, const struct pump_list *l, uint64_t producers)
{
	char path[512], text[256];

	for (uint64_t i = 0; i < producers; i++) {
		if (!r->res.producer[i].status)
			continue;
		producer_text(text, sizeof(text), &r->res.producer[i]);
		complain("pump", "%s: producer %" PRIu64 " (pid %d) %s; the others went on",
			 r->ops->name, i, r->res.producer[i].pid, text);
	}
	for (uint32_t i = 0; i < l->files; i++) {
		if (!l->file[i].trouble)
			continue;
		trouble_text(text, sizeof(text), &l->file[i]);
		complain("pump", "%s: %s: %s", r->ops->name,
			 human_path(path, sizeof(path), l->file[i].path), text);
	}
	if (r->res.damaged)
		complain("pump", "%s: %" PRIu64 " records arrived damaged", r->ops->name,
			 r->res.damaged);
}

static void json_run(struct json *j, const struct run *r, const struct pump_list *l,
		     uint64_t producers)
{
	char text[256];

	json_object(j, NULL);
	json_text(j, "transport", r->ops->name);
	json_uint(j, "files", r->res.verified);
	json_uint(j, "bytes", r->res.bytes);
	json_uint(j, "mismatches", r->res.mismatches);
	json_uint(j, "damaged_records", r->res.damaged);
	json_uint(j, "batches", r->res.parcels);
	json_real(j, "seconds", r->res.seconds);
	json_real(j, "bytes_per_second", r->res.seconds > 0 ? r->res.bytes / r->res.seconds : 0);
	json_real(j, "cpu_seconds", r->res.cpu_seconds);
	json_real(j, "setup_seconds", r->res.open_seconds);
	json_array(j, "producers");
	for (uint64_t i = 0; i < producers; i++) {
		const struct producer *p = &r->res.producer[i];

		json_object(j, NULL);
		json_int(j, "pid", p->pid);
		json_int(j, "signal", WIFSIGNALED(p->status) ? WTERMSIG(p->status) : 0);
		json_int(j, "status", WIFEXITED(p->status) ? WEXITSTATUS(p->status) : -1);
		json_object_end(j);
	}
	json_array_end(j);
	json_array(j, "troubles");
	for (uint32_t i = 0; i < l->files; i++) {
		const struct pump_file *f = &l->file[i];

		if (!f->trouble)
			continue;
		trouble_text(text, sizeof(text), f);
		json_object(j, NULL);
		json_text(j, "path", f->path);
		json_text(j, "kind", trouble_name(f->trouble));
		json_bool(j, "verified", f->verified);
		json_text(j, "text", text);
		json_object_end(j);
	}
	json_array_end(j);
	json_object_end(j);
}

static void json_list(struct json *j, const struct pump_list *l)
{
	json_object(j, "walk");
	json_uint(j, "files", l->files);
	json_uint(j, "bytes", l->bytes);
	json_uint(j, "skipped", l->skipped);
	json_bool(j, "cut", l->cut);
	json_array(j, "unreadable");
	for (uint32_t i = 0; i < l->unwalked_count; i++) {
		json_object(j, NULL);
		json_text(j, "path", l->unwalked[i].path);
		json_text(j, "text", strerror(l->unwalked[i].err));
		json_object_end(j);
	}
	json_array_end(j);
	json_object_end(j);
}

static void table_runs(const struct run *runs, unsigned int n)
{
	static const char *const heads[] = {"transport", ">files",    ">bytes",	       ">time",
					    ">rate",	 ">CPU time", ">against pipe", NULL};
	struct table *t = table_new(heads);
	char buf[HUMAN_LEN];

	for (unsigned int i = 0; i < n; i++) {
		const struct pump_result *res = &runs[i].res;

		table_cell(t, "%s", runs[i].ops->name);
		table_cell(t, "%" PRIu64, res->verified);
		table_cell(t, "%s", human_bytes(buf, res->bytes));
		table_cell(t, "%s", human_time(buf, res->seconds));
		table_cell(t, "%s", human_rate(buf, res->bytes / res->seconds));
		table_cell(t, "%s", human_time(buf, res->cpu_seconds));
		if (n > 1)
			table_tinted(t, i ? TINT_NONE : TINT_GREEN, "%.2fx",
				     runs[n - 1].res.seconds / res->seconds);
		else
			table_cell(t, "-");
	}
	table_print(t, stdout);
	table_free(t);
}

/* In the format of xxhsum --check; the backslash in front tells that a name is escaped. */
static int manifest_write(const char *path, const struct pump_list *l)
{
	FILE *f = fopen(path, "we");
	int err;

	if (!f)
		return -errno;
	for (uint32_t i = 0; i < l->files; i++) {
		const struct pump_file *file = &l->file[i];

		if (!file->verified)
			continue;
		if (strpbrk(file->path, "\\\n"))
			putc('\\', f);
		fprintf(f, "%016" PRIx64 "  ", file->hash);
		for (const char *p = file->path; *p; p++) {
			if (*p == '\\')
				fputs("\\\\", f);
			else if (*p == '\n')
				fputs("\\n", f);
			else
				putc(*p, f);
		}
		putc('\n', f);
	}
	err = ferror(f) ? EIO : 0;
	if (fclose(f))
		err = errno;
	return -err;
}

/* ------------------------------------------------------------------ the verb */

static uint64_t cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static uint64_t arena_bytes(const struct pump_opts *o)
{
	uint64_t bytes = 8 * o->producers * o->batch_bytes;

	return bytes < MIN_ARENA ? MIN_ARENA : bytes;
}

static int finish(const struct run *runs, unsigned int n, const struct pump_list *l,
		  const bool *verified, bool json)
{
	uint64_t files = 0, bytes = 0, mismatches = 0;
	bool clean = !l->unwalked_count;

	for (uint32_t i = 0; i < l->files; i++) {
		files += verified[i];
		bytes += verified[i] ? l->file[i].size : 0;
	}
	for (unsigned int i = 0; i < n; i++) {
		mismatches += runs[i].res.mismatches;
		clean &= !runs[i].troubles && !runs[i].res.died && !runs[i].res.damaged;
	}
	if (!json) {
		table_runs(runs, n);
		printf("verified %" PRIu64 " files, %" PRIu64 " bytes, %" PRIu64 " mismatches\n",
		       files, bytes, mismatches);
	}
	return clean ? EXIT_OK : EXIT_FINDINGS;
}

static int pump(struct pump_list *l, const struct pump_opts *o, struct run *runs, unsigned int n)
{
	bool *verified = malloc(l->files + 1);
	struct json j = JSON(stdout);
	int ret = 0, status;

	if (!verified)
		return EXIT_BROKEN;
	memset(verified, true, l->files + 1);
	if (o->json) {
		json_object(&j, NULL);
		json_uint(&j, "producers", o->producers);
		json_uint(&j, "batch_bytes", o->batch_bytes);
		json_uint(&j, "arena_bytes", o->arena_bytes);
		json_list(&j, l);
		json_array(&j, "transports");
	}
	for (unsigned int i = 0; i < n && !ret; i++) {
		list_reset(l);
		ret = pump_run(runs[i].ops, l, o, &runs[i].res);
		for (uint32_t k = 0; k < l->files; k++) {
			verified[k] &= l->file[k].verified;
			runs[i].troubles += l->file[k].trouble != TROUBLE_NONE;
		}
		if (ret)
			break;
		if (o->json)
			json_run(&j, &runs[i], l, o->producers);
		else
			report_run(&runs[i], l, o->producers);
	}
	status = ret ? EXIT_BROKEN : finish(runs, n, l, verified, o->json);
	if (o->json) {
		json_array_end(&j);
		if (n > 1 && !ret)
			json_real(&j, "arena_against_pipe",
				  runs[1].res.seconds / runs[0].res.seconds);
		json_int(&j, "status", status);
		json_object_end(&j);
	}
	free(verified);
	return status;
}

int cmd_pump(int argc, char **argv)
{
	struct pump_opts o = {
		.producers = cpus() > 8 ? 8 : cpus(),
		.batch_bytes = 256 << 10,
		.max_bytes = UINT64_MAX / 2,
	};
	int transport = BY_ARENA;
	const struct opt opts[] = {
		{.name = "transport",
		 .letter = 't',
		 .kind = OPT_CHOICE,
		 .to = &transport,
		 .arg = "arena|pipe|both",
		 .help = "what the bytes go through (default arena); both reads every file once\n"
			 "before, so that neither finds a colder page cache"},
		{.name = "producers",
		 .letter = 'p',
		 .kind = OPT_COUNT,
		 .to = &o.producers,
		 .arg = "N",
		 .min = 1,
		 .max = PUMP_MAX_PRODUCERS,
		 .help = "processes that read (default: CPUs, at most 8)"},
		{.name = "batch-bytes",
		 .letter = 'b',
		 .kind = OPT_BYTES,
		 .to = &o.batch_bytes,
		 .arg = "N",
		 .min = 4096,
		 .max = 1ULL << 32,
		 .help = "payload of a batch (default 256K); larger files are split"},
		{.name = "arena-bytes",
		 .letter = 'a',
		 .kind = OPT_BYTES,
		 .to = &o.arena_bytes,
		 .arg = "N",
		 .min = 1 << 16,
		 .max = 1ULL << 46,
		 .help = "data region of the arena (default: 8 batches for each\n"
			 "producer, at least 32M; what fits the caches is fastest)"},
		{.name = "manifest",
		 .letter = 'm',
		 .kind = OPT_TEXT,
		 .to = &o.manifest,
		 .arg = "FILE",
		 .help = "write hash and name of every verified file there, for xxhsum --check"},
		{.name = "max-bytes",
		 .letter = 'M',
		 .kind = OPT_BYTES,
		 .to = &o.max_bytes,
		 .arg = "N",
		 .min = 0,
		 .max = UINT64_MAX / 2,
		 .help = "end the walk in front of the file that would make it more than this"},
		OPT_JSON(&o.json),
		{0},
	};
	const struct usage usage = {
		.verb = "pump",
		.operands = "DIR...",
		.what = "Producer processes read every regular file under the DIRs and pack them "
			"into batches;\n"
			"one consumer receives these and verifies a 64-bit xxHash of each file "
			"against the one\n"
			"that the producer made of what it read.",
		.opts = opts,
		.more = "Files that cannot be read, vanish, grow, shrink or change meanwhile, and "
			"files that\n"
			"a dead producer had, are named on standard error and do not stop the "
			"rest.\n"
			"Exit status: 0 every file verified and none of these, 1 something of "
			"these,\n"
			"2 wrong usage, 3 the pump could not run.",
	};
	struct run runs[2] = {{.ops = &carrier_arena}, {.ops = &carrier_pipe}};
	struct pump_list l = {0};
	int first = opt_parse(&usage, argc, argv), ret;

	if (first == argc) {
		complain("pump", "no directory is given; see sluice pump --help");
		return EXIT_USAGE;
	}
	if (!o.arena_bytes)
		o.arena_bytes = arena_bytes(&o);
	if (transport == BY_PIPE)
		runs[0].ops = &carrier_pipe;

	ret = list_walk(&l, argv + first, o.max_bytes);
	if (ret) {
		complain("pump", "walking the directories failed: %s", strerror(-ret));
		list_free(&l);
		return EXIT_BROKEN;
	}
	if (!o.json)
		report_unwalked(&l);
	if (transport == BY_BOTH)
		list_warm(&l);
	ret = pump(&l, &o, runs, transport == BY_BOTH ? 2 : 1);
	if (o.manifest) {
		int err = manifest_write(o.manifest, &l);

		if (err) {
			complain("pump", "writing the manifest %s failed: %s", o.manifest,
				 strerror(-err));
			ret = EXIT_BROKEN;
		}
	}
	list_free(&l);
	return ret;
}
