// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The table of `sluice stat`: fits the terminal, follows its size, sorts by any column. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include "stat_live.h"
#include "stat_write.h"
#include "term.h"

/* What rows are sorted by; the key is the first letter. */
static const char *const orders[] = {"bytes", "pid",  "socket", "vm",
				     "arena", "wait", "calls",	"in"};

enum order {
	BY_BYTES,
	BY_PID,
	BY_SOCKET,
	BY_VM,
	BY_ARENA,
	BY_WAIT,
	BY_CALLS,
	BY_IN,
	ORDERS,
};

/* Per second, but for the first two. */
enum column {
	PID,
	COMM,
	PIPE_OUT,
	PIPE_IN,
	SOCK_OUT,
	SOCK_IN,
	VM,
	ARENA_OUT,
	ARENA_IN,
	WAIT,
	CALLS,
	FAULTS,
	COLUMNS,
};

/* A negative width puts text to the left, as printf() does. */
static const struct {
	const char *title;
	int width;
} columns[COLUMNS] = {
	[PID] = {"PID", 8},	    [COMM] = {"COMM", -15},	    [PIPE_OUT] = {"PIPE OUT", 9},
	[PIPE_IN] = {"PIPE IN", 9}, [SOCK_OUT] = {"SOCK OUT", 9},   [SOCK_IN] = {"SOCK IN", 9},
	[VM] = {"VM", 9},	    [ARENA_OUT] = {"ARENA OUT", 9}, [ARENA_IN] = {"ARENA IN", 9},
	[WAIT] = {"WAIT", 7},	    [CALLS] = {"CALLS", 9},	    [FAULTS] = {"SHFAULTS", 8},
};

struct row {
	const struct process *process;
	double cells[COLUMNS];
	double key;
};

struct live {
	enum order sort;
	bool terminal;
	bool keys;
	struct termios saved;
	/* What is on the screen. */
	const struct snapshot *now, *before;
	/* While a table is drawn. */
	int lines, width, used;
};

static volatile sig_atomic_t stop, resized, suspended;

static void on_signal(int sig)
{
	if (sig == SIGWINCH)
		resized = 1;
	else if (sig == SIGTSTP)
		suspended = 1;
	else
		stop = 1;
}

/* What is ignored stays so: nohup, and the shells that start jobs in the background. */
static void catch_signal(int sig)
{
	struct sigaction action = {.sa_handler = on_signal}, old;

	if (!sigaction(sig, NULL, &old) && old.sa_handler != SIG_IGN)
		sigaction(sig, &action, NULL);
}

void live_catch_signals(void)
{
	catch_signal(SIGINT);
	catch_signal(SIGTERM);
	catch_signal(SIGHUP);
	catch_signal(SIGQUIT);
}

bool live_is_order(const char *name)
{
	for (int i = 0; i < ORDERS; i++)
		if (!strcmp(orders[i], name))
			return true;
	return false;
}

