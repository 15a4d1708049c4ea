// SPDX-License-Identifier: GPL-2.0-only
/* Threads: when they sleep, whose children they are, what stays of them when they end; poll. */
#include "count.bpf.h"

/* Only sleep counts as blocked, not the copying and not being preempted. */
SEC("tp_btf/sched_switch")
int BPF_PROG(task_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct record *rec;

	if (!preempt && prev->__state) {
		rec = bpf_task_storage_get(&records, prev, NULL, 0);
		if (rec && rec->open)
			rec->asleep_since = bpf_ktime_get_ns();
	}
	rec = bpf_task_storage_get(&records, next, NULL, 0);
	if (rec && rec->asleep_since) {
		rec->slept_ns += bpf_ktime_get_ns() - rec->asleep_since;
		rec->asleep_since = 0;
	}
	return 0;
}

static __always_inline void add_child(struct task_struct *parent, struct task_struct *child)
{
	int tgid = parent->tgid;
	u64 start;

	if (child->tgid == tgid || !bpf_map_lookup_elem(&targets, &tgid))
		return;
	tgid = child->tgid;
	start = child->start_boottime;
	if (bpf_map_update_elem(&targets, &tgid, &start, BPF_ANY))
		count_lost(targets);
	note_task(child);
}

/* Loaded only for a trace of chosen processes. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(task_fork, struct task_struct *parent, struct task_struct *child)
{
	add_child(parent, child);
	return 0;
}

/* Where tracepoints can be preempted too. The child has its pid by now and does not run yet. */
SEC("kprobe.multi/wake_up_new_task")
int task_fork_call(struct pt_regs *ctx)
{
	struct call call = {.args = {PT_REGS_PARM1(ctx)}, .session = true};

	if (!has_returned(ctx))
		add_child(bpf_get_current_task_btf(), arg_ptr(&call, 0, struct task_struct));
	return 1;
}

static __always_inline void merge_count(struct sluice_count *to, const struct sluice_count *from)
{
	int i;

	if (!to->first_ns || (from->first_ns && from->first_ns < to->first_ns))
		to->first_ns = from->first_ns;
	if (from->last_ns > to->last_ns)
		to->last_ns = from->last_ns;
	add(to->bytes, from->bytes);
	add(to->calls, from->calls);
	add(to->fails, from->fails);
	add(to->time_ns, from->time_ns);
	add(to->slept_ns, from->slept_ns);
	add(to->waits, from->waits);
	for (i = 0; i < SLUICE_HIST; i++)
		add(to->slept_us_log2[i], from->slept_us_log2[i]);
}

/*
 * Moves one entry to another key and returns 1; 0 if there is none, -E2BIG if there is no room for it.
 * Not static, so that the verifier looks at it once and not for each of the calls below.
 */
__noinline int move_count(struct sluice_count_key *from_key, struct sluice_count_key *to_key)
{
	static const struct sluice_count none;
	struct sluice_count_key from, to;
	struct sluice_count *c, *sum;

	if (!from_key || !to_key)
		return 0;
	/* Old kernels take no key for a map from memory that is not known to be stack. */
	from = *from_key;
	to = *to_key;
	c = bpf_map_lookup_elem(&counts, &from);
	if (!c)
		return 0;
	sum = bpf_map_lookup_elem(&counts, &to);
	if (!sum) {
		bpf_map_update_elem(&counts, &to, &none, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&counts, &to);
		if (!sum)
			return -E2BIG;
	}
	merge_count(sum, c);
	bpf_map_delete_elem(&counts, &from);
	return 1;
}

static long drop_arena(struct bpf_map *map, const struct sluice_arena_key *at,
		       const struct sluice_arena *value, const struct sluice_task_key *owner)
{
	struct sluice_arena_key key = *at;

	if (key.tgid == owner->tgid && key.start_ns == owner->start_ns)
		bpf_map_delete_elem(&arenas, &key);
	return 0;
}

static __noinline void fold(struct task_struct *task, bool last)
{
	struct sluice_count_key from = {}, process = {}, ended = {.tid = SLUICE_TID_EXITED};
	struct sluice_task_key owner = {};
	int i, moved, at_arenas = 0;

	from.start_ns = task->group_leader->start_boottime;
	from.tgid = task->tgid;
	from.tid = task->pid;
	process = from;
	process.tid = SLUICE_TID_EXITED;
	for (i = 0; i < 2 * SLUICE_KINDS; i++) {
		from.kind = process.kind = ended.kind = i / 2;
		from.dir = process.dir = ended.dir = i % 2;
		moved = move_count(&from, last ? &ended : &process);
		/* That one is always there; the entry is not to stay in a map that is full. */
		if (moved < 0)
			moved = move_count(&from, &ended);
		if (!last)
			continue;
		moved |= move_count(&process, &ended);
		if (i / 2 == SLUICE_ARENA_MEMFD || i / 2 == SLUICE_ARENA_KMOD)
			at_arenas |= moved;
	}
	if (!at_arenas)
		return;
	owner.start_ns = from.start_ns;
	owner.tgid = from.tgid;
	bpf_for_each_map_elem(&arenas, drop_arena, &owner, 0);
}

