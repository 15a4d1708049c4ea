// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice arena list, sluice arena show: who holds what, and for how long. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena_find.h"
#include "arena_view.h"
#include "cmd.h"
#include "json.h"
#include "opt.h"
#include "table.h"

struct asked {
	bool json;
	bool extents;
	const char *which; /* id, pid or label; NULL for all */
};

/* An arena of the module that nobody could look into has no other name than the kernel's number. */
static const char *arena_name(char name[32], const struct view *v, const struct found *f)
{
	if (v->inside)
		snprintf(name, 32, "%016" PRIx64, v->hdr.arena_id);
	else
		snprintf(name, 32, "kmod:%" PRIu64, f->kernel.id);
	return name;
}

static const char *backend_name(const struct found *f)
{
	return f->kernel.id ? "kmod" : "memfd";
}

static unsigned int peers_count(const struct view *v, const struct found *f)
{
	return v->inside ? v->peers : f->kernel.peers;
}

/* ------------------------------------------------------------------ as JSON */

static const char *peer_state_name(enum shm_peer_state s)
{
	switch (s) {
	case PEER_JOINING:
		return "joining";
	case PEER_ALIVE:
		return "alive";
	case PEER_RECOVERING:
		return "being recovered";
	default:
		return "unknown";
	}
}

static const char *lease_state_name(enum lease_state s)
{
	switch (s) {
	case LEASE_FREE:
		return "free";
	case LEASE_WRITING:
		return "writing";
	case LEASE_PENDING:
		return "pending";
	case LEASE_READY:
		return "ready";
	case LEASE_HELD:
		return "held";
	case LEASE_PARKED:
		return "parked";
	}
	return "unknown";
}

static void json_extents(struct json *j, const char *name, const struct extents *e)
{
	json_object(j, name);
	json_uint(j, "extents", e->n);
	json_uint(j, "bytes", e->bytes);
	json_real(j, "oldest_seconds", e->oldest_ns / 1e9);
	json_object_end(j);
}

static void json_peers(struct json *j, const struct view *v)
{
	json_array(j, "peers");
	for (unsigned int i = 0; i < v->peers; i++) {
		const struct view_peer *p = &v->peer[i];

		json_object(j, NULL);
		json_uint(j, "id", p->id);
		json_uint(j, "pid", p->pid);
		json_text(j, "comm", p->comm);
		json_text(j, "state", peer_state_name(p->state));
		json_text(j, "role", p->consumer ? "consumer" : "rw");
		json_extents(j, "writing", &p->writing);
		json_extents(j, "queued", &p->queued);
		json_extents(j, "held", &p->held);
		json_object_end(j);
	}
	json_array_end(j);
}

static void json_channels(struct json *j, const struct view *v)
{
	static const char *const counters[SHM_NSTATS] = {
		"published",   "published_bytes", "consumed",	 "consumed_bytes",
		"space_waits", "space_wait_ns",	  "batch_waits", "batch_wait_ns",
		"spins",       "sleeps",	  "doorbells",	 "doorbells_suppressed",
	};

	json_array(j, "channels");
	for (unsigned int i = 0; i < v->channels; i++) {
		const struct view_channel *c = &v->channel[i];

		json_object(j, NULL);
		json_text(j, "name", c->name);
		json_uint(j, "capacity", c->capacity);
		json_uint(j, "queued", c->queued);
		json_uint(j, "producers", c->producers);
		json_uint(j, "consumers", c->consumers);
		json_bool(j, "closed", c->closing);
		for (unsigned int k = 0; k < SHM_NSTATS; k++)
			json_uint(j, counters[k], c->count[k]);
		json_object_end(j);
	}
	json_array_end(j);
}

static void json_kernel(struct json *j, const struct kernel_arena *a)
{
	json_object(j, "kernel");
	json_uint(j, "id", a->id);
	json_uint(j, "peers", a->peers);
	json_array(j, "bells");
	for (unsigned int i = 0; i < a->bells; i++) {
		json_object(j, NULL);
		json_uint(j, "id", a->bell[i].id);
		json_uint(j, "peer", a->bell[i].peer);
		json_int(j, "pid", a->bell[i].pid);
		json_text(j, "role", a->bell[i].consumer ? "consumer" : "rw");
		json_bool(j, "dead", a->bell[i].dead);
		json_uint(j, "records", a->bell[i].records);
		json_object_end(j);
	}
	json_array_end(j);
	json_object_end(j);
}

