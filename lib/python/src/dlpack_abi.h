/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The part of the DLPack ABI (versions 0 and 1) that is exported here. */
#ifndef DLPACK_ABI_H
#define DLPACK_ABI_H

#include <stdint.h>

enum {
	DLPACK_CPU = 1,
	DLPACK_CUDA_HOST = 3,
};

#define DLPACK_MAJOR	      1
#define DLPACK_MINOR	      0
#define DLPACK_FLAG_READ_ONLY (1ULL << 0)
#define DLPACK_FLAG_COPIED    (1ULL << 1)

struct dl_device {
	int32_t type;
	int32_t id;
};

struct dl_dtype {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t ndim;
	struct dl_dtype dtype;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor t;
	void *ctx;
	void (*deleter)(struct dl_managed *self);
};

struct dl_managed_versioned {
	struct {
		uint32_t major;
		uint32_t minor;
	} version;
	void *ctx;
	void (*deleter)(struct dl_managed_versioned *self);
	uint64_t flags;
	struct dl_tensor t;
};

#endif /* DLPACK_ABI_H */
