// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Builds manifests, and reads those that others claim to have built. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "manifest.h"

#define HEADER_BYTES sizeof(struct sluice_manifest_header)
#define DESC_BYTES   sizeof(struct sluice_manifest_desc)
#define SHORT_NAME   40 /* 32 bytes and their NUL, padded */
#define SHORT_NDIM   8

/* No manifest is larger; this bounds what a hostile header can make us allocate. */
#define MANIFEST_MAX_BYTES                                                                       \
	(HEADER_BYTES +                                                                          \
	 SLUICE_MAX_TENSORS * (DESC_BYTES + 16 * SLUICE_MAX_DIMS + SLUICE_MANIFEST_NAME_BYTES) + \
	 SLUICE_MAX_BLOBS * (DESC_BYTES + 8 + SLUICE_MANIFEST_NAME_BYTES))

_Static_assert(HEADER_BYTES == 64, "the header is one cache line");
_Static_assert(DESC_BYTES == 16, "descriptors are packed");
_Static_assert(MANIFEST_MAX_BYTES < UINT32_MAX, "manifest_bytes is 32 bits");

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) & ~(to - 1);
}

static bool dtype_valid(struct sluice_dtype dtype)
{
	return dtype.bits && !(dtype.bits % 8) && dtype.lanes;
}

/*
 * From the first byte to the end of the last element.  The element count has to fit as well, also
 * where strides of 0 make the extent small or an extent of 0 makes it empty: readers multiply.
 */
static bool tensor_bytes(struct sluice_dtype dtype, uint32_t ndim, const int64_t *shape,
			 const int64_t *strides, uint64_t *bytes)
{
	int64_t elem = (int64_t)dtype.bits / 8 * dtype.lanes;
	int64_t all = elem, last = 0, step;
	bool empty = false;
	uint32_t i;

	for (i = 0; i < ndim; i++) {
		if (shape[i] < 0 || strides[i] < 0)
			return false;
		if (!shape[i]) {
			empty = true;
			continue;
		}
		if (__builtin_mul_overflow(all, shape[i], &all) ||
		    __builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
		    __builtin_add_overflow(last, step, &last))
			return false;
	}
	if (empty) {
		*bytes = 0;
		return true;
	}
	if (__builtin_mul_overflow(last, elem, &last) || __builtin_add_overflow(last, elem, &last))
		return false;
	*bytes = last;
	return true;
}

static bool strides_contiguous(uint32_t ndim, const int64_t *shape, int64_t *strides)
{
	int64_t step = 1;

	while (ndim--) {
		strides[ndim] = step;
		if (shape[ndim] > 1 && __builtin_mul_overflow(step, shape[ndim], &step))
			return false;
	}
	return true;
}

static int buf_reserve(struct sluice_manifest *m, uint64_t bytes)
{
	uint64_t want = m->buf_bytes ? m->buf_bytes : 512;
	unsigned char *buf;

	if (bytes <= m->buf_bytes)
		return 0;
	while (want < bytes)
		want *= 2;
	buf = realloc(m->buf, want);
	if (!buf)
		return sluice_fail(ENOMEM, "no memory for a manifest of %" PRIu64 " bytes", want);
	m->buf = buf;
	m->buf_bytes = want;
	return 0;
}

static int views_reserve(struct sluice_manifest *m, uint32_t ntensors, uint32_t nblobs)
{
	void *p;

	if (ntensors > m->tensors_room) {
		p = realloc(m->tensors, ntensors * sizeof(*m->tensors));
		if (!p)
			return sluice_fail(ENOMEM, "no memory for %u tensors", ntensors);
		m->tensors = p;
		m->tensors_room = ntensors;
	}
	if (nblobs > m->blobs_room) {
		p = realloc(m->blobs, nblobs * sizeof(*m->blobs));
		if (!p)
			return sluice_fail(ENOMEM, "no memory for %u blobs", nblobs);
		m->blobs = p;
		m->blobs_room = nblobs;
	}
	return 0;
}

