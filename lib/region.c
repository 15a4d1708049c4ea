// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "error.h"
#include "memlimit.h"
#include "sluice.h"

/* Younger than the C library of Debian 12, or kept back by it. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

#define THP_BYTES   (2ULL << 20)
#define CHUNK_BYTES (32ULL << 20)
#define MAX_THREADS 64
#define SEALS	    (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NODE_BITS   1024
#define LONG_BITS   (8 * sizeof(long))

struct prefault {
	char *base;
	uint64_t bytes;
	int fd;
	bool collapse; /* huge pages come only when asked for one by one */
	_Atomic uint64_t next; /* offset of the chunk that nobody works on yet */
	_Atomic int err;
};

static uint64_t page_bytes(void)
{
	return sysconf(_SC_PAGESIZE);
}

static void words_read(const char *path, char *buf, size_t len)
{
	FILE *f = fopen(path, "re");

	if (!f || !fgets(buf, len, f))
		snprintf(buf, len, "unknown");
	buf[strcspn(buf, "\n")] = '\0';
	if (f)
		fclose(f);
}

static uint64_t meminfo_field(const char *key)
{
	FILE *f = fopen("/proc/meminfo", "re");
	size_t n = strlen(key), cap = 0;
	uint64_t value = 0;
	char *line = NULL;

	if (!f)
		return 0;
	while (getline(&line, &cap, f) > 0) {
		if (!strncmp(line, key, n))
			value = strtoull(line + n, NULL, 10);
	}
	free(line);
	fclose(f);
	return value;
}

/* ------------------------------------------------------------------ files and mappings */

static int memfd_make(const char *name, const char *label, uint64_t bytes, unsigned int flags)
{
	struct rlimit limit;
	char full[128];
	int fd, err;

	/* Going past it is a signal that kills the caller, not an error. */
	if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
	    bytes > limit.rlim_cur)
		return sluice_fail(ENOMEM,
				   "arena memory: asked %" PRIu64
				   " bytes, but RLIMIT_FSIZE of this "
				   "process is %" PRIu64,
				   bytes, (uint64_t)limit.rlim_cur);

	snprintf(full, sizeof(full), "%s%.31s", name, label ? label : "");
	flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
	fd = memfd_create(full, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(full, flags);
	if (fd < 0)
		return sluice_fail(errno, "memfd_create for %s failed: %s", full, strerror(errno));

	/* Whoever got a read-only descriptor and is another user cannot open a writable one. */
	if (fchmod(fd, 0644) || ftruncate(fd, bytes) || fcntl(fd, F_ADD_SEALS, SEALS)) {
		err = errno;
		close(fd);
		return sluice_fail(err, "sizing and sealing %s to %" PRIu64 " bytes failed: %s",
				   full, bytes, strerror(err));
	}
	return fd;
}

