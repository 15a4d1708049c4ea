// SPDX-License-Identifier: GPL-2.0-only
/*
 * Arenas, and the descriptors through which they are mapped.
 *
 * A descriptor is an anonymous file that knows what it may do, so that passing it on passes just
 * that. A mapping's file is a third one, on the inode of the region but with operations of ours:
 * with those of tmpfs any mapper could punch holes by madvise(MADV_REMOVE).
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/string_helpers.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "sluice.h"
#include "trace.h"

struct arena_handle {
	struct sluice_arena *arena;
	u32 rights; /* SLUICE_IOC_ROLE_* */
};

struct arena_map {
	struct sluice_arena *arena;
	struct sluice_region *region;
	bool readonly;
};

static atomic64_t last_arena = ATOMIC64_INIT(0);

static void arena_release(struct kref *ref)
{
	struct sluice_arena *arena = container_of(ref, struct sluice_arena, ref);
	int i;

	if (arena->announced)
		trace_sluice_arena_destroy(arena);
	for (i = 0; i < SLUICE_REGIONS; i++)
		sluice_region_destroy(&arena->region[i]);
	for (i = 0; i < SLUICE_DEATHS; i++)
		put_pid(arena->deaths[i].pid);
	xa_destroy(&arena->bells);
	sluice_limits_uncharge(arena);
	kfree(arena);
}

void sluice_arena_put(struct sluice_arena *arena)
{
	kref_put(&arena->ref, arena_release);
}

static u32 arena_peers(struct sluice_arena *arena)
{
	u32 peers;

	sluice_arena_lock(arena);
	peers = arena->nr_peers;
	sluice_arena_unlock(arena);
	return peers;
}

int sluice_arena_info(struct sluice_arena *arena, u32 role, void __user *arg)
{
	struct sluice_ioc_arena_info info;
	int err;

	err = sluice_copy_in(&info, sizeof(info), sizeof(info), arg);
	if (err)
		return err;
	info = (struct sluice_ioc_arena_info){
		.size = info.size,
		.role = role,
		.id = arena->id,
		.control_bytes = arena->region[SLUICE_CONTROL].bytes,
		.data_offset = arena->data_offset,
		.data_bytes = arena->region[SLUICE_DATA].bytes,
		.huge_bytes = sluice_arena_huge_bytes(arena),
		.node = arena->node,
		.peers = arena_peers(arena),
	};
	memcpy(info.label, arena->label, sizeof(info.label));
	return sluice_copy_out(arg, &info, sizeof(info));
}

static const char *role_name(u32 role)
{
	return role == SLUICE_IOC_ROLE_CONSUMER ? "consumer" : "producer";
}

void sluice_arena_show(struct seq_file *m, struct sluice_arena *arena, u32 role)
{
	seq_printf(m, "arena:\t%llu\n", arena->id);
	seq_puts(m, "label:\t");
	seq_escape_mem(m, arena->label, strnlen(arena->label, sizeof(arena->label)),
		       ESCAPE_NAP | ESCAPE_ANY, NULL);
	seq_printf(m, "\ncontrol_bytes:\t%llu\n", arena->region[SLUICE_CONTROL].bytes);
	seq_printf(m, "data_bytes:\t%llu\n", arena->region[SLUICE_DATA].bytes);
	seq_printf(m, "huge_bytes:\t%llu\n", sluice_arena_huge_bytes(arena));
	seq_printf(m, "node:\t%d\n", arena->node);
	seq_printf(m, "role:\t%s\n", role_name(role));
	seq_printf(m, "peers:\t%u\n", arena_peers(arena));
}

static int map_release(struct inode *inode, struct file *file)
{
	struct arena_map *map = file->private_data;

	sluice_arena_put(map->arena);
	kfree(map);
	return 0;
}

static int arena_mmap_region(struct sluice_arena *arena, struct sluice_region *region,
			     bool readonly, struct vm_area_struct *vma);

/* Comes here only from remap_file_pages(), which maps the file of a mapping once more. */
static int map_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct arena_map *map = file->private_data;

	return arena_mmap_region(map->arena, map->region, map->readonly, vma);
}

