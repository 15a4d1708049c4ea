// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Whatever a caller adds: refused with a sentence, or read by the other side as it was meant. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "manifest.h"

#define ADDED_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *at;
	size_t left;
};

struct added {
	int blob;
	char name[300];
	struct sluice_dtype dtype;
	uint32_t ndim;
	int64_t shape[SLUICE_MAX_DIMS + 1];
	int64_t strides[SLUICE_MAX_DIMS + 1];
	uint64_t offset, bytes;
};

static void require(int holds)
{
	if (!holds)
		abort();
}

static uint8_t byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->at++;
}

/* Mostly small, sometimes anything. */
static uint64_t number(struct input *in)
{
	uint8_t kind = byte(in);
	uint64_t n = 0;

	if (kind < 224)
		return kind % 16;
	for (int i = 0; i < 8; i++)
		n = n << 8 | byte(in);
	return n >> (kind & 31) * 2;
}

static int add(struct sluice_manifest *m, struct input *in, struct added *a, uint64_t payload_room)
{
	size_t len = byte(in);
	uint8_t how = byte(in);

	if (how & 128)
		len += 40; /* names that are too long */
	memset(a->name, 'n', len);
	a->name[len] = '\0';
	a->blob = how & 1;
	if (a->blob) {
		a->bytes = number(in);
		return sluice_manifest_add_blob(m, a->name, a->bytes, payload_room, &a->offset);
	}
	a->dtype.code = byte(in);
	a->dtype.bits = how & 64 ? byte(in) : 8 << (how >> 1 & 3);
	a->dtype.lanes = how & 32 ? number(in) : 1;
	a->ndim = byte(in) % (SLUICE_MAX_DIMS + 2);
	for (uint32_t i = 0; i < a->ndim; i++) {
		a->shape[i] = number(in);
		a->strides[i] = number(in);
	}
	return sluice_manifest_add_tensor(m, a->name, a->dtype, a->ndim, a->shape,
					  how & 16 ? a->strides : NULL, 8U << (byte(in) % 12),
					  payload_room, &a->offset, &a->bytes);
}

static void compare(const struct sluice_manifest *got, const struct added *added, unsigned int n)
{
	uint32_t tensors = 0, blobs = 0;

	for (unsigned int i = 0; i < n; i++) {
		const struct added *a = &added[i];

		if (a->blob) {
			const struct sluice_manifest_blob *b = &got->blobs[blobs++];

			require(!strcmp(b->name, a->name) && b->offset == a->offset &&
				b->bytes == a->bytes);
			continue;
		}
		const struct sluice_manifest_tensor *t = &got->tensors[tensors++];

		require(!strcmp(t->name, a->name) && t->offset == a->offset &&
			t->bytes == a->bytes && t->ndim == a->ndim);
		require(!memcmp(&t->dtype, &a->dtype, sizeof(t->dtype)));
		require(!a->ndim || !memcmp(t->shape, a->shape, 8 * a->ndim));
	}
	require(got->ntensors == tensors && got->nblobs == blobs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct sluice_manifest m, got;
	static struct added added[ADDED_MAX];
	struct input in = {data, size};
	uint64_t room = number(&in) * 256, payload_room = number(&in) * 64, used;
	unsigned int n = 0;
	uint8_t *dst;

	sluice_manifest_reset(&m, room);
	while (in.left && n < ADDED_MAX) {
		uint64_t before = sluice_manifest_bytes(&m), payload = m.payload_bytes;
		int ret = add(&m, &in, &added[n], payload_room);

		if (!ret) {
			require(added[n].offset >= payload);
			n++;
			continue;
		}
		require(ret == -EINVAL || ret == -ENOSPC);
		require(*sluice_strerror());
		require(sluice_manifest_bytes(&m) == before && m.payload_bytes == payload);
	}
	require(m.payload_bytes <= payload_room);
	used = sluice_manifest_bytes(&m);
	require(!n || used <= room);
	dst = malloc(used);
	sluice_manifest_encode(&m, dst);
	require(!sluice_manifest_decode(&got, dst, used, payload_room));
	compare(&got, added, n);
	require(!sluice_manifest_index(&m));
	compare(&m, added, n);
	free(dst);
	return 0;
}