static int map_aligned(void **out, int fd, uint64_t bytes, int prot, uint64_t align)
{
	uint64_t lead, room;
	char *base;
	void *p;

	if (bytes > SIZE_MAX - align)
		return sluice_fail(ENOMEM, "mapping %" PRIu64 " bytes: more than an address space",
				   bytes);
	room = bytes + align;
	base = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return sluice_fail(errno, "mapping %" PRIu64 " bytes failed: %s", bytes,
				   strerror(errno));

	lead = -(uintptr_t)base & (align - 1);
	p = mmap(base + lead, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (p == MAP_FAILED) {
		int err = errno;

		munmap(base, room);
		return sluice_fail(err, "mapping %" PRIu64 " bytes failed: %s", bytes,
				   strerror(err));
	}
	if (lead)
		munmap(base, lead);
	munmap(base + lead + bytes, room - lead - bytes);
	*out = p;
	return 0;
}

static int node_bind(void *p, uint64_t bytes, int node)
{
	unsigned long mask[NODE_BITS / LONG_BITS] = {0};
	char path[64], online[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", node);
	words_read("/sys/devices/system/node/online", online, sizeof(online));
	if (node < 0 || node >= NODE_BITS || (access(path, F_OK) && strcmp(online, "unknown")))
		return sluice_fail(EINVAL, "NUMA node %d does not exist: this machine has %s", node,
				   online);
	mask[node / LONG_BITS] = 1UL << (node % LONG_BITS);
	if (syscall(SYS_mbind, p, bytes, MPOL_BIND, mask, NODE_BITS + 1, 0)) {
		int err = errno == ENOSYS ? ENOTSUP : errno;

		return sluice_fail(err, "binding memory to NUMA node %d failed: %s", node,
				   strerror(errno));
	}
	return 0;
}

/* Bytes of [p, p + bytes) that this process maps through huge-page entries; -1 when unknown. */
static int64_t huge_mapped(const void *p, uint64_t bytes)
{
	uintptr_t first = (uintptr_t)p, start, end;
	FILE *f = fopen("/proc/self/smaps", "re");
	bool inside = false;
	uint64_t sum = 0;
	char *line = NULL;
	size_t cap = 0;

	if (!f)
		return -1;
	while (getline(&line, &cap, f) > 0) {
		uint64_t kib;

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &start, &end) == 2)
			inside = start >= first && end <= first + bytes;
		else if (inside && (sscanf(line, "ShmemPmdMapped: %" SCNu64, &kib) == 1 ||
				    sscanf(line, "FilePmdMapped: %" SCNu64, &kib) == 1))
			sum += kib << 10;
	}
	free(line);
	fclose(f);
	return sum;
}

/* ------------------------------------------------------------------ faulting in */

static int madvise_retry(char *p, uint64_t bytes, int advice)
{
	int ret;

	do {
		ret = madvise(p, bytes, advice) ? -errno : 0;
	} while (ret == -EAGAIN || ret == -EINTR);
	return ret;
}

static int populate(const struct prefault *pf, uint64_t off, uint64_t bytes)
{
	int ret = madvise_retry(pf->base + off, bytes, MADV_POPULATE_WRITE);

	if (ret != -EINVAL)
		return ret;
	/*
	 * Kernel before 5.14.  The kernel writes one byte of each page, with the value it has:
	 * unlike a store, that is -EFAULT and not SIGBUS where memory has run out after all.
	 */
	for (uint64_t end = off + bytes; off < end; off += page_bytes()) {
		if (pread(pf->fd, pf->base + off, 1, off) < 0)
			return -errno;
	}
	return 0;
}

static int prefault_chunk(const struct prefault *pf, uint64_t off, uint64_t bytes)
{
	if (pf->collapse && bytes >= THP_BYTES) {
		/* The node that one page of each range is on decides where the huge page goes. */
		for (uint64_t o = off; o + THP_BYTES <= off + bytes; o += THP_BYTES) {
			int ret = populate(pf, o, page_bytes());

			if (ret)
				return ret;
		}
		madvise_retry(pf->base + off, bytes & ~(THP_BYTES - 1), MADV_COLLAPSE);
	}
	return populate(pf, off, bytes);
}

static void *prefault_run(void *arg)
{
	struct prefault *pf = arg;
	int none = 0, ret;
	uint64_t off, n;

	while (!pf->err && (off = atomic_fetch_add(&pf->next, CHUNK_BYTES)) < pf->bytes) {
		n = pf->bytes - off < CHUNK_BYTES ? pf->bytes - off : CHUNK_BYTES;
		ret = prefault_chunk(pf, off, n);
		if (ret)
			atomic_compare_exchange_strong(&pf->err, &none, ret);
	}
	return NULL;
}

static unsigned int prefault_threads(uint64_t bytes, unsigned int asked)
{
	uint64_t chunks = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
	unsigned int n = asked;
	cpu_set_t cpus;

	if (!n)
		n = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : CPU_COUNT(&cpus);
	if (n > MAX_THREADS)
		n = MAX_THREADS;
	return n < chunks ? n : chunks;
}

