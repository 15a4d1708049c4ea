/* SPDX-License-Identifier: GPL-2.0-only */
/* The maps, and what every counting program does: find the entry, open and close a call, add up. */
#ifndef SLUICE_COUNT_BPF_H
#define SLUICE_COUNT_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "counters.h"

/* User space may change the sizes. */
#define MAP(name, kind, entries, key_type, value_type) \
	struct {                                       \
		__uint(type, kind);                    \
		__uint(max_entries, entries);          \
		__type(key, key_type);                 \
		__type(value, value_type);             \
	} name SEC(".maps")

MAP(counts, BPF_MAP_TYPE_HASH, 16384, struct sluice_count_key, struct sluice_count);
MAP(ends, BPF_MAP_TYPE_HASH, 16384, struct sluice_end_key, struct sluice_end);
MAP(tasks, BPF_MAP_TYPE_HASH, 16384, struct sluice_task_key, struct sluice_task);
MAP(memory, BPF_MAP_TYPE_HASH, 8192, struct sluice_task_key, struct sluice_memory);
MAP(arenas, BPF_MAP_TYPE_HASH, 4096, struct sluice_arena_key, struct sluice_arena);
MAP(targets, BPF_MAP_TYPE_HASH, 16384, int, __u64);
MAP(config, BPF_MAP_TYPE_ARRAY, 1, __u32, struct sluice_config);
MAP(lost, BPF_MAP_TYPE_ARRAY, 1, __u32, struct sluice_lost);

/* Set before loading: count the processes in the map "targets" and their children, not all. */
const volatile bool only_targets = false;

struct channel {
	u64 ino;
	u32 dev;
};

/* A thread can be in one of each at a time: a fault inside a write inside a splice. */
enum frame {
	FRAME_SPLICE,
	FRAME_SENDFILE,
	FRAME_CALL,
	FRAME_FAULT,
	FRAME_UNMAP,
	FRAME_POLL,
	FRAMES,
};

/* As many of a function's arguments as its end needs to see again. */
#define ARGS 4

struct record {
	u64 slept_ns; /* all sleep inside any frame so far */
	u64 asleep_since;
	u64 start[FRAMES];
	u64 slept_at_start[FRAMES];
	u32 open; /* bit per frame */
	u32 pipe_mode; /* of the file that get_pipe_info() last looked at */
	void *pipe;
	u64 pipe_file; /* that a session of get_pipe_info() looks at */
	u64 args[FRAME_FAULT][ARGS]; /* of splices and calls that a session counts */
	struct channel pipe_channel;
	struct channel poll_channel;
	enum sluice_kind poll_kind;
	u64 unmap_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct record);
} records SEC(".maps");

struct duration {
	u64 end_ns;
	u64 time_ns;
	u64 slept_ns;
};

#define add(counter, n) __sync_fetch_and_add(&(counter), n)

static __always_inline struct sluice_lost *get_lost(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&lost, &zero);
}

#define count_lost(field)                               \
	do {                                            \
		struct sluice_lost *lost_ = get_lost(); \
		if (lost_)                              \
			add(lost_->field, 1);           \
	} while (0)

static __always_inline struct sluice_config *get_config(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&config, &zero);
}

static __always_inline bool is_target(int tgid)
{
	return !only_targets || bpf_map_lookup_elem(&targets, &tgid);
}

static __always_inline struct record *get_record(void)
{
	return bpf_task_storage_get(&records, bpf_get_current_task_btf(), NULL, 0);
}

static __always_inline struct record *make_record(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct record *rec;

	if (!is_target(task->tgid))
		return NULL;
	rec = bpf_task_storage_get(&records, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!rec)
		count_lost(records);
	return rec;
}

static __always_inline struct record *open_frame(enum frame frame)
{
	struct record *rec = make_record();

	if (!rec)
		return NULL;
	rec->open |= 1u << frame;
	rec->start[frame] = bpf_ktime_get_ns();
	rec->slept_at_start[frame] = rec->slept_ns;
	if (frame == FRAME_SPLICE)
		rec->pipe = NULL;
	return rec;
}

static __always_inline bool in_frame(struct record *rec, enum frame frame)
{
	return rec && rec->open & (1u << frame);
}

