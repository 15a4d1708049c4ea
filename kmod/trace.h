/* SPDX-License-Identifier: GPL-2.0-only */
/* Tracepoints sluice:*; the byte counts in them are the kernel's own. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM sluice

#if !defined(_SLUICE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _SLUICE_TRACE_H

#include <linux/tracepoint.h>

#include "sluice.h"

/* The macros of tracepoints are laid out like the kernel's, which no formatter knows. */
/* clang-format off */
DECLARE_EVENT_CLASS(sluice_arena,
	TP_PROTO(const struct sluice_arena *arena),
	TP_ARGS(arena),
	TP_STRUCT__entry(
		__field(u64, arena)
		__field(u64, bytes)
		__field(u64, huge_bytes)
		__field(int, node)
		__array(char, label, SLUICE_IOC_LABEL_SIZE)
	),
	TP_fast_assign(
		__entry->arena = arena->id;
		__entry->bytes = sluice_arena_bytes(arena);
		__entry->huge_bytes = sluice_arena_huge_bytes(arena);
		__entry->node = arena->node;
		memcpy(__entry->label, arena->label, SLUICE_IOC_LABEL_SIZE);
	),
	TP_printk("arena=%llu bytes=%llu huge_bytes=%llu node=%d label=%.32s", __entry->arena,
		  __entry->bytes, __entry->huge_bytes, __entry->node, __entry->label)
);

DEFINE_EVENT(sluice_arena, sluice_arena_create,
	TP_PROTO(const struct sluice_arena *arena),
	TP_ARGS(arena)
);

DEFINE_EVENT(sluice_arena, sluice_arena_destroy,
	TP_PROTO(const struct sluice_arena *arena),
	TP_ARGS(arena)
);

TRACE_EVENT(sluice_peer_attach,
	TP_PROTO(const struct sluice_peer *peer),
	TP_ARGS(peer),
	TP_STRUCT__entry(
		__field(u64, arena)
		__field(u64, bytes)
		__field(u32, peer)
		__field(u32, role)
		__field(int, pid)
	),
	TP_fast_assign(
		__entry->arena = peer->arena->id;
		__entry->bytes = sluice_arena_bytes(peer->arena);
		__entry->peer = peer->id;
		__entry->role = peer->role;
		__entry->pid = pid_nr(peer->pid);
	),
	TP_printk("arena=%llu bytes=%llu peer=%u role=%u pid=%d", __entry->arena, __entry->bytes,
		  __entry->peer, __entry->role, __entry->pid)
);

TRACE_EVENT(sluice_peer_dead,
	TP_PROTO(const struct sluice_peer *peer, u32 reason, int status),
	TP_ARGS(peer, reason, status),
	TP_STRUCT__entry(
		__field(u64, arena)
		__field(u64, bytes)
		__field(u32, peer)
		__field(u32, reason)
		__field(int, pid)
		__field(int, status)
	),
	TP_fast_assign(
		__entry->arena = peer->arena->id;
		__entry->bytes = sluice_arena_bytes(peer->arena);
		__entry->peer = peer->id;
		__entry->reason = reason;
		__entry->pid = pid_nr(peer->pid);
		__entry->status = status;
	),
	TP_printk("arena=%llu bytes=%llu peer=%u pid=%d reason=%u status=%#x", __entry->arena,
		  __entry->bytes, __entry->peer, __entry->pid, __entry->reason, __entry->status)
);

DECLARE_EVENT_CLASS(sluice_message,
	TP_PROTO(const struct sluice_bell *from, const struct sluice_bell_message *message),
	TP_ARGS(from, message),
	TP_STRUCT__entry(
		__field(u64, arena)
		__field(u64, bytes)
		__field(u64, arg)
		__field(u32, peer)
		__field(u32, from_bell)
		__field(u32, to_bell)
	),
	TP_fast_assign(
		__entry->arena = from->peer->arena->id;
		__entry->bytes = sluice_arena_bytes(from->peer->arena);
		__entry->arg = message->arg;
		__entry->peer = from->peer->id;
		__entry->from_bell = from->id;
		__entry->to_bell = message->to_bell;
	),
	TP_printk("arena=%llu bytes=%llu peer=%u from_bell=%u to_bell=%u arg=%#llx",
		  __entry->arena, __entry->bytes, __entry->peer, __entry->from_bell,
		  __entry->to_bell, __entry->arg)
);

DEFINE_EVENT(sluice_message, sluice_doorbell,
	TP_PROTO(const struct sluice_bell *from, const struct sluice_bell_message *message),
	TP_ARGS(from, message)
);

DEFINE_EVENT(sluice_message, sluice_completion,
	TP_PROTO(const struct sluice_bell *from, const struct sluice_bell_message *message),
	TP_ARGS(from, message)
);

#endif
/* clang-format on */

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
