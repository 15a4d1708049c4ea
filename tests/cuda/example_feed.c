// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sluice_cuda.h>

static const int64_t shape[4] = {64, 3, 224, 224};
static const uint64_t bytes = 64 * 3 * 224 * 224 * sizeof(float);

/* Another process: fills batches in place.  It never loads CUDA. */
static int produce(struct sluice_arena *inherited)
{
	struct sluice_channel_opts out = {.sz = sizeof(out), .flags = SLUICE_CHANNEL_PRODUCE};
	struct sluice_arena *a;
	struct sluice_channel *ch;
	struct sluice_batch *b;

	if (sluice_arena_reattach(&a, inherited) || sluice_channel_open(&ch, a, "train", &out))
		return 1;
	for (int i = 0; i < 20; i++) {
		if (sluice_batch_begin(ch, &b, bytes, SLUICE_FOREVER))
			return 1;
		memset(sluice_batch_tensor_add(b, "image", SLUICE_F32, 4, shape, NULL), i, bytes);
		if (sluice_batch_publish(b))
			return 1;
	}
	sluice_arena_detach(a);
	return 0;
}

int main(void)
{
	struct sluice_arena_opts arena = {.sz = sizeof(arena), .data_bytes = 512 << 20};
	struct sluice_channel_opts in = {.sz = sizeof(in), .flags = SLUICE_CHANNEL_CONSUME};
	struct sluice_cuda_opts gpu = {.sz = sizeof(gpu), .flags = SLUICE_CUDA_DEVICE};
	struct sluice_tensor image = {.sz = sizeof(image)};
	struct CUstream_st *stream = NULL; /* yours, for compute; NULL is the default stream */
	struct sluice_arena *a;
	struct sluice_channel *ch;
	struct sluice_cuda *c;
	struct sluice_cuda_feed *feed;
	struct sluice_cuda_batch *b;

	if (sluice_arena_create(&a, &arena) || sluice_channel_create(&ch, a, "train", &in))
		return fprintf(stderr, "%s\n", sluice_strerror()), 1;
	if (fork() == 0)
		_exit(produce(a));
	gpu.flags |= SLUICE_CUDA_CREATE_CONTEXT; /* of device 0, without the CUDA runtime */
	if (sluice_cuda_attach(&c, a, &gpu) || sluice_cuda_feed_open(&feed, c, ch, NULL))
		return fprintf(stderr, "%s\n", sluice_cuda_strerror()), 1;
	while (sluice_cuda_feed_next(feed, &b, stream, SLUICE_FOREVER) == 0) {
		sluice_cuda_batch_tensor(b, 0, &image);
		/* ... kernels launched on stream here find image.data complete ... */
		sluice_cuda_batch_release(b, stream);
	}
	printf("%s\n", sluice_cuda_strerror()); /* the end of the stream, if all went well */
	sluice_cuda_feed_close(feed);
	return sluice_cuda_detach(c);
}
