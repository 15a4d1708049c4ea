/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Arenas have no name; who looks for them looks through the descriptors of all processes. */
#ifndef SLUICE_TOOLS_ARENA_FIND_H
#define SLUICE_TOOLS_ARENA_FIND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "arena_kernel.h"

/* One process that has an arena open. */
struct holder {
	pid_t pid;
	int fd; /* of the control region (memfd) or of the arena (kmod); -1 if it has only bells */
	bool consumer; /* kmod: the descriptor maps the data region read-only */
	char comm[16];
};

struct found {
	struct kernel_arena kernel; /* what the module says; .id is 0 for a memfd */
	dev_t dev; /* which memfd it is */
	ino_t ino;
	struct holder *holder;
	unsigned int holders;
};

struct finds {
	struct found *found;
	unsigned int n;
	unsigned int hidden; /* processes whose descriptors this user may not see */
};

/* Return: 0 or a negative errno. */
int arenas_find(struct finds *f);
void finds_free(struct finds *f);

#endif
