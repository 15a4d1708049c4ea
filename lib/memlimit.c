// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "memlimit.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#define KIB 1024ULL

/* The smallest limit seen so far. */
struct room {
	uint64_t free;
	char what[PATH_MAX + 64];
};

__attribute__((format(printf, 3, 4))) static void room_limit(struct room *room, uint64_t bytes,
							     const char *fmt, ...)
{
	va_list ap;

	if (bytes >= room->free)
		return;
	room->free = bytes;
	va_start(ap, fmt);
	vsnprintf(room->what, sizeof(room->what), fmt, ap);
	va_end(ap);
}

/* Sums the values of the lines that begin with one of the keys, in the unit of the file. */
static bool stat_sum(const char *path, const char *const *keys, uint64_t *sum)
{
	char *line = NULL;
	bool found = false;
	size_t cap = 0;
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	*sum = 0;
	while (getline(&line, &cap, f) > 0) {
		for (const char *const *k = keys; *k; k++) {
			size_t n = strlen(*k);

			if (strncmp(line, *k, n))
				continue;
			*sum += strtoull(line + n, NULL, 10);
			found = true;
		}
	}
	free(line);
	fclose(f);
	return found;
}

static bool number_read(const char *path, uint64_t *n)
{
	FILE *f = fopen(path, "re");
	bool ok;

	if (!f)
		return false;
	/* "max", the word of v2 for no limit, is not a number and so does not limit. */
	ok = fscanf(f, "%" SCNu64, n) == 1;
	fclose(f);
	return ok;
}

static bool node_free(int node, uint64_t *bytes)
{
	static const char *const fields[] = {
		"MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"};
	const char *keys[5] = {NULL};
	char prefixed[4][64], path[64];

	for (int i = 0; i < 4; i++) {
		snprintf(prefixed[i], sizeof(prefixed[i]), "Node %d %s", node, fields[i]);
		keys[i] = prefixed[i];
	}
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
	if (!stat_sum(path, keys, bytes))
		return false;
	*bytes *= KIB;
	return true;
}

/* A list such as "0-1,4".  Where these are all nodes there are, MemAvailable knows better. */
static void nodes_limit(struct room *room, const char *list)
{
	uint64_t sum = 0, bytes;
	char online[256];
	const char *p;
	FILE *f = fopen("/sys/devices/system/node/online", "re");
	bool all;

	if (!f)
		return;
	all = fscanf(f, "%255s", online) != 1 || !strcmp(online, list);
	fclose(f);
	if (all)
		return;

	for (p = list; *p; p += *p == ',') {
		char *end;
		long first = strtol(p, &end, 10), last = first;

		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		for (; first <= last; first++) {
			if (!node_free(first, &bytes))
				return;
			sum += bytes;
		}
		if (end == p)
			return;
		p = end;
	}
	room_limit(room, sum, "the memory of NUMA node %s", list);
}

static void allowed_nodes_limit(struct room *room)
{
	static const char key[] = "Mems_allowed_list:\t";
	char *line = NULL;
	size_t cap = 0;
	FILE *f = fopen("/proc/self/status", "re");

	if (!f)
		return;
	while (getline(&line, &cap, f) > 0) {
		if (strncmp(line, key, strlen(key)))
			continue;
		line[strcspn(line, "\n")] = '\0';
		nodes_limit(room, line + strlen(key));
		break;
	}
	free(line);
	fclose(f);
}

struct hierarchy {
	bool v2;
	char root[PATH_MAX]; /* what of the hierarchy is mounted */
	char mount[PATH_MAX]; /* where */
	char path[PATH_MAX]; /* the group of this process, from the top of the hierarchy */
};

static bool list_has(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; (p = strstr(p, word)); p += n) {
		if ((p == list || p[-1] == ',') && (!p[n] || p[n] == ',' || p[n] == '\n'))
			return true;
	}
	return false;
}

static bool hierarchy_find_mount(struct hierarchy *h)
{
	char *line = NULL, *sep;
	bool found = false;
	size_t cap = 0;
	FILE *f = fopen("/proc/self/mountinfo", "re");

	if (!f)
		return false;
	while (!found && getline(&line, &cap, f) > 0) {
		char type[32], super[1024];

		sep = strstr(line, " - ");
		if (!sep || sscanf(sep, " - %31s %*s %1023s", type, super) != 2)
			continue;
		if (h->v2 ? strcmp(type, "cgroup2")
			  : strcmp(type, "cgroup") || !list_has(super, "memory"))
			continue;
		found = sscanf(line, "%*s %*s %*s %4095s %4095s", h->root, h->mount) == 2;
	}
	free(line);
	fclose(f);
	return found;
}

