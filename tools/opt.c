// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "opt.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

#define MAX_OPTS 48
#define LONG_KEY 256 /* values of getopt_long() for options without a letter */

/* Text begins in one column for all options; a long one has a line of its own in front. */
#define HELP_COLUMN 26

static void put_option(const struct opt *o)
{
	char left[128];
	const char *line = o->help;
	int at;

	if (o->letter)
		snprintf(left, sizeof(left), "  -%c, --%s %s", o->letter, o->name,
			 o->arg ? o->arg : "");
	else
		snprintf(left, sizeof(left), "      --%s %s", o->name, o->arg ? o->arg : "");
	at = printf("%s", left);
	if (at > HELP_COLUMN - 2) {
		putchar('\n');
		at = 0;
	}
	while (*line) {
		int n = strcspn(line, "\n");

		printf("%*s%.*s\n", HELP_COLUMN - at, "", n, line);
		line += n + (line[n] == '\n');
		at = 0;
	}
}

static void put_help(const struct usage *u)
{
	static const struct opt help = {
		.name = "help", .letter = 'h', .help = "print this and exit"};

	printf("usage: sluice %s [options]%s%s\n\n%s\n\noptions:\n", u->verb,
	       *u->operands ? " " : "", u->operands, u->what);
	for (const struct opt *o = u->opts; o->name; o++)
		put_option(o);
	put_option(&help);
	if (u->more)
		printf("\n%s\n", u->more);
}

static void __attribute__((noreturn, format(printf, 2, 3)))
refuse(const struct usage *u, const char *fmt, ...)
{
	va_list ap;
	char msg[512];

	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	complain(u->verb, "%s; see sluice %s --help", msg, u->verb);
	exit(EXIT_USAGE);
}

static void take_number(const struct usage *u, const struct opt *o, const char *text)
{
	static const char units[] = "KMGT";
	uint64_t n, scale = 1;
	const char *unit;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || errno)
		refuse(u, "--%s is %s, which is not a number", o->name, text);
	if (o->kind == OPT_BYTES && *end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (unit) {
			scale <<= 10 * (unit - units + 1);
			end++;
			end += strcmp(end, "iB") ? *end == 'B' : 2;
		}
	}
	if (*end)
		refuse(u, "--%s is %s, which is not a number", o->name, text);
	if (n > UINT64_MAX / scale || n * scale < o->min || n * scale > o->max)
		refuse(u, "--%s is %s, which is not between %" PRIu64 " and %" PRIu64, o->name,
		       text, o->min, o->max);
	*(uint64_t *)o->to = n * scale;
}

static void take_choice(const struct usage *u, const struct opt *o, const char *text)
{
	size_t len = strlen(text);
	int place = 0;

	for (const char *p = o->arg; *p; place++) {
		size_t n = strcspn(p, "|");

		if (n == len && !strncmp(p, text, n)) {
			*(int *)o->to = place;
			return;
		}
		p += n + (p[n] == '|');
	}
	refuse(u, "--%s is %s, which is none of %s", o->name, text, o->arg);
}

static void take(const struct usage *u, const struct opt *o, const char *text)
{
	switch (o->kind) {
	case OPT_FLAG:
		*(bool *)o->to = true;
		break;
	case OPT_COUNT:
	case OPT_BYTES:
		take_number(u, o, text);
		break;
	case OPT_TEXT:
		*(const char **)o->to = text;
		break;
	case OPT_CHOICE:
		take_choice(u, o, text);
		break;
	}
}

int opt_parse(const struct usage *u, int argc, char **argv)
{
	struct option longs[MAX_OPTS + 2] = {0};
	char letters[2 * MAX_OPTS + 4] = "";
	unsigned int n = 0;
	char self[64];
	int c;

	snprintf(self, sizeof(self), "sluice %s", u->verb);
	argv[0] = self; /* for the messages of getopt_long() */
	strcpy(letters, u->command ? "+h" : "h");
	for (const struct opt *o = u->opts; o->name && n < MAX_OPTS; o++, n++) {
		size_t at = strlen(letters);

		longs[n] = (struct option){.name = o->name,
					   .has_arg = o->kind == OPT_FLAG ? no_argument
									  : required_argument,
					   .val = LONG_KEY + (int)n};
		if (o->letter) {
			letters[at++] = o->letter;
			if (o->kind != OPT_FLAG)
				letters[at++] = ':';
			letters[at] = '\0';
		}
	}
	longs[n] = (struct option){.name = "help", .val = 'h'};

	optind = 1;
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		if (c == 'h') {
			put_help(u);
			exit(EXIT_OK);
		}
		if (c == '?') {
			fprintf(stderr, "see sluice %s --help\n", u->verb);
			exit(EXIT_USAGE);
		}
		for (unsigned int i = 0; i < n; i++) {
			if (c == LONG_KEY + (int)i || c == u->opts[i].letter)
				take(u, &u->opts[i], optarg);
		}
	}
	return optind;
}
