// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice NOUN ...: finds the noun, prints help and the version, and does nothing else. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <sluice.h>

#include "cmd.h"

/* A part whose tools or headers were missing is not built, and its noun says so. */
#pragma weak cmd_bench
#pragma weak cmd_stat
#pragma weak cmd_trace

struct noun {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
	const char *needs;
};

static const struct noun nouns[] = {
	{"pump", cmd_pump, "move files through an arena or a pipe, and verify every byte", NULL},
	{"bench", cmd_bench, "measure against pipes, sockets and other transports",
	 "tools/bench.c"},
	{"doctor", cmd_doctor, "say what this host offers, and how to get what is missing", NULL},
	{"arena", cmd_arena, "list the arenas of this host, and who holds what", NULL},
	{"trace", cmd_trace, "run a command and say what its processes move through pipes",
	 "clang, bpftool and libbpf-dev"},
	{"stat", cmd_stat, "count pipe, socket and arena bytes of the whole host",
	 "clang, bpftool and libbpf-dev"},
};

#define NOUNS (sizeof(nouns) / sizeof(nouns[0]))

void complain(const char *verb, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "sluice%s%s: ", verb ? " " : "", verb ? verb : "");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	putc('\n', stderr);
}

static void help(FILE *f)
{
	fputs("usage: sluice NOUN [options] [operands]\n\n", f);
	for (unsigned int i = 0; i < NOUNS; i++)
		fprintf(f, "  %-8s  %s%s\n", nouns[i].name, nouns[i].help,
			nouns[i].run ? "" : " (not in this build)");
	fputs("\nsluice NOUN --help has the options; sluice --version prints the version.\n"
	      "Exit status: 0 all is well, 1 something that was looked at is not, 2 wrong usage,\n"
	      "3 the work could not be done.\n",
	      f);
}

/* A full disk must not look like a result. */
static int stdout_check(int status)
{
	/* Of a write that failed before, the reason is no longer known. */
	if (fflush(stdout))
		complain(NULL, "writing to standard output failed: %s", strerror(errno));
	else if (ferror(stdout))
		complain(NULL, "writing to standard output failed");
	else
		return status;
	return EXIT_BROKEN;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	if (!name) {
		help(stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
		help(stdout);
		return stdout_check(EXIT_OK);
	}
	if (!strcmp(name, "--version")) {
		printf("sluice %s\n", sluice_version());
		return stdout_check(EXIT_OK);
	}
	for (unsigned int i = 0; i < NOUNS; i++) {
		if (strcmp(name, nouns[i].name))
			continue;
		if (!nouns[i].run) {
			complain(name, "not in this build: it needs %s", nouns[i].needs);
			return EXIT_BROKEN;
		}
		return stdout_check(nouns[i].run(argc - 1, argv + 1));
	}
	complain(NULL, "there is no noun %s; see sluice --help", name);
	return EXIT_USAGE;
}
