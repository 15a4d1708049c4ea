// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* README.md's example, as it stands there, over the fake driver. */
#include "../lib/util.h"

#include <kselftest_harness.h>

TEST(runs_to_the_end_of_the_stream)
{
	char dir[512], line[256] = "";
	ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 64);
	char command[1200];
	FILE *f;

	ASSERT_LT(0, n);
	dir[n] = '\0';
	*strrchr(dir, '/') = '\0';
	snprintf(command, sizeof(command), "LD_LIBRARY_PATH=%s/driver build/gpu/example_feed", dir);
	f = popen(command, "re");
	ASSERT_NE(NULL, f);
	EXPECT_TRUE(fgets(line, sizeof(line), f));
	EXPECT_STREQ("channel train: end of the stream\n", line);
	EXPECT_EQ(0, pclose(f));
}

TEST_HARNESS_MAIN
