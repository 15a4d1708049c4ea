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

static __always_inline enum sluice_kind get_socket_kind(short type)
{
	if (type == SOCK_STREAM)
		return SLUICE_UNIX_STREAM;
	return type == SOCK_SEQPACKET ? SLUICE_UNIX_SEQPACKET : SLUICE_UNIX_DGRAM;
}

static __always_inline void finish(struct record *rec, enum sluice_kind kind, enum sluice_dir dir,
				   u64 ino, long ret)
{
	struct channel ch = {.ino = ino};
	struct duration d;

	close_frame(rec, FRAME_CALL, &d);
	count_call(kind, dir, ret, &ch, &d);
}

static __always_inline void count_stream_send(struct record *rec, const struct call *call)
{
	struct socket *sock = arg_ptr(call, 0, struct socket);

	finish(rec, SLUICE_UNIX_STREAM, SLUICE_OUT, get_peer_inode(sock), (int)call->ret);
}

COUNT_CALLS(stream_send, "unix_stream_sendmsg", FRAME_CALL, 3, count_stream_send)
/* splice() into a stream socket, until it became a sendmsg() as well. */
COUNT_CALLS(stream_sendpage, "unix_stream_sendpage", FRAME_CALL, 5, count_stream_send)

static __always_inline void count_stream_receive(struct record *rec, const struct call *call)
{
	struct socket *sock = arg_ptr(call, 0, struct socket);
	long ret = (int)call->ret;

	/* What is looked at stays there and is counted when it is taken. */
	if (call->args[3] & MSG_PEEK)
		ret = ret > 0 ? 0 : ret;
	finish(rec, SLUICE_UNIX_STREAM, SLUICE_IN, get_inode(sock), ret);
}

COUNT_CALLS(stream_receive, "unix_stream_recvmsg", FRAME_CALL, 4, count_stream_receive)

/* The socket's end of a splice(); the pipe's end is counted where pipes are. */
static __always_inline void count_stream_splice(struct record *rec, const struct call *call)
{
	struct socket *sock = arg_ptr(call, 0, struct socket);

	finish(rec, SLUICE_UNIX_STREAM, SLUICE_IN, get_inode(sock), call->ret);
}

COUNT_CALLS(stream_splice, "unix_stream_splice_read", FRAME_CALL, 5, count_stream_splice)

/* Seqpacket sockets send and receive through these two as well. */
static __always_inline void count_dgram_send(struct record *rec, const struct call *call)
{
	struct socket *sock = arg_ptr(call, 0, struct socket);

	finish(rec, get_socket_kind(sock->type), SLUICE_OUT, get_peer_inode(sock), (int)call->ret);
}

COUNT_CALLS(dgram_send, "unix_dgram_sendmsg", FRAME_CALL, 3, count_dgram_send)

static __always_inline void count_dgram_receive(struct record *rec, const struct call *call)
{
	struct socket *sock = arg_ptr(call, 0, struct sock)->sk_socket;
	unsigned long size = call->args[2];
	long ret = (int)call->ret;

	if (call->args[3] & MSG_PEEK)
		ret = ret > 0 ? 0 : ret;
	/* MSG_TRUNC returns the datagram's length, the buffer took no more than its size. */
	if (ret > 0 && ret > size)
		ret = size;
	finish(rec, get_socket_kind(sock->type), SLUICE_IN, get_inode(sock), ret);
}

COUNT_CALLS(dgram_receive, "__unix_dgram_recvmsg", FRAME_CALL, 4, count_dgram_receive)
