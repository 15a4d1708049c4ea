// SPDX-License-Identifier: GPL-2.0-only
/* Run by user space, which wants to know about the sessions that it made. */
#include "count.bpf.h"

struct fgraph_ops___number {
	int idx;
} __attribute__((preserve_access_index));

extern const void fprobe_graph_ops __ksym __weak;

/* Which of the users of the function graph tracer all sessions together are; -1: it does not say. */
SEC("syscall")
int session_number(void *ctx)
{
	struct fgraph_ops___number *ops = (void *)&fprobe_graph_ops;
	int number = -1;

	if (ops && bpf_core_field_exists(ops->idx))
		BPF_CORE_READ_INTO(&number, ops, idx);
	return number;
}
