// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pipes and FIFOs: write and read in all their forms, splice, vmsplice, tee, sendfile.
 *
 * User space picks the function that each program attaches to among the names that kernels have
 * given it (pipe_write became anon_pipe_write, which FIFO writes call too).
 */
#include "count.bpf.h"

#define S_IFMT	0170000
#define S_IFIFO 0010000

static __always_inline bool is_pipe(struct file *file)
{
	return (file->f_inode->i_mode & S_IFMT) == S_IFIFO;
}

static __always_inline void get_channel(struct file *file, struct channel *ch)
{
	struct inode *inode = file->f_inode;

	ch->ino = inode->i_ino;
	ch->dev = inode->i_sb->s_dev;
}

static __always_inline enum sluice_kind get_pipe_kind(struct file *file)
{
	return file->f_inode->i_sb->s_magic == PIPEFS_MAGIC ? SLUICE_PIPE : SLUICE_FIFO;
}

static __always_inline void count_rw(struct record *rec, const struct call *call,
				     enum sluice_dir dir)
{
	struct file *file = arg_ptr(call, 0, struct kiocb)->ki_filp;
	struct channel ch = {};
	struct duration d;

	close_frame(rec, FRAME_CALL, &d);
	get_channel(file, &ch);
	count_call(get_pipe_kind(file), dir, call->ret, &ch, &d);
}

static __always_inline void count_write(struct record *rec, const struct call *call)
{
	count_rw(rec, call, SLUICE_OUT);
}

static __always_inline void count_read(struct record *rec, const struct call *call)
{
	count_rw(rec, call, SLUICE_IN);
}

COUNT_CALLS(pipe_write, "pipe_write", FRAME_CALL, 2, count_write)
COUNT_CALLS(pipe_read, "pipe_read", FRAME_CALL, 2, count_read)

/* One that moves between two pipes takes from one and gives to the other: both ends count. */
static __always_inline void count_splice(struct record *rec, const struct call *call)
{
	struct file *in = arg_ptr(call, 0, struct file), *out = arg_ptr(call, 2, struct file);
	struct channel ch = {};
	struct duration d;

	close_frame(rec, FRAME_SPLICE, &d);
	if (is_pipe(in)) {
		get_channel(in, &ch);
		count_call(SLUICE_SPLICE, SLUICE_IN, call->ret, &ch, &d);
		d.time_ns = 0;
		d.slept_ns = 0;
	}
	if (is_pipe(out)) {
		get_channel(out, &ch);
		count_call(SLUICE_SPLICE, SLUICE_OUT, call->ret, &ch, &d);
	}
}

COUNT_CALLS(splice, "do_splice", FRAME_SPLICE, 6, count_splice)

/* Duplicates: the pipe it reads keeps its bytes, so only the other end counts. */
static __always_inline void count_tee(struct record *rec, const struct call *call)
{
	struct channel ch = {};
	struct duration d;

	close_frame(rec, FRAME_SPLICE, &d);
	get_channel(arg_ptr(call, 1, struct file), &ch);
	count_call(SLUICE_TEE, SLUICE_OUT, call->ret, &ch, &d);
}

COUNT_CALLS(tee, "do_tee", FRAME_SPLICE, 4, count_tee)

/* sendfile() and vmsplice() do not hand their file down; this is where they look at it. */
static __always_inline void note_pipe(struct record *rec, struct file *file, void *pipe)
{
	if (!rec || !pipe)
		return;
	rec->pipe = pipe;
	rec->pipe_mode = file->f_mode;
	get_channel(file, &rec->pipe_channel);
}

SEC("fexit/get_pipe_info")
int BPF_PROG(pipe_info_exit, struct file *file, bool for_splice, void *pipe)
{
	note_pipe(make_record(), file, pipe);
	return 0;
}

SEC("kprobe.multi/get_pipe_info")
int pipe_info_call(struct pt_regs *ctx)
{
	struct call call = {.session = true};
	struct record *rec = make_record();

	if (!rec)
		return 1;
	if (!has_returned(ctx)) {
		rec->pipe_file = PT_REGS_PARM1(ctx);
		return 0;
	}
	call.args[0] = rec->pipe_file;
	note_pipe(rec, arg_ptr(&call, 0, struct file), (void *)PT_REGS_RC(ctx));
	return 0;
}

/* Reached from splice() too, which counts itself: only sendfile() is left. */
static __always_inline void count_sendfile(struct record *rec, const struct call *call)
{
	struct channel ch = {};
	struct duration d;

	close_frame(rec, FRAME_SENDFILE, &d);
	if (in_frame(rec, FRAME_SPLICE))
		return;
	if (rec && (u64)rec->pipe == call->args[1])
		ch = rec->pipe_channel;
	count_call(SLUICE_SENDFILE, SLUICE_OUT, call->ret, &ch, &d);
}

COUNT_CALLS(sendfile, "splice_file_to_pipe", FRAME_SENDFILE, 5, count_sendfile)

static __always_inline void count_vmsplice(struct record *rec, const struct call *call)
{
	struct channel ch = {};
	struct duration d;
	enum sluice_dir dir;

	close_frame(rec, FRAME_SPLICE, &d);
	/* No pipe was looked at: a bad descriptor, nothing to move. */
	if (!rec || !rec->pipe)
		return;
	ch = rec->pipe_channel;
	dir = rec->pipe_mode & FMODE_WRITE ? SLUICE_OUT : SLUICE_IN;
	count_call(SLUICE_VMSPLICE, dir, call->ret, &ch, &d);
}

COUNT_CALLS(vmsplice, "__x64_sys_vmsplice", FRAME_SPLICE, 1, count_vmsplice)
