// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The table of `sluice stat`: fits the terminal, follows its size, sorts by any column. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include "stat_live.h"
#include "stat_write.h"

/* Per second, except for the pid; the key is the first letter. */
static const char *const columns[] = {"bytes", "pid",  "socket", "vm",
				      "arena", "wait", "calls",	 "in"};

enum column {
	BY_BYTES,
	BY_PID,
	BY_SOCKET,
	BY_VM,
	BY_ARENA,
	BY_WAIT,
	BY_CALLS,
	BY_IN,
	COLUMNS,
};

struct row {
	const struct process *process;
	double bytes[MEDIUMS][2];
	double slept; /* seconds a second, all threads together */
	double calls;
	double faults;
	double key;
};

struct live {
	enum column sort;
	bool terminal;
	bool keys;
	struct termios saved;
};

bool live_is_column(const char *name)
{
	for (int i = 0; i < COLUMNS; i++)
		if (!strcmp(columns[i], name))
			return true;
	return false;
}

struct live *live_start(const char *sort)
{
	struct live *live = calloc(1, sizeof(*live));
	struct termios raw;

	if (!live)
		return NULL;
	for (int i = 0; sort && i < COLUMNS; i++)
		if (!strcmp(columns[i], sort))
			live->sort = i;
	live->terminal = isatty(STDOUT_FILENO);
	live->keys =
		live->terminal && isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &live->saved);
	if (live->keys) {
		raw = live->saved;
		raw.c_lflag &= ~(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	if (live->terminal)
		fputs("\033[?1049h\033[?25l", stdout);
	return live;
}

void live_end(struct live *live)
{
	if (!live)
		return;
	if (live->terminal) {
		fputs("\033[?25h\033[?1049l", stdout);
		fflush(stdout);
	}
	if (live->keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &live->saved);
	free(live);
}

bool live_wait(struct live *live, double seconds)
{
	struct pollfd fd = {.fd = live && live->keys ? STDIN_FILENO : -1, .events = POLLIN};
	char key;

	/* A signal, a resized terminal among them, ends the wait early: show what there is. */
	if (poll(&fd, 1, seconds * 1000) <= 0 || read(STDIN_FILENO, &key, 1) != 1)
		return false;
	if (key == 'q')
		return true;
	for (int i = 0; i < COLUMNS; i++)
		if (columns[i][0] == key)
			live->sort = i;
	return false;
}

static const struct process *find_before(const struct snapshot *before, const struct process *p)
{
	for (int i = 0; before && i < before->num_processes; i++)
		if (before->processes[i].tgid == p->tgid &&
		    before->processes[i].start_ns == p->start_ns)
			return &before->processes[i];
	return NULL;
}

static double get_key(const struct row *row, enum column sort)
{
	double sum = 0;

	switch (sort) {
	case BY_PID:
		return -row->process->tgid;
	case BY_SOCKET:
		return row->bytes[MEDIUM_SOCKET][0] + row->bytes[MEDIUM_SOCKET][1];
	case BY_VM:
		return row->bytes[MEDIUM_VM][0] + row->bytes[MEDIUM_VM][1];
	case BY_ARENA:
		return row->bytes[MEDIUM_ARENA][0] + row->bytes[MEDIUM_ARENA][1];
	case BY_WAIT:
		return row->slept;
	case BY_CALLS:
		return row->calls;
	case BY_IN:
		for (int m = 0; m < MEDIUMS; m++)
			sum += row->bytes[m][SLUICE_IN];
		return sum;
	default:
		for (int m = 0; m < MEDIUMS; m++)
			sum += row->bytes[m][SLUICE_IN] + row->bytes[m][SLUICE_OUT];
		return sum;
	}
}

static void fill_row(struct row *row, const struct process *p, const struct process *old,
		     double seconds)
{
	struct sluice_count sum, was;

	memset(row, 0, sizeof(*row));
	row->process = p;
	for (int m = 0; m < MEDIUMS; m++) {
		for (int dir = 0; dir < 2; dir++) {
			memset(&was, 0, sizeof(was));
			process_sum(p, m, dir, &sum);
			if (old)
				process_sum(old, m, dir, &was);
			row->bytes[m][dir] = (sum.bytes - was.bytes) / seconds;
			row->slept += (sum.slept_ns - was.slept_ns) / 1e9 / seconds;
			row->calls += (sum.calls - was.calls) / seconds;
		}
	}
	row->faults = (p->memory.faults - (old ? old->memory.faults : 0)) / seconds;
}

static int compare_rows(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? 1 : -1;
	return x->process->tgid - y->process->tgid;
}

static void get_size(const struct live *live, int *lines, int *width)
{
	struct winsize size;

	*lines = 1 << 20;
	*width = 1 << 20;
	if (!live->terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_row)
		return;
	*lines = size.ws_row;
	*width = size.ws_col;
}

static void put_line(const struct live *live, int width, const char *line, bool bold)
{
	if (live->terminal)
		printf("%s%.*s\033[0m\033[K\n", bold ? "\033[1m" : "", width, line);
	else
		printf("%s\n", line);
}

static void show_row(const struct live *live, const struct row *row, int width)
{
	char text[9][24], line[512];
	int n = 0;

	for (int m = 0; m < MEDIUMS; m++) {
		for (int dir = 0; dir < 2; dir++) {
			if (m == MEDIUM_VM && dir)
				continue;
			format_bytes(text[n++], sizeof(text[0]),
				     m == MEDIUM_VM ? row->bytes[m][0] + row->bytes[m][1]
						    : row->bytes[m][dir]);
		}
	}
	snprintf(line, sizeof(line), "%8d %9s %9s %9s %9s %9s %9s %9s %7.2f %9.0f %8.0f %.63s",
		 row->process->tgid, text[0], text[1], text[2], text[3], text[4], text[5], text[6],
		 row->slept, row->calls, row->faults, row->process->comm);
	put_line(live, width, line, false);
}

static int show_arenas(const struct live *live, const struct snapshot *s, int width, int lines)
{
	char line[256], text[3][24];
	int shown = 0;

	for (int i = 0; i < s->num_arenas && shown < lines; i++) {
		const struct arena_peer *a = &s->arenas[i];
		/* A producer also releases what it began and did not publish. */
		bool holds = a->count.taken > a->count.released;

		snprintf(line, sizeof(line),
			 "arena %llu (%s)  pid %d  published %s, took %s, holds %lld batches (%s), "
			 "waits %llu",
			 a->key.arena, a->key.kind == SLUICE_ARENA_KMOD ? "kmod" : "memfd",
			 a->key.tgid, format_bytes(text[0], 24, a->count.published_bytes),
			 format_bytes(text[1], 24, a->count.taken_bytes),
			 holds ? (long long)(a->count.taken - a->count.released) : 0,
			 format_bytes(text[2], 24,
				      holds ? (double)a->count.taken_bytes - a->count.released_bytes
					    : 0),
			 a->count.waits);
		put_line(live, width, line, false);
		shown++;
	}
	return shown;
}

void live_show(struct live *live, const struct snapshot *now, const struct snapshot *before)
{
	double seconds = before ? (now->now_ns - before->now_ns) / 1e9 : 1;
	int lines, width, used = 3, n = 0;
	char line[256];
	struct row *rows;

	rows = calloc(now->num_processes + 1, sizeof(*rows));
	if (!rows)
		return;
	for (int i = 0; i < now->num_processes; i++) {
		const struct process *p = &now->processes[i];

		fill_row(&rows[n], p, find_before(before, p), seconds > 0 ? seconds : 1);
		rows[n].key = get_key(&rows[n], live->sort);
		/* Once there is something to compare with, who moves nothing is not shown. */
		if (!before || rows[n].calls || rows[n].slept || rows[n].faults)
			n++;
	}
	qsort(rows, n, sizeof(*rows), compare_rows);
	get_size(live, &lines, &width);
	if (live->terminal)
		fputs("\033[H", stdout);
	snprintf(line, sizeof(line),
		 "%d processes, %s; sorted by %s%s; no own entry: %llu; calls not seen: %llu",
		 now->num_processes, before ? "per second" : "since the counters were loaded",
		 columns[live->sort], live->keys ? " (keys: b p s v a w c i, q quits)" : "",
		 now->lost.counts, now->missed);
	put_line(live, width, line, false);
	snprintf(line, sizeof(line), "%8s %9s %9s %9s %9s %9s %9s %9s %7s %9s %8s %s", "PID",
		 "PIPE OUT", "PIPE IN", "SOCK OUT", "SOCK IN", "VM", "ARENA OUT", "ARENA IN",
		 "WAIT", "CALLS", "SHFAULTS", "COMM");
	put_line(live, width, line, true);
	used += show_arenas(live, now, width, lines / 4);
	for (int i = 0; i < n && used < lines; i++, used++)
		show_row(live, &rows[i], width);
	if (live->terminal)
		fputs("\033[J", stdout);
	else
		putchar('\n');
	fflush(stdout);
	free(rows);
}
