// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor.h"
#include "term.h"

/* What recent distributions allow everybody, and room for some hundred rings. */
#define ENOUGH_MEMLOCK (8UL << 20)

void check_kernel(struct finding *f)
{
	struct utsname u;

	uname(&u);
	finding_pass(f, "%s %s, %s; what it can do is probed, not looked up", u.sysname, u.release,
		     u.machine);
}

void check_cpus(struct finding *f)
{
	cpu_set_t set;
	int n;

	if (sched_getaffinity(0, sizeof(set), &set)) {
		finding_warn(f, NULL, "the CPUs of this process cannot be found out: %s",
			     strerror(errno));
		return;
	}
	n = CPU_COUNT(&set);
	if (n == 1 && sysconf(_SC_NPROCESSORS_ONLN) == 1)
		finding_warn(f, NULL,
			     "this machine has one CPU: waiters sleep at once instead of spinning");
	else if (n == 1)
		finding_warn(
			f, "taskset -p -c 0-1023 $$",
			"this process may use one CPU: waiters sleep at once instead of spinning");
	else
		finding_pass(f, "this process may use %d CPUs", n);
}

void check_numa(struct finding *f)
{
	char online[256] = "";
	FILE *file = fopen("/sys/devices/system/node/online", "re");

	if (!file || !fgets(online, sizeof(online), file)) {
		finding_pass(f, "this kernel knows no NUMA nodes");
	} else {
		online[strcspn(online, "\n")] = '\0';
		if (strpbrk(online, ",-"))
			finding_pass(f, "nodes %s; bind an arena to the node of its GPU", online);
		else
			finding_pass(f, "one node");
	}
	if (file)
		fclose(file);
}

void check_memory(struct finding *f)
{
	uint64_t kib = 0;
	char line[256], buf[HUMAN_LEN];
	FILE *file = fopen("/proc/meminfo", "re");

	if (!file) {
		finding_warn(
			f, "mount -t proc proc /proc",
			"/proc is not mounted: too little memory is noticed late, and peers are "
			"not found by descriptor");
		return;
	}
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	}
	fclose(file);
	finding_pass(f,
		     "%s available; the limits of control groups are checked when an arena is made",
		     human_bytes(buf, kib << 10));
}

/* By the kernel's own word: in a user namespace the capability is there and does not count. */
static bool may_lock_without_limit(const struct rlimit *limit)
{
	const struct rlimit none = {.rlim_cur = 0, .rlim_max = limit->rlim_max};
	static char page[4096] __attribute__((aligned(4096)));
	bool may;

	if (setrlimit(RLIMIT_MEMLOCK, &none))
		return false;
	may = !mlock(page, sizeof(page));
	if (may)
		munlock(page, sizeof(page));
	setrlimit(RLIMIT_MEMLOCK, limit);
	return may;
}

void check_memlock(struct finding *f)
{
	struct rlimit limit;
	char buf[HUMAN_LEN];

	getrlimit(RLIMIT_MEMLOCK, &limit);
	human_bytes(buf, limit.rlim_cur);
	if (limit.rlim_cur == RLIM_INFINITY)
		finding_pass(f, "unlimited");
	else if (may_lock_without_limit(&limit))
		finding_pass(f, "%s, which does not hold for this process (CAP_IPC_LOCK)", buf);
	else if (limit.rlim_cur >= ENOUGH_MEMLOCK)
		finding_pass(f,
			     "%s: arenas need none of it, unless a program registers them as "
			     "buffers with io_uring",
			     buf);
	else
		finding_warn(f, "ulimit -l unlimited",
			     "%s: arenas need none of it, but the io_uring of recent kernels "
			     "counts its rings, and all buffers that are registered with it",
			     buf);
}