static __always_inline int end_task(struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	struct sluice_task_key key = {.start_ns = leader->start_boottime, .tgid = leader->tgid};
	struct sluice_config *cfg = get_config();
	bool last = task->signal->live.counter == 0;
	struct sluice_task *t;

	t = bpf_map_lookup_elem(&tasks, &key);
	/*
	 * A thread without a record has counted nothing. Two threads that end at the same time may
	 * both find themselves the last, so the second cannot count on the process being known.
	 */
	if (cfg && cfg->fold_exited && (t || bpf_task_storage_get(&records, task, NULL, 0)))
		fold(task, last);
	if (t)
		add(t->threads_ended, 1);
	if (!last)
		return 0;
	bpf_map_delete_elem(&targets, &key.tgid);
	if (cfg && cfg->fold_exited) {
		bpf_map_delete_elem(&tasks, &key);
		bpf_map_delete_elem(&memory, &key);
		return 0;
	}
	if (!t)
		return 0;
	bpf_probe_read_kernel(t->comm, sizeof(t->comm), &leader->comm);
	t->exit_ns = bpf_ktime_get_boot_ns();
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(task_exit, struct task_struct *task)
{
	return end_task(task);
}

/* Where tracepoints can be preempted too: a later step of the same end. */
SEC("kprobe.multi/perf_event_exit_task")
int task_exit_call(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!has_returned(ctx) && PT_REGS_PARM1(ctx) == (u64)task)
		end_task(task);
	return 1;
}

/*
 * A reader with a time limit sleeps in poll() or select(), not in read(). The wait is charged to the
 * first pipe or socket of the call that had nothing to read.
 */
extern const void __pollwait __ksym __weak;

static __always_inline void note_poll(struct file *file, struct poll_table_struct *wait, u32 mask,
				      enum sluice_kind kind, u32 dev)
{
	struct inode *inode = file->f_inode;
	struct record *rec;

	/* Only poll() and select() reach poll_freewait(); epoll and io_uring have their own queues. */
	if (mask & (EPOLLIN | EPOLLHUP) || !wait || wait->_qproc != &__pollwait)
		return;
	if (in_frame(get_record(), FRAME_POLL))
		return;
	rec = open_frame(FRAME_POLL);
	if (!rec)
		return;
	rec->poll_kind = kind;
	rec->poll_channel.ino = inode->i_ino;
	rec->poll_channel.dev = dev;
}

SEC("fexit/pipe_poll")
int BPF_PROG(pipe_poll_exit, struct file *file, struct poll_table_struct *wait, u32 mask)
{
	struct super_block *sb = file->f_inode->i_sb;

	if (file->f_mode & FMODE_READ)
		note_poll(file, wait, mask, sb->s_magic == PIPEFS_MAGIC ? SLUICE_PIPE : SLUICE_FIFO,
			  sb->s_dev);
	return 0;
}

SEC("fexit/unix_poll")
int BPF_PROG(unix_poll_exit, struct file *file, struct socket *sock, struct poll_table_struct *wait,
	     u32 mask)
{
	note_poll(file, wait, mask, SLUICE_UNIX_STREAM, 0);
	return 0;
}

SEC("fexit/unix_dgram_poll")
int BPF_PROG(unix_dgram_poll_exit, struct file *file, struct socket *sock,
	     struct poll_table_struct *wait, u32 mask)
{
	note_poll(file, wait, mask,
		  sock->type == SOCK_SEQPACKET ? SLUICE_UNIX_SEQPACKET : SLUICE_UNIX_DGRAM, 0);
	return 0;
}

SEC("fentry/poll_freewait")
int BPF_PROG(poll_end)
{
	struct record *rec = get_record();
	struct sluice_count *c;
	struct sluice_end *e;
	struct duration d;

	if (!in_frame(rec, FRAME_POLL))
		return 0;
	close_frame(rec, FRAME_POLL, &d);
	if (!d.slept_ns)
		return 0;
	c = get_count(rec->poll_kind, SLUICE_IN);
	if (c)
		count_sleep(c, &d);
	e = get_end(rec->poll_kind, SLUICE_IN, &rec->poll_channel);
	if (e)
		add(e->slept_ns, d.slept_ns);
	return 0;
}
