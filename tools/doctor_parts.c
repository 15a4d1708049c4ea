// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <inttypes.h>
#include <liburing.h>
#include <sluice.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cuda_link.h"
#include "doctor.h"
#include "term.h"

#define DEVICE "/dev/sluice"

static int arena_try(struct sluice_arena_info *info, enum sluice_backend backend, uint32_t flags)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.flags = flags,
		.data_bytes = 8 << 20,
		.backend = backend,
		.label = "doctor",
	};
	struct sluice_arena *a;
	int ret = sluice_arena_create(&a, &opts);

	if (ret)
		return ret;
	info->sz = sizeof(*info);
	ret = sluice_arena_info(a, info);
	sluice_arena_detach(a);
	return ret;
}

void check_arena(struct finding *f)
{
	struct sluice_arena_info info = {0};

	if (arena_try(&info, SLUICE_BACKEND_MEMFD, 0))
		finding_fail(f, NULL, "making an arena of 8 MiB failed: %s", sluice_strerror());
	else
		finding_pass(f, "an arena of 8 MiB was made and faulted in within %.1f ms",
			     info.create_ns / 1e6);
}

static uint64_t meminfo(const char *key)
{
	FILE *file = fopen("/proc/meminfo", "re");
	uint64_t n = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, key, strlen(key)))
			sscanf(line + strlen(key), "%" SCNu64, &n);
	}
	if (file)
		fclose(file);
	return n;
}

void check_huge_pages(struct finding *f)
{
	uint64_t free = meminfo("HugePages_Free:"), kib = meminfo("Hugepagesize:");
	struct sluice_arena_info info = {0};
	char pool[64] = "";

	if (free)
		snprintf(pool, sizeof(pool),
			 "; the hugetlb pool has %" PRIu64 " free pages of %" PRIu64 " KiB", free,
			 kib);
	if (arena_try(&info, SLUICE_BACKEND_MEMFD, SLUICE_ARENA_NO_HUGETLB)) {
		finding_warn(f, NULL, "cannot be told without an arena");
		return;
	}
	if (info.huge_bytes == info.data_bytes)
		finding_pass(f, "shared memory gets transparent huge pages, all of 8 MiB%s", pool);
	else if (free)
		finding_pass(f, "no transparent huge pages for shared memory%s", pool);
	else
		finding_warn(f, "echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled",
			     "memfd arenas are on 4 KiB pages (%" PRIu64 " of 8 MiB on huge ones)",
			     info.huge_bytes >> 20);
}

void check_io_uring(struct finding *f)
{
	FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	struct io_uring ring;
	int disabled = 0, ret;

	if (file && fscanf(file, "%d", &disabled) != 1)
		disabled = 0;
	if (file)
		fclose(file);
	ret = io_uring_queue_init(8, &ring, 0);
	if (!ret) {
		io_uring_queue_exit(&ring);
		finding_pass(f, "rings can be made: doorbells go through io_uring");
		return;
	}
	if (disabled)
		finding_warn(f, "sysctl kernel.io_uring_disabled=0",
			     "refused by kernel.io_uring_disabled=%d: doorbells go through poll",
			     disabled);
	else if (ret == -ENOMEM)
		finding_warn(
			f, "ulimit -l unlimited",
			"refused (%s): this kernel counts rings as locked memory; doorbells go "
			"through poll",
			strerror(-ret));
	else
		finding_warn(f, "docker run --security-opt seccomp=unconfined IMAGE",
			     "refused (%s), as container profiles do: doorbells go through poll",
			     strerror(-ret));
}

void check_pidfd(struct finding *f)
{
	int fd = syscall(SYS_pidfd_open, getpid(), 0);

	if (fd < 0) {
		finding_fail(f, NULL,
			     "pidfd_open is refused (%s): the death of a peer would go unseen",
			     strerror(errno));
		return;
	}
	close(fd);
	finding_pass(f, "the death of a peer is seen at once");
}

/* Where depmod knows it, modprobe finds it. */
static bool module_is_installed(void)
{
	struct utsname u;
	char path[128];
	char *line = NULL;
	bool found = false;
	size_t len = 0;
	FILE *file;

	uname(&u);
	snprintf(path, sizeof(path), "/lib/modules/%s/modules.dep", u.release);
	file = fopen(path, "re");
	if (!file)
		return false;
	while (!found && getline(&line, &len, file) > 0)
		found = strstr(line, "/sluice.ko");
	free(line);
	fclose(file);
	return found;
}