static unsigned long map_get_unmapped_area(struct file *file, unsigned long addr, unsigned long len,
					   unsigned long pgoff, unsigned long flags)
{
	struct arena_map *map = file->private_data;
	struct file *shmem = map->region->shmem;

	return shmem->f_op->get_unmapped_area(shmem, addr, len, pgoff, flags);
}

static const struct file_operations map_fops = {
	.owner = THIS_MODULE,
	.release = map_release,
	.mmap = map_mmap,
	.get_unmapped_area = map_get_unmapped_area,
};

static struct file *map_open(struct sluice_arena *arena, struct sluice_region *region,
			     bool readonly)
{
	struct inode *inode = file_inode(region->shmem);
	struct arena_map *map;
	struct file *file;

	map = kmalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	if (!map)
		return ERR_PTR(-ENOMEM);
	*map = (struct arena_map){.arena = arena, .region = region, .readonly = readonly};

	/* The last fput() drops one reference of each, and alloc_file_pseudo() takes none. */
	ihold(inode);
	__module_get(THIS_MODULE);
	file = alloc_file_pseudo(inode, region->shmem->f_path.mnt, "sluice",
				 readonly ? O_RDONLY : O_RDWR, &map_fops);
	if (IS_ERR(file)) {
		module_put(THIS_MODULE);
		iput(inode);
		kfree(map);
		return file;
	}
	kref_get(&arena->ref);
	file->private_data = map;
	return file;
}

static int arena_mmap_region(struct sluice_arena *arena, struct sluice_region *region,
			     bool readonly, struct vm_area_struct *vma)
{
	u64 pages = region->bytes >> PAGE_SHIFT;
	struct file *file;

	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_pgoff >= pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC || (readonly && vma->vm_flags & VM_WRITE))
		return -EACCES;

	file = map_open(arena, region, readonly);
	if (IS_ERR(file))
		return PTR_ERR(file);
	vma_set_file(vma, file);
	fput(file);
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	vm_flags_clear(vma, VM_MAYEXEC | (readonly ? VM_MAYWRITE : 0));
	return vfs_mmap(region->shmem, vma);
}

/* Which region an offset belongs to; makes it relative to the region. */
static struct sluice_region *arena_find_region(struct sluice_arena *arena, unsigned long *pgoff)
{
	if (*pgoff < arena->data_offset >> PAGE_SHIFT)
		return &arena->region[SLUICE_CONTROL];
	*pgoff -= arena->data_offset >> PAGE_SHIFT;
	return &arena->region[SLUICE_DATA];
}

static int handle_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct arena_handle *handle = file->private_data;
	struct sluice_arena *arena = handle->arena;
	struct sluice_region *region = arena_find_region(arena, &vma->vm_pgoff);
	bool readonly =
		handle->rights == SLUICE_IOC_ROLE_CONSUMER && region == &arena->region[SLUICE_DATA];

	return arena_mmap_region(arena, region, readonly, vma);
}

static unsigned long handle_get_unmapped_area(struct file *file, unsigned long addr,
					      unsigned long len, unsigned long pgoff,
					      unsigned long flags)
{
	struct arena_handle *handle = file->private_data;
	struct file *shmem = arena_find_region(handle->arena, &pgoff)->shmem;

	/* tmpfs knows how to align for huge pages, and insists on a file of its own. */
	return shmem->f_op->get_unmapped_area(shmem, addr, len, pgoff, flags);
}

static int handle_release(struct inode *inode, struct file *file)
{
	struct arena_handle *handle = file->private_data;

	sluice_arena_put(handle->arena);
	kfree(handle);
	return 0;
}

static void handle_show_fdinfo(struct seq_file *m, struct file *file)
{
	struct arena_handle *handle = file->private_data;

	sluice_arena_show(m, handle->arena, handle->rights);
}

static int handle_create(struct sluice_arena *arena, u32 rights);

