/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Whether memory can be had without waking the OOM killer. */
#ifndef SLUICE_MEMLIMIT_H
#define SLUICE_MEMLIMIT_H

#include <stdint.h>

#define SLUICE_NODE_ANY (-1)

/**
 * sluice_memlimit_check - compare with everything that limits this process
 * @bytes: about to be faulted in, of 4 KiB or transparent huge pages
 * @node: NUMA node that they must come from, or SLUICE_NODE_ANY
 *
 * Looks at MemAvailable, the nodes that may be used, and the memory limit of every control group
 * above this process (v1 and v2).  What cannot be read does not limit.
 *
 * Return: 0, or -ENOMEM with a sentence that says asked, free and which limit.
 */
int sluice_memlimit_check(uint64_t bytes, int node);

/* Bytes that are free within all of them; UINT64_MAX where nothing can be read. */
uint64_t sluice_memlimit_free(void);

#endif /* SLUICE_MEMLIMIT_H */
