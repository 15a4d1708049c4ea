// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The same batches through ZeroMQ's ipc transport; the sender does not copy. */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#ifdef HAVE_ZMQ
#include <dlfcn.h>
#include <zmq.h>

/* Looked up when it is measured: who only moves batches needs no ZeroMQ. */
#define ZMQ_FUNCTIONS(x)                                                              \
	x(ctx_new) x(socket) x(setsockopt) x(connect) x(bind) x(strerror) x(msg_init) \
		x(msg_init_data) x(msg_send) x(msg_recv) x(msg_size) x(msg_data) x(msg_close)

#define ZMQ_POINTER(name) __typeof__(zmq_##name) *name;
static struct {
	ZMQ_FUNCTIONS(ZMQ_POINTER)
} zmq;

static const char *zmq_missing(const struct bench_spec *spec)
{
	void *lib = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return "not installed";
#define ZMQ_FIND(name)                                  \
	*(void **)&zmq.name = dlsym(lib, "zmq_" #name); \
	if (!zmq.name)                                  \
		return "libzmq.so.5 has no zmq_" #name "()";
	ZMQ_FUNCTIONS(ZMQ_FIND)
	return NULL;
}

static void *sock;
static sem_t sources; /* payloads that ZeroMQ does not hold */

static int zmq_start(struct bench_crew *c)
{
	return bench_payload_init(c);
}

static int zmq_side_open(struct bench_crew *c, int side)
{
	void *ctx = zmq.ctx_new();
	int hwm = (int)c->spec->slots;
	char name[64];

	/* An abstract name: nothing is left behind. */
	snprintf(name, sizeof(name), "ipc://@sluice-bench.%d", (int)getppid());
	sock = ctx ? zmq.socket(ctx, side ? ZMQ_PUSH : ZMQ_PULL) : NULL;
	if (!sock)
		return bench_fail(c, -errno, "ZeroMQ: %s", zmq.strerror(errno));
	zmq.setsockopt(sock, side ? ZMQ_SNDHWM : ZMQ_RCVHWM, &hwm, sizeof(hwm));
	sem_init(&sources, 0, BENCH_SOURCES);
	if (side ? zmq.connect(sock, name) : zmq.bind(sock, name))
		return bench_fail(c, -errno, "ZeroMQ: %s: %s", name, zmq.strerror(errno));
	return 0;
}

static void source_free(void *data, void *hint)
{
	sem_post(&sources);
}

static int zmq_send_one(struct bench_crew *c)
{
	zmq_msg_t msg;

	while (sem_wait(&sources))
		;
	if (zmq.msg_init_data(&msg, bench_payload(c->seq), c->spec->bytes, source_free, NULL))
		return -errno;
	return zmq.msg_send(&msg, sock, 0) < 0 ? -errno : 0;
}

static int zmq_recv_one(struct bench_crew *c)
{
	zmq_msg_t msg;
	bool ok;

	zmq.msg_init(&msg);
	if (zmq.msg_recv(&msg, sock, 0) < 0)
		return -errno;
	ok = zmq.msg_size(&msg) == c->spec->bytes &&
	     bench_payload_ok(zmq.msg_data(&msg), c->seq, c->spec->flags & BENCH_READ);
	zmq.msg_close(&msg);
	return ok ? 0 : -EBADMSG;
}

static int zmq_run(struct bench_crew *c, int side, uint64_t n)
{
	int err;

	for (; n; n--, c->seq++) {
		err = side ? zmq_send_one(c) : zmq_recv_one(c);
		if (err)
			return bench_fail(c, err, "ZeroMQ: batch %llu: %s",
					  (unsigned long long)c->seq, zmq.strerror(-err));
	}
	return 0;
}

const struct bench_ops bench_zmq = {
	.name = "ZeroMQ ipc",
	.missing = zmq_missing,
	.init = zmq_start,
	.open = zmq_side_open,
	.run = zmq_run,
};
#else
static const char *zmq_missing(const struct bench_spec *spec)
{
	return "left out of this build";
}

const struct bench_ops bench_zmq = {
	.name = "ZeroMQ ipc",
	.missing = zmq_missing,
};
#endif
