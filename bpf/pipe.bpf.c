// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pipes and FIFOs: write and read in all their forms, splice, vmsplice, tee, sendfile.
 *
 * User space picks the function that each program attaches to among the names that kernels have
 * given it (pipe_write became anon_pipe_write, which FIFO writes call too).
 */
#include "count.bpf.h"

char LICENSE[] SEC("license") = "GPL";

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

static __always_inline enum sluice_kind get_kind(struct file *file)
{
	return file->f_inode->i_sb->s_magic == PIPEFS_MAGIC ? SLUICE_PIPE : SLUICE_FIFO;
}

static __always_inline int finish_rw(struct kiocb *iocb, enum sluice_dir dir, long ret)
{
	struct file *file = iocb->ki_filp;
	struct channel ch = {};
	struct duration d;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	close_frame(get_record(), FRAME_CALL, &d);
	get_channel(file, &ch);
	count_call(get_kind(file), dir, ret, &ch, &d);
	return 0;
}

SEC("fentry/pipe_write")
int BPF_PROG(pipe_write_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/pipe_write")
int BPF_PROG(pipe_write_exit, struct kiocb *iocb, struct iov_iter *from, long ret)
{
	return finish_rw(iocb, SLUICE_OUT, ret);
}

SEC("fentry/pipe_read")
int BPF_PROG(pipe_read_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/pipe_read")
int BPF_PROG(pipe_read_exit, struct kiocb *iocb, struct iov_iter *to, long ret)
{
	return finish_rw(iocb, SLUICE_IN, ret);
}

SEC("fentry/do_splice")
int BPF_PROG(splice_enter)
{
	open_frame(FRAME_SPLICE);
	return 0;
}

/* One that moves between two pipes takes from one and gives to the other: both ends count. */
SEC("fexit/do_splice")
int BPF_PROG(splice_exit, struct file *in, void *off_in, struct file *out, void *off_out,
	     unsigned long len, unsigned int flags, long ret)
{
	struct channel ch = {};
	struct duration d;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	close_frame(get_record(), FRAME_SPLICE, &d);
	if (is_pipe(in)) {
		get_channel(in, &ch);
		count_call(SLUICE_SPLICE, SLUICE_IN, ret, &ch, &d);
		d.time_ns = 0;
		d.slept_ns = 0;
	}
	if (is_pipe(out)) {
		get_channel(out, &ch);
		count_call(SLUICE_SPLICE, SLUICE_OUT, ret, &ch, &d);
	}
	return 0;
}

/* Duplicates: the pipe it reads keeps its bytes, so only the other end counts. */
SEC("fentry/do_tee")
int BPF_PROG(tee_enter)
{
	open_frame(FRAME_SPLICE);
	return 0;
}

SEC("fexit/do_tee")
int BPF_PROG(tee_exit, struct file *in, struct file *out, unsigned long len, unsigned int flags,
	     long ret)
{
	struct channel ch = {};
	struct duration d;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	close_frame(get_record(), FRAME_SPLICE, &d);
	get_channel(out, &ch);
	count_call(SLUICE_TEE, SLUICE_OUT, ret, &ch, &d);
	return 0;
}

/* sendfile() and vmsplice() do not hand their file down; this is where they look at it. */
SEC("fexit/get_pipe_info")
int BPF_PROG(pipe_info_exit, struct file *file, bool for_splice, void *pipe)
{
	struct record *rec;

	if (!pipe)
		return 0;
	rec = make_record();
	if (!rec)
		return 0;
	rec->pipe = pipe;
	rec->pipe_mode = file->f_mode;
	get_channel(file, &rec->pipe_channel);
	return 0;
}

/* Reached from splice() too, which has counted already: only sendfile() is left. */
SEC("fentry/splice_file_to_pipe")
int BPF_PROG(sendfile_enter)
{
	if (!in_frame(get_record(), FRAME_SPLICE))
		open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/splice_file_to_pipe")
int BPF_PROG(sendfile_exit, struct file *in, void *pipe, void *offset, unsigned long len,
	     unsigned int flags, long ret)
{
	struct record *rec = get_record();
	struct channel ch = {};
	struct duration d;

	if (in_frame(rec, FRAME_SPLICE) || !is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	close_frame(rec, FRAME_CALL, &d);
	if (rec && rec->pipe == pipe)
		ch = rec->pipe_channel;
	count_call(SLUICE_SENDFILE, SLUICE_OUT, ret, &ch, &d);
	return 0;
}

SEC("fentry/__x64_sys_vmsplice")
int BPF_PROG(vmsplice_enter)
{
	struct record *rec = open_frame(FRAME_SPLICE);

	if (rec)
		rec->pipe = NULL;
	return 0;
}

SEC("fexit/__x64_sys_vmsplice")
int BPF_PROG(vmsplice_exit, void *regs, long ret)
{
	struct record *rec = get_record();
	struct channel ch = {};
	struct duration d;
	enum sluice_dir dir;

	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	close_frame(rec, FRAME_SPLICE, &d);
	/* No pipe was looked at: a bad descriptor, nothing to move. */
	if (!rec || !rec->pipe)
		return 0;
	ch = rec->pipe_channel;
	dir = rec->pipe_mode & FMODE_WRITE ? SLUICE_OUT : SLUICE_IN;
	count_call(SLUICE_VMSPLICE, dir, ret, &ch, &d);
	return 0;
}