static __always_inline void close_frame(struct record *rec, enum frame frame, struct duration *d)
{
	d->end_ns = bpf_ktime_get_ns();
	d->time_ns = 0;
	d->slept_ns = 0;
	if (!in_frame(rec, frame)) {
		count_lost(calls);
		return;
	}
	rec->open &= ~(1u << frame);
	/* The time inside a splice is the splice's. */
	if (frame == FRAME_CALL && rec->open & (1u << FRAME_SPLICE | 1u << FRAME_SENDFILE))
		return;
	d->time_ns = d->end_ns - rec->start[frame];
	d->slept_ns = rec->slept_ns - rec->slept_at_start[frame];
}

/*
 * A function is counted in one of two ways, of which user space loads one.
 *
 * NAME_enter and NAME_exit are called by trampolines (fentry, fexit): the cheapest. But the kernel
 * passes over a program that a preempted thread is in, until this thread gets the CPU back, and the
 * others that call the function there meanwhile are not seen. So trampolines will not do where kernel
 * code is preempted.
 *
 * NAME_call is a session on the function graph tracer, which calls it with preemption off, when the
 * function begins and when it returns. By then the arguments are gone, so the record keeps them.
 */
struct call {
	u64 args[ARGS];
	long ret;
	bool session;
};

extern void *bpf_rdonly_cast(void *object, __u32 type) __ksym __weak;

/* An argument that is a pointer to a struct of the kernel's. A trampoline's has its type already. */
#define arg_ptr(call, n, type)                                                                     \
	((call)->session                                                                           \
		 ? (type *)bpf_rdonly_cast((void *)(call)->args[n], bpf_core_type_id_kernel(type)) \
		 : (type *)(call)->args[n])

/* At the beginning this is the function's address, at its end that of its caller. */
static __always_inline bool has_returned(struct pt_regs *ctx)
{
	return PT_REGS_IP(ctx) - bpf_get_func_ip(ctx) >= 32;
}

static __always_inline void get_args(struct pt_regs *ctx, u64 *args)
{
	args[0] = PT_REGS_PARM1(ctx);
	args[1] = PT_REGS_PARM2(ctx);
	args[2] = PT_REGS_PARM3(ctx);
	args[3] = PT_REGS_PARM4(ctx);
}

/* A call without a record, or whose beginning was not seen, still counts but for its time. */
static __always_inline bool is_counted(struct record *rec, enum frame frame)
{
	return in_frame(rec, frame) || is_target(bpf_get_current_pid_tgid() >> 32);
}

/* @count(record, call) adds up a call of a function with @num arguments. */
#define COUNT_CALLS(name, function, frame, num, count)                            \
	SEC("fentry/" function) int name##_enter(void *ctx)                       \
	{                                                                         \
		open_frame(frame);                                                \
		return 0;                                                         \
	}                                                                         \
	SEC("fexit/" function) int name##_exit(u64 *ctx)                          \
	{                                                                         \
		struct call call = {.ret = ctx[num]};                             \
		struct record *rec = get_record();                                \
                                                                                  \
		if (!is_counted(rec, frame))                                      \
			return 0;                                                 \
		for (int i = 0; i < (num) && i < ARGS; i++)                       \
			call.args[i] = ctx[i];                                    \
		count(rec, &call);                                                \
		return 0;                                                         \
	}                                                                         \
	SEC("kprobe.multi/" function) int name##_call(struct pt_regs *ctx)        \
	{                                                                         \
		struct call call = {.session = true};                             \
		struct record *rec;                                               \
                                                                                  \
		if (!has_returned(ctx)) {                                         \
			rec = open_frame(frame);                                  \
			if (!rec)                                                 \
				return 1;                                         \
			get_args(ctx, rec->args[frame]);                          \
			return 0;                                                 \
		}                                                                 \
		rec = get_record();                                               \
		if (!in_frame(rec, frame))                                        \
			return 0;                                                 \
		__builtin_memcpy(call.args, rec->args[frame], sizeof(call.args)); \
		call.ret = PT_REGS_RC(ctx);                                       \
		count(rec, &call);                                                \
		return 0;                                                         \
	}

