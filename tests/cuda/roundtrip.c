// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every way through the library once, in one process that uses CUDA, for tools that make CUDA slow to
 * start (compute-sanitizer): batches of random sizes go to the device, are checked there, come back
 * through a drain and are checked here.  Exits with 0 when all were right.
 */
#include <sluice_cuda.h>

#include "../lib/util.h"
#include "gpu.h"

#define BATCHES 300

#define CHECK_CUDA(call)                                                                         \
	do {                                                                                     \
		long ret_ = (call);                                                              \
		if (ret_ < 0) {                                                                  \
			fprintf(stderr, "%s:%d: %s: %ld, %s\n", __FILE__, __LINE__, #call, ret_, \
				sluice_cuda_strerror());                                         \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

int main(void)
{
	const struct sluice_cuda_opts gpu = {.sz = sizeof(gpu), .flags = SLUICE_CUDA_DEVICE};
	struct sluice_arena *a = arena_new(64 * MIB);
	struct sluice_channel *in = channel_new(a, "in", 8, SLUICE_CHANNEL_CONSUME);
	struct sluice_channel *out = channel_new(a, "out", 8, SLUICE_CHANNEL_PRODUCE);
	struct sluice_cuda_drain *d;
	struct CUstream_st *s;
	struct sluice_cuda_feed *f;
	struct sluice_cuda *c;
	pid_t producer, worker;

	CHILD(producer) {
		struct sluice_arena *mine = arena_child(a);
		struct sluice_channel *ch = channel_join(mine, "in", SLUICE_CHANNEL_PRODUCE);

		for (uint64_t i = 0; i < BATCHES; i++)
			CHECK_OK(batch_send(ch, random_u64() % (i % 8 ? 50000 : 3 * MIB), i,
					    LONG_WAIT));
		sluice_channel_close(ch);
		sluice_arena_detach(mine);
	}
	CHILD(worker) {
		struct sluice_arena *mine = arena_child(a);
		struct sluice_channel *ch = channel_join(mine, "out", SLUICE_CHANNEL_CONSUME);
		uint64_t seed;

		for (uint64_t i = 0; i < BATCHES; i++) {
			CHECK_OK(batch_recv(ch, &seed, SLUICE_FOREVER));
			CHECK(seed == i);
		}
	}
	CHECK(gpu_init(0));
	s = gpu_stream();
	CHECK_CUDA(sluice_cuda_attach(&c, a, &gpu));
	CHECK_CUDA(sluice_cuda_feed_open(&f, c, in, NULL));
	CHECK_CUDA(sluice_cuda_drain_open(&d, c, out, NULL));
	for (uint64_t i = 0; i < BATCHES; i++) {
		struct sluice_cuda_submit_opts o = {
			.sz = sizeof(o),
			.tag = i,
			.timeout_ns = SLUICE_FOREVER,
		};
		struct sluice_tensor t = {.sz = sizeof(t)};
		struct sluice_cuda_batch *b;

		CHECK_CUDA(sluice_cuda_feed_next(f, &b, s, SLUICE_FOREVER));
		CHECK_CUDA(sluice_cuda_batch_tensor(b, 0, &t));
		gpu_check(s, t.data, t.bytes, i);
		CHECK_CUDA(sluice_cuda_drain_submit(d, &t, 1, s, &o));
		CHECK_CUDA(sluice_cuda_drain_guard(d, s));
		CHECK_CUDA(sluice_cuda_batch_release(b, s));
	}
	CHECK_CUDA(sluice_cuda_drain_close(d));
	sluice_cuda_feed_close(f);
	gpu_sync(s);
	CHECK_CUDA(sluice_cuda_detach(c));
	gpu_stream_free(s);
	CHECK(gpu_bad() == 0);
	CHECK_OK(child_wait(producer));
	CHECK_OK(child_wait(worker));
	sluice_channel_close(in);
	sluice_channel_close(out);
	CHECK(!arena_all_free(a));
	sluice_arena_detach(a);
	printf("%d batches went to the device and back\n", BATCHES);
	return 0;
}