/* A thread that cannot be had is no error: the caller works too. */
static int prefault_all(struct prefault *pf, unsigned int threads)
{
	pthread_t tid[MAX_THREADS];
	unsigned int started = 0;
	sigset_t all, old;

	/* The signals of the program are not for these threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (started + 1 < threads && !pthread_create(&tid[started], NULL, prefault_run, pf))
		started++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	prefault_run(pf);
	while (started)
		pthread_join(tid[--started], NULL);
	return pf->err;
}

/* ------------------------------------------------------------------ the data region */

static int data_open(struct sluice_region *r, const struct sluice_region_req *req,
		     unsigned int mfd_flags, uint64_t align)
{
	int ret;

	r->data_fd = memfd_make(SLUICE_REGION_DATA_NAME, req->label, req->data_bytes, mfd_flags);
	if (r->data_fd < 0)
		return r->data_fd;
	ret = map_aligned(&r->data, r->data_fd, req->data_bytes, PROT_READ | PROT_WRITE, align);
	if (ret)
		return ret;
	/* A core file is for finding a fault in a program, not for its training data. */
	madvise(r->data, req->data_bytes, MADV_DONTDUMP);
	if (req->flags & SLUICE_ARENA_BIND_NODE)
		return node_bind(r->data, req->data_bytes, req->numa_node);
	return 0;
}

static void data_undo(struct sluice_region *r, uint64_t bytes)
{
	if (r->data)
		munmap(r->data, bytes);
	if (r->data_fd >= 0)
		close(r->data_fd);
	r->data = NULL;
	r->data_fd = -1;
}

static int data_prefault(struct sluice_region *r, const struct sluice_region_req *req,
			 bool collapse)
{
	struct prefault pf = {
		.base = r->data, .bytes = req->data_bytes, .fd = r->data_fd, .collapse = collapse};
	int ret = prefault_all(&pf, prefault_threads(req->data_bytes, req->threads));

	if (ret)
		return sluice_fail(ENOMEM, "faulting in %" PRIu64 " bytes of arena data failed: %s",
				   req->data_bytes, strerror(-ret));
	return 0;
}

static uint64_t hugetlb_free_pages(void)
{
	uint64_t free = meminfo_field("HugePages_Free:"), rsvd = meminfo_field("HugePages_Rsvd:");

	return free > rsvd ? free - rsvd : 0;
}

/* Return: 1 when the data region is there, 0 when the pool cannot serve it. */
static int data_from_hugetlb(struct sluice_region *r, const struct sluice_region_req *req)
{
	uint64_t page = meminfo_field("Hugepagesize:") << 10;

	if (!page || page & (page - 1) || req->data_bytes % page ||
	    req->data_bytes / page > hugetlb_free_pages())
		return 0;
	/* The pool of the node, or a control group of this kind, may still be too small. */
	if (data_open(r, req, MFD_HUGETLB, page > THP_BYTES ? page : THP_BYTES) ||
	    data_prefault(r, req, false)) {
		data_undo(r, req->data_bytes);
		return 0;
	}
	r->huge_bytes = req->data_bytes;
	r->huge_page_bytes = page;
	return 1;
}

/* Tries one huge page each way, because the switches for it are many and change with the kernel. */
static bool collapse_needed(const struct sluice_region *r, const struct sluice_region_req *req)
{
	struct prefault pf = {.base = r->data, .bytes = THP_BYTES, .fd = r->data_fd};

	if (req->data_bytes < THP_BYTES)
		return false;
	return !populate(&pf, 0, THP_BYTES) && !huge_mapped(r->data, req->data_bytes) &&
	       !madvise_retry(r->data, THP_BYTES, MADV_COLLAPSE) &&
	       huge_mapped(r->data, req->data_bytes) > 0;
}

static int data_from_shmem(struct sluice_region *r, const struct sluice_region_req *req)
{
	bool huge = !(req->flags & SLUICE_ARENA_NO_HUGE);
	int64_t covered;
	int ret;

	ret = data_open(r, req, 0, THP_BYTES);
	if (ret)
		return ret;
	if (!huge)
		return data_prefault(r, req, false);

	madvise(r->data, req->data_bytes, MADV_HUGEPAGE);
	ret = data_prefault(r, req, collapse_needed(r, req));
	if (ret)
		return ret;
	covered = huge_mapped(r->data, req->data_bytes);
	if (covered >= 0 && (uint64_t)covered < (req->data_bytes & ~(THP_BYTES - 1))) {
		/* Memory was too fragmented for some of them; asked once more it is compacted. */
		madvise_retry(r->data, req->data_bytes & ~(THP_BYTES - 1), MADV_COLLAPSE);
		covered = huge_mapped(r->data, req->data_bytes);
	}
	if (covered > 0) {
		r->huge_bytes = covered;
		r->huge_page_bytes = THP_BYTES;
	}
	return 0;
}

static int huge_missing(const struct sluice_region *r, const struct sluice_region_req *req)
{
	char shmem[128];

	words_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shmem, sizeof(shmem));
	return sluice_fail(ENOMEM,
			   "huge pages are required: asked %" PRIu64 " bytes, got %" PRIu64
			   "; the hugetlb pool has %" PRIu64 " free pages of %" PRIu64
			   " KiB and transparent huge pages for shared memory are: %s",
			   req->data_bytes, r->huge_bytes, hugetlb_free_pages(),
			   meminfo_field("Hugepagesize:"), shmem);
}

