// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory: a region is an unlinked tmpfs file of which every folio is present and carries one
 * reference of ours, so that it is neither reclaimed nor migrated nor split. There is no table of
 * them: what cannot move can be found again by walking the file.
 */
#include <linux/gfp.h>
#include <linux/mount.h>
#include <linux/nodemask.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>

#include "compat.h"
#include "sluice.h"

/* Not movable, or a long-term pin would have to migrate it; fails before the OOM killer comes. */
#define REGION_GFP (GFP_HIGHUSER | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

/* Private tmpfs mounts, one for each policy in use: pages of any node, then of each node. */
static struct vfsmount *region_mounts[2][MAX_NUMNODES + 1];
static DEFINE_MUTEX(region_mounts_lock);

static struct vfsmount *region_mount(int node, bool huge)
{
	struct vfsmount **slot = &region_mounts[huge][node + 1];
	struct file_system_type *type;
	struct vfsmount *mnt;
	char opts[64] = "";
	int len = 0;

	mutex_lock(&region_mounts_lock);
	mnt = *slot;
	if (mnt)
		goto out;
	if (huge)
		len = scnprintf(opts, sizeof(opts), "huge=within_size");
	if (node >= 0 && IS_ENABLED(CONFIG_NUMA))
		scnprintf(opts + len, sizeof(opts) - len, "%smpol=bind:%d", len ? "," : "", node);
	type = get_fs_type("tmpfs");
	mnt = type ? vfs_kern_mount(type, SB_KERNMOUNT, "tmpfs", opts) : ERR_PTR(-ENODEV);
	if (!IS_ERR(mnt))
		*slot = mnt;
out:
	mutex_unlock(&region_mounts_lock);
	return mnt;
}

void sluice_region_exit(void)
{
	int i;

	for (i = 0; i <= MAX_NUMNODES; i++) {
		if (region_mounts[0][i])
			kern_unmount(region_mounts[0][i]);
		if (region_mounts[1][i])
			kern_unmount(region_mounts[1][i]);
	}
}

/* Nobody may come by another way (a link below /proc) and get tmpfs operations on the inode. */
static int region_no_open(struct inode *inode, struct file *file)
{
	return -ENXIO;
}

static const struct file_operations region_inode_fops = {
	.open = region_no_open,
};

/*
 * tmpfs does not compact memory for pages that the kernel asks for. Have a huge page made and give
 * it back: the page allocator hands the same one out again a moment later.
 */
static bool region_prepare_huge(int node, bool required)
{
	gfp_t gfp = GFP_HIGHUSER | __GFP_COMP | __GFP_NOWARN;
	struct page *page;

	gfp |= required ? __GFP_RETRY_MAYFAIL : __GFP_NORETRY;
	if (node < 0)
		node = numa_mem_id();
	else
		gfp |= __GFP_THISNODE;
	page = alloc_pages_node(node, gfp, HPAGE_PMD_ORDER);
	if (!page)
		return false;
	__free_pages(page, HPAGE_PMD_ORDER);
	return true;
}

static int region_populate(struct sluice_region *region, int node, u32 flags)
{
	struct address_space *mapping = region->shmem->f_mapping;
	pgoff_t end = region->bytes >> PAGE_SHIFT;
	bool prepare = flags;
	struct folio *folio;
	struct page *page;

	while (region->pinned < end) {
		if (fatal_signal_pending(current))
			return -EINTR;
		if (prepare && IS_ALIGNED(region->pinned, HPAGE_PMD_NR) &&
		    end - region->pinned >= HPAGE_PMD_NR)
			prepare = region_prepare_huge(node, flags & SLUICE_IOC_HUGE_REQUIRED);
		page = shmem_read_mapping_page_gfp(mapping, region->pinned, REGION_GFP);
		if (IS_ERR(page))
			return PTR_ERR(page);
		folio = page_folio(page);
		region->pinned = folio->index + folio_nr_pages(folio);
		if (folio_nr_pages(folio) >= HPAGE_PMD_NR)
			region->huge_bytes += folio_size(folio);
		cond_resched();
	}
	if (flags & SLUICE_IOC_HUGE_REQUIRED &&
	    region->huge_bytes < ALIGN_DOWN(region->bytes, HPAGE_PMD_SIZE))
		return -ENOMEM;
	return 0;
}

static void region_unpin(struct sluice_region *region)
{
	struct address_space *mapping = region->shmem->f_mapping;
	struct folio *folio;
	struct page *page;
	pgoff_t index = 0;

	while (index < region->pinned) {
		page = shmem_read_mapping_page_gfp(mapping, index, REGION_GFP);
		if (IS_ERR(page)) {
			/* Broken memory is never given back. */
			index++;
			continue;
		}
		folio = page_folio(page);
		index = folio->index + folio_nr_pages(folio);
		folio_put_refs(folio, 2);
		cond_resched();
	}
}

/**
 * sluice_region_create() - Reserve, fault in and pin
 * @region: to fill in, zeroed; sluice_region_destroy() also after an error
 * @label: name that shows in /proc/PID/maps
 * @bytes: whole pages
 * @node: node to take all pages from, or NUMA_NO_NODE
 * @flags: SLUICE_IOC_HUGE_*
 */
int sluice_region_create(struct sluice_region *region, const char *label, u64 bytes, int node,
			 u32 flags)
{
	struct vfsmount *mnt = region_mount(node, flags);
	struct inode *inode;
	struct file *file;

	if (IS_ERR(mnt))
		return PTR_ERR(mnt);
	file = shmem_file_setup_with_mnt(mnt, label, bytes, SLUICE_SHMEM_FLAGS);
	/* No limit is set on our tmpfs: what it lacked for the inode is memory. */
	if (IS_ERR(file))
		return PTR_ERR(file) == -ENOSPC ? -ENOMEM : PTR_ERR(file);
	inode = file_inode(file);
	inode->i_fop = &region_inode_fops;
	SHMEM_I(inode)->seals |= F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	mapping_set_gfp_mask(file->f_mapping, REGION_GFP);
	mapping_set_unevictable(file->f_mapping);
	region->shmem = file;
	region->bytes = bytes;
	return region_populate(region, node, flags);
}

void sluice_region_destroy(struct sluice_region *region)
{
	if (!region->shmem)
		return;
	region_unpin(region);
	fput(region->shmem);
}
