// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What is compared with what, and what must come out. */
#include "bench.h"

#define BATCH (12 * BENCH_MIB)
#define SLOTS 8

#define STREAM(o, f)                                                                               \
	{                                                                                          \
		.ops = &(o), .sides = 2, .flags = (f), .slots = SLOTS, .bytes = BATCH, .first = 16 \
	}

/* Each side has a CPU of its own, as workers and trainer have on a host that is busy. */
static const struct bench_spec copy_sluice = STREAM(bench_stream, BENCH_PIN);
static const struct bench_spec copy_pipe = STREAM(bench_pipe, BENCH_PIN);
static const struct bench_spec copy_memcpy = {
	.ops = &bench_memcpy,
	.sides = 1,
	.flags = BENCH_PIN,
	.slots = SLOTS,
	.bytes = BATCH,
	.first = 16,
};
static const struct bench_spec read_sluice = STREAM(bench_stream, BENCH_READ | BENCH_PIN);
static const struct bench_spec read_pipe = STREAM(bench_pipe, BENCH_READ | BENCH_PIN);

/*
 * The scheduler likes to put both ends of a pipe on one CPU, where waking the other end costs
 * least.  Every peer is compared as it runs best.
 */
static const struct bench_spec free_copy_sluice = STREAM(bench_stream, 0);
static const struct bench_spec free_copy_pipe = STREAM(bench_pipe, 0);
static const struct bench_spec free_sluice = STREAM(bench_stream, BENCH_READ);
static const struct bench_spec free_pipe = STREAM(bench_pipe, BENCH_READ);
static const struct bench_spec free_pipe_big = STREAM(bench_pipe_big, BENCH_READ);
static const struct bench_spec free_unix = STREAM(bench_unix, BENCH_READ);
static const struct bench_spec free_readv = STREAM(bench_readv, BENCH_READ);
static const struct bench_spec free_zmq = STREAM(bench_zmq, BENCH_READ);
static const struct bench_spec free_boost = STREAM(bench_boost, BENCH_READ);
static const struct bench_spec free_shm = STREAM(bench_shm_ring, BENCH_READ);
/*
 * Turns of 2,000, an even number of them.  Where the lines of a lease happen to lie makes one batch
 * faster than the other by a fifth, so they lie elsewhere in each round.
 */
