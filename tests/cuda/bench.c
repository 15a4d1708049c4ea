// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Measurements on a GPU: runs the groups, prints a table, writes JSON. */
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "bench.h"

#define MAX_ROWS 128

#define IMAGES_HELD 8 /* that a producer copies from, in turn */

static struct table {
	unsigned int n;
	struct row rows[MAX_ROWS];
	char gpu[128];
} * table;

static const struct {
	const char *name;
	void (*run)(void);
	unsigned int seconds; /* it is killed then; the rows that it has finished stay */
	bool when_named; /* only */
} groups[] = {
	{"small", bench_small, 20, false},	   {"doorbell", bench_doorbell, 25, false},
	{"copies", bench_copies, 25, false},	   {"drain-copies", bench_drain_copies, 25, false},
	{"register", bench_register, 30, false},   {"images", bench_images, 60, false},
	{"try-register", try_register, 150, true}, {"try-wake", try_wake, 60, true},
};

struct row *row_add(const char *name, const char *unit, double value)
{
	struct row *r = &table->rows[table->n];

	CHECK(table->n < MAX_ROWS);
	table->n++;
	snprintf(r->name, sizeof(r->name), "%s", name);
	snprintf(r->unit, sizeof(r->unit), "%s", unit);
	r->value = value;
	r->met = -1;
	return r;
}

void row_peer(struct row *r, const char *peer, double value)
{
	snprintf(r->peer, sizeof(r->peer), "%s", peer);
	r->peer_value = value;
	r->ratio = value > 0 ? r->value / value : 0;
}

void row_goal(struct row *r, bool met, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->goal, sizeof(r->goal), fmt, ap);
	va_end(ap);
	/* What was not measured, or has nothing to be compared with, meets no goal. */
	r->met = met && r->value > 0 && (!r->peer[0] || r->peer_value > 0);
}

