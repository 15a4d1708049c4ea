// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What a batch carries, and what it refuses to carry. */
#include "util.h"

#include <kselftest_harness.h>

FIXTURE(batch)
{
	struct sluice_arena *a;
	struct sluice_channel *ch;
	struct sluice_batch *b;
};

FIXTURE_SETUP(batch)
{
	self->a = arena_new(8 * MIB);
	ASSERT_NE(NULL, self->a);
	self->ch = channel_new(self->a, "c", 8, 0);
	ASSERT_NE(NULL, self->ch);
}

FIXTURE_TEARDOWN(batch)
{
	sluice_channel_close(self->ch);
	EXPECT_EQ(NULL, arena_all_free(self->a))
	{
		TH_LOG("%s", arena_all_free(self->a));
	}
	sluice_arena_detach(self->a);
}

static struct sluice_batch_info batch_info(const struct sluice_batch *b)
{
	struct sluice_batch_info info = {.sz = sizeof(info)};

	if (sluice_batch_info(b, &info))
		memset(&info, 0xff, sizeof(info));
	return info;
}

/* Publish self->b and have it back as the consumer. */
#define pass_on(self)                                                         \
	do {                                                                  \
		ASSERT_EQ(0, sluice_batch_publish((self)->b));                \
		ASSERT_EQ(0, sluice_channel_next((self)->ch, &(self)->b, 0)); \
	} while (0)

static const struct sluice_dtype dtypes[] = {
	{SLUICE_INT, 8, 1},
	{SLUICE_INT, 16, 1},
	{SLUICE_INT, 32, 1},
	{SLUICE_INT, 64, 1},
	{SLUICE_UINT, 8, 1},
	{SLUICE_UINT, 64, 1},
	{SLUICE_FLOAT, 16, 1},
	{SLUICE_FLOAT, 32, 1},
	{SLUICE_FLOAT, 64, 1},
	{SLUICE_FLOAT, 32, 4},
	{SLUICE_OPAQUE, 64, 1},
	{SLUICE_BFLOAT, 16, 1},
	{SLUICE_COMPLEX, 64, 1},
	{SLUICE_COMPLEX, 128, 1},
	{SLUICE_BOOL, 8, 1},
	{SLUICE_FLOAT8_E3M4, 8, 1},
	{SLUICE_FLOAT8_E4M3, 8, 1},
	{SLUICE_FLOAT8_E4M3B11FNUZ, 8, 1},
	{SLUICE_FLOAT8_E4M3FN, 8, 1},
	{SLUICE_FLOAT8_E4M3FNUZ, 8, 1},
	{SLUICE_FLOAT8_E5M2, 8, 1},
	{SLUICE_FLOAT8_E5M2FNUZ, 8, 1},
	{SLUICE_FLOAT8_E8M0FNU, 8, 1},
};

TEST_F(batch, every_dtype)
{
	const int64_t shape[2] = {3, 5};

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 64 * KIB, 0));
	for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++) {
		size_t bytes = 15UL * dtypes[i].bits / 8 * dtypes[i].lanes;
		char name[8];
		void *p;

		snprintf(name, sizeof(name), "t%zu", i);
		p = sluice_batch_tensor_add(self->b, name, dtypes[i], 2, shape, NULL);
		ASSERT_NE(NULL, p)
		{
			TH_LOG("dtype %zu: %s", i, sluice_strerror());
		}
		EXPECT_EQ(0, (uintptr_t)p % 256);
		pattern_fill(p, bytes, i);
	}
	pass_on(self);
	ASSERT_EQ(ARRAY_SIZE(dtypes), batch_info(self->b).tensors);
	for (unsigned int i = 0; i < ARRAY_SIZE(dtypes); i++) {
		struct sluice_tensor t = {.sz = sizeof(t)};
		char name[8];

		snprintf(name, sizeof(name), "t%u", i);
		ASSERT_EQ(0, sluice_batch_tensor(self->b, i, &t));
		EXPECT_STREQ(name, t.name);
		EXPECT_EQ(0, memcmp(&dtypes[i], &t.dtype, sizeof(t.dtype)));
		ASSERT_EQ(2, t.ndim);
		EXPECT_EQ(3, t.shape[0]);
		EXPECT_EQ(5, t.shape[1]);
		EXPECT_EQ(5, t.strides[0]);
		EXPECT_EQ(1, t.strides[1]);
		ASSERT_EQ(15UL * dtypes[i].bits / 8 * dtypes[i].lanes, t.bytes);
		EXPECT_EQ(0, (uintptr_t)t.data % 256);
		EXPECT_TRUE(pattern_is(t.data, t.bytes, i));
	}
	sluice_batch_release(self->b);
}

