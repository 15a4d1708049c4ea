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

typedef int usdt_visit(const struct usdt_site *site, void *data);

/**
 * usdt_each_site() - walk the sites of provider "sluice" in an ELF file
 * @path: the library or program; nothing in it is trusted
 * @visit: called for each site; a negative value ends the walk
 * @data: handed to @visit
 *
 * Return: 0, the negative value of @visit, -ENOEXEC if @path is not an ELF file of this machine's byte
 * order and word size, -EFBIG if its notes are longer than any library's, -EBADMSG for an argument that
 * is not in a register, or why it cannot be opened.
 */
int usdt_each_site(const char *path, usdt_visit *visit, void *data);

#endif /* SLUICE_STAT_USDT_H */
