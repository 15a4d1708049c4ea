/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * sluice pump: one walk makes a list of files; producer processes, forked with the list, take files
 * from it one by one, read them into parcels and send these; the consumer verifies and counts.
 */
#ifndef SLUICE_TOOLS_PUMP_H
#define SLUICE_TOOLS_PUMP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <sluice.h>

#include "json.h"

#define PUMP_MAX_PRODUCERS 64
#define PUMP_MAX_ROUNDS	   99

/* ------------------------------------------------------------------ what to do */

struct pump_opts {
	uint64_t producers;
	uint64_t batch_bytes; /* at most, as asked */
	uint64_t parcel_bytes; /* of these, what the files can fill */
	uint64_t arena_bytes;
	uint64_t max_bytes; /* of files; the walk stops there */
	uint64_t rounds;
	const char *manifest;
	bool json;
	bool on_gpu; /* what arrives is copied to .gpu and verified there */
	uint64_t gpu;
};

/* ------------------------------------------------------------------ files and what befell them */

enum trouble {
	TROUBLE_NONE,
	TROUBLE_UNREADABLE, /* open or read failed; detail is the errno */
	TROUBLE_VANISHED, /* was there during the walk */
	TROUBLE_NOT_REGULAR, /* became something else after the walk */
	TROUBLE_GREW, /* verified as far as its size when it was opened; detail is the new size */
	TROUBLE_SHRANK, /* verified as far as it went; detail is the new size */
	TROUBLE_CHANGED, /* same size, written to while it was read */
	TROUBLE_MISMATCH, /* what arrived is not what was read */
	TROUBLE_LOST, /* its producer died with it; detail is the producer */
	TROUBLE_NOT_READ, /* no producer was left to read it */
};

/* A file that was read is one that can be verified, whatever else befell it. */
static inline bool trouble_was_read(enum trouble t)
{
	return t == TROUBLE_NONE || t == TROUBLE_GREW || t == TROUBLE_SHRANK ||
	       t == TROUBLE_CHANGED;
}

struct pump_file {
	const char *path;
	uint64_t size; /* during the walk; of what was verified later */
	uint64_t hash;
	uint64_t detail; /* of the trouble */
	uint8_t trouble;
	bool done; /* the last part arrived, or a trouble instead */
	bool verified;
};

/* A directory or file that the walk could not enter. */
struct pump_unwalked {
	char *path;
	int err;
};

struct pump_list {
	struct pump_file *file;
	uint32_t files;
	uint32_t room;
	uint64_t bytes;
	struct pump_unwalked *unwalked;
	uint32_t unwalked_count;
	uint64_t skipped; /* symbolic links, devices, sockets, FIFOs */
	bool cut; /* .max_bytes ended the walk */
};

int list_walk(struct pump_list *l, char **operands, uint64_t max_bytes);
/* Is what stands at @path now one of the files, by whatever name? */
bool list_has(const struct pump_list *l, const char *path);
/* Forgets what the last transport did with the files. */
void list_reset(struct pump_list *l);
void list_free(struct pump_list *l);

/* Read everything once, so that the page cache is as warm for the first transport as for the last. */
void list_warm(const struct pump_list *l);

/* Shared by parent and producers, and small. */
struct pump_shared {
	_Atomic uint32_t next; /* file that nobody has taken yet */
	_Atomic uint16_t taken[]; /* by file: 1 + producer */
};

/* ------------------------------------------------------------------ parcels */

/*
 * What travels: the bytes of parts, and an index with one record for each.  A file is one part or
 * several, in order, all from one producer.
 */
enum part_flags {
	PART_LAST =
		1 << 0, /* of its file; .hash is that of the whole file as the producer read it */
	PART_END = 1 << 1, /* no file: the producer has nothing more to send */
};

struct part {
	uint32_t file; /* place in the list */
	uint16_t producer; /* who read it */
	uint8_t flags;
	uint8_t trouble;
	uint64_t offset; /* of this part in the file; a multiple of 8 */
	uint64_t bytes; /* that are valid */
	uint64_t size; /* of the file when it was opened */
	uint64_t hash;
	uint64_t sum; /* likewise, of pump_sum.h; with pump_opts.on_gpu only */
	uint64_t detail;
	uint32_t name_len; /* the name follows, padded to 8 bytes */
	uint32_t reserved;
};

#define PARCEL_MAX_PARTS   256U
#define PARCEL_INDEX_BYTES (32U << 10)
#define PARCEL_OVERHEAD	   (128U << 10) /* index, description, and what blocks waste: at most */

