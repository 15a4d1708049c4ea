// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* sluice pump --gpu, over the fake driver. */
#include "../lib/util.h"

#include <kselftest_harness.h>

FIXTURE(pump)
{
	char dir[64]; /* of files, 1 of each size */
	char driver[600];
	char said[8192]; /* by the program, on both outputs */
	int files;
	uint64_t bytes;
};

static void file_write(const char *dir, uint64_t bytes)
{
	unsigned char *p = malloc(bytes + 1);
	char path[128];
	FILE *f;

	CHECK(p);
	pattern_fill(p, bytes, bytes);
	snprintf(path, sizeof(path), "%s/%llu", dir, (unsigned long long)bytes);
	f = fopen(path, "we");
	CHECK(f && fwrite(p, 1, bytes, f) == bytes && !fclose(f));
	free(p);
}

FIXTURE_SETUP(pump)
{
	/* Around words, around batches (of 64 KiB below), and in many parts. */
	static const uint64_t sizes[] = {0,    1,     7,     8,	    9,	    4095,
					 4097, 65535, 65536, 65543, 300001, 3000000};
	ssize_t n = readlink("/proc/self/exe", self->driver, 500);

	ASSERT_LT(0, n);
	self->driver[n] = '\0';
	strcpy(strrchr(self->driver, '/'), "/driver");
	strcpy(self->dir, "/tmp/sluice-pump-XXXXXX");
	ASSERT_NE(NULL, mkdtemp(self->dir));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		file_write(self->dir, sizes[i]);
		self->bytes += sizes[i];
		self->files++;
	}
}

FIXTURE_TEARDOWN(pump)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", self->dir);
	EXPECT_EQ(0, system(command));
}

/* Run "ENV build/sluice pump ARGS DIR"; the exit status. */
static int run(char *said, size_t room, const char *driver, const char *env, const char *args,
	       const char *dir)
{
	char command[1400];
	size_t n;
	FILE *f;
	int status;

	snprintf(command, sizeof(command),
		 "LD_LIBRARY_PATH=%s %s build/sluice pump -p 2 -b 64K %s %s 2>&1", driver, env,
		 args, dir);
	f = popen(command, "re");
	CHECK(f);
	n = fread(said, 1, room - 1, f);
	said[n] = '\0';
	status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define RUN(env, args) run(self->said, sizeof(self->said), self->driver, env, args, self->dir)
#define SAYS(text)                                       \
	EXPECT_NE(NULL, strstr(self->said, text))        \
	{                                                \
		TH_LOG("it does not say \"%s\":", text); \
		TH_LOG("%s", self->said);                \
	}

TEST_F(pump, verifies_every_file)
{
	char line[100];

	EXPECT_EQ(0, RUN("", "--gpu 0"));
	snprintf(line, sizeof(line), "verified %d files, %llu bytes, 0 mismatches\n", self->files,
		 (unsigned long long)self->bytes);
	SAYS(line);
	SAYS("gpu ");
	EXPECT_EQ(NULL, strstr(self->said, "fake driver"));
}

TEST_F(pump, rounds_start_again)
{
	EXPECT_EQ(0, RUN("FAKE_CUDA_DEVICES=2", "--gpu 1 --rounds 3"));
	SAYS("0 mismatches\n");
	EXPECT_EQ(NULL, strstr(self->said, "fake driver"));
}

/* Copies of batches and of the table alternate; among the first ten are several of either. */
TEST_F(pump, damage_on_the_way_is_found)
{
	unsigned int found = 0;

	for (int nth = 1; nth <= 10; nth++) {
		char env[40];

		snprintf(env, sizeof(env), "FAKE_CUDA_FLIP=%d", nth);
		found += RUN(env, "--gpu 0") == 1 && strstr(self->said, "arrived damaged");
	}
	/* Half of them are batches; a bit between two tensors of one is nobody's. */
	EXPECT_LE(3, found);
}

TEST_F(pump, what_fails_is_said)
{
	EXPECT_EQ(3, RUN("FAKE_CUDA_FAIL=cuLaunchKernel:2:719", "--gpu 0"));
	SAYS("device 0: starting the kernel failed: ");
	EXPECT_EQ(3, RUN("FAKE_CUDA_FAIL=cuModuleLoadData:1:218", "--gpu 0"));
	SAYS("device 0: loading the kernel failed: ");
	EXPECT_EQ(3, RUN("FAKE_CUDA_REG_LIMIT=8388608", "--gpu 0"));
	SAYS("cannot register the arena");
	EXPECT_EQ(3, RUN("", "--gpu 1"));
	SAYS("there is no CUDA device 1: the driver finds 1\n");
	EXPECT_EQ(3, RUN("FAKE_CUDA_DEVICES=0", "--gpu 0"));
	SAYS("the CUDA driver finds no device\n");
	EXPECT_EQ(3, RUN("LD_LIBRARY_PATH=", "--gpu 0"));
	SAYS("no CUDA driver on this host");
	EXPECT_EQ(2, RUN("", "--gpu 0 --transport pipe"));
	SAYS("--gpu goes with --transport arena only\n");
	EXPECT_EQ(2, RUN("", "--gpu none"));
}

TEST_HARNESS_MAIN
