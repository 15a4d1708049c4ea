// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice trace: run a command, or watch processes, and say what went through what. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "cmd.h"
#include "opt.h"
#include "stat_load.h"
#include "stat_read.h"
#include "stat_write.h"
#include "trace_find.h"
#include "trace_report.h"

#define MAX_PIDS 64

/* What a command gets to end after an interrupt, which the terminal sends to both. */
#define GRACE_NS 2000000000ull

/* Number of the inode of the first pid namespace, the one whose pids the kernel counts by. */
#define INIT_PID_NS "pid:[4026531836]"

struct options {
	pid_t pids[MAX_PIDS];
	struct pollfd alive[MAX_PIDS]; /* pidfds of those that -p named */
	int num_pids;
	double seconds;
	const char *plot, *output;
	FILE *plot_file, *output_file;
	bool json;
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	stop = 1;
}

static int bad_usage(const char *what, const char *value)
{
	complain("trace", "%s '%s'; see sluice trace --help", what, value);
	return EXIT_USAGE;
}

static int parse_pids(struct options *o, const char *list)
{
	const char *at = list;
	char *end;
	long pid;

	do {
		errno = 0;
		pid = strtol(at, &end, 10);
		if (end == at || (*end && *end != ',') || pid < 1 || pid > 1 << 22)
			return bad_usage("-p takes pids with commas between them, not", list);
		if (o->num_pids == MAX_PIDS)
			return bad_usage("-p takes 64 pids at most, not", list);
		o->pids[o->num_pids++] = pid;
		at = end + 1;
	} while (*end);
	return 0;
}

static bool parse_seconds(const char *arg, double *value)
{
	char *end;

	*value = strtod(arg, &end);
	return end != arg && !*end && *value > 0;
}