static long handle_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct arena_handle *handle = file->private_data;
	void __user *uarg = (void __user *)arg;

	switch (cmd) {
	case SLUICE_IOC_ARENA_RESTRICT:
		return handle_create(handle->arena, SLUICE_IOC_ROLE_CONSUMER);
	case SLUICE_IOC_PEER_ATTACH:
		return sluice_peer_attach(handle->arena, handle->rights, uarg);
	case SLUICE_IOC_ARENA_INFO:
		return sluice_arena_info(handle->arena, handle->rights, uarg);
	case SLUICE_IOC_PEER_LIST:
		return sluice_peer_list(handle->arena, uarg);
	}
	return -ENOTTY;
}

static const struct file_operations handle_fops = {
	.owner = THIS_MODULE,
	.release = handle_release,
	.mmap = handle_mmap,
	.get_unmapped_area = handle_get_unmapped_area,
	.unlocked_ioctl = handle_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = handle_show_fdinfo,
};

/* A new descriptor, with a reference to the arena of its own. */
static int handle_create(struct sluice_arena *arena, u32 rights)
{
	struct arena_handle *handle;
	int fd;

	handle = kmalloc(sizeof(*handle), GFP_KERNEL_ACCOUNT);
	if (!handle)
		return -ENOMEM;
	*handle = (struct arena_handle){.arena = arena, .rights = rights};
	kref_get(&arena->ref);
	fd = anon_inode_getfd("[sluice-arena]", &handle_fops, handle, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		sluice_arena_put(arena);
		kfree(handle);
	}
	return fd;
}

static int arena_check(const struct sluice_ioc_arena_create *args)
{
	const u64 most = MAX_LFS_FILESIZE / 4;

	if (args->reserved ||
	    args->flags & ~(SLUICE_IOC_HUGE_PREFERRED | SLUICE_IOC_HUGE_REQUIRED) ||
	    hweight32(args->flags) > 1)
		return -EINVAL;
	if (!args->control_bytes || !args->data_bytes || args->control_bytes > most ||
	    args->data_bytes > most)
		return -EINVAL;
	if (args->node != NUMA_NO_NODE &&
	    (args->node < 0 || args->node >= MAX_NUMNODES || !node_state(args->node, N_MEMORY)))
		return -EINVAL;
	if (args->flags & SLUICE_IOC_HUGE_REQUIRED && !IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		return -ENOMEM;
	return 0;
}

static int arena_reserve(struct sluice_arena *arena, const struct sluice_ioc_arena_create *args)
{
	const u64 bytes[] = {PAGE_ALIGN(args->control_bytes), PAGE_ALIGN(args->data_bytes)};
	u32 flags = IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) ? args->flags : 0;
	int i, err;

	err = sluice_limits_charge(arena, bytes[SLUICE_CONTROL] + bytes[SLUICE_DATA]);
	for (i = 0; !err && i < SLUICE_REGIONS; i++)
		err = sluice_region_create(&arena->region[i], "sluice", bytes[i], args->node,
					   flags);
	return err;
}

/**
 * sluice_arena_create() - Make an arena of which all memory is there
 * @args: as user space gave it
 *
 * Return: a descriptor, or a negative errno.
 */
int sluice_arena_create(const struct sluice_ioc_arena_create *args)
{
	struct sluice_arena *arena;
	int err;

	err = arena_check(args);
	if (err)
		return err;
	arena = kzalloc(sizeof(*arena), GFP_KERNEL_ACCOUNT);
	if (!arena)
		return -ENOMEM;
	kref_init(&arena->ref);
	mutex_init(&arena->attach_lock);
	init_llist_head(&arena->gone);
	spin_lock_init(&arena->lock);
	INIT_LIST_HEAD(&arena->peers);
	xa_init_flags(&arena->bells, XA_FLAGS_ACCOUNT);
	arena->id = atomic64_inc_return(&last_arena);
	arena->node = args->node;
	memcpy(arena->label, args->label, sizeof(arena->label));
	arena->data_offset = ALIGN(args->control_bytes, SZ_2M);

	err = arena_reserve(arena, args);
	if (!err) {
		arena->announced = true;
		trace_sluice_arena_create(arena);
		err = handle_create(arena, SLUICE_IOC_ROLE_PRODUCER);
	}
	sluice_arena_put(arena);
	return err;
}
