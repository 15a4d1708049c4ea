// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice stat: who moves how many bytes through what, now, for people and for programs. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cmd.h"
#include "opt.h"
#include "stat_live.h"
#include "stat_load.h"
#include "stat_pin.h"
#include "stat_read.h"
#include "stat_write.h"

static int bad_usage(const char *what, const char *value)
{
	complain("stat", "%s '%s'; see sluice stat --help", what, value);
	return EXIT_USAGE;
}

static const char *why_unread(int err)
{
	if (err == -EPROTO)
		return "it is of another version, or of a load that was killed, and "
		       "`sluice stat unload` removes it";
	return err == -EACCES || err == -EPERM ? "it is another user's" : strerror(-err);
}

static int do_load(const char *library, unsigned int entries)
{
	struct counters_opts opts = {
		.size = sizeof(opts),
		.pin = true,
		.library = library,
		.max_entries = entries,
	};
	struct counters *c;
	sigset_t all;
	bool kept;

	if (pins_make() < 0)
		return EXIT_BROKEN;
	kept = pins_count();
	/* Half of it would stay behind. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	if (counters_load(&c, &opts))
		return EXIT_BROKEN;
	counters_close(c);
	printf("loaded and pinned under " STAT_PIN_DIR "%s\n",
	       kept ? "; the counts of the earlier load are kept" : "");
	return 0;
}

static int do_unload(void)
{
	int n = pins_lock();

	if (n >= 0)
		n = pins_remove_all();
	if (n == -ENOENT)
		n = 0;
	if (n < 0) {
		complain("stat", "cannot remove " STAT_PIN_DIR ": %s", why_unread(n));
		return EXIT_BROKEN;
	}
	printf(n ? "unloaded, the counts are gone\n" : "nothing was loaded\n");
	return 0;
}

static int do_status(void)
{
	struct snapshot s;
	struct counters *c;
	int err, attached;

	err = counters_open(&c);
	if (err == -ENOENT) {
		printf("not loaded\n");
		return EXIT_FINDINGS;
	}
	if (err) {
		complain("stat", "cannot read " STAT_PIN_DIR ": %s", why_unread(err));
		return EXIT_BROKEN;
	}
	attached = counters_print_hooks(stdout);
	err = snapshot_read(&s, c);
	if (!err)
		printf("processes counted: %d\n"
		       "no entry of their own: %llu counts, %llu channel ends, %llu names, %llu of "
		       "memory, %llu of arenas\n"
		       "calls not seen: %llu\n",
		       s.num_processes, s.lost.counts, s.lost.ends, s.lost.tasks, s.lost.memory,
		       s.lost.arenas, s.missed);
	else
		complain("stat", "cannot read the maps: %s", strerror(-err));
	snapshot_free(&s);
	counters_close(c);
	return err ? EXIT_BROKEN : attached ? EXIT_OK : EXIT_FINDINGS;
}

enum output {
	LIVE,
	JSON,
	OPENMETRICS,
};

struct options {
	double interval;
	uint64_t count; /* 0: until stopped */
	enum output output;
	const char *path;
	const char *sort;
};

static bool parse_seconds(const char *arg, double *value)
{
	char *end;

	*value = strtod(arg, &end);
	return end != arg && !*end && *value >= 0.05 && *value <= 86400;
}

static int write_once(const struct options *o, const struct snapshot *now,
		      const struct snapshot *before, struct live *live)
{
	int err = 0;

	if (o->output == JSON) {
		write_json(stdout, now);
	} else if (o->output == LIVE) {
		live_show(live, now, before);
	} else if (!strcmp(o->path, "-")) {
		write_openmetrics(stdout, now);
	} else {
		err = save_openmetrics(o->path, now);
		if (err)
			complain("stat", "cannot write %s: %s", o->path, strerror(-err));
	}
	if (!err && ferror(stdout)) {
		err = -EIO;
		complain("stat", "cannot write to standard output: %s", strerror(errno));
	}
	return err;
}