void sluice_manifest_reset(struct sluice_manifest *m, uint64_t room)
{
	m->producer = 0;
	m->sequence = 0;
	m->tag = 0;
	m->payload_bytes = 0;
	m->ntensors = 0;
	m->nblobs = 0;
	m->used = HEADER_BYTES;
	m->room = room;
}

void sluice_manifest_fini(struct sluice_manifest *m)
{
	free(m->buf);
	free(m->tensors);
	free(m->blobs);
	memset(m, 0, sizeof(*m));
}

uint64_t sluice_manifest_encoded_max(uint32_t n)
{
	return round_up(HEADER_BYTES + n * (DESC_BYTES + 16 * SHORT_NDIM + SHORT_NAME), 64);
}

uint64_t sluice_manifest_room(uint32_t n, uint32_t align)
{
	return sluice_manifest_encoded_max(n) + ((uint64_t)n + 1) * (align - 1);
}

static int place(const struct sluice_manifest *m, const char *what, const char *name,
		 uint64_t bytes, uint32_t align, uint64_t payload_room, uint64_t *offset)
{
	uint64_t end;

	*offset = round_up(m->payload_bytes, align);
	if (__builtin_add_overflow(*offset, bytes, &end) || end > payload_room)
		return sluice_fail(ENOSPC,
				   "%s \"%.64s\" has %" PRIu64 " bytes and would start at %" PRIu64
				   " of a payload for which %" PRIu64 " bytes were reserved",
				   what, name, bytes, *offset, payload_room);
	return 0;
}

static int name_check(const char *what, const char *name, size_t *name_bytes)
{
	*name_bytes = strlen(name) + 1;
	if (*name_bytes > SLUICE_MANIFEST_NAME_BYTES)
		return sluice_fail(EINVAL, "the name of %s \"%.64s...\" has %zu bytes, %d at most",
				   what, name, *name_bytes - 1, SLUICE_MANIFEST_NAME_BYTES - 1);
	return 0;
}

/* Room in the encoded form for a descriptor, @words after it and the name; *desc is where. */
static int desc_reserve(struct sluice_manifest *m, const char *what, const char *name,
			uint32_t words, size_t name_bytes, struct sluice_manifest_desc **desc)
{
	uint64_t bytes = DESC_BYTES + 8 * words + round_up(name_bytes, 8);
	int ret;

	if (m->used + bytes > m->room)
		return sluice_fail(ENOSPC,
				   "describing %s \"%.64s\" takes %" PRIu64 " bytes, %" PRIu64
				   " of %" PRIu64 " are left: reserve for more than %u tensors",
				   what, name, bytes, m->room > m->used ? m->room - m->used : 0,
				   m->room, m->ntensors + m->nblobs);
	ret = buf_reserve(m, m->used + bytes);
	if (ret)
		return ret;
	/* Padding goes to other processes: no stale bytes in it. */
	memset(m->buf + m->used, 0, bytes);
	*desc = (void *)(m->buf + m->used);
	memcpy(m->buf + m->used + DESC_BYTES + 8 * words, name, name_bytes);
	m->used += bytes;
	return 0;
}

static int tensor_check(const char *name, struct sluice_dtype dtype, uint32_t ndim,
			const int64_t *shape, const int64_t *strides, uint64_t *bytes)
{
	uint32_t i;

	if (!dtype_valid(dtype))
		return sluice_fail(
			EINVAL,
			"tensor \"%.64s\" has elements of %u bits in %u lanes: bits must "
			"be a multiple of 8, lanes at least 1",
			name, dtype.bits, dtype.lanes);
	for (i = 0; i < ndim; i++) {
		if (shape[i] < 0 || strides[i] < 0)
			return sluice_fail(EINVAL,
					   "dimension %u of tensor \"%.64s\" has extent %" PRId64
					   " and stride %" PRId64 ": neither may be negative",
					   i, name, shape[i], strides[i]);
	}
	if (!tensor_bytes(dtype, ndim, shape, strides, bytes))
		return sluice_fail(EINVAL, "tensor \"%.64s\" has more than %" PRId64 " bytes", name,
				   INT64_MAX);
	return 0;
}

