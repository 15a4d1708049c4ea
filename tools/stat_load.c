// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Loads the counters with whatever hooks this kernel has, and pins or opens them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include "counters.skel.h"
#include "stat_load.h"
#include "stat_pin.h"
#include "stat_usdt.h"

#if defined(__x86_64__)
#define SYSCALL(name) "__x64_sys_" name
#elif defined(__aarch64__)
#define SYSCALL(name) "__arm64_sys_" name
#else
#define SYSCALL(name) "sys_" name
#endif

/* Newer than the headers that this may be built with. */
#define TRACE_KPROBE_SESSION 56

enum need {
	ALWAYS,
	IF_THERE, /* what it counts has another hook on the kernels that lack it */
	FOR_TARGETS,
};

/* Which of the two ways to count a program belongs to: see bpf/count.bpf.h. */
enum way {
	BOTH,
	TRAMPOLINE,
	SESSION,
};

/* What a call that a program did not see is missing from. */
enum miss {
	BYTES,
	COSTS, /* time and faults */
};

struct hook {
	const char *program;
	const char *functions[2]; /* first match in the kernel's BTF; none for a tracepoint */
	const char *counts;
	enum need need;
	enum way way;
	enum miss miss;
};

#define CALLS(program, counts, need, ...)                                                      \
	{program "_exit", {__VA_ARGS__}, counts, need, TRAMPOLINE, BYTES},                     \
		{program "_enter", {__VA_ARGS__}, "time of " counts, need, TRAMPOLINE, COSTS}, \
	{                                                                                      \
		program "_call", {__VA_ARGS__}, counts, need, SESSION, BYTES                   \
	}

/*
 * Programs in the order of attaching: what ends a call before what begins it, so that no call stays
 * open; sendfile last, which relies on the programs of splice to leave splice's bytes out.
 */
static const struct hook hooks[] = {
	CALLS("pipe_write", "writes to pipes and FIFOs", ALWAYS, "anon_pipe_write", "pipe_write"),
	CALLS("pipe_read", "reads from pipes and FIFOs", ALWAYS, "anon_pipe_read", "pipe_read"),
	CALLS("splice", "splice", ALWAYS, "do_splice"),
	CALLS("tee", "tee", ALWAYS, "do_tee"),
	{"pipe_info_exit",
	 {"get_pipe_info"},
	 "vmsplice, and which pipe sendfile fills",
	 ALWAYS,
	 TRAMPOLINE,
	 BYTES},
	{"pipe_info_call",
	 {"get_pipe_info"},
	 "vmsplice, and which pipe sendfile fills",
	 ALWAYS,
	 SESSION,
	 BYTES},
	CALLS("vmsplice", "vmsplice", ALWAYS, SYSCALL("vmsplice")),
	CALLS("stream_send", "sends on unix stream sockets", ALWAYS, "unix_stream_sendmsg"),
	CALLS("stream_sendpage", "splice into sockets", IF_THERE, "unix_stream_sendpage"),
	CALLS("stream_receive", "receives on stream sockets", ALWAYS, "unix_stream_recvmsg"),
	CALLS("stream_splice", "splice out of sockets", ALWAYS, "unix_stream_splice_read"),
	CALLS("dgram_send", "datagram and seqpacket sends", ALWAYS, "unix_dgram_sendmsg"),
	CALLS("dgram_receive", "datagram receives", ALWAYS, "__unix_dgram_recvmsg"),
	CALLS("vm_write", "process_vm_writev", ALWAYS, SYSCALL("process_vm_writev")),
	CALLS("vm_read", "process_vm_readv", ALWAYS, SYSCALL("process_vm_readv")),
	{"fault_exit", {"handle_mm_fault"}, "faults on shared mappings", ALWAYS, BOTH, COSTS},
	{"fault_enter", {"handle_mm_fault"}, "faults on shared mappings", ALWAYS, BOTH, COSTS},
	{"unmap_exit", {SYSCALL("munmap")}, "munmap of shared mappings", ALWAYS, BOTH, COSTS},
	{"unmap_piece", {"uprobe_munmap"}, "munmap of shared mappings", ALWAYS, BOTH, COSTS},
	{"unmap_enter", {SYSCALL("munmap")}, "munmap of shared mappings", ALWAYS, BOTH, COSTS},
	{"poll_end", {"poll_freewait"}, "waits in poll and select", ALWAYS, BOTH, COSTS},
	{"pipe_poll_exit", {"pipe_poll"}, "waits for pipes in poll", ALWAYS, BOTH, COSTS},
	{"unix_poll_exit", {"unix_poll"}, "waits for sockets in poll", ALWAYS, BOTH, COSTS},
	{"unix_dgram_poll_exit",
	 {"unix_dgram_poll"},
	 "waits for sockets in poll",
	 ALWAYS,
	 BOTH,
	 COSTS},
	{"task_switch", {NULL}, "time asleep", ALWAYS, BOTH, COSTS},
	{"task_exit", {NULL}, "the names of ended processes", ALWAYS, TRAMPOLINE, BYTES},
	{"task_exit_call",
	 {"perf_event_exit_task"},
	 "the names of ended processes",
	 ALWAYS,
	 SESSION,
	 BYTES},
	{"task_fork", {NULL}, "children of traced processes", FOR_TARGETS, TRAMPOLINE, BYTES},
	{"task_fork_call",
	 {"wake_up_new_task"},
	 "children of traced processes",
	 FOR_TARGETS,
	 SESSION,
	 BYTES},
	CALLS("sendfile", "sendfile into pipes", ALWAYS, "splice_file_to_pipe"),
};

