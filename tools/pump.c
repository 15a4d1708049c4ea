// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice pump: the command line, and the report. */
#include "pump.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "json.h"
#include "opt.h"

/* What fits the caches is fastest. */
#define MIN_ARENA (32ULL << 20)

enum {
	BY_ARENA,
	BY_PIPE,
	BY_BOTH
};

/* ------------------------------------------------------------------ the verb */

static uint64_t cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* What a few files never fill is not worth faulting in. */
static void size_batches(struct pump_opts *o, const struct pump_list *l)
{
	uint64_t batches, usual;

	o->parcel_bytes = least(o->batch_bytes, (l->bytes | 4095) + 1);
	/* Each producer has one in its hands, and its last may be all but empty. */
	batches = l->bytes / o->parcel_bytes + l->files / PARCEL_MAX_PARTS + 2 * o->producers + 1;
	usual = 8 * o->producers * o->batch_bytes;
	if (usual < MIN_ARENA)
		usual = MIN_ARENA;
	if (!o->arena_bytes)
		o->arena_bytes = least(usual, batches * (o->parcel_bytes + PARCEL_OVERHEAD));
}

static int finish(const struct run *runs, unsigned int n, const struct pump_list *l,
		  const bool *verified, const struct pump_opts *o)
{
	uint64_t files = 0, bytes = 0, mismatches = 0;
	bool clean = !l->unwalked_count;

	for (uint32_t i = 0; i < l->files; i++) {
		files += verified[i];
		bytes += verified[i] ? l->file[i].size : 0;
	}
	for (unsigned int i = 0; i < n; i++) {
		clean &= !runs[i].troubles;
		for (uint64_t k = 0; k < o->rounds; k++) {
			mismatches += runs[i].res[k].mismatches;
			clean &= !runs[i].res[k].died && !runs[i].res[k].damaged;
		}
	}
	if (!o->json) {
		report_table(runs, n, o->rounds);
		printf("verified %" PRIu64 " files, %" PRIu64 " bytes, %" PRIu64 " mismatches\n",
		       files, bytes, mismatches);
	}
	return clean ? EXIT_OK : EXIT_FINDINGS;
}

/* A file is verified when it was in every run. */
static int run_once(struct run *r, struct pump_list *l, const struct pump_opts *o, bool *verified,
		    struct json *j)
{
	int ret;

	list_reset(l);
	ret = pump_run(r->ops, l, o, &r->res[r->round]);
	for (uint32_t k = 0; k < l->files; k++) {
		verified[k] &= l->file[k].verified;
		r->troubles += l->file[k].trouble != TROUBLE_NONE;
	}
	if (ret)
		return ret;
	if (o->json)
		report_run_json(j, r, l, o->producers);
	else
		report_run(r, l, o->producers);
	return 0;
}

static int pump(struct pump_list *l, const struct pump_opts *o, struct run *runs, unsigned int n)
{
	bool *verified = malloc(l->files + 1);
	struct json j = JSON(stdout);
	int ret = 0, status;

	if (!verified)
		return EXIT_BROKEN;
	memset(verified, true, l->files + 1);
	if (o->json) {
		json_object(&j, NULL);
		json_uint(&j, "producers", o->producers);
		json_uint(&j, "batch_bytes", o->batch_bytes);
		json_uint(&j, "arena_bytes", o->arena_bytes);
		report_list_json(&j, l);
		json_array(&j, "transports");
	}
	for (uint64_t round = 0; round < o->rounds && !ret; round++) {
		for (unsigned int i = 0; i < n && !ret; i++) {
			runs[i].round = round;
			ret = run_once(&runs[i], l, o, verified, &j);
		}
	}
	status = ret ? EXIT_BROKEN : finish(runs, n, l, verified, o);
	if (o->json) {
		json_array_end(&j);
		if (n > 1 && !ret)
			json_real(&j, "arena_against_pipe",
				  run_median(&runs[1], o->rounds)->seconds /
					  run_median(&runs[0], o->rounds)->seconds);
		json_int(&j, "status", status);
		json_object_end(&j);
	}
	free(verified);
	return status;
}

