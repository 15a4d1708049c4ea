// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* A host without a driver: one sentence, and everything else goes on. */
#include "../lib/util.h"

#include <dlfcn.h>
#include <kselftest_harness.h>
#include <sluice_cuda.h>

TEST(no_driver)
{
	struct sluice_arena *a = arena_new(4 * MIB);
	struct sluice_cuda *c;

	if (dlopen("libcuda.so.1", RTLD_NOW))
		SKIP(return, "this host has a CUDA driver");
	ASSERT_NE(NULL, a);
	EXPECT_EQ(-ENOENT, sluice_cuda_probe(NULL));
	EXPECT_EQ(-ENOENT, sluice_cuda_attach(&c, a, NULL));
	EXPECT_NE(NULL, strstr(sluice_cuda_strerror(), "no CUDA driver on this host"));
	EXPECT_EQ(0, sluice_cuda_detach(NULL));
	sluice_arena_detach(a);
}

TEST_HARNESS_MAIN