#define HOOKS	     (sizeof(hooks) / sizeof(hooks[0]))
#define MAX_SITES    256
#define MAX_FAILURES 8

static const char *const map_names[STAT_MAPS] = {
	[STAT_COUNTS] = "counts", [STAT_ENDS] = "ends",	    [STAT_TASKS] = "tasks",
	[STAT_MEMORY] = "memory", [STAT_ARENAS] = "arenas", [STAT_TARGETS] = "targets",
	[STAT_CONFIG] = "config", [STAT_LOST] = "lost",
};

/* The iterators that read the maps; those that only the programs read have none. */
static const char *const reader_names[STAT_MAPS] = {
	[STAT_COUNTS] = "read_counts", [STAT_ENDS] = "read_ends",     [STAT_TASKS] = "read_tasks",
	[STAT_MEMORY] = "read_memory", [STAT_ARENAS] = "read_arenas", [STAT_LOST] = "read_lost",
};

/* Of key and value of those that are read. */
static const size_t entry_sizes[STAT_MAPS][2] = {
	[STAT_COUNTS] = {sizeof(struct sluice_count_key), sizeof(struct sluice_count)},
	[STAT_ENDS] = {sizeof(struct sluice_end_key), sizeof(struct sluice_end)},
	[STAT_TASKS] = {sizeof(struct sluice_task_key), sizeof(struct sluice_task)},
	[STAT_MEMORY] = {sizeof(struct sluice_task_key), sizeof(struct sluice_memory)},
	[STAT_ARENAS] = {sizeof(struct sluice_arena_key), sizeof(struct sluice_arena)},
	[STAT_LOST] = {sizeof(__u32), sizeof(struct sluice_lost)},
};

struct counters {
	struct counters_bpf *skel;
	struct bpf_link *links[HOOKS];
	int sessions[HOOKS]; /* descriptors of links that libbpf does not know to make */
	enum way way;
	struct bpf_link *sites[MAX_SITES];
	int num_sites;
	bool pinned;
	bool said; /* why it does not load, whichever way */
	bool refused[HOOKS];
	int maps[STAT_MAPS];
	int readers[STAT_MAPS]; /* links */
};

/* The last program that did not load: once libbpf has given up it does not tell. */
static char failed_program[64];

static int on_message(enum libbpf_print_level level, const char *fmt, va_list ap)
{
	static const char what[] = "': BPF program load failed";
	char text[256], name[sizeof(failed_program)];
	va_list again;

	va_copy(again, ap);
	vsnprintf(text, sizeof(text), fmt, again);
	va_end(again);
	if (strstr(text, what) && sscanf(text, "libbpf: prog '%63[^']", name) == 1)
		strcpy(failed_program, name);
	return getenv("SLUICE_BPF_LOG") ? vfprintf(stderr, fmt, ap) : 0;
}

/*
 * Sessions have preemption off throughout since they are on the function graph tracer (6.14); their
 * predecessors also ran out of places where many threads blocked.
 */
