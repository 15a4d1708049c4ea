// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hands the maps to user space, key and value of each entry, by iterators. The system calls that read
 * maps will not do where kernel code is preempted: while they run no kprobe program may, so all calls
 * on a CPU whose reader was preempted in one would be passed over.
 */
#include "count.bpf.h"

#define READ_MAP(map)                                                               \
	SEC("iter/bpf_map_elem") int read_##map(struct bpf_iter__bpf_map_elem *ctx) \
	{                                                                           \
		void *key = ctx->key, *value = ctx->value;                          \
                                                                                    \
		if (!key || !value)                                                 \
			return 0;                                                   \
		bpf_seq_write(ctx->meta->seq, key, sizeof(*map.key));               \
		bpf_seq_write(ctx->meta->seq, value, sizeof(*map.value));           \
		return 0;                                                           \
	}

READ_MAP(counts)
READ_MAP(ends)
READ_MAP(tasks)
READ_MAP(memory)
READ_MAP(arenas)
READ_MAP(lost)
