/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types: those of the build host, or of the image that VMLINUX_BTF names, in vmlinux.h,
 * which the build generates. Where there are none to be had, the few that the programs read are below
 * by hand; nothing is lost by that but the compiler's word that these fields exist. In either case
 * fields are found by name in the running kernel's BTF when the programs are loaded.
 */
#ifndef SLUICE_KERNEL_H
#define SLUICE_KERNEL_H

/* What only macros in the kernel have names for. */
#define FMODE_READ   1u
#define FMODE_WRITE  2u
#define VM_SHARED    8ul
#define MSG_PEEK     2
#define PIPEFS_MAGIC 0x50495045
#define EPOLLIN	     1u
#define EPOLLHUP     16u
#define E2BIG	     7

#ifdef SLUICE_VMLINUX

/* A type of some driver's, here the name of a map. */
#define config kernel_config
#include "vmlinux.h"
#undef config

#else

/* Tells bpf_tracing.h to use the kernel's names of registers. */
#define __VMLINUX_H__

#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>

typedef __u64 u64;
typedef __u32 u32;

#define SOCK_STREAM    1
#define SOCK_SEQPACKET 5
#define TASK_COMM_LEN  16

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct task_struct {
	unsigned int __state;
	int pid;
	int tgid;
	u64 start_boottime;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	char comm[TASK_COMM_LEN];
};

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file {
	unsigned int f_mode;
	struct inode *f_inode;
};

struct kiocb {
	struct file *ki_filp;
};

struct iov_iter;
struct msghdr;
struct page;
struct pipe_inode_info;

struct sock;

struct socket {
	short type;
	struct file *file;
	struct sock *sk;
};

struct sock {
	struct socket *sk_socket;
};

struct unix_sock {
	struct sock sk;
	struct sock *peer;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

struct vm_area_struct {
	unsigned long vm_flags;
};

struct poll_table_struct {
	void *_qproc;
};

struct poll_wqueues {
	struct poll_table_struct pt;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
	void *value;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	u64 regs[31];
	u64 sp, pc, pstate;
};

struct pt_regs {
	struct user_pt_regs user_regs;
	u64 orig_x0;
};
#endif

#pragma clang attribute pop

#endif /* SLUICE_VMLINUX */

#endif /* SLUICE_KERNEL_H */
