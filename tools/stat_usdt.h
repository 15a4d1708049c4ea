/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_STAT_USDT_H
#define SLUICE_STAT_USDT_H

#include <stddef.h>
#include <linux/types.h>

struct usdt_site {
	const char *name; /* valid during the call-back */
	size_t offset; /* in the file */
	size_t semaphore; /* in the file, 0 for none */
	__u64 cookie; /* where the arguments are, see bpf/arena.bpf.c */
};

/**
 * usdt_each_site() - walk the sites of provider "sluice" in an ELF file
 * @path: the library or program
 * @visit: called for each site; a negative value ends the walk
 * @data: handed to @visit
 *
 * Return: 0, the negative value of @visit, -ENOENT if @path cannot be read, -ENOEXEC if it is not an
 * ELF file of this machine's byte order and word size, -EBADMSG for an argument that is not in a
 * register.
 */
int usdt_each_site(const char *path, int (*visit)(const struct usdt_site *site, void *data),
		   void *data);

#endif /* SLUICE_STAT_USDT_H */
