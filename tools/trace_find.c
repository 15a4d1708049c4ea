// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Finds the libraries whose static probes count arena bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cmd.h"
#include "trace_find.h"

#define SONAME "libsluice.so"

static bool is_known(struct libraries *libs, const struct stat *st)
{
	for (int i = 0; i < libs->n; i++)
		if (libs->dev[i] == st->st_dev && libs->ino[i] == st->st_ino)
			return true;
	return false;
}

/* Returns the number of probe sites attached, or a negative errno. */
static int add(struct libraries *libs, struct counters *c, const char *path)
{
	struct stat st;

	if (libs->n == MAX_LIBRARIES || stat(path, &st) || !S_ISREG(st.st_mode))
		return 0;
	if (is_known(libs, &st))
		return 0;
	libs->dev[libs->n] = st.st_dev;
	libs->ino[libs->n++] = st.st_ino;
	return counters_add_library(c, path);
}

/* Looks for @name in the folders of a list with colons; the first that is there. */
static bool search(char *found, size_t size, const char *list, const char *name)
{
	struct stat st;

	while (list && *list) {
		size_t len = strcspn(list, ":");

		snprintf(found, size, "%.*s/%s", (int)len, list, name);
		if (len && !stat(found, &st) && S_ISREG(st.st_mode))
			return true;
		list += len + (list[len] == ':');
	}
	return false;
}

void libraries_find(struct libraries *libs, struct counters *c, const char *extra,
		    const char *command)
{
	static const char folders[] = "/usr/local/lib:/usr/lib:/usr/lib64:"
				      "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu";
	char path[4096];
	int n;

	if (extra) {
		n = add(libs, c, extra);
		if (n <= 0)
			complain("trace", "%s: %s; the rest is counted", extra,
				 n ? strerror(-n) : "no probes of libsluice in it");
	}
	if (search(path, sizeof(path), getenv("LD_LIBRARY_PATH"), SONAME))
		add(libs, c, path);
	if (search(path, sizeof(path), folders, SONAME))
		add(libs, c, path);
	if (command && strchr(command, '/'))
		add(libs, c, command);
	else if (command && search(path, sizeof(path), getenv("PATH"), command))
		add(libs, c, path);
}

/* The traced process has chosen the name: nothing but printable ASCII reaches a terminal. */
static const char *printable(const char *path)
{
	for (const char *at = path; *at; at++)
		if (*at < ' ' || *at > '~')
			return "a libsluice";
	return path;
}

void libraries_follow(struct libraries *libs, struct counters *c, pid_t pid)
{
	char line[4200], *path, *end;
	int n;
	FILE *f;

	snprintf(line, sizeof(line), "/proc/%d/maps", pid);
	f = fopen(line, "re");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		path = strchr(line, '/');
		if (!path || !strstr(path, "libsluice"))
			continue;
		end = strchr(path, '\n');
		if (end)
			*end = '\0';
		n = add(libs, c, path);
		if (n > 0)
			complain("trace",
				 "%s found while it runs: what its arenas moved before is not "
				 "counted (--library PATH counts all)",
				 printable(path));
	}
	fclose(f);
}