int sluice_manifest_add_tensor(struct sluice_manifest *m, const char *name,
			       struct sluice_dtype dtype, uint32_t ndim, const int64_t *shape,
			       const int64_t *strides, uint32_t align, uint64_t payload_room,
			       uint64_t *offset, uint64_t *bytes)
{
	struct sluice_manifest_desc *desc;
	int64_t own[SLUICE_MAX_DIMS];
	size_t name_bytes;
	int ret;

	name = name ? name : "";
	ret = name_check("tensor", name, &name_bytes);
	if (ret)
		return ret;
	if (m->ntensors == SLUICE_MAX_TENSORS)
		return sluice_fail(ENOSPC, "tensor \"%.64s\" is one more than a batch can have: %d",
				   name, SLUICE_MAX_TENSORS);
	if (ndim > SLUICE_MAX_DIMS)
		return sluice_fail(EINVAL, "tensor \"%.64s\" has %u dimensions, %d at most", name,
				   ndim, SLUICE_MAX_DIMS);
	if (align < SLUICE_MANIFEST_MIN_ALIGN || align > SLUICE_MANIFEST_MAX_ALIGN ||
	    align & (align - 1))
		return sluice_fail(EINVAL,
				   "tensor \"%.64s\" wants an alignment of %u: must be a power of "
				   "two from %d to %d",
				   name, align, SLUICE_MANIFEST_MIN_ALIGN,
				   SLUICE_MANIFEST_MAX_ALIGN);
	if (!strides) {
		if (!strides_contiguous(ndim, shape, own))
			return sluice_fail(EINVAL,
					   "tensor \"%.64s\" has more than %" PRId64 " bytes", name,
					   INT64_MAX);
		strides = own;
	}
	ret = tensor_check(name, dtype, ndim, shape, strides, bytes);
	if (ret)
		return ret;
	ret = place(m, "tensor", name, *bytes, align, payload_room, offset);
	if (ret)
		return ret;
	ret = desc_reserve(m, "tensor", name, 2 * ndim, name_bytes, &desc);
	if (ret)
		return ret;
	*desc = (struct sluice_manifest_desc){
		.offset = *offset,
		.name_bytes = name_bytes,
		.kind = SLUICE_MANIFEST_TENSOR,
		.ndim = ndim,
		.dtype = dtype,
	};
	if (ndim) {
		memcpy(desc + 1, shape, 8 * ndim);
		memcpy((int64_t *)(desc + 1) + ndim, strides, 8 * ndim);
	}
	m->payload_bytes = *offset + *bytes;
	m->ntensors++;
	return 0;
}

int sluice_manifest_add_blob(struct sluice_manifest *m, const char *name, uint64_t len,
			     uint64_t payload_room, uint64_t *offset)
{
	struct sluice_manifest_desc *desc;
	size_t name_bytes;
	int ret;

	if (!name)
		return sluice_fail(EINVAL, "a blob of %" PRIu64 " bytes has no name", len);
	ret = name_check("blob", name, &name_bytes);
	if (ret)
		return ret;
	if (m->nblobs == SLUICE_MAX_BLOBS)
		return sluice_fail(ENOSPC, "blob \"%.64s\" is one more than a batch can have: %d",
				   name, SLUICE_MAX_BLOBS);
	ret = place(m, "blob", name, len, SLUICE_MANIFEST_MIN_ALIGN, payload_room, offset);
	if (ret)
		return ret;
	ret = desc_reserve(m, "blob", name, 1, name_bytes, &desc);
	if (ret)
		return ret;
	*desc = (struct sluice_manifest_desc){
		.offset = *offset,
		.name_bytes = name_bytes,
		.kind = SLUICE_MANIFEST_BLOB,
	};
	memcpy(desc + 1, &len, sizeof(len));
	m->payload_bytes = *offset + len;
	m->nblobs++;
	return 0;
}

