/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The description of a batch: which tensors and blobs it has and where they stand in its payload.
 *
 * A manifest is built in private memory in its encoded form and copied to the arena in one go, and
 * copied from the arena in one go before anything in it is looked at.  One object serves either
 * direction, is zero-initialised, and is meant to be pooled: its buffers are kept between batches.
 * Not thread-safe.
 */
#ifndef SLUICE_MANIFEST_H
#define SLUICE_MANIFEST_H

#include <sluice.h>

#define SLUICE_MANIFEST_MAGIC	   0x4d756c73U /* "sluM" */
#define SLUICE_MANIFEST_VERSION	   1
#define SLUICE_MANIFEST_NAME_BYTES 256 /* the NUL included */
#define SLUICE_MANIFEST_MIN_ALIGN  8
#define SLUICE_MANIFEST_MAX_ALIGN  4096

/* In the arena: one cache line, then the descriptors back to back, in the order of adding. */
struct sluice_manifest_header {
	uint32_t magic;
	uint32_t version;
	uint32_t manifest_bytes; /* with this header */
	uint16_t ntensors;
	uint16_t nblobs;
	uint64_t payload_bytes;
	uint64_t producer;
	uint64_t sequence;
	uint64_t tag;
	uint64_t reserved[2];
};

enum sluice_manifest_kind {
	SLUICE_MANIFEST_TENSOR = 1,
	SLUICE_MANIFEST_BLOB = 2,
};

/*
 * In the arena, 8-byte aligned.  A tensor goes on with its shape, its strides and its name, a blob
 * with its length and its name.  Names end in NUL and are padded to 8 bytes.
 */
struct sluice_manifest_desc {
	uint64_t offset;
	uint16_t name_bytes; /* the NUL included, the padding not */
	uint8_t kind;
	uint8_t ndim;
	struct sluice_dtype dtype;
};

/* Private views; the pointers lead into the manifest's own buffer. */
struct sluice_manifest_tensor {
	const char *name;
	const int64_t *shape;
	const int64_t *strides;
	uint64_t offset;
	uint64_t bytes;
	struct sluice_dtype dtype;
	uint32_t ndim;
};

struct sluice_manifest_blob {
	const char *name;
	uint64_t offset;
	uint64_t bytes;
};

struct sluice_manifest {
	/* The caller's, carried in the header. */
	uint64_t producer;
	uint64_t sequence;
	uint64_t tag;

	/* To be read by the caller. */
	uint64_t payload_bytes; /* to the end of the last tensor or blob */
	uint32_t ntensors;
	uint32_t nblobs;
	struct sluice_manifest_tensor *tensors; /* both are valid after decode or index */
	struct sluice_manifest_blob *blobs;

	/* manifest.c's own. */
	unsigned char *buf; /* encoded: header and descriptors */
	uint64_t used;
	uint64_t room;
	uint64_t buf_bytes;
	uint32_t tensors_room;
	uint32_t blobs_room;
};

/**
 * sluice_manifest_reset - start an empty manifest; buffers are kept
 * @m: the manifest
 * @room: bytes reserved in the arena for the encoded form; what does not fit fails when added
 *
 * The caller's fields (producer, sequence, tag) become 0.
 */
void sluice_manifest_reset(struct sluice_manifest *m, uint64_t room);

/** sluice_manifest_fini - free the buffers; the object is as new */
void sluice_manifest_fini(struct sluice_manifest *m);

/**
 * sluice_manifest_encoded_max - encoded size of n descriptions with short names, at most
 * @n: tensors and blobs, names up to 32 bytes and 8 dimensions each
 *
 * Return: bytes, a multiple of 64.
 */
uint64_t sluice_manifest_encoded_max(uint32_t n);

/**
 * sluice_manifest_room - what to reserve beside the payload proper
 * @n: tensors and blobs
 * @align: of each in the payload
 *
 * Return: sluice_manifest_encoded_max() plus what aligning n items, and the payload itself behind
 * the manifest, can cost.
 */
uint64_t sluice_manifest_room(uint32_t n, uint32_t align);

/**
 * sluice_manifest_add_tensor - place a tensor behind what is there already
 * @m: being built
 * @name: NULL is ""
 * @dtype: element type
 * @ndim: dimensions
 * @shape: @ndim extents
 * @strides: @ndim strides in elements; NULL for row-major and contiguous
 * @align: of the offset, a power of two from 8 to 4096
 * @payload_room: bytes reserved for the payload
 * @offset: in the payload
 * @bytes: from there to the end of the last element
 *
 * Return: 0, -EINVAL, -ENOSPC (payload, encoded form or SLUICE_MAX_TENSORS), -ENOMEM.  On failure
 * @m is unchanged.
 */
int sluice_manifest_add_tensor(struct sluice_manifest *m, const char *name,
			       struct sluice_dtype dtype, uint32_t ndim, const int64_t *shape,
			       const int64_t *strides, uint32_t align, uint64_t payload_room,
			       uint64_t *offset, uint64_t *bytes);

/**
 * sluice_manifest_add_blob - place a metadata blob, 8-byte aligned
 * @m: being built
 * @name: not NULL
 * @len: bytes
 * @payload_room: bytes reserved for the payload
 * @offset: in the payload
 *
 * Return: as sluice_manifest_add_tensor().
 */
int sluice_manifest_add_blob(struct sluice_manifest *m, const char *name, uint64_t len,
			     uint64_t payload_room, uint64_t *offset);

/** sluice_manifest_bytes - exact encoded size, a multiple of 8 */
uint64_t sluice_manifest_bytes(const struct sluice_manifest *m);

/**
 * sluice_manifest_encode - write the encoded form
 * @m: built; stays as it is
 * @dst: sluice_manifest_bytes() bytes in the arena, 8-byte aligned (64 saves a cache line)
 */
void sluice_manifest_encode(struct sluice_manifest *m, void *dst);

/**
 * sluice_manifest_index - make m->tensors and m->blobs valid for a manifest that was built here
 * @m: built
 *
 * Return: 0 or -ENOMEM.
 */
int sluice_manifest_index(struct sluice_manifest *m);

/**
 * sluice_manifest_decode - copy a manifest out of the arena and check all of it
 * @m: what it held is gone; empty after a failure
 * @src: encoded form; may be hostile and may change meanwhile, each byte is read once
 * @src_max: bytes that may be read at @src
 * @payload_max: bytes that the payload may occupy
 *
 * Return: 0; -EBADMSG (the sentence says what is wrong), -ENOMEM.
 */
int sluice_manifest_decode(struct sluice_manifest *m, const void *src, uint64_t src_max,
			   uint64_t payload_max);

#endif
