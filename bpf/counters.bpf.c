// SPDX-License-Identifier: GPL-2.0-only
/* All programs in one object, so that they share maps, records and functions of the kernel. */
#include "count.bpf.h"
#include "pipe.bpf.c"
#include "socket.bpf.c"
#include "memory.bpf.c"
#include "task.bpf.c"
#include "arena.bpf.c"
#include "read.bpf.c"
#include "session.bpf.c"

char LICENSE[] SEC("license") = "GPL";
