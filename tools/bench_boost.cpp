// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
// The same batches through Boost.Interprocess' message_queue: one copy in, one copy out.
#include <boost/interprocess/ipc/message_queue.hpp>

#include "bench_boost.h"

namespace bi = boost::interprocess;

static void *queue_open(const char *name, size_t slots, size_t bytes)
{
	try {
		auto *q = new bi::message_queue(bi::create_only, name, slots, bytes);
		// Forked processes inherit the mapping: the name is not needed any more.
		bi::message_queue::remove(name);
		return q;
	} catch (...) {
		return nullptr;
	}
}

static int queue_send(void *q, const void *data, size_t bytes)
{
	try {
		static_cast<bi::message_queue *>(q)->send(data, bytes, 0);
		return 0;
	} catch (...) {
		return -1;
	}
}

static long queue_recv(void *q, void *data, size_t bytes)
{
	bi::message_queue::size_type got;
	unsigned int priority;

	try {
		static_cast<bi::message_queue *>(q)->receive(data, bytes, got, priority);
		return static_cast<long>(got);
	} catch (...) {
		return -1;
	}
}

static void queue_close(void *q)
{
	delete static_cast<bi::message_queue *>(q);
}

const struct bench_boost bench_boost_queue = {queue_open, queue_send, queue_recv, queue_close};