TEST_F(batch, from_0_to_32_dimensions)
{
	int64_t shape[SLUICE_MAX_DIMS];

	for (uint32_t d = 0; d <= SLUICE_MAX_DIMS; d++)
		shape[d % SLUICE_MAX_DIMS] = d % 8 ? 1 : 2;
	for (uint32_t n = 0; n <= SLUICE_MAX_DIMS; n++) {
		struct sluice_tensor t = {.sz = sizeof(t)};
		uint64_t elements = 1;
		float *p;

		for (uint32_t d = 0; d < n; d++)
			elements *= (uint64_t)shape[d];
		ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4 * elements, 0));
		p = sluice_batch_tensor_add(self->b, "x", SLUICE_F32, n, n ? shape : NULL, NULL);
		ASSERT_NE(NULL, p);
		for (uint64_t i = 0; i < elements; i++)
			p[i] = (float)(n + i);
		pass_on(self);
		ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &t));
		EXPECT_EQ(n, t.ndim);
		EXPECT_EQ(4 * elements, t.bytes);
		for (uint32_t d = 0; d < n; d++)
			ASSERT_EQ(shape[d], t.shape[d]);
		for (uint64_t i = 0; i < elements; i++)
			ASSERT_EQ((float)(n + i), ((float *)t.data)[i]);
		sluice_batch_release(self->b);
	}
}

TEST_F(batch, as_many_tensors_as_allowed_and_not_one_more)
{
	struct sluice_batch_opts opts = {
		.sz = sizeof(opts),
		.bytes = SLUICE_MAX_TENSORS * 8,
		.tensors = SLUICE_MAX_TENSORS,
		.align = 8,
	};
	char name[16];

	ASSERT_EQ(0, sluice_batch_begin_opts(self->ch, &self->b, &opts));
	for (int64_t i = 0; i < SLUICE_MAX_TENSORS; i++) {
		int64_t *p;

		snprintf(name, sizeof(name), "tensor %d", (int)i);
		p = sluice_batch_tensor_add(self->b, name, SLUICE_I64, 0, NULL, NULL);
		ASSERT_NE(NULL, p)
		{
			TH_LOG("tensor %d: %s", (int)i, sluice_strerror());
		}
		*p = i * i;
	}
	EXPECT_EQ(NULL, sluice_batch_tensor_add(self->b, "more", SLUICE_I64, 0, NULL, NULL));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "4096"));
	pass_on(self);
	ASSERT_EQ(SLUICE_MAX_TENSORS, batch_info(self->b).tensors);
	for (unsigned int i = 0; i < SLUICE_MAX_TENSORS; i++) {
		struct sluice_tensor t = {.sz = sizeof(t)};

		ASSERT_EQ(0, sluice_batch_tensor(self->b, i, &t));
		ASSERT_EQ((int64_t)i * i, *(int64_t *)t.data);
		snprintf(name, sizeof(name), "tensor %d", (int)i);
		ASSERT_STREQ(name, t.name);
	}
	sluice_batch_release(self->b);
}