/* ------------------------------------------------------------------ regions */

static int req_check(const struct sluice_region_req *req)
{
	const uint32_t both = SLUICE_ARENA_HUGE_REQUIRED | SLUICE_ARENA_NO_HUGE;
	uint64_t page = page_bytes();

	if (!req->control_bytes || req->control_bytes > INT64_MAX - page)
		return sluice_fail(EINVAL, "arena control size %" PRIu64 " is out of range",
				   req->control_bytes);
	if (!req->data_bytes || req->data_bytes % page || req->data_bytes > INT64_MAX)
		return sluice_fail(EINVAL,
				   "arena data size %" PRIu64
				   " is not a multiple of the page size %" PRIu64,
				   req->data_bytes, page);
	if ((req->flags & both) == both)
		return sluice_fail(EINVAL, "arena flags ask for huge pages and for none");
	if (req->flags & SLUICE_ARENA_HUGE_REQUIRED && req->data_bytes % THP_BYTES)
		return sluice_fail(EINVAL,
				   "arena data size %" PRIu64
				   " is not a multiple of the huge page size "
				   "%llu, so not every byte can be on huge pages",
				   req->data_bytes, THP_BYTES);
	return 0;
}

static int ctl_create(struct sluice_region *r, const struct sluice_region_req *req)
{
	struct prefault pf = {0};
	int ret;

	r->control_bytes = (req->control_bytes + page_bytes() - 1) & ~(page_bytes() - 1);
	r->ctl_fd = memfd_make(SLUICE_REGION_CONTROL_NAME, req->label, r->control_bytes, 0);
	if (r->ctl_fd < 0)
		return r->ctl_fd;
	ret = map_aligned(&r->ctl, r->ctl_fd, r->control_bytes, PROT_READ | PROT_WRITE,
			  page_bytes());
	if (ret)
		return ret;
	if (req->flags & SLUICE_ARENA_BIND_NODE) {
		ret = node_bind(r->ctl, r->control_bytes, req->numa_node);
		if (ret)
			return ret;
	}
	pf.base = r->ctl;
	pf.fd = r->ctl_fd;
	ret = populate(&pf, 0, r->control_bytes);
	if (ret)
		return sluice_fail(ENOMEM,
				   "faulting in %" PRIu64 " bytes of arena control failed: %s",
				   r->control_bytes, strerror(-ret));
	return 0;
}

int sluice_region_create(struct sluice_region *out, const struct sluice_region_req *req)
{
	int node = req->flags & SLUICE_ARENA_BIND_NODE ? req->numa_node : SLUICE_NODE_ANY;
	struct sluice_region r = {.ctl_fd = -1, .data_fd = -1, .data_bytes = req->data_bytes};
	int ret;

	ret = req_check(req);
	if (ret)
		return ret;
	ret = sluice_memlimit_check(req->control_bytes, node);
	if (!ret)
		ret = ctl_create(&r, req);
	if (ret)
		goto undo;

	if (req->flags & (SLUICE_ARENA_NO_HUGE | SLUICE_ARENA_NO_HUGETLB) ||
	    !data_from_hugetlb(&r, req)) {
		ret = sluice_memlimit_check(req->data_bytes, node);
		if (!ret)
			ret = data_from_shmem(&r, req);
		if (ret)
			goto undo;
	}
	if (req->flags & SLUICE_ARENA_HUGE_REQUIRED && r.huge_bytes < req->data_bytes) {
		ret = huge_missing(&r, req);
		goto undo;
	}
	*out = r;
	return 0;
undo:
	sluice_region_unmap(&r);
	return ret;
}

