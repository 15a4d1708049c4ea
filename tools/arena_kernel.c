// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "arena_kernel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

bool kernel_is_file(const char *link)
{
	return !strcmp(link, "anon_inode:[sluice-arena]") ||
	       !strcmp(link, "anon_inode:[sluice-bell]");
}

/* The kernel writes what is not plain text as \n, \\ or \ooo. */
static void unescape(char *to, size_t len, const char *from)
{
	static const char names[] = "fnrtvae\\\"0", means[] = "\f\n\r\t\v\a\033\\\"";
	size_t n = 0;

	while (*from && n < len - 1) {
		const char *name;

		if (*from != '\\' || !from[1]) {
			to[n++] = *from++;
			continue;
		}
		from++;
		if (from[0] >= '0' && from[0] <= '3' && from[1] >= '0' && from[1] <= '7' &&
		    from[2] >= '0' && from[2] <= '7') {
			to[n++] = (from[0] - '0') << 6 | (from[1] - '0') << 3 | (from[2] - '0');
			from += 3;
			continue;
		}
		name = strchr(names, *from);
		to[n++] = name ? means[name - names] : *from;
		from++;
	}
	to[n] = '\0';
}

static void line_read(struct kernel_file *f, const char *key, const char *value)
{
	const struct {
		const char *key;
		uint64_t *to;
	} numbers[] = {
		{"arena", &f->arena.id},
		{"control_bytes", &f->arena.control_bytes},
		{"data_bytes", &f->arena.data_bytes},
		{"huge_bytes", &f->arena.huge_bytes},
		{"records", &f->bell.records},
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!strcmp(key, numbers[i].key))
			*numbers[i].to = strtoull(value, NULL, 10);
	}
	if (!strcmp(key, "label"))
		unescape(f->arena.label, sizeof(f->arena.label), value);
	else if (!strcmp(key, "node"))
		f->arena.node = atoi(value);
	else if (!strcmp(key, "peers"))
		f->arena.peers = strtoul(value, NULL, 10);
	else if (!strcmp(key, "role"))
		f->consumer = f->bell.consumer = !strcmp(value, "consumer");
	else if (!strcmp(key, "peer"))
		f->bell.peer = strtoul(value, NULL, 10);
	else if (!strcmp(key, "pid"))
		f->bell.pid = atoi(value);
	else if (!strcmp(key, "bell"))
		f->bell.id = strtoul(value, NULL, 10);
	else if (!strcmp(key, "dead"))
		f->bell.dead = atoi(value);
}

int kernel_file_read(struct kernel_file *f, pid_t pid, int fd)
{
	char path[64], line[256], *value;
	FILE *file;

	*f = (struct kernel_file){.arena.node = -1};
	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		value = strchr(line, '\t');
		if (!value || value == line || value[-1] != ':')
			continue;
		value[-1] = '\0';
		line_read(f, line, value + 1);
	}
	fclose(file);
	/* It may have been closed since, and something else opened instead. */
	return f->arena.id ? 0 : -ENOENT;
}

int kernel_bell_add(struct kernel_arena *a, const struct kernel_bell *bell)
{
	struct kernel_bell *more;

	for (unsigned int i = 0; i < a->bells; i++) {
		if (a->bell[i].id == bell->id)
			return 0;
	}
	more = reallocarray(a->bell, a->bells + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	a->bell = more;
	a->bell[a->bells++] = *bell;
	return 0;
}

const void *kernel_control_map(pid_t pid, int fd, uint64_t bytes, char *why, unsigned int why_len)
{
	int pidfd = syscall(SYS_pidfd_open, pid, 0), own = -1;
	void *at = MAP_FAILED;

	if (pidfd >= 0)
		own = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	if (own >= 0)
		at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, own, 0);
	if (at == MAP_FAILED)
		snprintf(why, why_len, "descriptor %d of process %d cannot be mapped: %s", fd, pid,
			 strerror(errno));
	if (own >= 0)
		close(own);
	if (pidfd >= 0)
		close(pidfd);
	return at == MAP_FAILED ? NULL : at;
}