/* As a consumer sees it.  All of this may be damaged: look before use. */
struct parcel {
	const void *index;
	uint64_t index_bytes;
	unsigned int parts;
	void *from; /* the carrier's own */
};

/*
 * The next record of an index.  @name has room for PARCEL_INDEX_BYTES.  Return: false when the rest of the
 * index makes no sense.
 */
bool parcel_record(const char **at, uint64_t *left, struct part *part, char *name);

/* ------------------------------------------------------------------ carriers */

struct carrier;

struct carrier_ops {
	const char *name;
	/* In the parent, before and after the fork. */
	int (*open)(struct carrier *c, const struct pump_opts *o);
	/* NULL where there is no arena. */
	void (*about)(struct carrier *c, struct sluice_arena_info *info);
	int (*forked)(struct carrier *c);
	/* In a producer. */
	int (*join)(struct carrier *c, unsigned int producer);
	int (*begin)(struct carrier *c);
	void *(*part)(struct carrier *c,
		      uint64_t bytes); /* NULL: errno, and the sentence is kept */
	int (*send)(struct carrier *c, const void *index, uint64_t bytes);
	void (*leave)(struct carrier *c);
	/* In the consumer.  next: -ETIMEDOUT, -ENODATA when no more can come. */
	int (*next)(struct carrier *c, struct parcel *p, uint64_t timeout_ns);
	int (*data)(struct carrier *c, const struct parcel *p, unsigned int part, const void **data,
		    uint64_t *bytes);
	/* Instead of looking at .data, which is NULL then: the sum of the valid bytes. */
	int (*sum)(struct carrier *c, const struct parcel *p, unsigned int part, uint64_t *sum);
	void (*release)(struct carrier *c, struct parcel *p);
	void (*close)(struct carrier *c);
	/* One sentence about the last failure of any of these. */
	const char *(*sentence)(struct carrier *c);
};

struct carrier {
	const struct carrier_ops *ops;
	void *own;
};

extern const struct carrier_ops carrier_arena;
extern const struct carrier_ops carrier_pipe;
/* An arena, verified on a GPU.  Left out where libsluice-cuda is. */
extern const struct carrier_ops carrier_gpu __attribute__((weak));

/* ------------------------------------------------------------------ the two sides */

/* Runs in a process of its own.  Return: the exit status of the process. */
int pump_produce(struct carrier *c, const struct pump_list *l, struct pump_shared *shared,
		 unsigned int producer, const struct pump_opts *o);

struct producer {
	pid_t pid;
	bool gone; /* reaped */
	bool ended; /* sent PART_END */
	int status; /* as of waitpid() */
};

struct pump_result {
	uint64_t verified;
	uint64_t bytes;
	uint64_t mismatches;
	uint64_t parcels;
	uint64_t damaged; /* records that made no sense */
	double seconds;
	double cpu_seconds;
	double open_seconds; /* to set the carrier up; not in .seconds */
	struct sluice_arena_info arena; /* .id is 0 without one */
	unsigned int died;
	struct producer producer[PUMP_MAX_PRODUCERS];
};

/* Forks the producers, consumes, reaps.  Return: 0 or a negative errno; files say what befell them. */
int pump_run(const struct carrier_ops *ops, struct pump_list *l, const struct pump_opts *o,
	     struct pump_result *res);

/* ------------------------------------------------------------------ the report */

struct run {
	const struct carrier_ops *ops;
	uint64_t round; /* the one that is under way or was the last */
	struct pump_result res[PUMP_MAX_ROUNDS];
	uint64_t troubles; /* of all rounds */
};

void report_unwalked(const struct pump_list *l);
/* The last round of a run; the files in the list say what befell them in it. */
void report_run(const struct run *r, const struct pump_list *l, uint64_t producers);
void report_table(const struct run *runs, unsigned int n, uint64_t rounds);
void report_list_json(struct json *j, const struct pump_list *l);
void report_run_json(struct json *j, const struct run *r, const struct pump_list *l,
		     uint64_t producers);
/* The round with the median time. */
const struct pump_result *run_median(const struct run *r, uint64_t rounds);
/*
 * Whether the manifest can be written, before hours of work are lost for it; leaves everything as it
 * was.  Return: 0 or a negative errno.
 */
int manifest_check(const char *path);
/* Hash and name of each verified file.  Return: 0 or a negative errno. */
int manifest_write(const char *path, const struct pump_list *l);

struct progress;
struct progress *progress_begin(const char *what, uint64_t bytes, bool quiet);
void progress_show(struct progress *p, uint64_t bytes);
void progress_end(struct progress *p);

#endif