static bool has_sessions(const struct btf *btf)
{
	const struct btf_type *type;
	int id;

	if (btf__find_by_name_kind(btf, "bpf_session_is_return", BTF_KIND_FUNC) <= 0)
		return false;
	id = btf__find_by_name_kind(btf, "fprobe", BTF_KIND_STRUCT);
	if (id <= 0)
		return false;
	type = btf__type_by_id(btf, id);
	for (int i = 0; i < btf_vlen(type); i++)
		if (!strcmp(btf__name_by_offset(btf, btf_members(type)[i].name_off), "hlist_array"))
			return true;
	return false;
}

/* Whether this kernel takes the CPU away from kernel code; yes, if it does not say. */
static bool is_preempted(void)
{
	char line[128] = "";
	struct utsname uts;
	FILE *f;

	if (!uname(&uts) && !strstr(uts.version, "PREEMPT"))
		return false;
	f = fopen("/sys/kernel/debug/sched/preempt", "re");
	if (!f)
		return true;
	if (!fgets(line, sizeof(line), f))
		line[0] = '\0';
	fclose(f);
	return !strstr(line, "(none)") && !strstr(line, "(voluntary)");
}

static const char *find_function(const struct btf *btf, const struct hook *hook)
{
	for (int i = 0; i < 2 && hook->functions[i]; i++)
		if (btf__find_by_name_kind(btf, hook->functions[i], BTF_KIND_FUNC) > 0)
			return hook->functions[i];
	return NULL;
}

static struct bpf_program *find_program(struct counters *c, const struct hook *hook)
{
	return bpf_object__find_program_by_name(c->skel->obj, hook->program);
}

/* Says what is left out, once for the programs of one function. */
static void say_missing(const struct hook *hook, const char *why)
{
	static const char *last;
	const char *name = hook->functions[0] ? hook->functions[0] : hook->program;

	if (last && !strcmp(last, name))
		return;
	last = name;
	stat_say("hook %s: %s; not counted: %s; the rest goes on", name, why, hook->counts);
}

static int choose_programs(struct counters *c, const struct btf *btf,
			   const struct counters_opts *opts)
{
	for (size_t i = 0; i < HOOKS; i++) {
		const struct hook *hook = &hooks[i];
		struct bpf_program *prog = find_program(c, hook);
		const char *function;
		int err;

		if (!prog)
			return -ENOENT;
		if (c->refused[i] || (hook->way != BOTH && hook->way != c->way) ||
		    (hook->need == FOR_TARGETS && !opts->only_targets)) {
			bpf_program__set_autoload(prog, false);
			continue;
		}
		if (!hook->functions[0])
			continue;
		function = find_function(btf, hook);
		if (!function) {
			if (hook->need != IF_THERE)
				say_missing(hook, "this kernel has no such function");
			c->refused[i] = true;
			bpf_program__set_autoload(prog, false);
			continue;
		}
		err = hook->way == SESSION
			      ? bpf_program__set_expected_attach_type(prog, TRACE_KPROBE_SESSION)
			      : bpf_program__set_attach_target(prog, 0, function);
		if (err)
			return err;
	}
	return 0;
}

static int size_maps(struct counters *c, const struct counters_opts *opts)
{
	struct bpf_map *growing[] = {c->skel->maps.counts, c->skel->maps.ends, c->skel->maps.tasks,
				     c->skel->maps.memory};
	char path[128];
	int err = 0;

	for (size_t i = 0; !err && opts->max_entries && i < sizeof(growing) / sizeof(*growing); i++)
		err = bpf_map__set_max_entries(growing[i], opts->max_entries);
	/* Always on, old pipes make room for new ones: what they carried stays in "counts". */
	if (!err && opts->pin)
		err = bpf_map__set_type(c->skel->maps.ends, BPF_MAP_TYPE_LRU_HASH);
	for (int i = 0; !err && opts->pin && i < STAT_MAPS; i++) {
		struct bpf_map *map = bpf_object__find_map_by_name(c->skel->obj, map_names[i]);

		snprintf(path, sizeof(path), STAT_PIN_DIR "/%s", map_names[i]);
		err = bpf_map__set_pin_path(map, path);
	}
	return err;
}

/* Index of the hook whose program did not load, -1 if it was none of them. */
static int find_failed(void)
{
	for (size_t i = 0; i < HOOKS; i++)
		if (!strcmp(hooks[i].program, failed_program))
			return i;
	return -1;
}

