// SPDX-License-Identifier: GPL-2.0-only
/* The device: greeting, creation of arenas, and how structures cross the border. */
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "sluice.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

#define FEATURES                                                               \
	((IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) ? SLUICE_FEATURE_HUGE : 0) | \
	 (IS_ENABLED(CONFIG_NUMA) ? SLUICE_FEATURE_NODE : 0) | SLUICE_FEATURE_EXIT_CODES)

/**
 * sluice_copy_in() - Take a structure that starts with its size
 * @to: here
 * @known: bytes of the structure that this module knows
 * @least: bytes of its first version
 * @from: from there
 *
 * Return: 0, -EFAULT, -EINVAL (too short) or -E2BIG (asks for something unknown).
 */
int sluice_copy_in(void *to, size_t known, size_t least, const void __user *from)
{
	u32 size;

	if (get_user(size, (const u32 __user *)from))
		return -EFAULT;
	if (size < least)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	return copy_struct_from_user(to, known, from, size);
}

/* The other way round: as much as the caller has room for, by the size in @from. */
int sluice_copy_out(void __user *to, const void *from, size_t known)
{
	size_t size = min_t(size_t, *(const u32 *)from, known);

	return copy_to_user(to, from, size) ? -EFAULT : 0;
}

/* Consumes @file, whatever happens. */
int sluice_install_fd(struct file *file, void __user *to, const void *from, size_t known)
{
	int fd = get_unused_fd_flags(O_CLOEXEC);
	int err = fd < 0 ? fd : sluice_copy_out(to, from, known);

	if (err) {
		if (fd >= 0)
			put_unused_fd(fd);
		fput(file);
		return err;
	}
	fd_install(fd, file);
	return fd;
}

static long device_hello(void __user *arg)
{
	struct sluice_ioc_hello hello;
	u64 wanted;
	u32 abi;
	int err;

	err = sluice_copy_in(&hello, sizeof(hello), sizeof(hello), arg);
	if (err)
		return err;
	if (hello.reserved[0] || hello.reserved[1])
		return -EINVAL;
	abi = hello.abi;
	wanted = hello.features;
	hello.abi = SLUICE_ABI_VERSION;
	hello.features = FEATURES;
	err = sluice_copy_out(arg, &hello, sizeof(hello));
	if (err)
		return err;
	if (abi != SLUICE_ABI_VERSION)
		return -EPROTO;
	return wanted & ~FEATURES ? -EOPNOTSUPP : 0;
}

static long device_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct sluice_ioc_arena_create args;
	void __user *uarg = (void __user *)arg;
	int err;

	switch (cmd) {
	case SLUICE_IOC_HELLO:
		return device_hello(uarg);
	case SLUICE_IOC_ARENA_CREATE:
		err = sluice_copy_in(&args, sizeof(args), sizeof(args), uarg);
		return err ?: sluice_arena_create(&args);
	}
	return -ENOTTY;
}

static const struct file_operations device_fops = {
	.owner = THIS_MODULE,
	.open = nonseekable_open,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "sluice",
	.fops = &device_fops,
	.mode = 0660,
};

static int __init sluice_init(void)
{
	int err = sluice_peer_init();

	if (err)
		return err;
	err = misc_register(&device);
	if (err)
		sluice_peer_exit();
	return err;
}

static void __exit sluice_exit(void)
{
	misc_deregister(&device);
	sluice_peer_exit();
	sluice_region_exit();
}

module_init(sluice_init);
module_exit(sluice_exit);
MODULE_DESCRIPTION("Pinned huge-page arenas for moving batches between processes and GPUs");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
