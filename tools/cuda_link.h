/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What a GPU of this host does with an arena.  Left out where libsluice-cuda is: weak. */
#ifndef SLUICE_TOOLS_CUDA_LINK_H
#define SLUICE_TOOLS_CUDA_LINK_H

#include <stddef.h>

/* All in bytes a second. */
struct cuda_link {
	double register_rate;
	double in_rate; /* to the device */
	double out_rate; /* from it */
};

/*
 * Measure device 0: registers an arena of 256 MiB, feeds the device batches of 16 MiB and drains these
 * into the arena again.  Creates the context, which takes a second.  0, or a negative errno with the
 * sentence in @why.
 */
int cuda_link_measure(struct cuda_link *l, char *why, size_t why_bytes) __attribute__((weak));

#endif