static void json_processes(struct json *j, const struct found *f)
{
	json_array(j, "processes");
	for (unsigned int i = 0; i < f->holders; i++) {
		json_object(j, NULL);
		json_int(j, "pid", f->holder[i].pid);
		json_text(j, "comm", f->holder[i].comm);
		json_object_end(j);
	}
	json_array_end(j);
}

static void json_list_extents(struct json *j, const struct view *v)
{
	json_array(j, "extents");
	for (uint64_t i = 0; i < v->extents; i++) {
		const struct view_extent *e = &v->extent[i];
		const struct view_peer *p = view_peer_at(v, e->owner);

		json_object(j, NULL);
		json_uint(j, "offset", e->offset);
		json_uint(j, "bytes", e->bytes);
		json_text(j, "state", lease_state_name(e->state));
		json_uint(j, "peer", p ? p->id : 0);
		json_bool(j, "shared", e->shared);
		json_real(j, "seconds", e->age_ns / 1e9);
		json_object_end(j);
	}
	json_array_end(j);
}

static void json_inside(struct json *j, const struct view *v, bool extents)
{
	json_uint(j, "block_bytes", 1ULL << v->hdr.block_shift);
	json_uint(j, "huge_page_bytes", v->hdr.huge_page_bytes);
	json_uint(j, "free_bytes", v->free.bytes);
	json_uint(j, "largest_free_bytes", v->largest_free);
	json_uint(j, "free_runs", v->free.n);
	json_uint(j, "shared", v->aliases);
	json_bool(j, "damaged", v->damaged);
	json_extents(j, "writing", &v->writing);
	json_extents(j, "ready", &v->ready);
	json_extents(j, "held", &v->held);
	json_extents(j, "parked", &v->parked);
	json_peers(j, v);
	json_channels(j, v);
	if (extents)
		json_list_extents(j, v);
}

static void json_arena(struct json *j, const struct view *v, const struct found *f, const char *why,
		       bool extents)
{
	char name[32];

	json_object(j, NULL);
	json_text(j, "id", arena_name(name, v, f));
	json_text(j, "label", v->hdr.label);
	json_text(j, "backend", backend_name(f));
	json_uint(j, "control_bytes", v->hdr.control_bytes);
	json_uint(j, "data_bytes", v->hdr.data_bytes);
	json_uint(j, "huge_bytes", v->hdr.huge_bytes);
	json_int(j, "numa_node", v->hdr.numa_node);
	json_processes(j, f);
	if (f->kernel.id)
		json_kernel(j, &f->kernel);
	if (v->inside)
		json_inside(j, v, extents);
	else
		json_text(j, "hidden", why);
	json_object_end(j);
}

/* ------------------------------------------------------------------ as text */

static void cell_extents(struct table *t, const struct extents *e)
{
	char bytes[HUMAN_LEN];

	if (e->n)
		table_cell(t, "%" PRIu64 " (%s)", e->n, human_bytes(bytes, e->bytes));
	else
		table_cell(t, "-");
}

static void cell_age(struct table *t, uint64_t ns)
{
	char age[HUMAN_LEN];

	if (ns)
		table_cell(t, "%s", human_time(age, ns / 1e9));
	else
		table_cell(t, "-");
}

static void show_peers(const struct view *v)
{
	static const char *const heads[] = {">peer",   ">pid",	 "process",
					    "role",    "state",	 ">writing",
					    ">queued", ">holds", ">oldest held for",
					    NULL};
	struct table *t = table_new(heads);
	char comm[32];

	for (unsigned int i = 0; i < v->peers; i++) {
		const struct view_peer *p = &v->peer[i];

		table_cell(t, "%u", p->id);
		table_cell(t, "%u", p->pid);
		table_cell(t, "%s", human_path(comm, sizeof(comm), p->comm));
		table_cell(t, "%s", p->consumer ? "consumer" : "rw");
		table_tinted(t, p->state == PEER_ALIVE ? TINT_NONE : TINT_YELLOW, "%s",
			     peer_state_name(p->state));
		cell_extents(t, &p->writing);
		cell_extents(t, &p->queued);
		cell_extents(t, &p->held);
		cell_age(t, p->held.oldest_ns);
	}
	table_print(t, stdout);
	table_free(t);
}

