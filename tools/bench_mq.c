// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Boost.Interprocess' message_queue as a crew. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "bench_boost.h"

/*
 * C++ lives in a shared object beside the program as it was built, so that the program itself needs
 * no C++ runtime.  It is not installed: comparing is for who has the sources.
 */
#define PLUGIN "bench_boost.so"

static const struct bench_boost *boost;
static char *slots;

static const char *mq_missing(const struct bench_spec *spec)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof(PLUGIN) - 1);
	void *plugin;

	if (n < 0)
		return "its plug-in cannot be looked for without /proc";
	path[n] = '\0';
	sprintf(strrchr(path, '/') + 1, PLUGIN);
	plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	boost = plugin ? dlsym(plugin, "bench_boost_queue") : NULL;
	return boost ? NULL : "left out of this build, or this program is an installed one";
}

static int mq_init(struct bench_crew *c)
{
	char name[64];

	snprintf(name, sizeof(name), "sluice-bench-mq.%d", (int)getpid());
	c->priv = boost->open(name, c->spec->slots, c->spec->bytes);
	if (!c->priv)
		return bench_fail(c, -ENOMEM, "message_queue of %u x %llu bytes was refused",
				  c->spec->slots, (unsigned long long)c->spec->bytes);
	return bench_payload_init(c);
}

static int mq_open(struct bench_crew *c, int side)
{
	if (side)
		return 0;
	slots = bench_alloc(c->spec->slots * c->spec->bytes);
	return slots ? 0 : bench_fail(c, -ENOMEM, "no memory for buffers");
}

static int mq_run(struct bench_crew *c, int side, uint64_t n)
{
	uint64_t bytes = c->spec->bytes;
	char *slot;

	for (; n; n--, c->seq++) {
		if (side) {
			if (boost->send(c->priv, bench_payload(c->seq), bytes))
				return bench_fail(c, -EIO, "message_queue: send failed");
			continue;
		}
		slot = slots + c->seq % c->spec->slots * bytes;
		if (boost->recv(c->priv, slot, bytes) != (long)bytes ||
		    !bench_payload_ok(slot, c->seq, c->spec->flags & BENCH_READ))
			return bench_fail(c, -EBADMSG, "message_queue: batch %llu is damaged",
					  (unsigned long long)c->seq);
	}
	return 0;
}

static void mq_exit(struct bench_crew *c)
{
	if (c->priv)
		boost->close(c->priv);
}

const struct bench_ops bench_boost = {
	.name = "Boost message_queue",
	.missing = mq_missing,
	.init = mq_init,
	.open = mq_open,
	.run = mq_run,
	.exit = mq_exit,
};