TEST_F(batch, as_many_blobs_as_allowed_and_not_one_more)
{
	struct sluice_batch_opts opts = {
		.sz = sizeof(opts),
		.bytes = 64 * KIB,
		.tensors = SLUICE_MAX_BLOBS,
	};
	const void *data;
	const char *bname;
	char name[16];
	uint64_t len;

	ASSERT_EQ(0, sluice_batch_begin_opts(self->ch, &self->b, &opts));
	for (int i = 0; i < SLUICE_MAX_BLOBS; i++) {
		snprintf(name, sizeof(name), "b%d", i);
		ASSERT_NE(NULL, sluice_batch_bytes_add(self->b, name, name, (uint64_t)i % 4));
	}
	EXPECT_EQ(NULL, sluice_batch_bytes_add(self->b, "more", "x", 1));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "64"));
	pass_on(self);
	ASSERT_EQ(SLUICE_MAX_BLOBS, batch_info(self->b).blobs);
	for (unsigned int i = 0; i < SLUICE_MAX_BLOBS; i++) {
		snprintf(name, sizeof(name), "b%u", i);
		ASSERT_EQ(0, sluice_batch_bytes(self->b, name, &data, &len));
		EXPECT_EQ(i % 4, len);
		EXPECT_EQ(0, memcmp(data, name, len));
		ASSERT_EQ(0, sluice_batch_blob(self->b, i, &bname, &data, &len));
		EXPECT_STREQ(name, bname);
		EXPECT_EQ(i % 4, len);
	}
	EXPECT_EQ(-ENOENT, sluice_batch_bytes(self->b, "b64", &data, &len));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "b64"));
	EXPECT_EQ(-EINVAL, sluice_batch_blob(self->b, SLUICE_MAX_BLOBS, NULL, &data, &len));
	sluice_batch_release(self->b);
}

TEST_F(batch, room_is_reserved_for_descriptions_and_alignment)
{
	/* Odd sizes whose sum is all that was asked for. */
	for (uint32_t n = 1; n <= 64; n *= 4) {
		struct sluice_batch_opts opts = {.sz = sizeof(opts), .tensors = n};
		int64_t shape[1];

		for (uint32_t i = 0; i < n; i++)
			opts.bytes += 1000 + 77 * i;
		ASSERT_EQ(0, sluice_batch_begin_opts(self->ch, &self->b, &opts));
		for (uint32_t i = 0; i < n; i++) {
			shape[0] = 1000 + 77 * i;
			ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, "a tensor of some name",
								SLUICE_U8, 1, shape, NULL))
			{
				TH_LOG("%u of %u: %s", i, n, sluice_strerror());
			}
		}
		sluice_batch_abort(self->b);
	}
}

TEST_F(batch, what_does_not_fit_says_by_how_much)
{
	const int64_t shape[1] = {100000}, small[1] = {10};
	struct sluice_tensor t = {.sz = sizeof(t)};
	void *p;

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4096, 0));
	errno = 0;
	EXPECT_EQ(NULL, sluice_batch_tensor_add(self->b, "big", SLUICE_U8, 1, shape, NULL));
	EXPECT_EQ(ENOSPC, errno);
	EXPECT_NE(NULL, strstr(sluice_strerror(), "100000"));
	errno = 0;
	EXPECT_EQ(NULL, sluice_batch_bytes_add(self->b, "big", NULL, 100000));
	EXPECT_EQ(ENOSPC, errno);
	/* The batch is as it was before. */
	p = sluice_batch_tensor_add(self->b, "small", SLUICE_U8, 1, small, NULL);
	ASSERT_NE(NULL, p);
	memset(p, 7, 10);
	pass_on(self);
	EXPECT_EQ(1, batch_info(self->b).tensors);
	EXPECT_EQ(0, batch_info(self->b).blobs);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &t));
	EXPECT_STREQ("small", t.name);
	sluice_batch_release(self->b);
}

TEST_F(batch, empty_tensors_and_scalars)
{
	const int64_t empty[3] = {4, 0, 7};
	struct sluice_tensor t = {.sz = sizeof(t)};
	double *p;

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 64, 0));
	ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, "empty", SLUICE_F32, 3, empty, NULL));
	p = sluice_batch_tensor_add(self->b, "scalar", SLUICE_F64, 0, NULL, NULL);
	ASSERT_NE(NULL, p);
	*p = 2.5;
	ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, NULL, SLUICE_F32, 3, empty, NULL));
	pass_on(self);
	ASSERT_EQ(3, batch_info(self->b).tensors);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &t));
	EXPECT_EQ(0, t.bytes);
	EXPECT_EQ(3, t.ndim);
	EXPECT_EQ(4, t.shape[0]);
	EXPECT_EQ(0, t.shape[1]);
	EXPECT_EQ(7, t.shape[2]);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 1, &t));
	EXPECT_EQ(0, t.ndim);
	EXPECT_EQ(8, t.bytes);
	EXPECT_EQ(2.5, *(double *)t.data);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 2, &t));
	EXPECT_STREQ("", t.name);
	EXPECT_EQ(-EINVAL, sluice_batch_tensor(self->b, 3, &t));
	sluice_batch_release(self->b);
}