int cmd_pump(int argc, char **argv)
{
	struct pump_opts o = {
		.producers = cpus() > 8 ? 8 : cpus(),
		.batch_bytes = 256 << 10,
		.rounds = 1,
		.max_bytes = UINT64_MAX / 2,
		.gpu = UINT64_MAX,
	};
	int transport = BY_ARENA;
	const struct opt opts[] = {
		{.name = "transport",
		 .letter = 't',
		 .kind = OPT_CHOICE,
		 .to = &transport,
		 .arg = "arena|pipe|both",
		 .help = "what the bytes go through (default arena); with both, every file is\n"
			 "read once before, so that neither finds a colder page cache"},
		{.name = "producers",
		 .letter = 'p',
		 .kind = OPT_COUNT,
		 .to = &o.producers,
		 .arg = "N",
		 .min = 1,
		 .max = PUMP_MAX_PRODUCERS,
		 .help = "processes that read (default: CPUs, at most 8)"},
		{.name = "batch-bytes",
		 .letter = 'b',
		 .kind = OPT_BYTES,
		 .to = &o.batch_bytes,
		 .arg = "N",
		 .min = 4096,
		 .max = 1ULL << 32,
		 .help = "payload of a batch (default 256K); larger files are split"},
		{.name = "arena-bytes",
		 .letter = 'a',
		 .kind = OPT_BYTES,
		 .to = &o.arena_bytes,
		 .arg = "N",
		 .min = 1 << 16,
		 .max = 1ULL << 46,
		 .help = "data region of the arena (default: 8 batches for each\n"
			 "producer, at least 32M, but no more than the files fill;\n"
			 "what fits the caches is fastest); making it is the\n"
			 "setup of the table, which is not part of time"},
		{.name = "rounds",
		 .letter = 'r',
		 .kind = OPT_COUNT,
		 .to = &o.rounds,
		 .arg = "N",
		 .min = 1,
		 .max = PUMP_MAX_ROUNDS,
		 .help = "do it all N times (default 1); the table shows the round of median\n"
			 "time, the slower one of two in the middle"},
		{.name = "manifest",
		 .letter = 'm',
		 .kind = OPT_TEXT,
		 .to = &o.manifest,
		 .arg = "FILE",
		 .help = "write hash and name of every verified file there, for xxhsum --check"},
		{.name = "max-bytes",
		 .letter = 'M',
		 .kind = OPT_BYTES,
		 .to = &o.max_bytes,
		 .arg = "N",
		 .min = 0,
		 .max = UINT64_MAX / 2,
		 .help = "end the walk in front of the file that would make it more than this"},
		{.name = "gpu",
		 .letter = 'g',
		 .kind = OPT_COUNT,
		 .to = &o.gpu,
		 .arg = "N",
		 .min = 0,
		 .max = INT32_MAX,
		 .help = "copy what arrives to CUDA device N and verify it there, by a checksum\n"
			 "that the producer has made beside the hash; arena only, and starting\n"
			 "CUDA is part of the setup"},
		OPT_JSON(&o.json),
		{0},
	};
	const struct usage usage = {
		.verb = "pump",
		.operands = "DIR...",
		.what = "Producer processes read every regular file under the DIRs and pack them "
			"into batches;\n"
			"one consumer receives these and verifies a 64-bit xxHash of each file "
			"against the one\n"
			"that the producer made of what it read.",
		.opts = opts,
		.more = "Files that cannot be read, vanish, grow, shrink or change meanwhile, and "
			"files that\n"
			"a dead producer had, are named on standard error and do not stop the "
			"rest.\n"
			"Exit status: 0 every file verified and none of these, 1 something of "
			"these,\n"
			"2 wrong usage, 3 the pump could not run.",
	};
	static struct run runs[2] = {{.ops = &carrier_arena}, {.ops = &carrier_pipe}};
	struct pump_list l = {0};
	int first = opt_parse(&usage, argc, argv), ret;

	if (first == argc) {
		complain("pump", "no directory is given; see sluice pump --help");
		return EXIT_USAGE;
	}
	for (int i = first; i < argc; i++) {
		if (!*argv[i]) {
			complain("pump", "the name of a directory is empty");
			return EXIT_USAGE;
		}
	}
	if (transport == BY_PIPE)
		runs[0].ops = &carrier_pipe;
	/* A file that reaches RLIMIT_FSIZE is an error to tell, as a full disk is. */
	signal(SIGXFSZ, SIG_IGN);
	if (o.manifest) {
		ret = manifest_check(o.manifest);
		if (ret) {
			complain("pump", "the manifest %s cannot be written: %s", o.manifest,
				 strerror(-ret));
			return EXIT_BROKEN;
		}
	}
	o.on_gpu = o.gpu != UINT64_MAX;
	if (o.on_gpu) {
		if (transport != BY_ARENA) {
			complain("pump", "--gpu goes with --transport arena only");
			return EXIT_USAGE;
		}
		if (!&carrier_gpu) {
			complain("pump",
				 "--gpu: this program was built without libsluice-cuda, which "
				 "needs the CUDA toolkit's headers");
			return EXIT_BROKEN;
		}
		runs[0].ops = &carrier_gpu;
	}

	ret = list_walk(&l, argv + first, o.max_bytes);
	if (ret) {
		complain("pump", "walking the directories failed: %s", strerror(-ret));
		list_free(&l);
		return EXIT_BROKEN;
	}
	if (o.manifest && list_has(&l, o.manifest)) {
		complain("pump", "the manifest %s would overwrite one of the files to be pumped",
			 o.manifest);
		list_free(&l);
		return EXIT_USAGE;
	}
	size_batches(&o, &l);
	if (!o.json)
		report_unwalked(&l);
	if (transport == BY_BOTH)
		list_warm(&l);
	ret = pump(&l, &o, runs, transport == BY_BOTH ? 2 : 1);
	/* An older manifest is worth more than one of a pump that did not run. */
	if (o.manifest && ret != EXIT_BROKEN) {
		int err = manifest_write(o.manifest, &l);

		if (err) {
			complain("pump", "writing the manifest %s failed: %s", o.manifest,
				 strerror(-err));
			ret = EXIT_BROKEN;
		}
	}
	list_free(&l);
	return ret;
}