static void take_terminal(struct live *live)
{
	struct termios raw = live->saved;

	if (live->keys) {
		raw.c_lflag &= ~(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	fputs("\033[?1049h\033[?25l", stdout);
}

static void leave_terminal(struct live *live)
{
	fputs("\033[?25h\033[?1049l", stdout);
	fflush(stdout);
	if (live->keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &live->saved);
}

struct live *live_start(const char *sort)
{
	struct live *live = calloc(1, sizeof(*live));

	if (!live)
		return NULL;
	for (int i = 0; sort && i < ORDERS; i++)
		if (!strcmp(orders[i], sort))
			live->sort = i;
	live->terminal = term_live(stdout);
	if (!live->terminal)
		return live;
	live->keys = isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &live->saved);
	catch_signal(SIGWINCH);
	catch_signal(SIGTSTP);
	take_terminal(live);
	return live;
}

void live_end(struct live *live)
{
	if (live && live->terminal)
		leave_terminal(live);
	free(live);
}

static void suspend(struct live *live)
{
	leave_terminal(live);
	signal(SIGTSTP, SIG_DFL);
	raise(SIGTSTP);
	catch_signal(SIGTSTP);
	take_terminal(live);
}

static void show(struct live *live);

/* Returns false if the user wants to leave. */
static bool take_key(struct live *live)
{
	char key;

	if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q')
		return false;
	for (int i = 0; i < ORDERS; i++)
		if (orders[i][0] == key)
			live->sort = i;
	show(live);
	return true;
}

/* Signals come only while it sleeps, so that none goes unseen between a look at them and that. */
static int sleep_until(struct pollfd *fd, uint64_t end)
{
	uint64_t now = clock_ns(), left = end > now ? end - now : 0;
	struct timespec ts = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	ret = stop || resized || suspended ? -1 : ppoll(fd, 1, &ts, &old);
	sigprocmask(SIG_SETMASK, &old, NULL);
	return ret;
}

bool live_wait(struct live *live, double seconds)
{
	struct pollfd fd = {.fd = live && live->keys ? STDIN_FILENO : -1, .events = POLLIN};
	uint64_t end = clock_ns() + seconds * 1e9;
	int ret;

	while (!stop) {
		ret = sleep_until(&fd, end);
		if (!ret)
			return true;
		if (ret > 0 && !take_key(live))
			return false;
		if (suspended) {
			suspended = 0;
			suspend(live);
			resized = 1;
		}
		if (resized) {
			resized = 0;
			show(live);
		}
	}
	return false;
}

/* Both looks have the processes in about the same order: @at is where the last one was found. */
static const struct process *find_before(const struct snapshot *before, const struct process *p,
					 int *at)
{
	for (int n = 0; before && n < before->num_processes; n++) {
		const struct process *old = &before->processes[(*at + n) % before->num_processes];

		if (old->tgid == p->tgid && old->start_ns == p->start_ns) {
			*at = old - before->processes;
			return old;
		}
	}
	return NULL;
}

static double get_key(const struct row *row, enum order sort)
{
	const double *cells = row->cells;
	double in = cells[PIPE_IN] + cells[SOCK_IN] + cells[ARENA_IN];

	switch (sort) {
	case BY_PID:
		return -row->process->tgid;
	case BY_SOCKET:
		return cells[SOCK_OUT] + cells[SOCK_IN];
	case BY_VM:
		return cells[VM];
	case BY_ARENA:
		return cells[ARENA_OUT] + cells[ARENA_IN];
	case BY_WAIT:
		return cells[WAIT];
	case BY_CALLS:
		return cells[CALLS];
	case BY_IN:
		return in;
	default:
		return in + cells[PIPE_OUT] + cells[SOCK_OUT] + cells[VM] + cells[ARENA_OUT];
	}
}

/* A look may fall between a thread's end and the moment when its counts are its process's. */
static double grown(__u64 now, __u64 was)
{
	return now > was ? now - was : 0;
}

static void fill_row(struct row *row, const struct process *p, const struct process *old,
		     double seconds)
{
	static const enum column bytes[MEDIUMS][2] = {
		[MEDIUM_PIPE] = {PIPE_OUT, PIPE_IN},
		[MEDIUM_SOCKET] = {SOCK_OUT, SOCK_IN},
		[MEDIUM_VM] = {VM, VM},
		[MEDIUM_ARENA] = {ARENA_OUT, ARENA_IN},
	};
	struct sluice_count sum, was;

	memset(row, 0, sizeof(*row));
	row->process = p;
	for (int m = 0; m < MEDIUMS; m++) {
		for (int dir = 0; dir < 2; dir++) {
			memset(&was, 0, sizeof(was));
			process_sum(p, m, dir, &sum);
			if (old)
				process_sum(old, m, dir, &was);
			row->cells[bytes[m][dir]] += grown(sum.bytes, was.bytes) / seconds;
			row->cells[WAIT] += grown(sum.slept_ns, was.slept_ns) / 1e9 / seconds;
			row->cells[CALLS] += grown(sum.calls, was.calls) / seconds;
		}
	}
	row->cells[FAULTS] = grown(p->memory.faults, old ? old->memory.faults : 0) / seconds;
}

static int compare_rows(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? 1 : -1;
	return x->process->tgid - y->process->tgid;
}

static void get_size(struct live *live)
{
	struct winsize size;

	live->lines = 1 << 20;
	live->width = 1 << 20;
	live->used = 0;
	if (!live->terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size))
		return;
	live->lines = size.ws_row ? size.ws_row : 24;
	live->width = size.ws_col ? size.ws_col : 80;
}

/*
 * A line is cleared before it is written: behind a full one the cursor is still on its last
 * character. And no line ends in a newline, which would scroll away the first of a full screen.
 */
static void put_line(struct live *live, const char *line, bool head)
{
	if (live->used == live->lines)
		return;
	if (live->terminal)
		printf("%s\033[K%s%.*s%s", live->used ? "\n" : "\033[H",
		       head ? term_tint(stdout, TINT_BOLD) : "", live->width, line,
		       head ? term_tint(stdout, TINT_NONE) : "");
	else
		puts(line);
	live->used++;
}

