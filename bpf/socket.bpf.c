// SPDX-License-Identifier: GPL-2.0-only
/* Unix sockets: stream, datagram, seqpacket. The channel's number is the receiving socket's inode. */
#include "count.bpf.h"

static __always_inline u64 get_inode(struct socket *sock)
{
	struct socket_alloc *alloc = (void *)sock;

	return sock ? BPF_CORE_READ(alloc, vfs_inode.i_ino) : 0;
}

/* Where a connected socket sends to; 0 for one that names its receiver with each datagram. */
static __always_inline u64 get_peer_inode(struct socket *sock)
{
	struct unix_sock *u = (void *)sock->sk;

	return get_inode(BPF_CORE_READ(u, peer, sk_socket));
}

static __always_inline enum sluice_kind get_kind(short type)
{
	if (type == SOCK_STREAM)
		return SLUICE_UNIX_STREAM;
	return type == SOCK_SEQPACKET ? SLUICE_UNIX_SEQPACKET : SLUICE_UNIX_DGRAM;
}

static __always_inline int finish(enum sluice_kind kind, enum sluice_dir dir, u64 ino, long ret)
{
	struct channel ch = {.ino = ino};
	struct duration d;

	close_frame(get_record(), FRAME_CALL, &d);
	count_call(kind, dir, ret, &ch, &d);
	return 0;
}

SEC("fentry/unix_stream_sendmsg")
int BPF_PROG(stream_send_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/unix_stream_sendmsg")
int BPF_PROG(stream_send_exit, struct socket *sock, struct msghdr *msg, unsigned long len, int ret)
{
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	return finish(SLUICE_UNIX_STREAM, SLUICE_OUT, get_peer_inode(sock), ret);
}

/* splice() into a stream socket, until it became a sendmsg() as well. */
SEC("fentry/unix_stream_sendpage")
int BPF_PROG(stream_sendpage_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/unix_stream_sendpage")
int BPF_PROG(stream_sendpage_exit, struct socket *sock, struct page *page, int offset,
	     unsigned long size, int flags, long ret)
{
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	return finish(SLUICE_UNIX_STREAM, SLUICE_OUT, get_peer_inode(sock), ret);
}

SEC("fentry/unix_stream_recvmsg")
int BPF_PROG(stream_receive_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/unix_stream_recvmsg")
int BPF_PROG(stream_receive_exit, struct socket *sock, struct msghdr *msg, unsigned long size,
	     int flags, int ret)
{
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	/* What is looked at stays there and is counted when it is taken. */
	if (flags & MSG_PEEK)
		ret = ret > 0 ? 0 : ret;
	return finish(SLUICE_UNIX_STREAM, SLUICE_IN, get_inode(sock), ret);
}

/* The socket's end of a splice(); the pipe's end is counted where pipes are. */
SEC("fentry/unix_stream_splice_read")
int BPF_PROG(stream_splice_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/unix_stream_splice_read")
int BPF_PROG(stream_splice_exit, struct socket *sock, void *ppos, void *pipe, unsigned long size,
	     unsigned int flags, long ret)
{
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	return finish(SLUICE_UNIX_STREAM, SLUICE_IN, get_inode(sock), ret);
}

/* Seqpacket sockets send and receive through these two as well. */
SEC("fentry/unix_dgram_sendmsg")
int BPF_PROG(dgram_send_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/unix_dgram_sendmsg")
int BPF_PROG(dgram_send_exit, struct socket *sock, struct msghdr *msg, unsigned long len, int ret)
{
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	return finish(get_kind(sock->type), SLUICE_OUT, get_peer_inode(sock), ret);
}

SEC("fentry/__unix_dgram_recvmsg")
int BPF_PROG(dgram_receive_enter)
{
	open_frame(FRAME_CALL);
	return 0;
}

SEC("fexit/__unix_dgram_recvmsg")
int BPF_PROG(dgram_receive_exit, struct sock *sk, struct msghdr *msg, unsigned long size, int flags,
	     int ret)
{
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 0;
	if (flags & MSG_PEEK)
		ret = ret > 0 ? 0 : ret;
	/* MSG_TRUNC returns the datagram's length, the buffer took no more than its size. */
	if (ret > 0 && ret > size)
		ret = size;
	return finish(get_kind(sk->sk_socket->type), SLUICE_IN, get_inode(sk->sk_socket), ret);
}
