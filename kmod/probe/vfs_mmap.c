// SPDX-License-Identifier: GPL-2.0-only
/* Before it, a driver called a file's mmap operation by call_mmap(). */
#include <linux/fs.h>

int probe(struct file *file, struct vm_area_struct *vma);
int probe(struct file *file, struct vm_area_struct *vma)
{
	return vfs_mmap(file, vma);
}