/* Return: the size, or a negative errno when a peer could still change it or it is no memfd. */
static int64_t sealed_size(int fd, const char *what)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || fstat(fd, &st))
		return sluice_fail(EBADF, "descriptor %d is not the %s region of an arena: %s", fd,
				   what, strerror(errno));
	if ((seals & SEALS) != SEALS)
		return sluice_fail(
			EBADF,
			"descriptor %d is not the %s region of an arena: seals are %#x, not %#x",
			fd, what, seals, SEALS);
	if (st.st_size <= 0 || st.st_size % page_bytes())
		return sluice_fail(
			EBADF, "descriptor %d is not the %s region of an arena: its size is %lld",
			fd, what, (long long)st.st_size);
	return st.st_size;
}

static int fd_dup(int fd)
{
	int dup = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (dup < 0)
		return sluice_fail(errno, "duplicating descriptor %d failed: %s", fd,
				   strerror(errno));
	return dup;
}

/* A read-only mapping of a writable file can be made writable; of a file opened read-only not. */
static int fd_dup_readonly(int fd)
{
	int mode = fcntl(fd, F_GETFL), ro, err;
	char path[64];

	if (mode >= 0 && (mode & O_ACCMODE) == O_RDONLY)
		return fd_dup(fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	if (ro < 0) {
		err = errno == ENOENT ? ENOTSUP : errno;
		return sluice_fail(err,
				   "opening descriptor %d again read-only through %s failed: %s",
				   fd, path, strerror(errno));
	}
	return ro;
}

int sluice_region_map(struct sluice_region *out, int ctl_fd, int data_fd, bool data_ro)
{
	struct sluice_region r = {.ctl_fd = -1, .data_fd = -1, .data_ro = data_ro};
	int64_t control, data;
	struct statfs fs;
	int ret;

	control = sealed_size(ctl_fd, "control");
	if (control < 0)
		return control;
	data = sealed_size(data_fd, "data");
	if (data < 0)
		return data;
	r.control_bytes = control;
	r.data_bytes = data;

	ret = r.ctl_fd = fd_dup(ctl_fd);
	if (ret < 0)
		goto undo;
	ret = r.data_fd = data_ro ? fd_dup_readonly(data_fd) : fd_dup(data_fd);
	if (ret < 0)
		goto undo;
	if (!data_ro && (fcntl(r.data_fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
		ret = sluice_fail(
			EACCES,
			"descriptor %d, the data region, is read-only: attach as a consumer",
			data_fd);
		goto undo;
	}
	if (!fstatfs(r.data_fd, &fs) && fs.f_type == HUGETLBFS_MAGIC)
		r.huge_page_bytes = fs.f_bsize;

	ret = map_aligned(&r.ctl, r.ctl_fd, control, PROT_READ | PROT_WRITE, page_bytes());
	if (ret)
		goto undo;
	ret = map_aligned(&r.data, r.data_fd, data, data_ro ? PROT_READ : PROT_READ | PROT_WRITE,
			  r.huge_page_bytes > THP_BYTES ? r.huge_page_bytes : THP_BYTES);
	if (ret)
		goto undo;
	madvise(r.data, data, MADV_DONTDUMP);
	if (!r.huge_page_bytes)
		madvise(r.data, data, MADV_HUGEPAGE);
	*out = r;
	return 0;
undo:
	sluice_region_unmap(&r);
	return ret;
}

void sluice_region_unmap(struct sluice_region *r)
{
	data_undo(r, r->data_bytes);
	if (r->ctl)
		munmap(r->ctl, r->control_bytes);
	if (r->ctl_fd >= 0)
		close(r->ctl_fd);
	r->ctl = NULL;
	r->ctl_fd = -1;
}