TEST_F(batch, nothing_at_all)
{
	struct sluice_batch_info info;

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 0, 0));
	pass_on(self);
	info = batch_info(self->b);
	EXPECT_EQ(0, info.tensors);
	EXPECT_EQ(0, info.blobs);
	EXPECT_EQ(0, info.payload_bytes);
	EXPECT_LT(0, info.extent_bytes);
	sluice_batch_release(self->b);
}

TEST_F(batch, strides)
{
	const int64_t shape[2] = {3, 4}, padded[2] = {10, 2}, broadcast[2] = {0, 1};
	struct sluice_tensor t = {.sz = sizeof(t)};

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4096, 0));
	ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, "p", SLUICE_F32, 2, shape, padded));
	ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, "b", SLUICE_F32, 2, shape, broadcast));
	pass_on(self);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &t));
	EXPECT_EQ(10, t.strides[0]);
	EXPECT_EQ(2, t.strides[1]);
	EXPECT_EQ((2 * 10 + 3 * 2 + 1) * 4, t.bytes);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 1, &t));
	EXPECT_EQ(0, t.strides[0]);
	EXPECT_EQ(4 * 4, t.bytes);
	sluice_batch_release(self->b);
}

static const int64_t one[2] = {1, 1}, minus[2] = {1, -1}, large[2] = {1LL << 32, 1LL << 31},
		     wraps[2] = {1LL << 33, 1LL << 31}, far[2] = {2, INT64_MAX};

static const struct {
	const char *what;
	struct sluice_dtype dtype;
	uint32_t ndim;
	const int64_t *shape, *strides;
} bad_tensors[] = {
	{"33 dimensions", {SLUICE_FLOAT, 32, 1}, 33, one, NULL},
	{"very many dimensions", {SLUICE_FLOAT, 32, 1}, UINT32_MAX, one, NULL},
	{"negative extent", {SLUICE_FLOAT, 32, 1}, 2, minus, NULL},
	{"negative stride", {SLUICE_FLOAT, 32, 1}, 2, one, minus},
	{"4 bits", {SLUICE_INT, 4, 1}, 2, one, NULL},
	{"12 bits", {SLUICE_INT, 12, 1}, 2, one, NULL},
	{"0 bits", {SLUICE_INT, 0, 1}, 2, one, NULL},
	{"0 lanes", {SLUICE_INT, 8, 0}, 2, one, NULL},
	{"no shape", {SLUICE_FLOAT, 32, 1}, 2, NULL, NULL},
	{"product of 2^63", {SLUICE_UINT, 8, 1}, 2, large, NULL},
	{"product of 2^64", {SLUICE_UINT, 8, 1}, 2, wraps, NULL},
	{"bytes above 2^64", {SLUICE_FLOAT, 64, 1}, 2, large, NULL},
	{"stride times extent", {SLUICE_FLOAT, 64, 1}, 1, far, &far[1]},
};

TEST_F(batch, refuses_bad_tensors)
{
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4096, 0));
	for (size_t i = 0; i < ARRAY_SIZE(bad_tensors); i++) {
		errno = 0;
		EXPECT_EQ(NULL, sluice_batch_tensor_add(self->b, "t", bad_tensors[i].dtype,
							bad_tensors[i].ndim, bad_tensors[i].shape,
							bad_tensors[i].strides))
		{
			TH_LOG("%s", bad_tensors[i].what);
		}
		EXPECT_TRUE(errno == EINVAL || errno == ENOSPC)
		{
			TH_LOG("%s: errno %d", bad_tensors[i].what, errno);
		}
		EXPECT_NE('\0', sluice_strerror()[0]);
	}
	EXPECT_EQ(0, batch_info(self->b).tensors);
	sluice_batch_abort(self->b);
}