/* The first look of a live display has nothing to subtract: it shows what was counted so far. */
static int watch(const struct options *o, struct counters *c)
{
	struct snapshot looks[2] = {0};
	struct live *live = NULL;
	int now = 0, err = 0, unread = 0;

	if (o->output == LIVE) {
		live = live_start(o->sort);
		if (!live)
			return EXIT_BROKEN;
	}
	for (uint64_t n = 0; !err && (!o->count || n < o->count); n++) {
		if (n && !live_wait(live, o->interval))
			break;
		snapshot_free(&looks[now]);
		unread = snapshot_read(&looks[now], c);
		err = unread ? unread : write_once(o, &looks[now], n ? &looks[!now] : NULL, live);
		now = !now;
	}
	live_end(live);
	/* Not on the screen that is gone now. */
	if (unread)
		complain("stat", "cannot read the maps: %s", strerror(-unread));
	snapshot_free(&looks[0]);
	snapshot_free(&looks[1]);
	return err ? EXIT_BROKEN : EXIT_OK;
}

static int run_verb(const char *verb, const char *library, unsigned int entries)
{
	if (!strcmp(verb, "load"))
		return do_load(library, entries);
	if (!strcmp(verb, "unload"))
		return do_unload();
	if (!strcmp(verb, "status"))
		return do_status();
	return bad_usage("no such verb", verb);
}

int cmd_stat(int argc, char **argv)
{
	const char *interval = NULL, *library = NULL;
	struct options o = {.interval = 2};
	uint64_t entries = 0;
	struct counters *c;
	bool json = false;
	const struct opt opts[] = {
		{"interval", 'i', OPT_TEXT, &interval, "SECONDS",
		 "time between two looks, 0.05 to 86400 (default 2)", 0, 0},
		{"count", 'n', OPT_COUNT, &o.count, "TIMES", "end after so many looks", 1, 1 << 30},
		{"sort", 's', OPT_TEXT, &o.sort, "COLUMN",
		 "bytes (default), pid, socket, vm, arena, wait, calls or in", 0, 0},
		OPT_JSON(&json),
		{"openmetrics", 'm', OPT_TEXT, &o.path, "FILE",
		 "replace FILE at each look, for the node exporter's textfile\n"
		 "collector; - prints once",
		 0, 0},
		{"library", 'l', OPT_TEXT, &library, "PATH",
		 "the libsluice whose batches to count; none by itself", 0, 0},
		{"entries", 'e', OPT_COUNT, &entries, "N",
		 "threads, channel ends and processes that are told apart (default 16384)", 64,
		 1 << 24},
		{0},
	};
	const struct usage usage = {
		.verb = "stat",
		.operands = "[load|unload|status]",
		.what = "Counts what every process moves through pipes, FIFOs, unix sockets, "
			"process_vm calls and\n"
			"arenas, and how long it waits there.  Reads the counters that load "
			"pinned, or loads some\n"
			"for as long as it runs.",
		.opts = opts,
		.more = "load pins programs and counters, so that they outlive this program; load "
			"again replaces\n"
			"the programs and keeps the counts, unload removes both.  status says "
			"which hooks are\n"
			"attached and what was lost.\n"
			"Exit status: 0 all is well, 1 status found nothing attached, 2 wrong "
			"usage, "
			"3 nothing could\n"
			"be loaded, read or written.",
	};
	int ret;

	ret = opt_parse(&usage, argc, argv);
	if (ret + 1 < argc)
		return bad_usage("too many words:", argv[ret + 1]);
	if (ret < argc)
		return run_verb(argv[ret], library, entries);
	if (interval && !parse_seconds(interval, &o.interval))
		return bad_usage("--interval takes 0.05 to 86400 seconds, not", interval);
	if (o.sort && !live_is_order(o.sort))
		return bad_usage("no such column:", o.sort);
	if (json && o.path) {
		complain("stat", "--json and --openmetrics exclude each other");
		return EXIT_USAGE;
	}
	o.output = json ? JSON : o.path ? OPENMETRICS : LIVE;
	if (o.path && !strcmp(o.path, "-"))
		o.count = 1;
	ret = counters_open(&c);
	if (!ret && (library || entries)) {
		counters_close(c);
		complain("stat", "--library and --entries are for loading, and the counters are "
				 "loaded: give them to sluice stat load");
		return EXIT_USAGE;
	}
	if (ret) {
		struct counters_opts load = {
			.size = sizeof(load),
			.library = library,
			.max_entries = entries,
		};

		if (counters_load(&c, &load))
			return EXIT_BROKEN;
	}
	live_catch_signals();
	ret = watch(&o, c);
	counters_close(c);
	return ret;
}
