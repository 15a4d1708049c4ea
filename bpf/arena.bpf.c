// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arenas: the static probes of libsluice, by their names. User space finds the probes in
 * the library's notes and says in the cookie which registers hold the arguments: 16 bits each, 0 for
 * none, 0x8000 + offset in pt_regs.
 */
#include "count.bpf.h"

#define ARG_REGISTER 0x8000
#define BACKEND_KMOD 2

enum argument {
	ARG_BYTES,
	ARG_ARENA,
	ARG_CHANNEL,
	ARG_BACKEND, /* enum sluice_backend of the library */
};

static __always_inline u64 get_arg(void *ctx, enum argument n)
{
	u32 spec = bpf_get_attach_cookie(ctx) >> (16 * n) & 0xffff;
	u64 value = 0;

	if (spec & ARG_REGISTER)
		bpf_probe_read_kernel(&value, sizeof(value), ctx + (spec & ~ARG_REGISTER));
	return value;
}

static __always_inline struct sluice_arena *get_arena(void *ctx, enum sluice_kind kind)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct sluice_arena_key key = {
		.arena = get_arg(ctx, ARG_ARENA),
		.start_ns = leader->start_boottime,
		.tgid = leader->tgid,
		.kind = kind,
	};
	static const struct sluice_arena none;
	struct sluice_arena *a;

	a = bpf_map_lookup_elem(&arenas, &key);
	if (a)
		return a;
	bpf_map_update_elem(&arenas, &key, &none, BPF_NOEXIST);
	a = bpf_map_lookup_elem(&arenas, &key);
	if (!a)
		count_lost(arenas);
	return a;
}

static __always_inline enum sluice_kind get_arena_kind(void *ctx)
{
	return get_arg(ctx, ARG_BACKEND) == BACKEND_KMOD ? SLUICE_ARENA_KMOD : SLUICE_ARENA_MEMFD;
}

SEC("uprobe")
int batch_publish(void *ctx)
{
	enum sluice_kind kind = get_arena_kind(ctx);
	long bytes = get_arg(ctx, ARG_BYTES);
	struct channel ch = {};
	struct duration d = {.end_ns = bpf_ktime_get_ns()};
	struct sluice_arena *a;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	ch.ino = get_arg(ctx, ARG_ARENA);
	ch.dev = get_arg(ctx, ARG_CHANNEL);
	count_call(kind, SLUICE_OUT, bytes, &ch, &d);
	a = get_arena(ctx, kind);
	if (a) {
		add(a->published, 1);
		add(a->published_bytes, bytes);
	}
	return 0;
}

SEC("uprobe")
int batch_next(void *ctx)
{
	enum sluice_kind kind = get_arena_kind(ctx);
	long bytes = get_arg(ctx, ARG_BYTES);
	struct channel ch = {};
	struct duration d = {.end_ns = bpf_ktime_get_ns()};
	struct sluice_arena *a;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	ch.ino = get_arg(ctx, ARG_ARENA);
	ch.dev = get_arg(ctx, ARG_CHANNEL);
	count_call(kind, SLUICE_IN, bytes, &ch, &d);
	a = get_arena(ctx, kind);
	if (a) {
		add(a->taken, 1);
		add(a->taken_bytes, bytes);
	}
	return 0;
}

SEC("uprobe")
int batch_release(void *ctx)
{
	struct sluice_arena *a;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	a = get_arena(ctx, get_arena_kind(ctx));
	if (a) {
		add(a->released, 1);
		add(a->released_bytes, get_arg(ctx, ARG_BYTES));
	}
	return 0;
}

/* The library knows how long it waited when the wait is over: that comes in the place of bytes. */
static __always_inline int finish_wait(void *ctx, enum sluice_dir dir)
{
	enum sluice_kind kind = get_arena_kind(ctx);
	u64 ns = get_arg(ctx, ARG_BYTES);
	struct duration d = {
		.end_ns = bpf_ktime_get_ns(),
		.time_ns = ns,
		.slept_ns = ns,
	};
	struct sluice_count *c;
	struct sluice_arena *a;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	c = get_count(kind, dir);
	if (c)
		count_sleep(c, &d);
	a = get_arena(ctx, kind);
	if (a) {
		add(a->waits, 1);
		add(a->wait_ns, ns);
	}
	return 0;
}

SEC("uprobe")
int batch_wait(void *ctx)
{
	return finish_wait(ctx, SLUICE_IN);
}

SEC("uprobe")
int space_wait(void *ctx)
{
	return finish_wait(ctx, SLUICE_OUT);
}