TEST_F(batch, names)
{
	char name[300];

	memset(name, 'n', sizeof(name));
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4096, 0));
	name[256] = '\0';
	EXPECT_EQ(NULL, sluice_batch_tensor_add(self->b, name, SLUICE_F32, 0, NULL, NULL));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(NULL, sluice_batch_bytes_add(self->b, name, "x", 1));
	EXPECT_EQ(NULL, sluice_batch_bytes_add(self->b, NULL, "x", 1));
	name[255] = '\0';
	EXPECT_NE(NULL, sluice_batch_tensor_add(self->b, name, SLUICE_F32, 0, NULL, NULL));
	pass_on(self);
	struct sluice_tensor t = {.sz = sizeof(t)};

	ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &t));
	EXPECT_STREQ(name, t.name);
	sluice_batch_release(self->b);
}

TEST_F(batch, blob_can_be_filled_in_place)
{
	const void *data;
	uint64_t len;
	char *p;

	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4096, 0));
	p = sluice_batch_bytes_add(self->b, "text", NULL, 1000);
	ASSERT_NE(NULL, p);
	memset(p, 'x', 1000);
	ASSERT_NE(NULL, sluice_batch_bytes_add(self->b, "none", "", 0));
	pass_on(self);
	ASSERT_EQ(0, sluice_batch_bytes(self->b, "text", &data, &len));
	ASSERT_EQ(1000, len);
	for (int i = 0; i < 1000; i++)
		ASSERT_EQ('x', ((const char *)data)[i]);
	ASSERT_EQ(0, sluice_batch_bytes(self->b, "none", &data, &len));
	EXPECT_EQ(0, len);
	sluice_batch_release(self->b);
}

TEST_F(batch, payload_is_one_range)
{
	const int64_t shape[1] = {1000};
	struct sluice_arena_info arena = {.sz = sizeof(arena)};
	struct sluice_batch_info info;
	uint64_t end = 0;

	ASSERT_EQ(0, sluice_arena_info(self->a, &arena));
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 64 * KIB, 0));
	for (int i = 0; i < 10; i++)
		ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, "x", SLUICE_F32, 1, shape, NULL));
	ASSERT_NE(NULL, sluice_batch_bytes_add(self->b, "m", "metadata", 8));
	pass_on(self);
	info = batch_info(self->b);
	EXPECT_EQ((char *)info.payload, (char *)arena.data + info.payload_offset);
	for (unsigned int i = 0; i < info.tensors; i++) {
		struct sluice_tensor t = {.sz = sizeof(t)};

		ASSERT_EQ(0, sluice_batch_tensor(self->b, i, &t));
		EXPECT_EQ((char *)info.payload + t.offset, (char *)t.data);
		EXPECT_LE(t.offset + t.bytes, info.payload_bytes);
		end = t.offset + t.bytes > end ? t.offset + t.bytes : end;
	}
	EXPECT_LE(end, info.payload_bytes);
	EXPECT_LE(info.payload_bytes, info.extent_bytes);
	sluice_batch_release(self->b);
}

TEST_F(batch, alignments)
{
	const int64_t shape[1] = {3};

	for (uint32_t align = 8; align <= 4096; align *= 2) {
		struct sluice_batch_opts opts = {
			.sz = sizeof(opts),
			.bytes = 48,
			.align = align,
		};

		ASSERT_EQ(0, sluice_batch_begin_opts(self->ch, &self->b, &opts));
		for (int i = 0; i < 16; i++) {
			void *p = sluice_batch_tensor_add(self->b, "x", SLUICE_U8, 1, shape, NULL);

			ASSERT_NE(NULL, p);
			EXPECT_EQ(0, (uintptr_t)p % align);
		}
		sluice_batch_abort(self->b);
	}
	for (size_t i = 0; i < 4; i++) {
		static const uint32_t bad[4] = {4, 100, 8192, 1U << 31};
		struct sluice_batch_opts opts = {.sz = sizeof(opts), .align = bad[i]};

		EXPECT_EQ(-EINVAL, sluice_batch_begin_opts(self->ch, &self->b, &opts));
	}
}

TEST_F(batch, tag_producer_and_sequence)
{
	struct sluice_arena_info arena = {.sz = sizeof(arena)};

	ASSERT_EQ(0, sluice_arena_info(self->a, &arena));
	for (uint64_t i = 0; i < 5; i++) {
		ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 0, 0));
		ASSERT_EQ(0, sluice_batch_tag(self->b, UINT64_MAX - i));
		pass_on(self);
		EXPECT_EQ(UINT64_MAX - i, batch_info(self->b).tag);
		EXPECT_EQ(i, batch_info(self->b).sequence);
		EXPECT_EQ(arena.peer_id, batch_info(self->b).producer);
		sluice_batch_release(self->b);
	}
}

