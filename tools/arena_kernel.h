/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the kernel module tells about its files in /proc/PID/fdinfo. */
#ifndef SLUICE_TOOLS_ARENA_KERNEL_H
#define SLUICE_TOOLS_ARENA_KERNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* One bell; several processes may have it open, but it belongs to one peer. */
struct kernel_bell {
	uint32_t id;
	uint32_t peer;
	pid_t pid; /* 0: not visible from here */
	bool consumer;
	bool dead;
	uint64_t records; /* queued */
};

struct kernel_arena {
	uint64_t id;
	uint64_t control_bytes;
	uint64_t data_bytes;
	uint64_t huge_bytes;
	int node; /* asked for, or -1 */
	unsigned int peers; /* that live */
	char label[64];
	struct kernel_bell *bell; /* those that were seen */
	unsigned int bells;
};

/* One file of the module. */
struct kernel_file {
	struct kernel_arena arena; /* without bells */
	bool consumer;
	struct kernel_bell bell; /* .id is 0 for an arena */
};

/* Where a descriptor's link in /proc/PID/fd leads to, if it is a file of the module. */
bool kernel_is_file(const char *link);
/* Return: 0 or a negative errno. */
int kernel_file_read(struct kernel_file *f, pid_t pid, int fd);
int kernel_bell_add(struct kernel_arena *a, const struct kernel_bell *bell);

/*
 * The control region of an arena that process pid has open, mapped read-only.  It takes the right to
 * debug that process.  Return: NULL with a sentence in why.
 */
const void *kernel_control_map(pid_t pid, int fd, uint64_t bytes, char *why, unsigned int why_len);

#endif