void sample(struct samples *s, double v)
{
	if (s->n < ARRAY_SIZE(s->v))
		s->v[s->n++] = v;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double median(struct samples *s)
{
	qsort(s->v, s->n, sizeof(s->v[0]), compare);
	return s->n ? (s->v[(s->n - 1) / 2] + s->v[s->n / 2]) / 2 : 0;
}

double most(struct samples *s)
{
	qsort(s->v, s->n, sizeof(s->v[0]), compare);
	return s->n ? s->v[s->n * 9 / 10] : 0;
}

double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec +
	       (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

struct sluice_arena *arena_huge(uint64_t bytes)
{
	struct sluice_arena_opts o = {.sz = sizeof(o), .data_bytes = bytes, .label = "bench"};
	struct sluice_arena *a;

	CHECK_OK(sluice_arena_create(&a, &o));
	return a;
}

void *shared_new(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	memset(p, 0, bytes);
	return p;
}

/* ------------------------------------------------------------------ producers */

static unsigned int or_one(unsigned int n)
{
	return n ? n : 1;
}

static int batch_make(struct sluice_channel *out, const struct crew_opts *o,
		      const struct crew_style *style, const char *images, unsigned int turn)
{
	struct sluice_batch_opts opts = {
		.sz = sizeof(opts),
		.bytes = o->bytes,
		.tensors = or_one(o->tensors),
		.timeout_ns = SLUICE_FOREVER,
	};
	struct sluice_batch *b;
	uint64_t from = turn % IMAGES_HELD * IMAGE_BYTES, piece;
	unsigned int tensors;
	int64_t shape;
	int ret;

	ret = sluice_batch_begin_opts(out, &b, &opts);
	if (ret)
		return ret;
	/* With the extent in our hands, so that no more than the arena has are of an older style. */
	tensors = or_one(__atomic_load_n(&style->tensors, __ATOMIC_RELAXED));
	piece = __atomic_load_n(&style->piece, __ATOMIC_RELAXED);
	shape = o->bytes / tensors;
	for (unsigned int i = 0; i < tensors; i++) {
		char *p = sluice_batch_tensor_add(b, "x", SLUICE_U8, 1, &shape, NULL);

		CHECK(p);
		/* As a collate does: one image after the other, from memory that is not cached. */
		for (uint64_t at = 0, n; o->fill && at < (uint64_t)shape; at += n) {
			n = IMAGE_BYTES - from % IMAGE_BYTES;
			if (n > shape - at)
				n = shape - at;
			if (piece && n > piece)
				n = piece;
			CHECK_OK(sluice_batch_copy(b, p + at, images + from, n));
			from = (from + n) % (IMAGES_HELD * IMAGE_BYTES);
		}
	}
	ret = sluice_batch_publish(b);
	if (ret)
		sluice_batch_abort(b);
	return ret;
}

static void producer(struct crew *c, const struct crew_opts *o)
{
	struct sluice_arena *a = arena_child(c->a);
	struct sluice_channel *out = channel_join(a, o->name, SLUICE_CHANNEL_PRODUCE);
	char *images = NULL;

	CHECK(out);
	if (o->fill) {
		images = malloc(IMAGES_HELD * IMAGE_BYTES);
		CHECK(images);
		memset(images, 1, IMAGES_HELD * IMAGE_BYTES);
	}
	for (unsigned int i = 0; !batch_make(out, o, c->style, images, i); i++)
		;
	_exit(0);
}

void crew_start(struct crew *c, const struct crew_opts *o)
{
	const uint64_t slot = o->bytes + or_one(o->tensors) * 512 + 64 * KIB;

	c->a = arena_huge((o->slots * slot + 2 * MIB) / (2 * MIB) * (2 * MIB));
	c->in = channel_new(c->a, o->name, o->queue,
			    SLUICE_CHANNEL_CONSUME | SLUICE_CHANNEL_KEEP_OPEN);
	CHECK(c->in);
	c->style = shared_new(sizeof(*c->style));
	c->n = o->producers;
	for (unsigned int i = 0; i < c->n; i++)
		CHILD(c->pid[i]) {
			producer(c, o);
		}
}

void crew_restyle(struct crew *c, const struct crew_style *style)
{
	__atomic_store_n(&c->style->tensors, style->tensors, __ATOMIC_RELAXED);
	__atomic_store_n(&c->style->piece, style->piece, __ATOMIC_RELAXED);
}

void crew_stop(struct crew *c)
{
	sluice_channel_shutdown(c->in);
	for (unsigned int i = 0; i < c->n; i++)
		child_kill(c->pid[i]);
	sluice_channel_close(c->in);
	sluice_arena_detach(c->a);
}

/* ------------------------------------------------------------------ output */

static void gpu_describe(void)
{
	struct cudaDeviceProp p;
	int driver = 0;

	if (cudaGetDeviceProperties(&p, 0) != cudaSuccess)
		return;
	cudaDriverGetVersion(&driver);
	snprintf(table->gpu, sizeof(table->gpu), "%.60s, CUDA driver %d.%d", p.name, driver / 1000,
		 driver % 1000 / 10);
}

/* The rows from @first on. */
static void table_print(unsigned int first)
{
	if (!first)
		printf("%-44s %10s %-10s %10s %6s  %s\n", "row", "value", "unit", "peer", "ratio",
		       "goal");
	for (unsigned int i = first; i < table->n; i++) {
		const struct row *r = &table->rows[i];

		printf("%-44s %10.4g %-10s %10.4g %6.3f  %s%s\n", r->name, r->value, r->unit,
		       r->peer_value, r->ratio,
		       r->met < 0 ? ""
		       : r->met	  ? "ok: "
				  : "MISSED: ",
		       r->goal);
	}
	fflush(stdout);
}

static void json_write(const char *path, const char *command)
{
	char date[32], nvidia[160] = "";
	time_t now = time(NULL);
	struct utsname u;
	FILE *f;

	f = fopen("/proc/driver/nvidia/version", "re");
	if (f) {
		if (!fgets(nvidia, sizeof(nvidia), f))
			nvidia[0] = '\0';
		fclose(f);
	}
	nvidia[strcspn(nvidia, "\n\"\\")] = '\0';
	f = fopen(path, "we");
	if (!f) {
		fprintf(stderr, "bench: %s: %s\n", path, strerror(errno));
		exit(1);
	}
	uname(&u);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
	fprintf(f, "{\n  \"machine\": \"%s, %ld CPUs\",\n  \"gpu\": \"%s\",\n", u.machine,
		sysconf(_SC_NPROCESSORS_ONLN), table->gpu);
	fprintf(f, "  \"driver\": \"%s\",\n  \"kernel\": \"%s\",\n  \"version\": \"%s\",\n", nvidia,
		u.release, sluice_version());
	fprintf(f, "  \"date\": \"%s\",\n  \"command\": \"%s\",\n  \"rows\": [", date, command);
	for (unsigned int i = 0; i < table->n; i++) {
		const struct row *r = &table->rows[i];

		fprintf(f, "%s\n    {\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"",
			i ? "," : "", r->name, r->value, r->unit);
		if (r->peer[0])
			fprintf(f, ", \"peer\": \"%s\", \"peer_value\": %.6g, \"ratio\": %.4f",
				r->peer, r->peer_value, r->ratio);
		if (r->met >= 0)
			fprintf(f, ", \"goal\": \"%s\", \"goal_met\": %s", r->goal,
				r->met ? "true" : "false");
		fprintf(f, "}");
	}
	fprintf(f, "\n  ]\n}\n");
	fclose(f);
}

static bool wanted(const char *name, char **names, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(names[i], name))
			return true;
	return !n;
}

int main(int argc, char **argv)
{
	bool failed = false;
	pid_t pid;

	if (argc < 2 || argv[1][0] == '-') {
		fprintf(stderr, "usage: bench RESULTS.json [GROUP...]\n");
		return 2;
	}
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (table == MAP_FAILED)
		return 1;
	for (size_t i = 0; i < ARRAY_SIZE(groups); i++) {
		const unsigned int first = table->n;
		uint64_t start = now_ns();

		if (!wanted(groups[i].name, argv + 2, argc - 2) ||
		    (groups[i].when_named && argc == 2))
			continue;
		CHILD(pid) {
			/* CUDA and fork: producers first, then the device, each group anew. */
			alarm(groups[i].seconds);
			groups[i].run();
			gpu_describe();
		}
		if (child_wait(pid)) {
			fprintf(stderr, "bench: group %s failed, or took %u s\n", groups[i].name,
				groups[i].seconds);
			failed = true;
		}
		fprintf(stderr, "# %s: %.1f s\n", groups[i].name, (now_ns() - start) / 1e9);
		/* What is there, should all of it be cut short. */
		json_write(argv[1], "make bench-gpu");
		table_print(first);
	}
	for (unsigned int i = 0; i < table->n; i++)
		failed |= !table->rows[i].met;
	return failed;
}