static void put_end(const struct live *live)
{
	if (!live->terminal)
		putchar('\n');
	else if (live->used < live->lines)
		fputs("\n\033[J", stdout);
	fflush(stdout);
}

/* Where not all columns fit, those go first in which there is nothing. */
static void choose_columns(const struct live *live, const struct row *rows, int n,
			   bool shown[COLUMNS])
{
	int width = -1;

	for (int i = 0; i < COLUMNS; i++) {
		shown[i] = true;
		width += abs(columns[i].width) + 1;
	}
	for (int i = COLUMNS - 1; i > COMM && width > live->width; i--) {
		bool empty = true;

		for (int j = 0; j < n && empty; j++)
			empty = !rows[j].cells[i];
		if (!empty)
			continue;
		shown[i] = false;
		width -= columns[i].width + 1;
	}
}

static void format_cell(char *buf, size_t size, const struct row *row, enum column column)
{
	double value = row->cells[column];

	switch (column) {
	case PID:
		snprintf(buf, size, "%d", row->process->tgid);
		break;
	case COMM:
		snprintf(buf, size, "%s", row->process->comm);
		break;
	case WAIT:
		snprintf(buf, size, "%.2f", value);
		break;
	case CALLS:
	case FAULTS:
		snprintf(buf, size, "%.0f", value);
		break;
	default:
		format_bytes(buf, size, value);
	}
}

/* @row: NULL for the titles. */
static void show_row(struct live *live, const struct row *row, const bool shown[COLUMNS])
{
	char text[64], line[512];
	int n = 0;

	for (int i = 0; i < COLUMNS; i++) {
		if (!shown[i])
			continue;
		if (row)
			format_cell(text, sizeof(text), row, i);
		n += snprintf(line + n, sizeof(line) - n, "%s%*.*s", n ? " " : "", columns[i].width,
			      i == COMM ? -columns[i].width : -1, row ? text : columns[i].title);
	}
	put_line(live, line, !row);
}

static void show_arenas(struct live *live)
{
	char line[256], text[3][24];

	for (int i = 0; i < live->now->num_arenas && i < live->lines / 4; i++) {
		const struct arena_peer *a = &live->now->arenas[i];
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
		put_line(live, line, false);
	}
}

static void show_summary(struct live *live)
{
	const struct snapshot *s = live->now;
	char line[256];
	int n;

	n = snprintf(line, sizeof(line), "%d processes, %s; sorted by %s", s->num_processes,
		     live->before ? "per second" : "since the counters were loaded",
		     orders[live->sort]);
	if (s->lost.counts)
		n += snprintf(line + n, sizeof(line) - n, "; no own entry: %llu", s->lost.counts);
	if (s->missed)
		n += snprintf(line + n, sizeof(line) - n, "; calls not seen: %llu", s->missed);
	if (live->keys)
		snprintf(line + n, sizeof(line) - n, " (keys: b p s v a w c i, q quits)");
	put_line(live, line, false);
}

static void show(struct live *live)
{
	const struct snapshot *now = live->now, *before = live->before;
	double seconds = before ? (now->now_ns - before->now_ns) / 1e9 : 1;
	bool shown[COLUMNS];
	int n = 0, at = 0;
	struct row *rows;

	rows = calloc(now->num_processes + 1, sizeof(*rows));
	if (!rows)
		return;
	for (int i = 0; i < now->num_processes; i++) {
		const struct process *p = &now->processes[i];

		fill_row(&rows[n], p, find_before(before, p, &at), seconds > 0 ? seconds : 1);
		rows[n].key = get_key(&rows[n], live->sort);
		/* Once there is something to compare with, who moves nothing is not shown. */
		if (!before || rows[n].cells[CALLS] || rows[n].cells[WAIT] || rows[n].cells[FAULTS])
			n++;
	}
	qsort(rows, n, sizeof(*rows), compare_rows);
	get_size(live);
	choose_columns(live, rows, n, shown);
	show_summary(live);
	show_row(live, NULL, shown);
	show_arenas(live);
	for (int i = 0; i < n; i++)
		show_row(live, &rows[i], shown);
	put_end(live);
	free(rows);
}

void live_show(struct live *live, const struct snapshot *now, const struct snapshot *before)
{
	live->now = now;
	live->before = before;
	show(live);
}
