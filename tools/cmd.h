/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The verbs of the program: one function a noun, one file (or more) a function. */
#ifndef SLUICE_TOOLS_CMD_H
#define SLUICE_TOOLS_CMD_H

/* Exit statuses, the same for every verb. */
enum {
	EXIT_OK = 0,
	EXIT_FINDINGS = 1, /* it ran, and something that it looked at is not as it should be */
	EXIT_USAGE = 2, /* the command line is wrong; nothing was done */
	EXIT_BROKEN = 3, /* it could not do its work */
};

/* argv[0] is the verb.  Return: an exit status. */
int cmd_arena(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_pump(int argc, char **argv);
int cmd_stat(int argc, char **argv);
int cmd_trace(int argc, char **argv);

/* One line on standard error, "sluice VERB: ...". */
void complain(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
