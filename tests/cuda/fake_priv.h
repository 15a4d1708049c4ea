/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef FAKE_PRIV_H
#define FAKE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "fake_cuda.h"

struct fake_config {
	int devices;
	unsigned int delay_us;
	unsigned int seed;
	uint64_t reg_limit;
	uint64_t memory;
	_Atomic int flip;
	bool old;
	const char *missing;
};

struct range {
	uint64_t start, end;
};

struct stream;

struct ctx {
	int device;
	unsigned int age; /* how often it was reset: what is of another age is gone */
	_Atomic bool destroyed;
	_Atomic CUresult sticky;
	struct stream *streams; /* all that there ever were */
	struct stream *null; /* the legacy default stream */
};

struct event {
	struct ctx *ctx;
	unsigned int age;
	_Atomic uint64_t recorded, fired;
};

struct op {
	enum {
		OP_H2D,
		OP_D2H,
		OP_RECORD,
		OP_WAIT,
		OP_WRITE,
		OP_HOST,
		OP_KERNEL,
		OP_FAULT,
	} kind;
	uint64_t device, host, n;
	uint64_t sum; /* of the host memory when the copy was asked for */
	struct event *event;
	void (*fn)(void *arg);
	void *arg;
	struct op *next;
};

extern pthread_mutex_t fake_lock;
extern struct fake_config fake;
extern __thread bool fake_in_host_func;

void fake_violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

CUresult fake_enter(const char *name);
struct ctx *fake_current(void);

/* With the lock held. */
bool fake_host_known(uint64_t at, uint64_t n);
bool fake_device_known(uint64_t at, uint64_t n);
bool fake_in_flight(uint64_t start, uint64_t end);

struct stream *fake_stream_new(struct ctx *c);
void fake_stream_end(struct stream *s);
bool fake_stream_captured(const struct stream *s);
void fake_streams_stop(struct ctx *c);
CUresult fake_push(struct ctx *c, struct stream *s, struct op op);
CUresult fake_stream_idle(struct ctx *c, struct stream *s, bool wait);
CUresult fake_event_wait(struct event *ev);

#endif
