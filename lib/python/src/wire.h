/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * How a Python object stands in an extent:
 *
 *	struct wire_header | payload, each part aligned | structure
 *
 * The structure is one byte of enum wire_op for each value, followed by its fields (native byte
 * order: both sides are on one host) and its children.  Large parts stand in the payload and are
 * named by (offset, length) from the header.  Values marked "memo" are numbered in the order in
 * which they begin; WIRE_REF names one again, so shared and recursive containers arrive as such.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

#define WIRE_MAGIC   0x31594c53U /* "SLY1" */
#define WIRE_INLINE  1024 /* strings and bytes below this stand in the structure */
#define WIRE_ALIGN   256 /* of tensors and arrays */
#define WIRE_ALIGN_S 8 /* of strings, bytes and tables */

struct wire_header {
	uint32_t magic;
	uint32_t reserved;
	uint64_t items; /* encode_items(): items + 1 positions in the structure follow */
	uint64_t structure;
	uint64_t structure_len;
};

enum wire_op {
	WIRE_NONE = 'N',
	WIRE_TRUE = 'T',
	WIRE_FALSE = 'F',
	WIRE_INT = 'I', /* i64 */
	WIRE_FLOAT = 'D', /* f64 */
	WIRE_STR = 'S', /* u32 len, bytes */
	WIRE_STR_FAR = 's', /* u64 off, u64 len */
	WIRE_BYTES = 'B', /* u32 len, bytes */
	WIRE_BYTES_FAR = 'b', /* u64 off, u64 len */
	WIRE_BYTEARRAY = 'A', /* memo; u64 off, u64 len */
	WIRE_LIST = 'L', /* memo; u32 n, children */
	WIRE_TUPLE = 'U', /* u32 n, children */
	WIRE_DICT = 'M', /* memo; u32 n, key and value n times */
	WIRE_STRINGS = 'V', /* memo if list; u8 WIRE_STR|WIRE_BYTES, u8 WIRE_LIST|WIRE_TUPLE, u32 n,
			       * u64 off of n+1 u64 positions, u64 off, u64 len of the bytes */
	WIRE_REF = 'R', /* u32 number */
	WIRE_PICKLE =
		'P', /* memo; u32 len, bytes, u32 n, (u64 off, u64 len, u8 readonly) n times */
	WIRE_TENSOR = 't', /* memo; u8 code, u8 bits, u8 ndim, u32 extra, u64 off, u64 len, shape,
			       * strides: i64 each */
	WIRE_ARRAY = 'a', /* memo; u8 len, dtype string, u8 ndim, u64 off, u64 len, shape */
	WIRE_NAMED = 'X', /* class, u32 n, children */
	WIRE_OBJECT = 'O', /* memo; class, then the state: a WIRE_DICT without memo */
	/* class: u32 number; a number not seen before is followed by u32 len, pickled class */
};

/* The tag of a queue's message: what its value is. */
enum wire_tag {
	WIRE_TAG_INLINE, /* the object */
	WIRE_TAG_STORED, /* where the next batch of its producer is */
	WIRE_TAG_SPILLED, /* a file of its own */
};

/* What codec.classify(type) answers. */
enum wire_class {
	CLASS_PICKLE,
	CLASS_NAMEDTUPLE,
	CLASS_OBJECT,
	CLASS_TENSOR,
	CLASS_ARRAY,
};

#endif /* WIRE_H */