/* Whether programs may read the kernel's memory, without which none of these loads. */
static bool is_locked_down(void)
{
	static const struct bpf_insn read_own_stack[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 1, .src_reg = 10},
		{.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 1, .imm = -8},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .imm = 8},
		{.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 3, .src_reg = 10},
		{.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_probe_read_kernel},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	int fd = bpf_prog_load(BPF_PROG_TYPE_KPROBE, NULL, "GPL", read_own_stack,
			       sizeof(read_own_stack) / sizeof(*read_own_stack), NULL);

	if (fd >= 0)
		close(fd);
	return fd == -EINVAL;
}

static int say_refused(struct counters *c, const struct counters_opts *opts, int err)
{
	c->said = true;
	if (is_locked_down())
		stat_say(
			"this kernel lets no BPF program read its memory (its lockdown is at "
			"confidentiality); nothing is counted, but sluice arena show works without "
			"counters");
	else if (failed_program[0] && err != -EPERM)
		stat_say("the counters do not load: %s: %s; SLUICE_BPF_LOG=1 shows why",
			 failed_program, strerror(-err));
	else if (err == -EPERM)
		stat_say("the kernel refuses to load BPF programs%s (%s): %s; nothing is counted, "
			 "but "
			 "sluice arena show works without counters",
			 geteuid() ? "" : " even from root", strerror(-err),
			 geteuid() ? "that takes root, or CAP_BPF and CAP_PERFMON"
				   : "its lockdown or a security policy forbids it, or a container "
				     "withholds CAP_BPF or CAP_PERFMON");
	else if (opts->pin && (err == -EEXIST || err == -EINVAL || err == -EACCES))
		stat_say("the counters do not load (%s): what is pinned under " STAT_PIN_DIR
			 " has another version or size, and goes away with `sluice stat unload`",
			 strerror(-err));
	else if (err == -ENOMEM)
		stat_say("the counters do not load: %s: they take about 40 MB, less with fewer "
			 "--entries, and more than that is not free or not allowed to this cgroup",
			 strerror(-err));
	else
		stat_say("the counters do not load: %s", strerror(-err));
	return err;
}

static int open_and_load(struct counters *c, const struct btf *btf,
			 const struct counters_opts *opts)
{
	/* With the log, what the verifier had to look at. */
	LIBBPF_OPTS(bpf_object_open_opts, open,
		    .kernel_log_level = getenv("SLUICE_BPF_LOG") ? 4 : 0);
	int why[HOOKS] = {0}, err = 0;

	for (int tries = 0; tries < MAX_FAILURES; tries++) {
		int failed;

		c->skel = counters_bpf__open_opts(&open);
		if (!c->skel)
			return say_refused(c, opts, -errno);
		c->skel->rodata->only_targets = opts->only_targets;
		bpf_program__set_autoload(c->skel->progs.session_number, c->way == SESSION);
		err = choose_programs(c, btf, opts);
		if (!err)
			err = size_maps(c, opts);
		failed_program[0] = '\0';
		if (!err)
			err = counters_bpf__load(c->skel);
		if (!err) {
			for (size_t i = 0; i < HOOKS; i++)
				if (why[i])
					say_missing(&hooks[i], strerror(-why[i]));
			return 0;
		}
		failed = err == -EPERM ? -1 : find_failed();
		counters_bpf__destroy(c->skel);
		c->skel = NULL;
		/* Nothing loaded at all: the maps are what failed. */
		if (failed < 0 || is_locked_down())
			break;
		if (hooks[failed].way == SESSION)
			return err;
		why[failed] = err;
		c->refused[failed] = true;
	}
	return say_refused(c, opts, err);
}

/* Entries that the programs fall back to must be there before the maps are full. */
static int prepare_maps(struct counters *c, const struct counters_opts *opts)
{
	struct sluice_config config = {
		.fold_exited = opts->pin,
	};
	struct sluice_count_key key = {.tid = SLUICE_TID_OTHER};
	struct sluice_count none = {0};
	__u32 zero = 0;
	int err;

	err = bpf_map_update_elem(c->maps[STAT_CONFIG], &zero, &config, BPF_ANY);
	for (int i = 0; !err && i < 2 * 2 * SLUICE_KINDS; i++) {
		key.kind = i / 4;
		key.dir = i / 2 % 2;
		key.tid = i % 2 ? SLUICE_TID_OTHER : SLUICE_TID_EXITED;
		err = bpf_map_update_elem(c->maps[STAT_COUNTS], &key, &none, BPF_NOEXIST);
		if (err == -EEXIST)
			err = 0;
	}
	return err;
}