TEST_F(batch, cannot_grow_after_it_was_published)
{
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4096, 0));
	pass_on(self);
	errno = 0;
	EXPECT_EQ(NULL, sluice_batch_tensor_add(self->b, "x", SLUICE_F32, 0, NULL, NULL));
	EXPECT_EQ(EROFS, errno);
	errno = 0;
	EXPECT_EQ(NULL, sluice_batch_bytes_add(self->b, "x", "x", 1));
	EXPECT_EQ(EROFS, errno);
	EXPECT_GT(0, sluice_batch_tag(self->b, 1));
	EXPECT_GT(0, sluice_batch_publish(self->b));
	sluice_batch_release(self->b);
}

TEST_F(batch, that_can_never_fit)
{
	EXPECT_EQ(-E2BIG, sluice_batch_begin(self->ch, &self->b, 8 * MIB + 1, 0));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "8388608"));
	EXPECT_EQ(-E2BIG, sluice_batch_begin(self->ch, &self->b, UINT64_MAX, 0));
	EXPECT_EQ(-E2BIG, sluice_batch_begin(self->ch, &self->b, UINT64_MAX - 10000, 0));
	/* Not waited for either. */
	EXPECT_EQ(-E2BIG, sluice_batch_begin(self->ch, &self->b, 1ULL << 40, SLUICE_FOREVER));
}

TEST_F(batch, as_large_as_the_arena)
{
	/* One block of description is left over. */
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 8 * MIB - 64 * KIB, 0));
	pass_on(self);
	sluice_batch_release(self->b);
}

TEST_F(batch, abort_gives_everything_back)
{
	for (int i = 0; i < 100; i++) {
		ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 4 * MIB, 0));
		sluice_batch_abort(self->b);
	}
	EXPECT_EQ(-EAGAIN, sluice_channel_next(self->ch, &self->b, 0));
}

TEST_F(batch, full_arena_names_the_holder)
{
	struct sluice_batch *held, *b;
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", getpid());
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &held, 7 * MIB, 0));
	EXPECT_EQ(-EAGAIN, sluice_batch_begin(self->ch, &b, 7 * MIB, 0));
	EXPECT_NE(NULL, strstr(sluice_strerror(), pid))
	{
		TH_LOG("%s", sluice_strerror());
	}
	EXPECT_EQ(-ETIMEDOUT, sluice_batch_begin(self->ch, &b, 7 * MIB, MSEC));
	EXPECT_NE(NULL, strstr(sluice_strerror(), pid));
	/* One holder is not "of 1 holders". */
	EXPECT_NE(NULL, strstr(sluice_strerror(), ") has 1 extent, 7"))
	{
		TH_LOG("%s", sluice_strerror());
	}
	EXPECT_EQ(NULL, strstr(sluice_strerror(), "holders"));
	sluice_batch_abort(held);
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b, 7 * MIB, 0));
	sluice_batch_abort(b);
}

TEST_F(batch, extents_are_freed_in_any_order)
{
	struct sluice_batch *b[64];
	struct sluice_arena_usage u = {.sz = sizeof(u)};

	for (int round = 0; round < 50; round++) {
		unsigned int n = 0;
		size_t left;

		while (n < ARRAY_SIZE(b) &&
		       !sluice_batch_begin(self->ch, &b[n], random_u64() % (512 * KIB), 0))
			n++;
		ASSERT_LT(8, n);
		ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
		EXPECT_EQ(n, u.writing);
		for (left = n; left; left--) {
			size_t i = random_u64() % left;

			sluice_batch_abort(b[i]);
			b[i] = b[left - 1];
		}
	}
	/* What was cut into pieces is whole again. */
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &b[0], 8 * MIB - 64 * KIB, 0));
	sluice_batch_abort(b[0]);
}