static void show_channels(const struct view *v)
{
	static const char *const heads[] = {"channel",	  ">queued",	">of",
					    ">producers", ">consumers", ">published",
					    ">consumed",  "state",	NULL};
	struct table *t = table_new(heads);
	char name[64];

	for (unsigned int i = 0; i < v->channels; i++) {
		const struct view_channel *c = &v->channel[i];

		table_cell(t, "%s", human_path(name, sizeof(name), c->name));
		table_cell(t, "%u", c->queued);
		table_cell(t, "%u", c->capacity);
		table_cell(t, "%u", c->producers);
		table_cell(t, "%u", c->consumers);
		table_cell(t, "%" PRIu64, c->count[0]);
		table_cell(t, "%" PRIu64, c->count[2]);
		table_cell(t, "%s", c->closing ? "closed" : "open");
	}
	table_print(t, stdout);
	table_free(t);
}

static void show_extents(const struct view *v)
{
	static const char *const heads[] = {">offset", ">bytes", "state", ">peer", ">for", NULL};
	struct table *t = table_new(heads);

	for (uint64_t i = 0; i < v->extents; i++) {
		const struct view_extent *e = &v->extent[i];
		const struct view_peer *p = view_peer_at(v, e->owner);

		table_cell(t, "%" PRIu64, e->offset);
		table_cell(t, "%" PRIu64, e->bytes);
		table_cell(t, "%s%s", lease_state_name(e->state), e->shared ? ", shared" : "");
		if (p)
			table_cell(t, "%u", p->id);
		else
			table_cell(t, "-");
		cell_age(t, e->age_ns);
	}
	table_print(t, stdout);
	table_free(t);
}

static void show_bells(const struct kernel_arena *a)
{
	static const char *const heads[] = {"kernel's word:", ">peer",	  ">pid", "role",
					    "state",	      ">records", NULL};
	struct table *t = table_new(heads);

	for (unsigned int i = 0; i < a->bells; i++) {
		const struct kernel_bell *b = &a->bell[i];

		table_cell(t, "bell %u", b->id);
		table_cell(t, "%u", b->peer);
		table_cell(t, "%d", b->pid);
		table_cell(t, "%s", b->consumer ? "consumer" : "rw");
		table_tinted(t, b->dead ? TINT_YELLOW : TINT_NONE, "%s",
			     b->dead ? "dead" : "alive");
		table_cell(t, "%" PRIu64, b->records);
	}
	table_print(t, stdout);
	table_free(t);
}

static void show_inside(const struct view *v, bool extents)
{
	if (v->damaged)
		printf("  %sthe block table does not add up: the rest of it is not shown%s\n",
		       term_tint(stdout, TINT_RED), term_tint(stdout, TINT_NONE));
	putchar('\n');
	show_peers(v);
	putchar('\n');
	show_channels(v);
	if (extents) {
		putchar('\n');
		show_extents(v);
	}
}

static void show(const struct view *v, const struct found *f, const char *why, bool extents,
		 bool behind_another)
{
	char label[64], a[HUMAN_LEN], b[HUMAN_LEN], name[32];

	if (behind_another)
		putchar('\n');
	printf("arena %s%s%s\n", arena_name(name, v, f), *v->hdr.label ? "  " : "",
	       human_path(label, sizeof(label), v->hdr.label));
	printf("  backend  %s", backend_name(f));
	if (f->kernel.id)
		printf(", arena %" PRIu64 " of the kernel with %u peers", f->kernel.id,
		       f->kernel.peers);
	printf("\n  data     %s, %s on huge pages\n", human_bytes(a, v->hdr.data_bytes),
	       human_bytes(b, v->hdr.huge_bytes));
	if (v->inside) {
		printf("  blocks   of %s\n", human_bytes(a, 1ULL << v->hdr.block_shift));
		printf("  free     %s in %" PRIu64 " runs, the largest %s\n",
		       human_bytes(a, v->free.bytes), v->free.n, human_bytes(b, v->largest_free));
		printf("  shared   %" PRIu64 " references, %" PRIu64
		       " extents live by them alone\n",
		       v->aliases, v->parked.n);
	}
	printf("  control  %s\n", human_bytes(a, v->hdr.control_bytes));
	printf("  open in ");
	for (unsigned int i = 0; i < f->holders; i++)
		printf(" %d (%s)", f->holder[i].pid,
		       human_path(label, sizeof(label), f->holder[i].comm));
	putchar('\n');
	if (v->inside)
		show_inside(v, extents);
	else
		printf("  hidden   %s\n", why);
	if (f->kernel.bells) {
		putchar('\n');
		show_bells(&f->kernel);
	}
}