static bool hierarchy_find_path(struct hierarchy *h)
{
	char *line = NULL;
	bool found = false;
	size_t cap = 0;
	FILE *f = fopen("/proc/self/cgroup", "re");

	if (!f)
		return false;
	while (!found && getline(&line, &cap, f) > 0) {
		char *controllers = strchr(line, ':'), *path;

		path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (h->v2 ? controllers[1] != '\0' : !list_has(controllers + 1, "memory"))
			continue;
		snprintf(h->path, sizeof(h->path), "%s", path);
		found = true;
	}
	free(line);
	fclose(f);
	return found;
}

static void group_limit(struct room *room, const struct hierarchy *h, const char *group)
{
	static const char *const v1_keys[] = {"total_active_file ", "total_inactive_file ", NULL};
	static const char *const v2_keys[] = {"active_file ", "inactive_file ", NULL};
	const char *max_name = h->v2 ? "memory.max" : "memory.limit_in_bytes";
	const char *now_name = h->v2 ? "memory.current" : "memory.usage_in_bytes";
	char path[2 * PATH_MAX + 32];
	uint64_t max, now, cache = 0;

	snprintf(path, sizeof(path), "%s%s/%s", h->mount, group, max_name);
	if (!number_read(path, &max))
		return;
	snprintf(path, sizeof(path), "%s%s/%s", h->mount, group, now_name);
	if (!number_read(path, &now))
		return;
	/* The kernel drops file pages of a group before it kills in it. */
	snprintf(path, sizeof(path), "%s%s/memory.stat", h->mount, group);
	stat_sum(path, h->v2 ? v2_keys : v1_keys, &cache);
	now -= cache < now ? cache : now;
	room_limit(room, max > now ? max - now : 0, "%s %" PRIu64 " of the control group %s",
		   max_name, max, *group ? group : "/");
}

static void hierarchy_limit(struct room *room, bool v2)
{
	struct hierarchy *h = calloc(1, sizeof(*h));
	char *group, *slash;
	size_t n;

	if (!h)
		return;
	h->v2 = v2;
	if (!hierarchy_find_mount(h) || !hierarchy_find_path(h))
		goto out;

	/* Inside a container the mount may show a part of the hierarchy, or another part of it. */
	group = h->path;
	n = strcmp(h->root, "/") ? strlen(h->root) : 0;
	if (n && !strncmp(group, h->root, n) && (group[n] == '/' || !group[n]))
		group += n;
	else if (n || strstr(group, "/.."))
		*group = '\0';
	if (!strcmp(group, "/"))
		*group = '\0';

	group_limit(room, h, group);
	while ((slash = strrchr(group, '/'))) {
		*slash = '\0';
		group_limit(room, h, group);
	}
out:
	free(h);
}

/* Everything that limits this process. */
static void room_find(struct room *room, int node)
{
	static const char *const available[] = {"MemAvailable:", NULL};
	char list[16];
	uint64_t n;

	*room = (struct room){.free = UINT64_MAX};
	if (stat_sum("/proc/meminfo", available, &n))
		room_limit(room, n * KIB, "MemAvailable of this machine");
	if (node != SLUICE_NODE_ANY) {
		snprintf(list, sizeof(list), "%d", node);
		nodes_limit(room, list);
	} else {
		allowed_nodes_limit(room);
	}
	hierarchy_limit(room, false);
	hierarchy_limit(room, true);
}

uint64_t sluice_memlimit_free(void)
{
	struct room room;

	room_find(&room, SLUICE_NODE_ANY);
	return room.free;
}

int sluice_memlimit_check(uint64_t bytes, int node)
{
	/* Page tables, the page cache's own index, and what the kernel charges in batches. */
	uint64_t need = bytes + bytes / 128 + 1024 * KIB;
	struct room room;

	room_find(&room, node);
	if (need < bytes || need > room.free)
		return sluice_fail(ENOMEM,
				   "arena memory: asked %" PRIu64 " bytes, which need %" PRIu64
				   " with page tables, but %" PRIu64 " are free within %s",
				   bytes, need, room.free, room.what);
	return 0;
}