static __always_inline void fill_task(struct sluice_task *t, struct task_struct *leader)
{
	bpf_probe_read_kernel(t->comm, sizeof(t->comm), &leader->comm);
	t->ppid = leader->real_parent->tgid;
}

static __noinline void note_task(struct task_struct *leader)
{
	struct sluice_task_key key = {.start_ns = leader->start_boottime, .tgid = leader->tgid};
	struct sluice_task t = {};

	if (bpf_map_lookup_elem(&tasks, &key))
		return;
	fill_task(&t, leader);
	if (bpf_map_update_elem(&tasks, &key, &t, BPF_NOEXIST) == -E2BIG)
		count_lost(tasks);
}

static __always_inline u32 log2_bucket(u64 ns)
{
	u64 v = ns / 1000;
	u32 n = 0;

	if (!ns)
		return 0;
	if (v >> 16) {
		v >>= 16;
		n += 16;
	}
	if (v >> 8) {
		v >>= 8;
		n += 8;
	}
	if (v >> 4) {
		v >>= 4;
		n += 4;
	}
	if (v >> 2) {
		v >>= 2;
		n += 2;
	}
	n += v >> 1;
	n += v > 0 || n > 0;
	if (!n)
		n = 1;
	return n < SLUICE_HIST ? n : SLUICE_HIST - 1;
}

static __noinline struct sluice_count *get_count(enum sluice_kind kind, enum sluice_dir dir)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sluice_count_key key = {
		.start_ns = task->group_leader->start_boottime,
		.tgid = task->tgid,
		.tid = task->pid,
		.kind = kind,
		.dir = dir,
	};
	static const struct sluice_count none;
	struct sluice_count *c;

	c = bpf_map_lookup_elem(&counts, &key);
	if (c)
		return c;
	note_task(task->group_leader);
	bpf_map_update_elem(&counts, &key, &none, BPF_NOEXIST);
	c = bpf_map_lookup_elem(&counts, &key);
	if (c)
		return c;
	count_lost(counts);
	key.start_ns = 0;
	key.tgid = 0;
	key.tid = SLUICE_TID_OTHER;
	return bpf_map_lookup_elem(&counts, &key);
}

static __always_inline struct sluice_end *get_end(enum sluice_kind kind, enum sluice_dir dir,
						  const struct channel *ch)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sluice_end_key key = {
		.ino = ch->ino,
		.start_ns = task->group_leader->start_boottime,
		.dev = ch->dev,
		.tgid = task->tgid,
		.kind = kind,
		.dir = dir,
	};
	static const struct sluice_end none;
	struct sluice_end *e;

	e = bpf_map_lookup_elem(&ends, &key);
	if (e)
		return e;
	bpf_map_update_elem(&ends, &key, &none, BPF_NOEXIST);
	e = bpf_map_lookup_elem(&ends, &key);
	if (!e)
		count_lost(ends);
	return e;
}

static __always_inline void count_sleep(struct sluice_count *c, const struct duration *d)
{
	u32 bucket = log2_bucket(d->slept_ns);

	/* Only the entries that several threads share can lose one of these, and they do not matter. */
	if (!c->first_ns)
		c->first_ns = d->end_ns - d->time_ns;
	c->last_ns = d->end_ns;
	add(c->time_ns, d->time_ns);
	if (bucket < SLUICE_HIST)
		add(c->slept_us_log2[bucket], 1);
	if (!d->slept_ns)
		return;
	add(c->slept_ns, d->slept_ns);
	add(c->waits, 1);
}

/* A call of the current thread returned @ret: bytes, or a negative error. */
static __always_inline void count_call(enum sluice_kind kind, enum sluice_dir dir, long ret,
				       const struct channel *ch, const struct duration *d)
{
	struct sluice_count *c = get_count(kind, dir);
	struct sluice_end *e;

	if (c) {
		add(c->calls, 1);
		if (ret > 0)
			add(c->bytes, ret);
		else if (ret < 0)
			add(c->fails, 1);
		count_sleep(c, d);
	}
	e = get_end(kind, dir, ch);
	if (e) {
		add(e->calls, 1);
		if (ret > 0)
			add(e->bytes, ret);
		add(e->slept_ns, d->slept_ns);
	}
}

#endif /* SLUICE_COUNT_BPF_H */
