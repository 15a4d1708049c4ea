/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* memcpy() that leaves the caches alone, for what goes into large batches. */
#ifndef SLUICE_COPY_H
#define SLUICE_COPY_H

#include <stddef.h>

/* From this size of the whole batch on: whoever takes it gets it from memory anyway. */
#define COPY_PAST_BYTES (8 << 20)

void copy_past(void *to, const void *from, size_t len);

#endif /* SLUICE_COPY_H */