uint64_t sluice_manifest_bytes(const struct sluice_manifest *m)
{
	return m->used;
}

void sluice_manifest_encode(struct sluice_manifest *m, void *dst)
{
	struct sluice_manifest_header h = {
		.magic = SLUICE_MANIFEST_MAGIC,
		.version = SLUICE_MANIFEST_VERSION,
		.manifest_bytes = m->used,
		.ntensors = m->ntensors,
		.nblobs = m->nblobs,
		.payload_bytes = m->payload_bytes,
		.producer = m->producer,
		.sequence = m->sequence,
		.tag = m->tag,
	};

	memcpy(dst, &h, HEADER_BYTES);
	if (m->used > HEADER_BYTES)
		memcpy((unsigned char *)dst + HEADER_BYTES, m->buf + HEADER_BYTES,
		       m->used - HEADER_BYTES);
}

/*
 * One descriptor of the private copy, @left bytes before its end.  Return: its size, or 0 with *why
 * set.
 */
static uint64_t desc_parse(struct sluice_manifest *m, const unsigned char *p, uint64_t left,
			   const char **why)
{
	const struct sluice_manifest_desc *desc = (const void *)p;
	const int64_t *words = (const void *)(desc + 1);
	uint64_t size, name_at, bytes, room;
	uint32_t nwords;
	const char *name;
	bool tensor;

	*why = "ends early";
	if (left < DESC_BYTES)
		return 0;
	tensor = desc->kind == SLUICE_MANIFEST_TENSOR;
	*why = "is neither a tensor nor a blob";
	if (!tensor && desc->kind != SLUICE_MANIFEST_BLOB)
		return 0;
	*why = "has too many dimensions";
	if (desc->ndim > SLUICE_MAX_DIMS)
		return 0;
	*why = "has no name, or too long a one";
	if (!desc->name_bytes || desc->name_bytes > SLUICE_MANIFEST_NAME_BYTES)
		return 0;
	nwords = tensor ? 2 * desc->ndim : 1;
	name_at = DESC_BYTES + 8 * nwords;
	size = name_at + round_up(desc->name_bytes, 8);
	*why = "ends early";
	if (left < size)
		return 0;
	name = (const char *)p + name_at;
	*why = "has a name without an end";
	if (name[desc->name_bytes - 1])
		return 0;
	if (tensor) {
		*why = "has an element type of no whole bytes";
		if (!dtype_valid(desc->dtype))
			return 0;
		*why = "has a negative or too large shape or stride";
		if (!tensor_bytes(desc->dtype, desc->ndim, words, words + desc->ndim, &bytes))
			return 0;
	} else {
		bytes = words[0];
	}
	*why = "lies outside of the payload, or not aligned";
	if (desc->offset > m->payload_bytes || desc->offset % SLUICE_MANIFEST_MIN_ALIGN)
		return 0;
	room = m->payload_bytes - desc->offset;
	if (bytes > room)
		return 0;
	if (tensor) {
		*why = "is a tensor too many";
		if (m->ntensors == m->tensors_room)
			return 0;
		m->tensors[m->ntensors++] = (struct sluice_manifest_tensor){
			.name = name,
			.shape = words,
			.strides = words + desc->ndim,
			.offset = desc->offset,
			.bytes = bytes,
			.dtype = desc->dtype,
			.ndim = desc->ndim,
		};
	} else {
		*why = "is a blob too many";
		if (m->nblobs == m->blobs_room)
			return 0;
		m->blobs[m->nblobs++] = (struct sluice_manifest_blob){
			.name = name,
			.offset = desc->offset,
			.bytes = bytes,
		};
	}
	return size;
}