TEST_F(batch, view_is_filled_only_as_far_as_the_caller_knows_it)
{
	struct sluice_tensor t;

	memset(&t, 0xa5, sizeof(t));
	t.sz = offsetof(struct sluice_tensor, shape);
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, 64, 0));
	ASSERT_NE(NULL, sluice_batch_tensor_add(self->b, "x", SLUICE_F32, 0, NULL, NULL));
	pass_on(self);
	ASSERT_EQ(0, sluice_batch_tensor(self->b, 0, &t));
	EXPECT_STREQ("x", t.name);
	EXPECT_EQ(0xa5a5a5a5a5a5a5a5ULL, t.bytes);
	sluice_batch_release(self->b);
}

FIXTURE(copy)
{
	struct sluice_arena *a;
	struct sluice_channel *ch;
	struct sluice_batch *b;
	unsigned char *to, *from, *expected;
};

FIXTURE_VARIANT(copy)
{
	int64_t bytes;
};

FIXTURE_VARIANT_ADD(copy, through_the_caches){.bytes = MIB};
FIXTURE_VARIANT_ADD(copy, past_the_caches){.bytes = 9 * MIB};

FIXTURE_SETUP(copy)
{
	self->a = arena_new(16 * MIB);
	ASSERT_NE(NULL, self->a);
	self->ch = channel_new(self->a, "c", 8, 0);
	ASSERT_NE(NULL, self->ch);
	ASSERT_EQ(0, sluice_batch_begin(self->ch, &self->b, variant->bytes, 0));
	self->to = sluice_batch_tensor_add(self->b, "x", SLUICE_U8, 1, &variant->bytes, NULL);
	ASSERT_NE(NULL, self->to);
	self->from = malloc(variant->bytes);
	ASSERT_NE(NULL, self->from);
	self->expected = malloc(variant->bytes);
	ASSERT_NE(NULL, self->expected);
	for (int64_t i = 0; i < variant->bytes; i++)
		self->from[i] = (unsigned char)(i * 2654435761u >> 13);
	memset(self->expected, 0xaa, variant->bytes);
	memset(self->to, 0xaa, variant->bytes);
}

FIXTURE_TEARDOWN(copy)
{
	free(self->from);
	free(self->expected);
	sluice_channel_close(self->ch);
	sluice_arena_detach(self->a);
}

TEST_F(copy, writes_what_it_shall_and_nothing_else)
{
	static const size_t lens[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 4160, 12305, 300001};
	size_t at = 0;

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		for (size_t shift = 0; shift < 70; shift += 23) {
			const size_t where = (at + shift) % (MIB - 300001);

			ASSERT_EQ(0, sluice_batch_copy(self->b, self->to + where,
						       self->from + 3 * shift, lens[i]));
			memcpy(self->expected + where, self->from + 3 * shift, lens[i]);
			at = where + lens[i];
		}
	}
	EXPECT_EQ(0, memcmp(self->expected, self->to, variant->bytes));
	ASSERT_EQ(0, sluice_batch_copy(self->b, self->to, self->from, variant->bytes));
	EXPECT_EQ(0, memcmp(self->from, self->to, variant->bytes));
	sluice_batch_abort(self->b);
}

TEST_F(copy, refuses_what_is_not_in_the_batch)
{
	const int64_t n = variant->bytes;
	struct sluice_batch_info info = {.sz = sizeof(info)};
	uint64_t room;

	ASSERT_EQ(0, sluice_batch_info(self->b, &info));
	room = info.extent_bytes;
	EXPECT_EQ(-EINVAL, sluice_batch_copy(self->b, self->to, self->from, room + 1));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "not all within"));
	EXPECT_EQ(-EINVAL, sluice_batch_copy(self->b, self->to - 1, self->from, 1));
	EXPECT_EQ(-EINVAL, sluice_batch_copy(self->b, self->to + room, self->from, 1));
	EXPECT_EQ(-EINVAL, sluice_batch_copy(self->b, self->to + 1, self->from, UINT64_MAX));
	EXPECT_EQ(-EINVAL, sluice_batch_copy(self->b, NULL, self->from, 1));
	EXPECT_EQ(0, memcmp(self->expected, self->to, n));
	pass_on(self);
	EXPECT_EQ(-EROFS, sluice_batch_copy(self->b, self->to, self->from, 1));
	sluice_batch_release(self->b);
}

TEST_HARNESS_MAIN