static void list_heads(struct table **t)
{
	static const char *const heads[] = {
		"arena",     "label",  "backend",	   ">data",   ">free", ">huge", ">peers",
		">channels", ">holds", ">oldest held for", "open in", NULL};

	*t = table_new(heads);
}

static void list_row(struct table *t, const struct view *v, const struct found *f)
{
	char buf[HUMAN_LEN], text[64], name[32], pids[256] = "";
	size_t at = 0;

	table_cell(t, "%s", arena_name(name, v, f));
	table_cell(t, "%s", human_path(text, sizeof(text), v->hdr.label));
	table_cell(t, "%s", backend_name(f));
	table_cell(t, "%s", human_bytes(buf, v->hdr.data_bytes));
	table_cell(t, "%s", v->inside ? human_bytes(buf, v->free.bytes) : "-");
	table_cell(t, "%.0f %%", 100.0 * v->hdr.huge_bytes / v->hdr.data_bytes);
	table_cell(t, "%u", peers_count(v, f));
	if (v->inside)
		table_cell(t, "%u", v->channels);
	else
		table_cell(t, "-");
	cell_extents(t, &v->held);
	cell_age(t, v->held.oldest_ns);
	for (unsigned int i = 0; i < f->holders && at < sizeof(pids) - 32; i++)
		at += snprintf(pids + at, sizeof(pids) - at, "%s%d", i ? " " : "",
			       f->holder[i].pid);
	table_cell(t, "%s", pids);
}

/* ------------------------------------------------------------------ the verb */

static bool is_asked(const struct view *v, const struct found *f, const char *which)
{
	char name[32];

	if (!which || !strcmp(arena_name(name, v, f), which) || !strcmp(v->hdr.label, which))
		return true;
	for (unsigned int i = 0; i < f->holders; i++) {
		char pid[16];

		snprintf(pid, sizeof(pid), "%d", f->holder[i].pid);
		if (!strcmp(pid, which))
			return true;
	}
	return false;
}

static int found_view_memfd(struct view *v, const struct found *f, char *why, unsigned int len)
{
	char path[64];
	int fd, ret = -ENOENT;

	for (unsigned int i = 0; i < f->holders; i++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", f->holder[i].pid, f->holder[i].fd);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0) {
			ret = -errno;
			snprintf(why, len, "%s cannot be opened: %s", path, strerror(errno));
			continue;
		}
		ret = view_take(v, fd, why, len);
		close(fd);
		break;
	}
	return ret;
}

/* What the kernel says is shown in any case, and where the two differ it is right. */
static int found_view_kmod(struct view *v, const struct found *f, char *why, unsigned int len)
{
	const struct kernel_arena *a = &f->kernel;
	const void *control;

	*v = (struct view){0};
	snprintf(why, len, "no process that has it open has more of it than a bell");
	for (unsigned int i = 0; i < f->holders && !v->inside; i++) {
		if (f->holder[i].fd < 0)
			continue;
		control = kernel_control_map(f->holder[i].pid, f->holder[i].fd, a->control_bytes,
					     why, len);
		if (!control)
			continue;
		if (view_take_mapped(v, control, a->control_bytes, why, len))
			*v = (struct view){0};
		munmap((void *)control, a->control_bytes);
	}
	v->hdr.control_bytes = a->control_bytes;
	v->hdr.data_bytes = a->data_bytes;
	v->hdr.huge_bytes = a->huge_bytes;
	v->hdr.numa_node = a->node;
	snprintf(v->hdr.label, sizeof(v->hdr.label), "%.31s", a->label);
	return 0;
}

