/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_CUDA_FEED_H
#define SLUICE_CUDA_FEED_H

#include "priv.h"

/* Blobs up to this size are copied on the host, so that the extent can go back early. */
#define CUDA_BLOB_COPY_MAX (64 << 10)

enum cuda_slot_state {
	SLOT_FREE, /* in the free queue */
	SLOT_COPIED, /* its copy is on the stream; in the ready queue */
	SLOT_OUT, /* with the caller */
};

struct cuda_blob {
	const char *name;
	const void *data;
	uint64_t len;
};

/* A device buffer, and what the caller sees of the batch in it. */
struct sluice_cuda_batch {
	struct sluice_cuda_feed *feed;
	struct sluice_cuda_batch *next; /* in the free or the ready queue */
	struct sluice_cuda_batch *fly; /* in the queue of copies in flight */
	enum cuda_slot_state state;
	CUdeviceptr dev;
	uint64_t dev_bytes;
	CUevent copied[2]; /* recorded behind the last copy of a group: a small one, a large one */
	bool large; /* which of them */
	bool recorded; /* it was, since the group was begun */
	CUevent passed; /* the caller's stream has got past its use */
	bool has_passed;
	struct sluice_cuda_batch *group; /* whose event tells about this copy */
	struct cuda_ticket *ticket; /* holds the extent while the copy runs */
	struct sluice_batch *kept; /* holds it until the release, for large blobs */
	uint64_t first; /* of the payload bytes that were copied: they stand at .dev */
	/* the manifest, in .text unless .kept */
	struct sluice_batch_info info;
	struct sluice_tensor *tensors;
	struct cuda_blob *blobs;
	char *text;
	size_t tensors_max, blobs_max, text_max;
};

/*
 * Copy the manifest of a held batch into the slot.  Return: the payload bytes [*first, *end) that
 * hold tensors in the out parameters; 0 or a negative errno.
 */
int cuda_manifest_take(struct sluice_cuda_batch *s, struct sluice_batch *b, uint64_t *first,
		       uint64_t *end);
void cuda_manifest_free(struct sluice_cuda_batch *s);

#endif
