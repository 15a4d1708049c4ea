/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/*
 * The interface of /dev/sluice.
 *
 * Every structure starts with its size, as the caller's header knows it. A kernel that knows more
 * fields takes the missing ones as zero; one that knows fewer answers E2BIG if a field that it does
 * not know is not zero. Reserved fields and unknown flags must be zero (EINVAL). A size below the
 * structure of the first version is EINVAL. Every descriptor is born close-on-exec.
 */
#ifndef _UAPI_SLUICE_H
#define _UAPI_SLUICE_H

#include <linux/const.h>
#include <linux/ioctl.h>
#include <linux/types.h>

#define SLUICE_ABI_VERSION 1

/* Features that a caller may require in struct sluice_ioc_hello. */
#define SLUICE_FEATURE_HUGE	  _BITULL(0) /* arenas of 2 MiB pages */
#define SLUICE_FEATURE_NODE	  _BITULL(1) /* sluice_ioc_arena_create.node */
#define SLUICE_FEATURE_EXIT_CODES _BITULL(2) /* SLUICE_BELL_PEER_DEAD carries the wait status */

#define SLUICE_IOC_LABEL_SIZE 32

/**
 * struct sluice_ioc_hello - Greeting, both ways
 * @size: sizeof(struct sluice_ioc_hello)
 * @abi: in: SLUICE_ABI_VERSION of the caller's header; out: of the module
 * @features: in: SLUICE_FEATURE_* that the caller cannot do without; out: those of the module
 * @reserved: zero
 *
 * The answer is filled in even if the call fails with EPROTO (the versions differ) or EOPNOTSUPP
 * (a required feature is missing), so that the caller can name both sides.
 */
struct sluice_ioc_hello {
	__u32 size;
	__u32 abi;
	__u64 features;
	__u64 reserved[2];
};

/* sluice_ioc_arena_create.flags; without one of them pages are small. */
#define SLUICE_IOC_HUGE_PREFERRED _BITUL(0) /* huge where memory is not too fragmented */
#define SLUICE_IOC_HUGE_REQUIRED  _BITUL(1) /* ENOMEM unless all that can be huge is */

/**
 * struct sluice_ioc_arena_create - What to reserve
 * @size: sizeof(struct sluice_ioc_arena_create)
 * @flags: SLUICE_IOC_HUGE_PREFERRED or SLUICE_IOC_HUGE_REQUIRED or none
 * @control_bytes: control region, at least 1, rounded up to pages
 * @data_bytes: data region, at least 1, rounded up to pages
 * @node: NUMA node that all the memory must come from, -1 for any
 * @reserved: zero
 * @label: for humans, ends with a NUL unless it fills the array
 *
 * The call returns a descriptor of the arena. All memory is there when it returns, is charged to
 * the caller's memory cgroup, and stays until the last descriptor and mapping are gone.
 *
 * ENOMEM: not enough memory (or not enough huge pages). EDQUOT, EFBIG, ENOSPC: over the limit of a
 * user, of one arena, of all arenas; the kernel log names the limit.
 */
struct sluice_ioc_arena_create {
	__u32 size;
	__u32 flags;
	__u64 control_bytes;
	__u64 data_bytes;
	__s32 node;
	__u32 reserved;
	char label[SLUICE_IOC_LABEL_SIZE];
};

/* sluice_ioc_peer_attach.role, sluice_ioc_arena_info.role */
#define SLUICE_IOC_ROLE_PRODUCER 1 /* maps both regions read-write */
#define SLUICE_IOC_ROLE_CONSUMER 2 /* maps control read-write, data read-only */

/**
 * struct sluice_ioc_arena_info - What an arena is
 * @size: sizeof(struct sluice_ioc_arena_info)
 * @role: SLUICE_IOC_ROLE_* that this descriptor can map and attach as
 * @id: never used twice while the module is loaded
 * @control_bytes: bytes that can be mapped from offset 0
 * @data_offset: offset to give to mmap() for the data region, a multiple of 2 MiB
 * @data_bytes: bytes that can be mapped from @data_offset
 * @huge_bytes: bytes of the data region that are in huge pages
 * @node: NUMA node asked for, -1 for any
 * @peers: living peers
 * @label: as given
 */
struct sluice_ioc_arena_info {
	__u32 size;
	__u32 role;
	__u64 id;
	__u64 control_bytes;
	__u64 data_offset;
	__u64 data_bytes;
	__u64 huge_bytes;
	__s32 node;
	__u32 peers;
	char label[SLUICE_IOC_LABEL_SIZE];
};

/**
 * struct sluice_ioc_peer_attach - Become a peer
 * @size: sizeof(struct sluice_ioc_peer_attach)
 * @role: SLUICE_IOC_ROLE_*; EPERM if the descriptor does not carry it
 * @peer: out: id, never used twice in the arena, never 0
 * @bell: out: id of the first bell, never used twice in the arena, never 0
 *
 * Returns the descriptor of the peer's first bell. The calling process is the peer until its last
 * bell is closed, it exits, is killed or calls execve(). A child that inherits the descriptor is
 * not the peer and does not keep it alive.
 */