/* Pinned beside the maps, so that those who look while others load find them. */
static int attach_readers(struct counters *c)
{
	int err = 0;

	for (int i = 0; !err && i < STAT_MAPS; i++) {
		union bpf_iter_link_info info = {.map.map_fd = c->maps[i]};
		LIBBPF_OPTS(bpf_link_create_opts, opts, .iter_info = &info,
			    .iter_info_len = sizeof(info));
		struct bpf_program *prog;

		if (!reader_names[i])
			continue;
		prog = bpf_object__find_program_by_name(c->skel->obj, reader_names[i]);
		c->readers[i] = bpf_link_create(bpf_program__fd(prog), 0, BPF_TRACE_ITER, &opts);
		if (c->readers[i] < 0)
			err = c->readers[i];
		else if (c->pinned)
			err = pins_add(c->readers[i], "readers", reader_names[i]);
	}
	if (err) {
		c->said = true;
		stat_say("the counters cannot be read: %s", strerror(-err));
	}
	return err;
}

static int pin_hook(struct counters *c, size_t i, struct bpf_program *prog)
{
	int link = c->links[i] ? bpf_link__fd(c->links[i]) : c->sessions[i];
	int err;

	err = pins_add(link, "links", hooks[i].program);
	return err ? err : pins_add(bpf_program__fd(prog), "programs", hooks[i].program);
}

/* Returns a descriptor or a negative errno. */
static int attach_session(struct bpf_program *prog, const char *function)
{
	union bpf_attr attr = {0};
	int fd;

	attr.link_create.prog_fd = bpf_program__fd(prog);
	attr.link_create.attach_type = TRACE_KPROBE_SESSION;
	attr.link_create.kprobe_multi.cnt = 1;
	attr.link_create.kprobe_multi.syms = (__u64)(unsigned long)&function;
	fd = syscall(__NR_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));
	return fd < 0 ? -errno : fd;
}

/*
 * The function graph tracer numbers its users from 0 to 15, and then from 0 again: all sessions are one
 * of them, until the last has gone. When a function returns, the tracer calls those who asked for that
 * when it began, and number 0 even if it did not ask. So where a thread has been in the function since
 * before there were sessions of that number, below those of an earlier load, the kernel warns that it
 * finds nothing (fprobe_return(), 7.3), and stops if it is told to stop at warnings. Hence nobody
 * stays number 0; only a thread that returns before the first session has gone again can meet it.
 */
static bool is_number_0(const struct counters *c)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);

	return !bpf_prog_test_run_opts(bpf_program__fd(c->skel->progs.session_number), &opts) &&
	       !opts.retval;
}

static int attach_hook(struct counters *c, size_t i, struct bpf_program *prog,
		       const struct btf *btf)
{
	if (hooks[i].way == SESSION) {
		const char *function = find_function(btf, &hooks[i]);

		c->sessions[i] = attach_session(prog, function);
		if (c->sessions[i] >= 0 && is_number_0(c)) {
			close(c->sessions[i]);
			c->sessions[i] = attach_session(prog, function);
		}
		return c->sessions[i] < 0 ? c->sessions[i] : 0;
	}
	c->links[i] = bpf_program__attach(prog);
	return c->links[i] ? 0 : -errno;
}

static int attach_programs(struct counters *c, const struct btf *btf)
{
	int err;

	for (size_t i = 0; i < HOOKS; i++) {
		struct bpf_program *prog = find_program(c, &hooks[i]);

		if (!bpf_program__autoload(prog))
			continue;
		err = attach_hook(c, i, prog, btf);
		if (err && hooks[i].way == SESSION)
			return err;
		if (err) {
			say_missing(&hooks[i], strerror(-err));
			c->refused[i] = true;
			continue;
		}
		if (!c->pinned)
			continue;
		err = pin_hook(c, i, prog);
		if (err) {
			c->said = true;
			stat_say("cannot pin under " STAT_PIN_DIR ": %s", strerror(-err));
			return err;
		}
	}
	return 0;
}

struct attach_site {
	struct counters *c;
	const char *path;
};