static const struct bench_spec handoff = {
	.ops = &bench_handoff,
	.sides = 2,
	.flags = BENCH_PIN | BENCH_EVEN | BENCH_FRESH,
	.first = 4000,
	.round_us = 20000,
};
static const struct bench_spec line = {
	.ops = &bench_line,
	.sides = 2,
	.flags = BENCH_PIN,
	.first = 10000,
	.round_us = 3000,
};
static const struct bench_spec awake = {
	.ops = &bench_pingpong,
	.sides = 2,
	.flags = BENCH_PIN,
	.first = 10000,
	.round_us = 3000,
};
static const struct bench_spec eventfd = {
	.ops = &bench_eventfd,
	.sides = 2,
	.flags = BENCH_PIN,
	.first = 100,
	.round_us = 5000,
};
static const struct bench_spec asleep = {
	.ops = &bench_pingpong,
	.sides = 2,
	.flags = BENCH_SLEEP | BENCH_PIN,
	.first = 100,
	.round_us = 5000,
};
static const struct bench_spec free_eventfd = {
	.ops = &bench_eventfd,
	.sides = 2,
	.first = 100,
	.round_us = 5000,
};
static const struct bench_spec free_asleep = {
	.ops = &bench_pingpong,
	.sides = 2,
	.flags = BENCH_SLEEP,
	.first = 100,
	.round_us = 5000,
};
static const struct bench_spec steady = {
	.ops = &bench_stream,
	.sides = 2,
	.flags = BENCH_READ | BENCH_COUNT | BENCH_FRESH,
	.slots = SLOTS,
	.bytes = BATCH,
	.first = 100,
};
static const struct bench_spec steady_small = {
	.ops = &bench_stream,
	.sides = 2,
	.flags = BENCH_READ | BENCH_COUNT | BENCH_FRESH,
	.slots = 64,
	.bytes = BENCH_MIB / 16,
	.first = 10000,
};
static const struct bench_spec one_producer = {
	.ops = &bench_fanin,
	.sides = 2,
	.slots = 64,
	.bytes = BENCH_MIB / 16,
	.first = 2000,
	.round_us = 300000,
};
static const struct bench_spec eight_producers = {
	.ops = &bench_fanin,
	.sides = 9,
	.slots = 64,
	.bytes = BENCH_MIB / 16,
	.first = 2000,
	.round_us = 300000,
};
static const struct bench_spec create = {
	.ops = &bench_create,
	.sides = 1,
	.bytes = 1024 * BENCH_MIB,
	.first = 1,
};
static const struct bench_spec fresh = {
	.ops = &bench_memset,
	.sides = 1,
	.bytes = 1024 * BENCH_MIB,
	.first = 1,
};
static const struct bench_spec first_pass = {
	.ops = &bench_first_pass,
	.sides = 1,
	.bytes = 256 * BENCH_MIB,
	.first = 1,
};
static const struct bench_spec later_pass = {
	.ops = &bench_later_pass,
	.sides = 1,
	.flags = BENCH_LATER,
	.bytes = 256 * BENCH_MIB,
	.first = 1,
};
static const struct bench_spec slow_consumer = {
	.ops = &bench_stream,
	.sides = 2,
	.flags = BENCH_READ | BENCH_SLOW,
	.slots = 2,
	.bytes = BATCH,
	.first = 8,
};
static const struct bench_spec reader = {
	.ops = &bench_reader,
	.sides = 1,
	.bytes = BATCH,
	.first = 8,
};
static const struct bench_spec million = {
	.ops = &bench_footprint,
	.sides = 2,
	.flags = BENCH_FIXED,
	.slots = 64,
	.bytes = 4096,
	.first = 1000000,
};

static double gb_per_s(const struct bench_sample *s, const struct bench_spec *spec)
{
	return (double)s->n * (double)spec->bytes / s->ns;
}

static double per_s(const struct bench_sample *s, const struct bench_spec *spec)
{
	return (double)s->n * 1e9 / s->ns;
}

static double handoff_small(const struct bench_sample *s, const struct bench_spec *spec)
{
	return (double)s->n / 2 * 1e9 / (s->ns - s->extra);
}

static double handoff_large(const struct bench_sample *s, const struct bench_spec *spec)
{
	return (double)s->n / 2 * 1e9 / s->extra;
}

static double handoff_flat(const struct bench_sample *s, const struct bench_spec *spec)
{
	return (s->ns - s->extra) / s->extra;
}

static double one_way_ns(const struct bench_sample *s, const struct bench_spec *spec)
{
	return s->ns / (double)s->n / 2;
}

static double round_trip_us(const struct bench_sample *s, const struct bench_spec *spec)
{
	return s->ns / (double)s->n / 1e3;
}

static double ms(const struct bench_sample *s, const struct bench_spec *spec)
{
	return s->ns / (double)s->n / 1e6;
}

/* Half of the batches are in the steady phase. */
static double calls(const struct bench_sample *s, const struct bench_spec *spec)
{
	return s->extra / (double)(s->n / 2);
}

static double extra(const struct bench_sample *s, const struct bench_spec *spec)
{
	return s->extra;
}

/* Against what the control region may take: 0.1 % of the data region and 1 MiB. */
static double control(const struct bench_sample *s, const struct bench_spec *spec)
{
	return s->extra / ((double)spec->bytes / 1000 + (double)BENCH_MIB);
}