struct sluice_ioc_peer_attach {
	__u32 size;
	__u32 role;
	__u32 peer;
	__u32 bell;
};

/**
 * struct sluice_ioc_bell_open - One more bell of the same peer
 * @size: sizeof(struct sluice_ioc_bell_open)
 * @bell: out: its id
 *
 * On any bell of the peer, by the process that attached (EPERM otherwise). Returns a descriptor.
 */
struct sluice_ioc_bell_open {
	__u32 size;
	__u32 bell;
};

/**
 * struct sluice_ioc_peer_info - One living peer
 * @peer: id
 * @role: SLUICE_IOC_ROLE_*
 * @pid: process, in the caller's pid namespace; 0 if it is not visible there
 * @bell: its first bell
 */
struct sluice_ioc_peer_info {
	__u32 peer;
	__u32 role;
	__u32 pid;
	__u32 bell;
};

/**
 * struct sluice_ioc_peer_list - Who lives
 * @size: sizeof(struct sluice_ioc_peer_list)
 * @count: in: room at @peers; out: living peers, which may be more than fit
 * @peers: address of an array of struct sluice_ioc_peer_info
 */
struct sluice_ioc_peer_list {
	__u32 size;
	__u32 count;
	__u64 peers;
};

#define SLUICE_BELL_DOORBELL   1
#define SLUICE_BELL_COMPLETION 2
#define SLUICE_BELL_PEER_DEAD  3
#define SLUICE_BELL_OVERFLOW   4

/**
 * struct sluice_bell_message - What is written to a bell
 * @to_bell: bell to ring; ESRCH if there is none
 * @type: SLUICE_BELL_DOORBELL or SLUICE_BELL_COMPLETION
 * @arg: handed on as it is
 *
 * A write takes whole messages, in order, and stops at the first that fails.
 */
struct sluice_bell_message {
	__u32 to_bell;
	__u32 type;
	__u64 arg;
};

/* sluice_bell_record.arg of SLUICE_BELL_PEER_DEAD */
#define SLUICE_DEAD_LEFT	    1 /* closed its last bell */
#define SLUICE_DEAD_EXIT	    2 /* exited or was killed; the status says how */
#define SLUICE_DEAD_EXEC	    3 /* runs another program now */
#define SLUICE_DEAD_REASON(arg)	    ((__u32)((arg) >> 32))
#define SLUICE_DEAD_STATUS(arg)	    ((__u32)(arg)) /* as of waitpid() */
#define SLUICE_DEAD(reason, status) (((__u64)(reason) << 32) | (__u32)(status))

/**
 * struct sluice_bell_record - What is read from a bell
 * @type: SLUICE_*
 * @from_peer: sender, or the peer that died; stamped by the kernel
 * @from_bell: bell that the sender wrote to; stamped by the kernel; 0 for deaths
 * @pid: process of @from_peer in the reader's pid namespace, 0 if not visible there
 * @arg: the sender's, or SLUICE_DEAD()
 *
 * A read returns whole records, as many as there are and fit. SLUICE_BELL_OVERFLOW says that some
 * were merged because nobody read them in time: look at everything. Deaths do not share the queue
 * with other records, and are only merged when more than 256 are unread. A bell of a dead peer
 * reads as end of file.
 *
 * Once a process was waited for, read(), poll() and SLUICE_IOC_PEER_LIST know of its death. Who
 * sleeps, or asks an epoll, hears of it a moment later.
 */
struct sluice_bell_record {
	__u32 type;
	__u32 from_peer;
	__u32 from_bell;
	__u32 pid;
	__u64 arg;
};

#define SLUICE_IOC_MAGIC 0xe9

/* On the device. */
#define SLUICE_IOC_HELLO	_IOWR(SLUICE_IOC_MAGIC, 0x00, struct sluice_ioc_hello)
#define SLUICE_IOC_ARENA_CREATE _IOW(SLUICE_IOC_MAGIC, 0x01, struct sluice_ioc_arena_create)
/* On an arena: a new descriptor that can only attach and map as consumer. */
#define SLUICE_IOC_ARENA_RESTRICT _IO(SLUICE_IOC_MAGIC, 0x02)
#define SLUICE_IOC_PEER_ATTACH	  _IOWR(SLUICE_IOC_MAGIC, 0x03, struct sluice_ioc_peer_attach)
/* On an arena or a bell. */
#define SLUICE_IOC_ARENA_INFO _IOWR(SLUICE_IOC_MAGIC, 0x04, struct sluice_ioc_arena_info)
#define SLUICE_IOC_PEER_LIST  _IOWR(SLUICE_IOC_MAGIC, 0x05, struct sluice_ioc_peer_list)
/* On a bell. */
#define SLUICE_IOC_BELL_OPEN _IOWR(SLUICE_IOC_MAGIC, 0x06, struct sluice_ioc_bell_open)

#endif
