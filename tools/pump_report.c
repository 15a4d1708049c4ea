// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What sluice pump says, in text and in JSON. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd.h"
#include "pump.h"
#include "table.h"
#include "term.h"

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

static const char *backend_name(uint32_t backend)
{
	return backend == SLUICE_BACKEND_KMOD ? "kmod" : "memfd";
}

/* ------------------------------------------------------------------ the report */

void report_unwalked(const struct pump_list *l)
{
	char path[512];

	for (uint32_t i = 0; i < l->unwalked_count; i++)
		complain("pump", "%s: cannot be entered: %s",
			 human_path(path, sizeof(path), l->unwalked[i].path),
			 strerror(l->unwalked[i].err));
}

void report_run(const struct run *r, const struct pump_list *l, uint64_t producers)
{
	char path[512], text[256];

	for (uint64_t i = 0; i < producers; i++) {
		if (!r->res[r->round].producer[i].status)
			continue;
		producer_text(text, sizeof(text), &r->res[r->round].producer[i]);
		complain("pump", "%s: producer %" PRIu64 " (pid %d) %s; the others went on",
			 r->ops->name, i, r->res[r->round].producer[i].pid, text);
	}
	for (uint32_t i = 0; i < l->files; i++) {
		if (!l->file[i].trouble)
			continue;
		trouble_text(text, sizeof(text), &l->file[i]);
		complain("pump", "%s: %s: %s", r->ops->name,
			 human_path(path, sizeof(path), l->file[i].path), text);
	}
	if (r->res[r->round].damaged)
		complain("pump", "%s: %" PRIu64 " records arrived damaged", r->ops->name,
			 r->res[r->round].damaged);
}

void report_run_json(struct json *j, const struct run *r, const struct pump_list *l,
		     uint64_t producers)
{
	char text[256];

	json_object(j, NULL);
	json_text(j, "transport", r->ops->name);
	json_uint(j, "round", r->round);
	json_uint(j, "files", r->res[r->round].verified);
	json_uint(j, "bytes", r->res[r->round].bytes);
	json_uint(j, "mismatches", r->res[r->round].mismatches);
	json_uint(j, "damaged_records", r->res[r->round].damaged);
	json_uint(j, "batches", r->res[r->round].parcels);
	json_real(j, "seconds", r->res[r->round].seconds);
	json_real(j, "bytes_per_second",
		  r->res[r->round].seconds > 0 ? r->res[r->round].bytes / r->res[r->round].seconds
					       : 0);
	json_real(j, "cpu_seconds", r->res[r->round].cpu_seconds);
	json_real(j, "setup_seconds", r->res[r->round].open_seconds);
	if (r->res[r->round].arena.id) {
		json_text(j, "backend", backend_name(r->res[r->round].arena.backend));
		json_uint(j, "data_bytes", r->res[r->round].arena.data_bytes);
		json_uint(j, "huge_bytes", r->res[r->round].arena.huge_bytes);
	}
	json_array(j, "producers");
	for (uint64_t i = 0; i < producers; i++) {
		const struct producer *p = &r->res[r->round].producer[i];

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

void report_list_json(struct json *j, const struct pump_list *l)
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

static int by_seconds(const void *a, const void *b)
{
	double x = (*(const struct pump_result *const *)a)->seconds;
	double y = (*(const struct pump_result *const *)b)->seconds;

	return x < y ? -1 : x > y;
}

const struct pump_result *run_median(const struct run *r, uint64_t rounds)
{
	const struct pump_result *sorted[PUMP_MAX_ROUNDS];

	for (uint64_t i = 0; i < rounds; i++)
		sorted[i] = &r->res[i];
	qsort(sorted, rounds, sizeof(*sorted), by_seconds);
	return sorted[rounds / 2];
}

void report_table(const struct run *runs, unsigned int n, uint64_t rounds)
{
	const char *const heads[] = {"transport", ">files",
				     ">bytes",	  ">setup",
				     ">time",	  ">rate",
				     ">CPU time", n > 1 ? ">against pipe" : NULL,
				     NULL};
	struct table *t = table_new(heads);
	char buf[HUMAN_LEN];

	for (unsigned int i = 0; i < n; i++) {
		const struct pump_result *res = run_median(&runs[i], rounds);

		table_cell(t, "%s", runs[i].ops->name);
		table_cell(t, "%" PRIu64, res->verified);
		table_cell(t, "%s", human_bytes(buf, res->bytes));
		table_cell(t, "%s", human_time(buf, res->open_seconds));
		table_cell(t, "%s", human_time(buf, res->seconds));
		table_cell(t, "%s", human_rate(buf, res->bytes / res->seconds));
		table_cell(t, "%s", human_time(buf, res->cpu_seconds));
		if (n > 1) {
			double gain = run_median(&runs[n - 1], rounds)->seconds / res->seconds;

			table_tinted(t,
				     gain > 1	? TINT_GREEN
				     : gain < 1 ? TINT_RED
						: TINT_NONE,
				     "%.2fx", gain);
		}
	}
	table_print(t, stdout);
	table_free(t);
	for (unsigned int i = 0; i < n; i++) {
		const struct sluice_arena_info *a = &runs[i].res[0].arena;

		if (a->id)
			printf("backend %s: %s, %.0f %% on huge pages\n", backend_name(a->backend),
			       human_bytes(buf, a->data_bytes),
			       100.0 * a->huge_bytes / a->data_bytes);
	}
	if (rounds > 1)
		printf("the %smedian of %" PRIu64 " rounds%s\n", rounds % 2 ? "" : "upper ", rounds,
		       n > 1 ? ", the transports in turn" : "");
}

int manifest_check(const char *path)
{
	struct stat st;
	int fd;

	if (!stat(path, &st)) {
		/* Opening a FIFO or a device does something. */
		if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
			return 0;
		fd = open(path, O_WRONLY | O_CLOEXEC);
	} else {
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd < 0 && errno == EEXIST)
			return 0; /* a link to what is not there yet */
		if (fd >= 0)
			unlink(path);
	}
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

/* In the format of xxhsum --check; the backslash in front tells that a name is escaped. */
int manifest_write(const char *path, const struct pump_list *l)
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