const struct bench_row bench_rows[] = {
	{"stream_copy", "12 MiB batches, copied in", "copy", "GB/s", &copy_sluice, &copy_pipe,
	 gb_per_s, BENCH_RATIO_MIN, 8},
	{"stream_copy_limit", "12 MiB batches, copied in", "copy", "GB/s", &copy_sluice,
	 &copy_memcpy, gb_per_s, BENCH_RATIO_MIN, 0.85},
	{"stream_read", "12 MiB batches, every byte read", "read", "GB/s", &read_sluice, &read_pipe,
	 gb_per_s, BENCH_RATIO_MIN, 5},
	{"stream_copy_free", "copied in, CPUs not pinned", "free", "GB/s", &free_copy_sluice,
	 &free_copy_pipe, gb_per_s, BENCH_RATIO_MIN, 8},
	{"stream_read_free", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice,
	 &free_pipe, gb_per_s, BENCH_RATIO_MIN, 5},
	{"peer_pipe_big", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice,
	 &free_pipe_big, gb_per_s, BENCH_NO_GOAL, 0},
	{"peer_unix", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice, &free_unix,
	 gb_per_s, BENCH_NO_GOAL, 0},
	{"peer_readv", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice,
	 &free_readv, gb_per_s, BENCH_NO_GOAL, 0},
	{"peer_zmq", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice, &free_zmq,
	 gb_per_s, BENCH_NO_GOAL, 0},
	{"peer_boost", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice,
	 &free_boost, gb_per_s, BENCH_NO_GOAL, 0},
	{"peer_shm", "every byte read, CPUs not pinned", "free", "GB/s", &free_sluice, &free_shm,
	 gb_per_s, BENCH_NO_GOAL, 0},
	{"handoff_12m", "hand-off of a filled 12 MiB batch", "handoff", "/s", &handoff, NULL,
	 handoff_small, BENCH_VALUE_MIN, 200000},
	{"handoff_1g", "hand-off of a filled 1 GiB batch", "handoff", "/s", &handoff, NULL,
	 handoff_large, BENCH_VALUE_MIN, 200000},
	{"handoff_flat", "1 GiB against 12 MiB", "handoff", "of it", &handoff, NULL, handoff_flat,
	 BENCH_VALUE_NEAR, 0.15},
	{"latency_awake", "one way, both awake", "awake", "ns", &awake, &line, one_way_ns,
	 BENCH_RATIO_MAX, 5},
	{"latency_asleep", "round trip, both asleep", "asleep", "us", &asleep, &eventfd,
	 round_trip_us, BENCH_RATIO_MAX, 1.3},
	{"latency_asleep_free", "asleep, CPUs not pinned", "asleep_free", "us", &free_asleep,
	 &free_eventfd, round_trip_us, BENCH_NO_GOAL, 0},
	{"syscalls", "system calls per 12 MiB batch", "syscalls", "/batch", &steady, NULL, calls,
	 BENCH_VALUE_MAX, 0.05},
	{"syscalls_64k", "system calls per 64 KiB batch", "syscalls64", "/batch", &steady_small,
	 NULL, calls, BENCH_VALUE_MAX, 0.05},
	{"fanin_rate", "8 producers, 64 KiB batches", "fanin", "GB/s", &eight_producers,
	 &one_producer, gb_per_s, BENCH_RATIO_MIN, 0.8},
	{"fanin_fair", "8 producers: least share of a fair one", "fanin", "share", &eight_producers,
	 NULL, extra, BENCH_VALUE_MIN, 0.5},
	{"create", "create and fault in 1 GiB", "create", "ms", &create, &fresh, ms,
	 BENCH_RATIO_MAX, 1.2},
	{"control", "control region of 1 GiB, of its limit", "create", "limit", &create, NULL,
	 control, BENCH_VALUE_MAX, 1},
	{"first_touch", "attach and read 256 MiB, cold", "touch", "GB/s", &first_pass, &later_pass,
	 gb_per_s, BENCH_NO_GOAL, 0},
	{"back_pressure", "slow consumer, 2 batches of room", "slow", "/s", &slow_consumer, &reader,
	 per_s, BENCH_NO_GOAL, 0},
	{"growth", "memory after 1,000,000 batches, less 1,000", "growth", "KiB", &million, NULL,
	 extra, BENCH_VALUE_MAX, 0},
};

const unsigned int bench_nrows = sizeof(bench_rows) / sizeof(bench_rows[0]);
