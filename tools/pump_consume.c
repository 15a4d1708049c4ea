// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The consumer: verifies what arrives, and finds out what did not. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "cmd.h"
#include "pump.h"
#include "term.h"

/* How often dead producers are looked for while nothing arrives. */
#define LOOK_NS 50000000ULL

/* The file that a producer has sent in part. */
struct half {
	bool open;
	uint32_t file;
	uint64_t next;
	XXH64_state_t *hash;
	uint64_t sum; /* where the carrier makes sums */
};

struct consuming {
	struct carrier c;
	struct pump_list *l;
	struct pump_shared *shared;
	size_t shared_bytes;
	struct pump_result *res;
	unsigned int producers;
	uint64_t arrived;
	struct half half[PUMP_MAX_PRODUCERS];
};

/* ------------------------------------------------------------------ parcels */

static void file_close(struct consuming *k, struct half *h, const struct part *part)
{
	struct pump_file *f = &k->l->file[part->file];

	f->done = true;
	f->trouble = part->trouble;
	f->detail = part->detail;
	h->open = false;
	if (!trouble_was_read(part->trouble))
		return;
	f->hash = k->c.ops->sum ? part->hash : XXH64_digest(h->hash);
	f->size = h->next;
	if (f->hash != part->hash || (k->c.ops->sum && h->sum != part->sum)) {
		f->trouble = TROUBLE_MISMATCH;
		k->res->mismatches++;
		return;
	}
	f->verified = true;
	k->res->verified++;
	k->res->bytes += h->next;
}

/* Return: false when the record makes no sense. */
static bool part_take(struct consuming *k, const struct parcel *p, const struct part *part,
		      const char *name, unsigned int place)
{
	const void *data;
	struct half *h;
	uint64_t bytes, sum = 0;

	if (part->producer >= k->producers)
		return false;
	h = &k->half[part->producer];
	if (part->flags & PART_END) {
		k->res->producer[part->producer].ended = true;
		return true;
	}
	if (part->file >= k->l->files || k->l->file[part->file].done ||
	    strlen(k->l->file[part->file].path) != part->name_len ||
	    memcmp(k->l->file[part->file].path, name, part->name_len) ||
	    part->trouble > TROUBLE_CHANGED || k->c.ops->data(&k->c, p, place, &data, &bytes) ||
	    part->bytes > bytes || (k->c.ops->sum && k->c.ops->sum(&k->c, p, place, &sum)))
		return false;

	if (!part->offset) {
		h->open = true;
		h->file = part->file;
		h->next = 0;
		h->sum = 0;
		XXH64_reset(h->hash, 0);
	}
	if (!h->open || h->file != part->file || h->next != part->offset)
		return false;
	if (k->c.ops->sum)
		h->sum += sum;
	else
		XXH64_update(h->hash, data, part->bytes);
	h->next += part->bytes;
	k->arrived += part->bytes;
	if (part->flags & PART_LAST)
		file_close(k, h, part);
	return true;
}

bool parcel_record(const char **at, uint64_t *left, struct part *part, char *name)
{
	uint64_t skip;

	if (*left < sizeof(*part))
		return false;
	memcpy(part, *at, sizeof(*part));
	skip = sizeof(*part) + (((uint64_t)part->name_len + 7) & ~7ULL);
	if (part->name_len >= PARCEL_INDEX_BYTES || skip > *left)
		return false;
	memcpy(name, *at + sizeof(*part), part->name_len);
	*at += skip;
	*left -= skip;
	return true;
}

static void parcel_take(struct consuming *k, const struct parcel *p)
{
	const char *at = p->index;
	uint64_t left = p->index_bytes;
	char name[PARCEL_INDEX_BYTES];
	struct part part;

	k->res->parcels++;
	for (unsigned int i = 0; i < p->parts; i++) {
		if (!parcel_record(&at, &left, &part, name)) {
			k->res->damaged++;
			return;
		}
		if (!part_take(k, p, &part, name, i))
			k->res->damaged++;
	}
}

/* ------------------------------------------------------------------ processes */

static int producers_fork(struct consuming *k, const struct pump_opts *o)
{
	pid_t parent = getpid();

	fflush(NULL);
	for (unsigned int i = 0; i < k->producers; i++) {
		pid_t pid = fork();

		if (pid < 0)
			return -errno;
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(EXIT_BROKEN);
			_exit(pump_produce(&k->c, k->l, k->shared, i, o));
		}
		k->res->producer[i].pid = pid;
	}
	return 0;
}

static void producers_reap(struct consuming *k, int flags)
{
	for (unsigned int i = 0; i < k->producers; i++) {
		struct producer *p = &k->res->producer[i];

		if (!p->pid || p->gone || waitpid(p->pid, &p->status, flags) <= 0)
			continue;
		p->gone = true;
		if (!WIFEXITED(p->status) || WEXITSTATUS(p->status))
			k->res->died++;
	}
}

