// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The tracepoints sluice:*, read as text where everybody reads them. */
#include "common.h"

#include "kselftest_harness.h"

#define TRACING "/sys/kernel/tracing/"

static void do_exit(int bell, int code)
{
	_exit(code);
}

static void read_trace(char *text, size_t room)
{
	FILE *f = fopen(TRACING "trace", "re");
	size_t n = f ? fread(text, 1, room - 1, f) : 0;

	text[n] = 0;
	if (f)
		fclose(f);
}

TEST(every_step_is_traced)
{
	static const char *const names[] = {"arena_create", "peer_attach", "doorbell",
					    "completion",   "peer_dead",   "arena_destroy"};
	struct sluice_ioc_peer_attach me, args;
	struct sluice_ioc_arena_info info;
	char want[128], *text = calloc(1, MIB);
	int dev = device_open(), fd, bell;
	pid_t pid;

	if (access(TRACING "events", R_OK))
		SKIP(return, "this kernel has no tracefs, or it is not mounted");
	ASSERT_NE(NULL, text);
	ASSERT_EQ(0, write_text(TRACING "trace", "\n"));
	ASSERT_EQ(0, write_text(TRACING "events/sluice/enable", "1"));
	fd = arena_create(dev, 4096, MIB, 0);
	ASSERT_EQ(0, arena_info(fd, &info));
	bell = peer_attach(fd, SLUICE_IOC_ROLE_PRODUCER, &me);
	ASSERT_LE(0, bell);
	ASSERT_EQ(0, bell_ring(bell, me.bell, SLUICE_BELL_DOORBELL, 0x123));
	ASSERT_EQ(0, bell_ring(bell, me.bell, SLUICE_BELL_COMPLETION, 0x456));
	pid = peer_start(fd, &args, do_exit, 3);
	waitpid(pid, NULL, 0);
	ASSERT_EQ(0, arena_info(fd, &info));
	EXPECT_EQ(1, info.peers);
	close(bell);
	close(fd);
	/* The end of the child's watch is what holds the arena last. */
	for (int i = 0; i < 200; i++) {
		read_trace(text, MIB);
		if (strstr(text, "sluice_arena_destroy"))
			break;
		usleep(100000);
	}
	write_text(TRACING "events/sluice/enable", "0");

	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(want, sizeof(want), "sluice_%s: arena=%llu bytes=%llu ", names[i],
			 (unsigned long long)info.id, (unsigned long long)(MIB + 4096));
		EXPECT_NE(NULL, strstr(text, want))
		{
			TH_LOG("not traced: %s", want);
		}
	}
	snprintf(want, sizeof(want), "peer=%u pid=%d reason=%d status=0x300", args.peer, pid,
		 SLUICE_DEAD_EXIT);
	EXPECT_NE(NULL, strstr(text, want))
	{
		TH_LOG("not traced: %s", want);
	}
	EXPECT_NE(NULL, strstr(text, "arg=0x123"));
	EXPECT_NE(NULL, strstr(text, "arg=0x456"));
}

TEST_HARNESS_MAIN
