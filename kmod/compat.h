/* SPDX-License-Identifier: GPL-2.0-only */
/* Interfaces that differ between kernels; Kbuild finds out which ones this kernel has. */
#ifndef _SLUICE_COMPAT_H
#define _SLUICE_COMPAT_H

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/shmem_fs.h>

#ifndef CONFIG_MMU_NOTIFIER
#error "sluice learns of execve() through CONFIG_MMU_NOTIFIER, which this kernel lacks"
#endif

#ifndef SLUICE_HAVE_vfs_mmap
#define vfs_mmap call_mmap
#endif

#ifndef SLUICE_HAVE_vm_flags_set
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* No flags: the whole size counts against overcommit at once. */
#ifdef SLUICE_HAVE_vma_flags
#define SLUICE_SHMEM_FLAGS EMPTY_VMA_FLAGS
#else
#define SLUICE_SHMEM_FLAGS 0
#endif

#endif
