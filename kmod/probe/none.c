// SPDX-License-Identifier: GPL-2.0-only
/* Compiles on every kernel: if it does not, the answers of the other probes mean nothing. */
#include <linux/mm.h>
#include <linux/shmem_fs.h>