static int found_view(struct view *v, const struct found *f, char *why, unsigned int len, bool say)
{
	int ret;

	snprintf(why, len, "every process that had it is gone");
	ret = f->kernel.id ? found_view_kmod(v, f, why, len) : found_view_memfd(v, f, why, len);
	/* A process that ended between the two looks has taken its arena along. */
	if (ret && ret != -ENOENT && say)
		complain("arena", "the arena open in process %d: %s", f->holder[0].pid, why);
	return ret;
}

static int arenas(const struct asked *ask, bool in_full)
{
	struct json j = JSON(stdout);
	struct table *t = NULL;
	unsigned int shown = 0, failed = 0, unborn = 0;
	struct finds finds;
	int ret = arenas_find(&finds);

	if (ret) {
		complain("arena", "looking through /proc failed: %s", strerror(-ret));
		return EXIT_BROKEN;
	}
	if (ask->json) {
		json_object(&j, NULL);
		json_array(&j, "arenas");
	} else if (!in_full) {
		list_heads(&t);
	}
	for (unsigned int i = 0; i < finds.n; i++) {
		const struct found *f = &finds.found[i];
		char why[256];
		struct view v;

		/* When one is asked for, what is wrong with others is not the question. */
		ret = found_view(&v, f, why, sizeof(why), !ask->which);
		unborn += ret == -EAGAIN;
		failed += ret && ret != -ENOENT && ret != -EAGAIN;
		if (ret)
			continue;
		if (is_asked(&v, f, ask->which)) {
			if (ask->json)
				json_arena(&j, &v, f, why, ask->extents);
			else if (in_full)
				show(&v, f, why, ask->extents, shown);
			else
				list_row(t, &v, f);
			shown++;
		}
		view_free(&v);
	}
	if (ask->json) {
		json_array_end(&j);
		json_uint(&j, "hidden_processes", finds.hidden);
		json_object_end(&j);
	} else if (t) {
		if (shown)
			table_print(t, stdout);
		table_free(t);
	}
	/* Silence would look like a table that went missing. */
	if (!ask->json && !ask->which && !shown && !failed && !unborn)
		puts(finds.hidden ? "no arena is open in the processes that could be looked into"
				  : "no process of this host has an arena open");
	if (finds.hidden && !ask->json)
		complain("arena", "%u processes of other users could not be looked into",
			 finds.hidden);
	finds_free(&finds);
	if (ask->which && !shown) {
		complain("arena", "no arena has the id, process or label %s", ask->which);
		return EXIT_FINDINGS;
	}
	return failed && !ask->which ? EXIT_FINDINGS : EXIT_OK;
}

int cmd_arena(int argc, char **argv)
{
	struct asked ask = {0};
	const struct opt opts[] = {
		{.name = "extents",
		 .letter = 'e',
		 .kind = OPT_FLAG,
		 .to = &ask.extents,
		 .help = "with show: every extent that is not free"},
		OPT_JSON(&ask.json),
		{0},
	};
	const struct usage usage = {
		.verb = "arena",
		.operands = "list | show [ID|PID|LABEL]",
		.what = "Finds the arenas of this host through the descriptors of its processes "
			"and shows who is\n"
			"attached, who holds what, and for how long.  Looking does not join an "
			"arena.  Of those\n"
			"of /dev/sluice the kernel's own word is shown too; to look into them "
			"takes the right to\n"
			"debug a process that has them open.",
		.opts = opts,
		.more = "Exit status: 0 shown, 1 an arena could not be looked at or the one asked "
			"for is not\n"
			"there, 2 wrong usage, 3 /proc cannot be read.",
	};
	int first = opt_parse(&usage, argc, argv), left = argc - first;
	bool list = left == 1 && !strcmp(argv[first], "list");
	bool show_it = left >= 1 && left <= 2 && !strcmp(argv[first], "show");

	if (!list && !show_it) {
		complain("arena", "say list, or show [ID|PID|LABEL]; see sluice arena --help");
		return EXIT_USAGE;
	}
	ask.which = left == 2 ? argv[first + 1] : NULL;
	return arenas(&ask, show_it);
}
