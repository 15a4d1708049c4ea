/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Options: the table that is parsed is the table that --help prints. */
#ifndef SLUICE_TOOLS_OPT_H
#define SLUICE_TOOLS_OPT_H

#include <stdbool.h>
#include <stdint.h>

enum opt_kind {
	OPT_FLAG, /* bool */
	OPT_COUNT, /* uint64_t from .min to .max */
	OPT_BYTES, /* the same, with K, M, G or T (powers of 1024) behind the number */
	OPT_TEXT, /* const char * */
	OPT_CHOICE, /* int: the place in .arg, which is "this|that|other" */
};

/* One option; its value stays as it was when the option is not given. */
struct opt {
	const char *name; /* without "--"; NULL ends the table */
	char letter; /* or 0 */
	enum opt_kind kind;
	void *to;
	const char *arg; /* its name in --help */
	const char *help; /* one line or several, in full */
	uint64_t min, max;
};

/* A verb; --help and -h are understood by all of them. */
struct usage {
	const char *verb;
	const char *operands; /* "DIR..." or "" */
	const char *what; /* one paragraph */
	const struct opt *opts;
	const char *more; /* printed behind the options, or NULL */
	bool command; /* the operands are a command, whose options are its own */
};

#define OPT_JSON(v)                                                         \
	{                                                                   \
		.name = "json", .letter = 'j', .kind = OPT_FLAG, .to = (v), \
		.help = "print one JSON object instead of text"             \
	}

/*
 * Prints help and exits with 0 for --help; complains and exits with EXIT_USAGE for what is wrong.
 * Options may stand behind operands, but for a command; "--" ends them.  Return: index of the first
 * operand; argv is permuted.
 */
int opt_parse(const struct usage *u, int argc, char **argv);

#endif
