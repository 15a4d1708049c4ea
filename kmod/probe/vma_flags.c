// SPDX-License-Identifier: GPL-2.0-only
/* Before it, tmpfs took the flags of a mapping as an unsigned long. */
#include <linux/mm.h>
#include <linux/shmem_fs.h>

struct file *probe(struct vfsmount *mnt);
struct file *probe(struct vfsmount *mnt)
{
	return shmem_file_setup_with_mnt(mnt, "", 0, EMPTY_VMA_FLAGS);
}