/* What brings the module; it can be built only where the headers of this kernel are. */
static const char *module_fix(void)
{
	static char fix[256];
	struct utsname u;

	if (module_is_installed())
		return "modprobe sluice";
	uname(&u);
	snprintf(fix, sizeof(fix), "/lib/modules/%s/build/Makefile", u.release);
	if (!access(fix, F_OK))
		return "make build/sluice.ko && insmod build/sluice.ko";
	snprintf(fix, sizeof(fix),
		 "apt-get install linux-headers-%s && make build/sluice.ko && insmod "
		 "build/sluice.ko",
		 u.release);
	return fix;
}

static const char *device_fix(void)
{
	if (!getgrnam("sluice"))
		return "groupadd --system sluice && chgrp sluice " DEVICE;
	return "usermod -aG sluice $USER";
}

static void check_device(struct finding *f)
{
	struct sluice_arena_info info = {0};

	if (arena_try(&info, SLUICE_BACKEND_KMOD, 0))
		finding_warn(f, NULL, "%s", sluice_strerror());
	else if (info.huge_bytes == info.data_bytes)
		finding_pass(f,
			     "backend kmod: an arena of 8 MiB is pinned, 100 %% on huge pages; the "
			     "kernel reports deaths");
	else
		finding_warn(f, "echo 1 >/proc/sys/vm/compact_memory",
			     "backend kmod: an arena of 8 MiB is pinned, %" PRIu64 " %% on huge "
			     "pages: memory is fragmented",
			     100 * info.huge_bytes / info.data_bytes);
}

void check_module(struct finding *f)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (fd >= 0) {
		close(fd);
		check_device(f);
	} else if (errno == ENOENT) {
		finding_warn(f, module_fix(), "not loaded: arenas are memfds");
	} else {
		finding_warn(f, device_fix(), DEVICE " cannot be opened: %s; arenas are memfds",
			     strerror(errno));
	}
}

static void check_link(struct finding *f, int version)
{
	struct cuda_link l;
	char why[300];

	if (!cuda_link_measure)
		finding_pass(f, "the driver supports CUDA %d.%d", version / 1000,
			     version % 1000 / 10);
	else if (cuda_link_measure(&l, why, sizeof(why)))
		finding_warn(f, "nvidia-smi",
			     "the driver supports CUDA %d.%d, but device 0 cannot be fed: %s",
			     version / 1000, version % 1000 / 10, why);
	else
		finding_pass(f,
			     "the driver supports CUDA %d.%d; device 0 registers an arena at "
			     "%.1f GB/s, copies from it at %.1f GB/s and into it at %.1f GB/s",
			     version / 1000, version % 1000 / 10, l.register_rate / 1e9,
			     l.in_rate / 1e9, l.out_rate / 1e9);
}

/* True also where that cannot be told. */
static bool may_have_gpu(void)
{
	static const char vendor_nvidia[] = "0x10de";
	char vendor[16];
	bool found = false;
	glob_t g;

	if (glob("/sys/bus/pci/devices/*/vendor", 0, NULL, &g))
		return true;
	for (size_t i = 0; i < g.gl_pathc && !found; i++) {
		FILE *file = fopen(g.gl_pathv[i], "re");

		if (!file)
			continue;
		found = fgets(vendor, sizeof(vendor), file) &&
			!strncmp(vendor, vendor_nvidia, strlen(vendor_nvidia));
		fclose(file);
	}
	globfree(&g);
	return found;
}

void check_cuda(struct finding *f)
{
	int (*version_get)(int *version);
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int version = 0;

	if (!cuda) {
		if (may_have_gpu())
			finding_warn(f, "apt-get install nvidia-driver",
				     "no CUDA driver (libcuda.so.1)");
		else
			finding_pass(f, "no NVIDIA GPU, and no driver (libcuda.so.1) for one");
		return;
	}
	*(void **)&version_get = dlsym(cuda, "cuDriverGetVersion");
	if (!version_get || version_get(&version))
		finding_warn(f, "nvidia-smi",
			     "libcuda.so.1 is there but does not tell its version");
	else if (access("/dev/nvidiactl", R_OK | W_OK))
		finding_warn(f, "nvidia-modprobe -c 0 -u",
			     "the driver library supports CUDA %d.%d, but /dev/nvidiactl cannot be "
			     "opened: %s",
			     version / 1000, version % 1000 / 10, strerror(errno));
	else
		check_link(f, version);
	dlclose(cuda);
}