static __u64 boot_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* Leaves out what is no process, and says so. Returns how many are left. */
static int open_pids(struct options *o)
{
	int n = 0;

	for (int i = 0; i < o->num_pids; i++) {
		int fd = syscall(SYS_pidfd_open, o->pids[i], 0);

		if (fd < 0) {
			bool thread = errno == EINVAL || errno == ENOENT;

			complain("trace", "cannot trace pid %d: %s", o->pids[i],
				 thread ? "it is a thread, and -p takes the process it belongs to"
					: strerror(errno));
			continue;
		}
		o->pids[n] = o->pids[i];
		o->alive[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	o->num_pids = n;
	return n;
}

/* Also if nobody has waited for it yet. */
static bool has_ended(struct options *o, int i)
{
	return poll(&o->alive[i], 1, 0) > 0;
}

static bool all_ended(struct options *o)
{
	for (int i = 0; i < o->num_pids; i++)
		if (!has_ended(o, i))
			return false;
	return true;
}

static FILE *open_file(const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f)
		complain("trace", "cannot write %s: %s", path, strerror(errno));
	return f;
}

/* Before anything runs: a report is not to be lost when the job is over. */
static int open_files(struct options *o)
{
	if (o->output && !(o->output_file = open_file(o->output)))
		return -1;
	if (o->plot && !(o->plot_file = open_file(o->plot)))
		return -1;
	return 0;
}

static int close_file(FILE *f, const char *path)
{
	if (!f)
		return 0;
	if (fflush(f) || ferror(f)) {
		complain("trace", "cannot write %s: %s", path, strerror(errno));
		fclose(f);
		return -EIO;
	}
	return fclose(f);
}

/*
 * The child holds still until it is counted; an eventfd, since what it waits on is not counted. It
 * is what the child says there as well if the command cannot be run.
 */
static pid_t start_command(char **argv, int *go)
{
	pid_t pid, parent = getpid();
	__u64 one;
	int err;

	*go = eventfd(0, EFD_CLOEXEC);
	if (*go < 0)
		return -1;
	pid = fork();
	if (pid)
		return pid;
	/* Nobody else would ever tell it to go on. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_BROKEN);
	if (read(*go, &one, sizeof(one)) == sizeof(one)) {
		prctl(PR_SET_PDEATHSIG, 0);
		execvp(argv[0], argv);
	}
	err = errno;
	complain("trace", "cannot run %s: %s", argv[0], strerror(err));
	eventfd_write(*go, 1);
	_exit(err == ENOENT ? 127 : 126);
}

/* Whether a command that has ended had been started. */
static bool has_run(int go)
{
	struct pollfd fd = {.fd = go, .events = POLLIN};

	return poll(&fd, 1, 0) <= 0;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* Until the command ends, or all the pids, or a signal, or the time. Returns the exit status. */
static int wait_for_end(struct options *o, struct counters *c, struct libraries *libs, pid_t child)
{
	__u64 start = boot_ns(), stopped = 0;
	int status;

	for (int n = 0; !stop || child; n++) {
		if (stop && !stopped)
			stopped = boot_ns();
		if (stopped && boot_ns() - stopped >= GRACE_NS)
			return 0;
		if (o->seconds && boot_ns() - start >= o->seconds * 1e9)
			return 0;
		if (child) {
			pid_t pid = waitpid(child, &status, WNOHANG);

			if (pid == child)
				return WIFEXITED(status) ? WEXITSTATUS(status)
							 : 128 + WTERMSIG(status);
			/* Reading the map of a process holds up its page faults: not too often. */
			if (n % 10 == 5)
				libraries_follow(libs, c, child);
		} else if (all_ended(o)) {
			return 0;
		}
		nap();
	}
	return 0;
}

static int print_report(const struct options *o, const struct counters *c, __u64 start_ns)
{
	FILE *f = o->output_file ? o->output_file : stderr;
	struct snapshot s;
	int err;

	err = snapshot_read(&s, c);
	if (err)
		complain("trace", "cannot read the maps: %s", strerror(-err));
	else if (o->json)
		write_json(f, &s);
	else
		report_print(f, &s, start_ns);
	if (!err && o->plot_file)
		plot_write(o->plot_file, plot_is_svg(o->plot), &s);
	snapshot_free(&s);
	return err;
}

static bool counts_our_pids(void)
{
	char ns[64];
	ssize_t n = readlink("/proc/self/ns/pid", ns, sizeof(ns) - 1);

	if (n < 0)
		return true;
	ns[n] = '\0';
	if (!strcmp(ns, INIT_PID_NS))
		return true;
	complain("trace",
		 "the kernel counts by the host's pids, and this is the pid namespace "
		 "%s: "
		 "run it on the host or in a container that shares the host's pids",
		 ns);
	return false;
}

int cmd_trace(int argc, char **argv)
{
	struct counters_opts load = {.size = sizeof(load), .only_targets = true};
	struct sigaction action = {.sa_handler = on_signal};
	const char *pids = NULL, *seconds = NULL, *library = NULL;
	struct options o = {0};
	const struct opt opts[] = {
		{"pid", 'p', OPT_TEXT, &pids, "PID[,PID]",
		 "watch these and their children until they end, or until interrupted", 0, 0},
		{"time", 't', OPT_TEXT, &seconds, "SECONDS",
		 "end after so long; the command runs on", 0, 0},
		{"plot", 0, OPT_TEXT, &o.plot, "FILE",
		 "write who talks to whom to FILE: SVG if it ends in .svg, else Graphviz", 0, 0},
		OPT_JSON(&o.json),
		{"output", 'o', OPT_TEXT, &o.output, "FILE", "write to FILE, not to standard error",
		 0, 0},
		{"library", 'l', OPT_TEXT, &library, "PATH",
		 "a libsluice that is not found by itself", 0, 0},
		{0},
	};
	const struct usage usage = {
		.verb = "trace",
		.operands = "[--] COMMAND...",
		.what = "Runs a command, or watches the processes that -p names, and counts what "
			"they and their\n"
			"children move through pipes, FIFOs, unix sockets and arenas, and how "
			"long they wait\n"
			"there; prints who talks to whom and a verdict.",
		.opts = opts,
		.more = "Exit status: that of the command, 128 and the signal that killed it, 126 "
			"or 127 where it\n"
			"cannot be run; 0 after -p, --time or an interrupt that it outlives by 2 "
			"s; 2 wrong\n"
			"usage, 3 nothing can be counted, and the command was not run, or the "
			"report cannot be\n"
			"written.",
		.command = true,
	};
	struct libraries libs = {0};
	struct counters *c;
	pid_t child = 0;
	__u64 start_ns;
	int first, ret, err, go = -1;

	first = opt_parse(&usage, argc, argv);
	ret = pids ? parse_pids(&o, pids) : 0;
	if (ret)
		return ret;
	if (!pids == (first == argc)) {
		complain("trace", "%s; see sluice trace --help",
			 pids ? "-p watches what runs already, and a command is given too"
			      : "no command is given, and no process with -p");
		return EXIT_USAGE;
	}
	if (seconds && !parse_seconds(seconds, &o.seconds))
		return bad_usage("--time takes seconds above 0, not", seconds);
	if (!counts_our_pids() || (pids && !open_pids(&o)) || open_files(&o) ||
	    counters_load(&c, &load))
		return EXIT_BROKEN;
	libraries_find(&libs, c, library, pids ? NULL : argv[first]);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	start_ns = boot_ns();
	if (!o.num_pids) {
		child = start_command(argv + first, &go);
		if (child < 0) {
			complain("trace", "cannot fork: %s", strerror(errno));
			counters_close(c);
			return EXIT_BROKEN;
		}
		o.pids[o.num_pids++] = child;
	}
	for (int i = 0; i < o.num_pids; i++) {
		ret = counters_add_target(c, o.pids[i]);
		if (ret)
			complain("trace", "cannot trace pid %d: %s", o.pids[i], strerror(-ret));
		/* It may be another process's by now. */
		if (!child && has_ended(&o, i))
			counters_drop_target(c, o.pids[i]);
		libraries_follow(&libs, c, o.pids[i]);
	}
	if (child && eventfd_write(go, 1))
		kill(child, SIGKILL);
	ret = wait_for_end(&o, c, &libs, child);
	err = !child || has_run(go) ? print_report(&o, c, start_ns) : 0;
	err |= close_file(o.output_file, o.output) | close_file(o.plot_file, o.plot);
	if (err && !ret)
		ret = EXIT_BROKEN;
	counters_close(c);
	return ret;
}
