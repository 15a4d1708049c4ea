// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The ranges that a profiler gets to see: the test is the profiler. */
#include "fake_load.h"
#include "suite.h"

static char seen[4096]; /* "(copy in)" and so on, as they begin and end */
static bool attached;

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static int push(const char *name)
{
	const char *ours = "sluice ";

	if (!strncmp(name, ours, strlen(ours)))
		name += strlen(ours);
	snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "(%s", name);
	return 0;
}

static int pop(void)
{
	snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), ")");
	return 0;
}

static int inject(NvtxGetExportTableFunc_t get)
{
	const NvtxExportTableCallbacks *t = get(NVTX_ETID_CALLBACKS);
	NvtxFunctionTable fns;
	unsigned int n;

	if (!t || !t->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &fns, &n))
		return 0;
	*fns[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
	*fns[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
	attached = true;
	return 1;
}

static void profile(void)
{
	InitializeInjectionNvtx2_fnptr = inject; /* the library's, too */
}
#define HAVE_NVTX 1
#else
#define HAVE_NVTX 0
static void profile(void)
{
}
#endif

TEST(ranges)
{
	const struct sluice_tensor t = {
		.sz = sizeof(t),
		.name = "x",
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = (int64_t[]){0},
	};
	struct sluice_arena *a = arena_new(4 * MIB);
	struct sluice_channel *in, *out;
	struct sluice_cuda_drain *d;
	struct sluice_cuda_feed *f;
	struct sluice_cuda_batch *b;
	struct CUstream_st *s;
	struct sluice_cuda *c;

	if (!HAVE_NVTX)
		SKIP(return, "the toolkit has no headers of NVTX");
	profile();
	ASSERT_NE(NULL, a);
	out = channel_new(a, "x", 8, SLUICE_CHANNEL_PRODUCE);
	in = channel_join(a, "x", SLUICE_CHANNEL_CONSUME);
	ASSERT_TRUE(gpu_init(0));
	s = gpu_stream();
	ASSERT_CUDA(0, sluice_cuda_attach(&c, a, NULL));
	ASSERT_CUDA(0, sluice_cuda_feed_open(&f, c, in, NULL));
	ASSERT_EQ(0, batch_send(out, 5000, 1, 0));
	ASSERT_CUDA(0, sluice_cuda_feed_next(f, &b, s, 0));
	EXPECT_TRUE(attached);
	EXPECT_STREQ("(wait(copy in))", seen);
	EXPECT_EQ(0, sluice_cuda_batch_release(b, s));
	gpu_sync(s);
	sluice_cuda_feed_close(f);
	seen[0] = '\0';
	ASSERT_CUDA(0, sluice_cuda_drain_open(&d, c, out, NULL));
	ASSERT_CUDA(0, sluice_cuda_drain_submit(d, &t, 1, s, NULL));
	ASSERT_CUDA(0, sluice_cuda_drain_flush(d, LONG_WAIT));
	EXPECT_STREQ("(publish(copy out))(wait)", seen);
	EXPECT_EQ(0, batch_recv(in, NULL, 0));
	EXPECT_EQ(0, sluice_cuda_drain_close(d));
	EXPECT_EQ(0, sluice_cuda_detach(c));
	EXPECT_EQ(0, drv.violations());
	sluice_channel_close(in);
	sluice_channel_close(out);
	sluice_arena_detach(a);
}

TEST_HARNESS_MAIN