static int attach_site(const struct usdt_site *site, void *data)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .ref_ctr_offset = site->semaphore,
		    .bpf_cookie = site->cookie);
	struct attach_site *a = data;
	struct counters *c = a->c;
	struct bpf_program *prog;
	char name[16];

	/* Not every program of ours is one for a probe, whatever the file names its probes. */
	prog = bpf_object__find_program_by_name(c->skel->obj, site->name);
	if (!prog || strcmp(bpf_program__section_name(prog), "uprobe"))
		return 0;
	if (c->num_sites == MAX_SITES)
		return -E2BIG;
	c->sites[c->num_sites] =
		bpf_program__attach_uprobe_opts(prog, -1, a->path, site->offset, &opts);
	if (!c->sites[c->num_sites])
		return -errno;
	c->num_sites++;
	if (!c->pinned)
		return 0;
	snprintf(name, sizeof(name), "usdt_%d", c->num_sites - 1);
	return pins_add(bpf_link__fd(c->sites[c->num_sites - 1]), "links", name);
}

/* All the sites of a library or none. */
int counters_add_library(struct counters *c, const char *path)
{
	struct attach_site a = {.c = c, .path = path};
	int before = c->num_sites, err;
	char name[16];

	err = usdt_each_site(path, attach_site, &a);
	while (err && c->num_sites > before) {
		bpf_link__destroy(c->sites[--c->num_sites]);
		snprintf(name, sizeof(name), "usdt_%d", c->num_sites);
		if (c->pinned)
			pins_remove("links", name);
	}
	return err ? err : c->num_sites - before;
}

static void close_readers(struct counters *c)
{
	for (int i = 0; i < STAT_MAPS; i++) {
		if (c->readers[i] >= 0)
			close(c->readers[i]);
		c->readers[i] = -1;
	}
}

static void detach(struct counters *c)
{
	/* Reverse order: what begins a call goes before what ends it. */
	for (int i = HOOKS - 1; i >= 0; i--) {
		bpf_link__destroy(c->links[i]);
		c->links[i] = NULL;
		if (c->sessions[i] >= 0)
			close(c->sessions[i]);
		c->sessions[i] = -1;
	}
	for (int i = 0; i < c->num_sites; i++)
		bpf_link__destroy(c->sites[i]);
	c->num_sites = 0;
	counters_bpf__destroy(c->skel);
	c->skel = NULL;
	for (int i = 0; i < STAT_MAPS; i++)
		c->maps[i] = -1; /* the skeleton's */
	close_readers(c);
}

static int start(struct counters *c, const struct btf *btf, const struct counters_opts *opts)
{
	int err;

	err = open_and_load(c, btf, opts);
	if (err)
		return err;
	for (int i = 0; i < STAT_MAPS; i++)
		c->maps[i] = bpf_object__find_map_fd_by_name(c->skel->obj, map_names[i]);
	err = prepare_maps(c, opts);
	if (err)
		return say_refused(c, opts, err);
	/* Not before the new ones are loaded: what they cannot replace goes on counting. */
	if (opts->pin)
		pins_remove_programs();
	err = attach_readers(c);
	if (!err)
		err = attach_programs(c, btf);
	if (err && opts->pin)
		pins_remove_programs();
	return err;
}

static void forget_fds(struct counters *c)
{
	memset(c->sessions, -1, sizeof(c->sessions));
	memset(c->maps, -1, sizeof(c->maps));
	memset(c->readers, -1, sizeof(c->readers));
}

int counters_load(struct counters **out, const struct counters_opts *opts)
{
	struct counters *c;
	struct btf *btf;
	bool fresh = false;
	int err;

	libbpf_set_print(on_message);
	btf = btf__load_vmlinux_btf();
	if (!btf) {
		err = -errno;
		stat_say("this kernel describes no types (/sys/kernel/btf/vmlinux: %s), so nothing "
			 "can "
			 "be attached",
			 strerror(-err));
		return err;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		btf__free(btf);
		return -ENOMEM;
	}
	forget_fds(c);
	c->pinned = opts->pin;
	c->way = opts->trampolines || !is_preempted() || !has_sessions(btf) ? TRAMPOLINE : SESSION;
	if (opts->pin) {
		fresh = !pins_count();
		err = pins_make_dirs();
		if (err)
			goto fail;
	}
	err = start(c, btf, opts);
	/* A kernel that has sessions and does not want these: better some calls than none. */
	if (err && !c->said && c->way == SESSION) {
		detach(c);
		c->way = TRAMPOLINE;
		err = start(c, btf, opts);
	}
	if (err)
		goto fail;
	if (opts->library) {
		err = counters_add_library(c, opts->library);
		if (err <= 0)
			stat_say("%s: %s; its arena bytes are not counted, the rest goes on",
				 opts->library, err ? strerror(-err) : "no sluice probes in it");
	}
	btf__free(btf);
	*out = c;
	return 0;
fail:
	btf__free(btf);
	counters_close(c);
	if (fresh)
		pins_remove_all();
	return err;
}

