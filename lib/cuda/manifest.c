/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the caller sees of a batch on the device: views that outlive the extent. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "feed.h"

static int room(void **p, size_t *max, size_t n, size_t size)
{
	void *q;

	if (n <= *max)
		return 0;
	q = realloc(*p, n * size);
	if (!q)
		return cuda_fail(ENOMEM, "no memory for a manifest of %zu bytes", n * size);
	*p = q;
	*max = n;
	return 0;
}

/* How many bytes of host memory the shapes, strides, names and copied blobs take. */
static size_t text_size(const struct sluice_cuda_batch *s)
{
	size_t n = 0;

	for (uint32_t i = 0; i < s->info.tensors; i++)
		n += 2 * s->tensors[i].ndim * sizeof(int64_t) + strlen(s->tensors[i].name) + 1;
	for (uint32_t i = 0; i < s->info.blobs; i++)
		n += s->blobs[i].len + strlen(s->blobs[i].name) + 1;
	return n;
}

static const void *text_add(char **at, const void *from, size_t n)
{
	void *to = *at;

	if (n)
		memcpy(to, from, n);
	*at += n;
	return to;
}

/* Numbers first, so that they are aligned; then everything that is bytes. */
static void text_fill(struct sluice_cuda_batch *s)
{
	char *at = s->text;

	for (uint32_t i = 0; i < s->info.tensors; i++) {
		struct sluice_tensor *t = &s->tensors[i];

		t->shape = text_add(&at, t->shape, t->ndim * sizeof(int64_t));
		t->strides = text_add(&at, t->strides, t->ndim * sizeof(int64_t));
	}
	for (uint32_t i = 0; i < s->info.tensors; i++)
		s->tensors[i].name =
			text_add(&at, s->tensors[i].name, strlen(s->tensors[i].name) + 1);
	for (uint32_t i = 0; i < s->info.blobs; i++) {
		struct cuda_blob *b = &s->blobs[i];

		b->name = text_add(&at, b->name, strlen(b->name) + 1);
		b->data = text_add(&at, b->data, b->len);
	}
}

int cuda_manifest_take(struct sluice_cuda_batch *s, struct sluice_batch *b, uint64_t *first,
		       uint64_t *end)
{
	uint64_t blob_bytes = 0;
	size_t n;
	int ret;

	s->info.sz = sizeof(s->info);
	ret = sluice_batch_info(b, &s->info);
	if (ret)
		return cuda_fail_core(ret);
	ret = room((void **)&s->tensors, &s->tensors_max, s->info.tensors, sizeof(s->tensors[0]));
	if (!ret)
		ret = room((void **)&s->blobs, &s->blobs_max, s->info.blobs, sizeof(s->blobs[0]));
	if (ret)
		return ret;
	*first = UINT64_MAX;
	*end = 0;
	for (uint32_t i = 0; i < s->info.tensors; i++) {
		struct sluice_tensor *t = &s->tensors[i];

		t->sz = sizeof(*t);
		ret = sluice_batch_tensor(b, i, t);
		if (ret)
			return cuda_fail_core(ret);
		if (!t->bytes)
			continue;
		if (t->offset < *first)
			*first = t->offset;
		if (t->offset + t->bytes > *end)
			*end = t->offset + t->bytes;
	}
	if (!*end)
		*first = 0;
	for (uint32_t i = 0; i < s->info.blobs; i++) {
		struct cuda_blob *bl = &s->blobs[i];

		ret = sluice_batch_blob(b, i, &bl->name, &bl->data, &bl->len);
		if (ret)
			return cuda_fail_core(ret);
		blob_bytes += bl->len;
	}
	if (blob_bytes > CUDA_BLOB_COPY_MAX) {
		s->kept = sluice_batch_retain(b);
		return 0;
	}
	n = text_size(s);
	ret = room((void **)&s->text, &s->text_max, n, 1);
	if (!ret)
		text_fill(s);
	return ret;
}

void cuda_manifest_free(struct sluice_cuda_batch *s)
{
	free(s->tensors);
	free(s->blobs);
	free(s->text);
}

static int batch_check(const struct sluice_cuda_batch *b)
{
	if (b->state == SLOT_OUT)
		return 0;
	return cuda_fail(EINVAL, "this device batch was released already");
}

int sluice_cuda_batch_info(const struct sluice_cuda_batch *b, struct sluice_batch_info *info)
{
	struct sluice_batch_info i = b->info;
	int ret = batch_check(b);

	if (ret)
		return ret;
	i.payload = (void *)(uintptr_t)b->dev;
	i.sz = info->sz < sizeof(i) ? info->sz : sizeof(i);
	memcpy(info, &i, i.sz);
	return 0;
}

int sluice_cuda_batch_tensor(const struct sluice_cuda_batch *b, unsigned int i,
			     struct sluice_tensor *view)
{
	struct sluice_tensor t;
	int ret = batch_check(b);

	if (ret)
		return ret;
	if (i >= b->info.tensors)
		return cuda_fail(EINVAL, "tensor %u of %u", i, b->info.tensors);
	t = b->tensors[i];
	t.data = t.bytes ? (void *)(uintptr_t)(b->dev + t.offset - b->first) : NULL;
	t.offset -= t.bytes ? b->first : t.offset;
	t.sz = view->sz < sizeof(t) ? view->sz : sizeof(t);
	memcpy(view, &t, t.sz);
	return 0;
}

int sluice_cuda_batch_blob(const struct sluice_cuda_batch *b, unsigned int i, const char **name,
			   const void **data, uint64_t *len)
{
	int ret = batch_check(b);

	if (ret)
		return ret;
	if (i >= b->info.blobs)
		return cuda_fail(EINVAL, "blob %u of %u", i, b->info.blobs);
	if (name)
		*name = b->blobs[i].name;
	*data = b->blobs[i].data;
	*len = b->blobs[i].len;
	return 0;
}
