// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice doctor: every line is tried out on this host; what is not there comes with a command. */
#include "doctor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "cmd.h"
#include "json.h"
#include "opt.h"
#include "table.h"

static const struct check checks[] = {
	{"kernel", check_kernel},   {"cpus", check_cpus},	  {"numa", check_numa},
	{"memory", check_memory},   {"arena", check_arena},	  {"huge-pages", check_huge_pages},
	{"memlock", check_memlock}, {"io_uring", check_io_uring}, {"pidfd", check_pidfd},
	{"module", check_module},   {"bpf", check_bpf},		  {"cuda", check_cuda},
};

#define CHECKS (sizeof(checks) / sizeof(checks[0]))

static void say(struct finding *f, enum verdict v, const char *fmt, va_list ap)
{
	f->verdict = v;
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
}

void finding_pass(struct finding *f, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(f, PASS, fmt, ap);
	va_end(ap);
}

void finding_warn(struct finding *f, const char *fix, const char *fmt, ...)
{
	va_list ap;

	f->fix = fix;
	va_start(ap, fmt);
	say(f, WARN, fmt, ap);
	va_end(ap);
}

void finding_fail(struct finding *f, const char *fix, const char *fmt, ...)
{
	va_list ap;

	f->fix = fix;
	va_start(ap, fmt);
	say(f, FAIL, fmt, ap);
	va_end(ap);
}

static const char *const verdict_names[] = {[PASS] = "pass", [WARN] = "warn", [FAIL] = "fail"};

static void print_json(const struct finding *f, unsigned int failed)
{
	struct json j = JSON(stdout);

	json_object(&j, NULL);
	json_array(&j, "checks");
	for (unsigned int i = 0; i < CHECKS; i++) {
		json_object(&j, NULL);
		json_text(&j, "name", checks[i].name);
		json_text(&j, "verdict", verdict_names[f[i].verdict]);
		json_text(&j, "text", f[i].text);
		json_text(&j, "fix", f[i].fix);
		json_object_end(&j);
	}
	json_array_end(&j);
	json_bool(&j, "usable", !failed);
	json_object_end(&j);
}

static void print_text(const struct finding *f)
{
	static const enum tint tints[] = {TINT_GREEN, TINT_YELLOW, TINT_RED};

	for (unsigned int i = 0; i < CHECKS; i++) {
		printf("%s%s%s  %-10s  %s\n", term_tint(stdout, tints[f[i].verdict]),
		       verdict_names[f[i].verdict], term_tint(stdout, TINT_NONE), checks[i].name,
		       f[i].text);
		if (f[i].fix)
			printf("                  %s$ %s%s\n", term_tint(stdout, TINT_DIM),
			       f[i].fix, term_tint(stdout, TINT_NONE));
	}
}

int cmd_doctor(int argc, char **argv)
{
	struct finding found[CHECKS] = {0};
	unsigned int failed = 0;
	bool json = false;
	const struct opt opts[] = {OPT_JSON(&json), {0}};
	const struct usage usage = {
		.verb = "doctor",
		.operands = "",
		.what = "Tries out what this host offers.  A warning names what is missing and the "
			"one command\n"
			"that would bring it; sluice works without it.  A failure means that it "
			"does not.",
		.opts = opts,
		.more = "Exit status: 0 an arena works here, 1 it does not, 2 wrong usage.",
	};

	if (opt_parse(&usage, argc, argv) != argc) {
		complain("doctor", "it takes no operands; see sluice doctor --help");
		return EXIT_USAGE;
	}
	for (unsigned int i = 0; i < CHECKS; i++) {
		checks[i].run(&found[i]);
		failed += found[i].verdict == FAIL;
	}
	if (json)
		print_json(found, failed);
	else
		print_text(found);
	return failed ? EXIT_FINDINGS : EXIT_OK;
}
