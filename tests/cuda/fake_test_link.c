// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* What sluice doctor measures. */
#include "../lib/util.h"

#include <kselftest_harness.h>

#include "../../tools/cuda_link.h"
#include "fake_load.h"
#include "gpu.h"

TEST(rates_are_measured)
{
	struct fake_cuda_census census;
	struct cuda_link l;
	char why[300] = "";

	fake_load();
	EXPECT_EQ(0, cuda_link_measure(&l, why, sizeof(why)));
	EXPECT_STREQ("", why);
	EXPECT_LT(0, l.register_rate);
	EXPECT_LT(0, l.in_rate);
	EXPECT_LT(0, l.out_rate);
	drv.census(&census);
	EXPECT_EQ(0, census.registrations);
	EXPECT_EQ(0, census.allocations);
	EXPECT_EQ(0, census.streams);
	EXPECT_EQ(0, drv.violations());
}

TEST(what_is_refused_is_said)
{
	struct fake_cuda_census census;
	struct cuda_link l;
	char why[300] = "";

	setenv("FAKE_CUDA_REG_LIMIT", "4194304", 1);
	fake_load();
	EXPECT_GT(0, cuda_link_measure(&l, why, sizeof(why)));
	EXPECT_NE(NULL, strstr(why, "cannot register the arena"));
	drv.census(&census);
	EXPECT_EQ(0, census.registrations);
}

TEST(a_copy_back_that_fails_is_said)
{
	struct cuda_link l;
	char why[300] = "";

	setenv("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync:5:700", 1);
	fake_load();
	EXPECT_GT(0, cuda_link_measure(&l, why, sizeof(why)));
	EXPECT_LT(0, l.in_rate);
	EXPECT_NE(NULL, strstr(why, "cannot copy tensors from the device"));
	EXPECT_EQ(0, drv.violations());
}

TEST_HARNESS_MAIN