/* Another version's entries would be taken for ours. */
static int check_sizes(enum stat_map map)
{
	struct bpf_map_info info = {0};
	__u32 len = sizeof(info);
	char path[128];
	int fd, err;

	snprintf(path, sizeof(path), STAT_PIN_DIR "/%s", map_names[map]);
	fd = bpf_obj_get(path);
	if (fd < 0)
		return fd;
	err = bpf_obj_get_info_by_fd(fd, &info, &len);
	close(fd);
	if (err)
		return err;
	return info.key_size == entry_sizes[map][0] && info.value_size == entry_sizes[map][1]
		       ? 0
		       : -EPROTO;
}

int counters_open(struct counters **out)
{
	struct counters *c;
	char path[128];
	int err = 0;

	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->pinned = true;
	forget_fds(c);
	for (int i = 0; !err && i < STAT_MAPS; i++) {
		if (!reader_names[i])
			continue;
		snprintf(path, sizeof(path), STAT_PIN_DIR "/readers/%s", reader_names[i]);
		c->readers[i] = bpf_obj_get(path);
		err = c->readers[i] < 0 ? c->readers[i] : check_sizes(i);
	}
	if (err == -ENOENT && pins_count())
		err = -EPROTO;
	if (err) {
		counters_close(c);
		return err;
	}
	*out = c;
	return 0;
}

void counters_close(struct counters *c)
{
	if (!c)
		return;
	if (c->skel)
		detach(c);
	close_readers(c);
	free(c);
}

int counters_iterate(const struct counters *c, enum stat_map map)
{
	return bpf_iter_create(c->readers[map]);
}

int counters_add_target(struct counters *c, pid_t tgid)
{
	__u64 start = 0;
	int key = tgid;

	return bpf_map_update_elem(c->maps[STAT_TARGETS], &key, &start, BPF_ANY);
}

void counters_drop_target(struct counters *c, pid_t tgid)
{
	int key = tgid;

	bpf_map_delete_elem(c->maps[STAT_TARGETS], &key);
}

static __u64 get_missed(int fd)
{
	struct bpf_prog_info info = {0};
	__u32 len = sizeof(info);

	return bpf_obj_get_info_by_fd(fd, &info, &len) ? 0 : info.recursion_misses;
}

void counters_missed(const struct counters *c, __u64 *calls, __u64 *costs)
{
	char path[128];
	int fd;

	*calls = 0;
	*costs = 0;
	for (size_t i = 0; i < HOOKS; i++) {
		__u64 *sum = hooks[i].miss == BYTES ? calls : costs;

		if (c->skel) {
			fd = bpf_program__fd(find_program((struct counters *)c, &hooks[i]));
			if (fd >= 0)
				*sum += get_missed(fd);
			continue;
		}
		snprintf(path, sizeof(path), STAT_PIN_DIR "/programs/%s", hooks[i].program);
		fd = bpf_obj_get(path);
		if (fd < 0)
			continue;
		*sum += get_missed(fd);
		close(fd);
	}
}

static bool is_pinned(const struct hook *hook)
{
	char path[128];

	snprintf(path, sizeof(path), STAT_PIN_DIR "/links/%s", hook->program);
	return !access(path, F_OK);
}

int counters_print_hooks(FILE *f)
{
	enum way way = TRAMPOLINE;
	int attached = 0, missing = 0;

	for (size_t i = 0; i < HOOKS; i++) {
		attached += is_pinned(&hooks[i]);
		if (hooks[i].way == SESSION && is_pinned(&hooks[i]))
			way = SESSION;
	}
	if (!attached) {
		fputs("hooks attached: none, so nothing is counted until the next load\n", f);
		return 0;
	}
	fprintf(f, "hooks attached: %d, by %s", attached,
		way == SESSION ? "sessions, as kernel code is preempted" : "trampolines");
	for (size_t i = 0; i < HOOKS; i++) {
		if (hooks[i].need != ALWAYS || (hooks[i].way != BOTH && hooks[i].way != way) ||
		    is_pinned(&hooks[i]))
			continue;
		fprintf(f, "%s %s", missing++ ? "," : "; missing:", hooks[i].program);
	}
	fputc('\n', f);
	return attached;
}