static bool producers_all(const struct consuming *k, bool gone)
{
	for (unsigned int i = 0; i < k->producers; i++) {
		const struct producer *p = &k->res->producer[i];

		if (gone ? !p->gone : !p->ended)
			return false;
	}
	return true;
}

/* ------------------------------------------------------------------ the run */

static int consume(struct consuming *k, struct progress *progress)
{
	struct parcel p;
	int ret;

	while (!producers_all(k, false)) {
		bool gone = producers_all(k, true);

		ret = k->c.ops->next(&k->c, &p, gone ? 0 : LOOK_NS);
		switch (ret) {
		case 0:
			parcel_take(k, &p);
			k->c.ops->release(&k->c, &p);
			progress_show(progress, k->arrived);
			break;
		case -EAGAIN:
		case -ETIMEDOUT:
			/* What the dead had sent has been seen by now. */
			if (gone)
				return 0;
			producers_reap(k, WNOHANG);
			progress_show(progress, k->arrived);
			break;
		case -EINTR:
			break;
		case -EBADMSG:
			k->res->damaged++;
			break;
		case -ENODATA:
		case -EOWNERDEAD:
			return 0;
		default:
			complain("pump", "%s", k->c.ops->sentence(&k->c));
			return ret;
		}
	}
	return 0;
}

/* Files that never ended: somebody had taken them, or nobody was left to. */
static void account(struct consuming *k)
{
	uint32_t next = k->shared->next;

	for (uint32_t i = 0; i < k->l->files; i++) {
		struct pump_file *f = &k->l->file[i];

		if (f->done)
			continue;
		f->trouble = i < next ? TROUBLE_LOST : TROUBLE_NOT_READ;
		f->detail = k->shared->taken[i];
	}
}

static double cpu_seconds(void)
{
	double sum = 0;

	for (int who = 0; who < 2; who++) {
		struct rusage u;

		getrusage(who ? RUSAGE_CHILDREN : RUSAGE_SELF, &u);
		sum += u.ru_utime.tv_sec + u.ru_stime.tv_sec +
		       (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
	}
	return sum;
}

static int consuming_init(struct consuming *k, const struct pump_opts *o)
{
	k->shared_bytes = sizeof(*k->shared) + k->l->files * sizeof(k->shared->taken[0]);
	k->shared = mmap(NULL, k->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);
	if (k->shared == MAP_FAILED) {
		k->shared = NULL;
		return -errno;
	}
	k->producers = o->producers;
	for (unsigned int i = 0; i < k->producers; i++) {
		k->half[i].hash = XXH64_createState();
		if (!k->half[i].hash)
			return -ENOMEM;
	}
	return 0;
}

static void consuming_fini(struct consuming *k)
{
	for (unsigned int i = 0; i < k->producers; i++)
		XXH64_freeState(k->half[i].hash);
	if (k->shared)
		munmap(k->shared, k->shared_bytes);
	free(k);
}

int pump_run(const struct carrier_ops *ops, struct pump_list *l, const struct pump_opts *o,
	     struct pump_result *res)
{
	struct consuming *k = calloc(1, sizeof(*k));
	struct progress *progress;
	uint64_t begin;
	double cpu;
	int ret;

	if (!k)
		return -ENOMEM;
	*res = (struct pump_result){0};
	k->c.ops = ops;
	k->l = l;
	k->res = res;
	ret = consuming_init(k, o);
	if (ret)
		goto out;

	begin = clock_ns();
	ret = ops->open(&k->c, o);
	if (ret) {
		complain("pump", "%s", ops->sentence(&k->c));
		goto close;
	}
	res->open_seconds = (clock_ns() - begin) / 1e9;
	if (ops->about)
		ops->about(&k->c, &res->arena);

	progress = progress_begin(ops->name, l->bytes, o->json);
	cpu = cpu_seconds();
	begin = clock_ns();
	ret = producers_fork(k, o);
	if (!ret) {
		uint64_t forked = clock_ns();

		/* Starting a GPU takes a second, which is not the transport's. */
		ret = ops->forked(&k->c);
		res->open_seconds += (clock_ns() - forked) / 1e9;
		begin += clock_ns() - forked;
		if (ret)
			complain("pump", "%s", ops->sentence(&k->c));
	}
	if (!ret)
		ret = consume(k, progress);
	res->seconds = (clock_ns() - begin) / 1e9;
	progress_end(progress);
	if (ret) {
		for (unsigned int i = 0; i < k->producers; i++) {
			if (res->producer[i].pid && !res->producer[i].gone)
				kill(res->producer[i].pid, SIGKILL);
		}
	}
	producers_reap(k, 0);
	res->cpu_seconds = cpu_seconds() - cpu;
	account(k);
close:
	ops->close(&k->c);
out:
	consuming_fini(k);
	return ret;
}
