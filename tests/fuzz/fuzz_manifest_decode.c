// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Whatever stands where a manifest should be: refused with a sentence, or safe to use. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
	if (!holds)
		abort();
}

/* What a reader of the batch relies on. */
static void use(const struct sluice_manifest *m, uint64_t payload_max)
{
	require(m->ntensors <= SLUICE_MAX_TENSORS && m->nblobs <= SLUICE_MAX_BLOBS);
	require(m->payload_bytes <= payload_max);
	for (uint32_t i = 0; i < m->ntensors; i++) {
		const struct sluice_manifest_tensor *t = &m->tensors[i];
		uint64_t elem = (uint64_t)t->dtype.bits / 8 * t->dtype.lanes;
		uint64_t last = 0;
		int64_t count = 1;

		require(elem && t->ndim <= SLUICE_MAX_DIMS);
		require(strlen(t->name) < SLUICE_MANIFEST_NAME_BYTES);
		for (uint32_t d = 0; d < t->ndim; d++) {
			require(t->shape[d] >= 0 && t->strides[d] >= 0);
			/* UBSan: neither may overflow. */
			count *= t->shape[d];
			if (t->shape[d])
				last += (uint64_t)(t->shape[d] - 1) * (uint64_t)t->strides[d];
		}
		require(count ? t->bytes == (last + 1) * elem : !t->bytes);
		require(t->offset <= m->payload_bytes && t->bytes <= m->payload_bytes - t->offset);
	}
	for (uint32_t i = 0; i < m->nblobs; i++) {
		const struct sluice_manifest_blob *b = &m->blobs[i];

		require(strlen(b->name) < SLUICE_MANIFEST_NAME_BYTES);
		require(b->offset <= m->payload_bytes && b->bytes <= m->payload_bytes - b->offset);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct sluice_manifest m; /* pooled, as the library does */
	uint64_t payload_max;
	uint8_t *src;

	if (size < 8)
		return 0;
	memcpy(&payload_max, data, 8);
	payload_max >>= data[0] & 63;
	data += 8;
	size -= 8;
	/* Exactly as long as it is said to be, so that AddressSanitizer sees each byte too far. */
	src = malloc(size ? size : 1);
	memcpy(src, data, size);
	if (!sluice_manifest_decode(&m, src, size, payload_max)) {
		use(&m, payload_max);
	} else {
		require(*sluice_strerror() && !m.ntensors && !m.nblobs);
	}
	free(src);
	return 0;
}