static int parse(struct sluice_manifest *m, uint32_t ntensors, uint32_t nblobs)
{
	uint64_t pos = HEADER_BYTES, size;
	uint32_t i, n = ntensors + nblobs;
	const char *why;

	m->ntensors = 0;
	m->nblobs = 0;
	for (i = 0; i < n; i++) {
		size = desc_parse(m, m->buf + pos, m->used - pos, &why);
		if (!size)
			return sluice_fail(EBADMSG, "description %u of %u in a manifest %s", i + 1,
					   n, why);
		pos += size;
	}
	if (m->ntensors != ntensors || m->nblobs != nblobs || pos != m->used)
		return sluice_fail(EBADMSG,
				   "a manifest of %" PRIu64 " bytes promises %u tensors and %u "
				   "blobs, and has %u and %u in %" PRIu64 " bytes",
				   m->used, ntensors, nblobs, m->ntensors, m->nblobs, pos);
	return 0;
}

int sluice_manifest_index(struct sluice_manifest *m)
{
	int ret = views_reserve(m, m->ntensors, m->nblobs);

	return ret ? ret : parse(m, m->ntensors, m->nblobs);
}

static int header_check(const struct sluice_manifest_header *h, uint64_t src_max,
			uint64_t payload_max)
{
	if (h->magic != SLUICE_MANIFEST_MAGIC || h->version != SLUICE_MANIFEST_VERSION)
		return sluice_fail(EBADMSG,
				   "a manifest begins with %#x version %u, not with %#x version %u",
				   h->magic, h->version, SLUICE_MANIFEST_MAGIC,
				   SLUICE_MANIFEST_VERSION);
	if (h->manifest_bytes < HEADER_BYTES || h->manifest_bytes > src_max ||
	    h->manifest_bytes > MANIFEST_MAX_BYTES || h->manifest_bytes % 8)
		return sluice_fail(EBADMSG,
				   "a manifest claims %u bytes: must be a multiple of 8 from %zu "
				   "to %" PRIu64,
				   h->manifest_bytes, HEADER_BYTES,
				   src_max < MANIFEST_MAX_BYTES ? src_max
								: (uint64_t)MANIFEST_MAX_BYTES);
	if (h->ntensors > SLUICE_MAX_TENSORS || h->nblobs > SLUICE_MAX_BLOBS)
		return sluice_fail(EBADMSG,
				   "a manifest claims %u tensors and %u blobs, %d and %d at most",
				   h->ntensors, h->nblobs, SLUICE_MAX_TENSORS, SLUICE_MAX_BLOBS);
	if (h->payload_bytes > payload_max)
		return sluice_fail(EBADMSG,
				   "a manifest claims a payload of %" PRIu64
				   " bytes, its extent has room for %" PRIu64,
				   h->payload_bytes, payload_max);
	return 0;
}

static int decode(struct sluice_manifest *m, const void *src, uint64_t src_max,
		  uint64_t payload_max)
{
	struct sluice_manifest_header h;
	int ret;

	if (src_max < HEADER_BYTES)
		return sluice_fail(EBADMSG,
				   "a manifest has room for %" PRIu64
				   " bytes, its header alone takes %zu",
				   src_max, HEADER_BYTES);
	memcpy(&h, src, HEADER_BYTES);
	/* From here on the compiler must use the copy: the source may have changed. */
	__asm__ volatile("" : : "r"(&h) : "memory");
	ret = header_check(&h, src_max, payload_max);
	if (ret)
		return ret;
	ret = buf_reserve(m, h.manifest_bytes);
	if (ret)
		return ret;
	ret = views_reserve(m, h.ntensors, h.nblobs);
	if (ret)
		return ret;
	memcpy(m->buf + HEADER_BYTES, (const unsigned char *)src + HEADER_BYTES,
	       h.manifest_bytes - HEADER_BYTES);
	__asm__ volatile("" : : "r"(m->buf) : "memory");
	m->used = h.manifest_bytes;
	m->payload_bytes = h.payload_bytes;
	m->producer = h.producer;
	m->sequence = h.sequence;
	m->tag = h.tag;
	return parse(m, h.ntensors, h.nblobs);
}

int sluice_manifest_decode(struct sluice_manifest *m, const void *src, uint64_t src_max,
			   uint64_t payload_max)
{
	int ret = decode(m, src, src_max, payload_max);

	if (ret)
		sluice_manifest_reset(m, 0);
	return ret;
}
