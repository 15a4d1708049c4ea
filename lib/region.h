/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The memory of a memfd arena: two sealed memfds and their mappings, and nothing about its use. */
#ifndef SLUICE_REGION_H
#define SLUICE_REGION_H

#include <stdbool.h>
#include <stdint.h>

/* What /proc/PID/fd shows is "/memfd:" and one of these, then the label, then " (deleted)". */
#define SLUICE_REGION_CONTROL_NAME "sluice-control:"
#define SLUICE_REGION_DATA_NAME	   "sluice-data:"

/**
 * struct sluice_region_req - what to create
 * @control_bytes: at least 1; rounded up to whole pages
 * @data_bytes: a multiple of the page size, at least one page; never rounded
 * @flags: enum sluice_arena_flags
 * @numa_node: with SLUICE_ARENA_BIND_NODE
 * @threads: that fault the data region in; 0 chooses by its size and the CPUs of the caller
 * @label: goes into the name of the memfds; may be NULL
 */
struct sluice_region_req {
	uint64_t control_bytes;
	uint64_t data_bytes;
	uint32_t flags;
	int numa_node;
	unsigned int threads;
	const char *label;
};

/**
 * struct sluice_region - two mapped memfds
 * @ctl_fd: close-on-exec, owned by the region
 * @data_fd: close-on-exec, owned by the region; opened read-only when @data_ro
 * @ctl: control region, always writable
 * @data: data region, aligned to 2 MiB or its page size, whichever is larger
 * @control_bytes: size of the first, whole pages
 * @data_bytes: size of the second
 * @huge_bytes: of the data region, on huge pages; 0 for a region that was only mapped
 * @huge_page_bytes: size of those pages; 0 without.  A region that was only mapped knows it
 *	for the hugetlb pool alone.
 * @data_ro: the mapping of the data region cannot be made writable
 */
struct sluice_region {
	int ctl_fd;
	int data_fd;
	void *ctl;
	void *data;
	uint64_t control_bytes;
	uint64_t data_bytes;
	uint64_t huge_bytes;
	uint64_t huge_page_bytes;
	bool data_ro;
};

/**
 * sluice_region_create - make the memfds, map them and fault everything in
 * @r: filled on success, untouched on failure
 * @req: what to create
 *
 * Return: 0; -ENOMEM (the sentence says asked, free and which limit), -EINVAL, or another negative
 * errno of the kernel.  Nothing is left behind on failure.
 */
int sluice_region_create(struct sluice_region *r, const struct sluice_region_req *req);

/**
 * sluice_region_map - map memfds that another process made
 * @r: filled on success, untouched on failure
 * @ctl_fd: duplicated; the caller keeps its own
 * @data_fd: duplicated or, when it is writable and @data_ro is asked, opened again read-only
 * @data_ro: map the data region so that it cannot be made writable
 *
 * Return: 0; -EBADF (not a memfd, or seals are missing), -EACCES (@data_fd is read-only and
 * @data_ro is not asked), -ENOTSUP (no /proc to open @data_fd again), -ENOMEM.
 */
int sluice_region_map(struct sluice_region *r, int ctl_fd, int data_fd, bool data_ro);

/**
 * sluice_region_unmap - give mappings and descriptors back
 * @r: a region that was created or mapped
 */
void sluice_region_unmap(struct sluice_region *r);

#endif /* SLUICE_REGION_H */
