// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Creating arenas, attaching to them, and what is refused. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "shm.h"
#include "util.h"

#include <kselftest_harness.h>

static struct sluice_arena_info arena_info(struct sluice_arena *a)
{
	struct sluice_arena_info info = {.sz = sizeof(info)};

	if (sluice_arena_info(a, &info))
		memset(&info, 0, sizeof(info));
	return info;
}

FIXTURE(arena)
{
	struct sluice_arena *a;
	struct sluice_arena_info info;
};

FIXTURE_SETUP(arena)
{
	self->a = arena_new(4 * MIB);
	ASSERT_NE(NULL, self->a);
	self->info = arena_info(self->a);
}

FIXTURE_TEARDOWN(arena)
{
	sluice_arena_detach(self->a);
}

TEST_F(arena, says_what_it_is)
{
	EXPECT_EQ(4 * MIB, self->info.data_bytes);
	EXPECT_EQ(4 * KIB, self->info.block_bytes);
	EXPECT_EQ(1024, self->info.blocks);
	EXPECT_NE(0, self->info.id);
	EXPECT_NE(0, self->info.peer_id);
	EXPECT_EQ(1, self->info.peers);
	EXPECT_EQ(-1, self->info.numa_node);
	EXPECT_EQ(SLUICE_ROLE_RW, self->info.role);
	EXPECT_EQ(0, self->info.huge_bytes);
	EXPECT_STREQ("test", self->info.label);
	EXPECT_NE(NULL, self->info.data);
	EXPECT_NE(NULL, self->info.control);
	EXPECT_LE(self->info.control_bytes, self->info.data_bytes / 1000 + MIB);
}

TEST_F(arena, info_is_filled_only_as_far_as_the_caller_knows_it)
{
	struct sluice_arena_info info;

	memset(&info, 0xa5, sizeof(info));
	info.sz = offsetof(struct sluice_arena_info, control_bytes);
	ASSERT_EQ(0, sluice_arena_info(self->a, &info));
	EXPECT_EQ(self->info.id, info.id);
	EXPECT_EQ(0xa5a5a5a5a5a5a5a5ULL, info.control_bytes);
	EXPECT_EQ(0xa5a5a5a5a5a5a5a5ULL, info.data_bytes);
}

TEST_F(arena, starts_free)
{
	struct sluice_arena_usage u = {.sz = sizeof(u)};

	EXPECT_EQ(NULL, arena_all_free(self->a));
	ASSERT_EQ(0, sluice_arena_usage(self->a, &u));
	EXPECT_EQ(1, u.free_runs);
	EXPECT_EQ(self->info.data_bytes, u.largest_free_bytes);
}

TEST_F(arena, is_all_there)
{
	size_t pages = self->info.data_bytes / (size_t)sysconf(_SC_PAGESIZE);
	unsigned char in[4096];

	ASSERT_LE(pages, sizeof(in));
	ASSERT_EQ(0, mincore(self->info.data, self->info.data_bytes, in));
	for (size_t i = 0; i < pages; i++)
		ASSERT_EQ(1, in[i] & 1);
}

TEST_F(arena, cannot_be_resized)
{
	if (self->info.backend != SLUICE_BACKEND_MEMFD)
		SKIP(return, "seals are the memfd backend's");
	EXPECT_EQ(-1, ftruncate(sluice_arena_fd(self->a), 4096));
	EXPECT_EQ(-1, ftruncate(sluice_arena_data_fd(self->a), 4096));
	EXPECT_EQ(-1, ftruncate(sluice_arena_data_fd(self->a), 1LL << 40));
	EXPECT_EQ(F_SEAL_SEAL, fcntl(sluice_arena_fd(self->a), F_GET_SEALS) & F_SEAL_SEAL);
}

TEST_F(arena, descriptors_close_on_exec)
{
	EXPECT_EQ(FD_CLOEXEC, fcntl(sluice_arena_fd(self->a), F_GETFD) & FD_CLOEXEC);
	if (self->info.backend != SLUICE_BACKEND_MEMFD)
		return;
	EXPECT_EQ(FD_CLOEXEC, fcntl(sluice_arena_data_fd(self->a), F_GETFD) & FD_CLOEXEC);
}

TEST_F(arena, attaches_as_another_peer)
{
	struct sluice_arena *b;
	struct sluice_arena_info info;

	ASSERT_EQ(0, sluice_arena_attach(&b, sluice_arena_fd(self->a), NULL));
	info = arena_info(b);
	EXPECT_EQ(self->info.id, info.id);
	EXPECT_EQ(self->info.data_bytes, info.data_bytes);
	EXPECT_NE(self->info.peer_id, info.peer_id);
	EXPECT_EQ(2, info.peers);
	memset(info.data, 0x5a, 64);
	EXPECT_EQ(0, memcmp(info.data, self->info.data, 64));
	sluice_arena_detach(b);
	EXPECT_EQ(1, arena_info(self->a).peers);
}

TEST_F(arena, peer_ids_are_never_used_twice)
{
	uint64_t last = self->info.peer_id;

	for (int i = 0; i < 300; i++) {
		struct sluice_arena *b;
		uint64_t id;

		ASSERT_EQ(0, sluice_arena_attach(&b, sluice_arena_fd(self->a), NULL));
		id = arena_info(b).peer_id;
		ASSERT_GT(id, last);
		last = id;
		sluice_arena_detach(b);
	}
}

TEST_F(arena, peers_are_limited)
{
	struct sluice_arena *b[SLUICE_MAX_PEERS];
	struct rlimit lim;
	int n, ret = 0;

	/* More descriptors than many a default limit. */
	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &lim));
	lim.rlim_cur = lim.rlim_max;
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &lim));
	for (n = 0; n < SLUICE_MAX_PEERS; n++) {
		ret = sluice_arena_attach(&b[n], sluice_arena_fd(self->a), NULL);
		if (ret)
			break;
	}
	EXPECT_EQ(-EUSERS, ret);
	EXPECT_EQ(SLUICE_MAX_PEERS - 1, n);
	EXPECT_NE(NULL, strstr(sluice_strerror(), "128"));
	while (n--)
		sluice_arena_detach(b[n]);
	ASSERT_EQ(0, sluice_arena_attach(&b[0], sluice_arena_fd(self->a), NULL));
	sluice_arena_detach(b[0]);
}

TEST_F(arena, lists_its_peers)
{
	struct sluice_peer_info p[4] = {{.sz = sizeof(p[0])}};
	struct sluice_attach_opts opts = {.sz = sizeof(opts), .role = SLUICE_ROLE_CONSUMER};
	struct sluice_arena *b;

	ASSERT_EQ(0, sluice_arena_attach(&b, sluice_arena_fd(self->a), &opts));
	ASSERT_EQ(2, sluice_peer_list(self->a, p, 4));
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(sizeof(p[0]), p[i].sz);
		EXPECT_EQ((uint32_t)getpid(), p[i].pid);
		EXPECT_EQ(SLUICE_PEER_ALIVE, p[i].state);
		EXPECT_EQ(0, p[i].extents);
		EXPECT_NE(0, p[i].comm[0]);
		EXPECT_LE(p[i].joined_ns, now_ns());
		EXPECT_EQ(p[i].id == self->info.peer_id ? SLUICE_ROLE_RW : SLUICE_ROLE_CONSUMER,
			  p[i].role);
	}
	EXPECT_NE(p[0].id, p[1].id);
	/* A short array gets what fits; the number is still told. */
	EXPECT_EQ(2, sluice_peer_list(self->a, p, 1));
	EXPECT_EQ(2, sluice_peer_list(self->a, NULL, 0));
	sluice_arena_detach(b);
}

TEST_F(arena, consumer_cannot_write)
{
	struct sluice_attach_opts opts = {.sz = sizeof(opts), .role = SLUICE_ROLE_CONSUMER};
	struct sluice_channel_opts produce = {.sz = sizeof(produce),
					      .flags = SLUICE_CHANNEL_PRODUCE};
	int fd = sluice_arena_fd(self->a), data_fd = sluice_arena_data_fd(self->a), status;
	struct sluice_channel *ch;
	struct sluice_arena *b;
	pid_t pid;

	if (self->info.backend == SLUICE_BACKEND_MEMFD)
		opts.data_fd = data_fd;
	CHILD(pid) {
		struct sluice_arena_info info = {.sz = sizeof(info)};

		CHECK_OK(sluice_arena_attach(&b, fd, &opts));
		CHECK_OK(sluice_arena_info(b, &info));
		CHECK(info.role == SLUICE_ROLE_CONSUMER);
		CHECK(sluice_channel_create(&ch, b, "c", &produce) == -EPERM);
		CHECK(mprotect(info.data, 4096, PROT_READ | PROT_WRITE) == -1);
		signal(SIGSEGV, SIG_DFL); /* the sanitizers' handler would report it */
		*(volatile char *)info.data = 1;
	}
	status = child_wait(pid);
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(SIGSEGV, WTERMSIG(status));
}

TEST_F(arena, attach_refuses_what_is_no_arena)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int empty = memfd_create("empty", MFD_CLOEXEC);
	int zeros = memfd_create("zeros", MFD_CLOEXEC);
	struct sluice_arena *b;

	ASSERT_EQ(0, ftruncate(zeros, 8 << 20));
	EXPECT_EQ(-EBADF, sluice_arena_attach(&b, -1, NULL));
	EXPECT_EQ(-EBADF, sluice_arena_attach(&b, 12345, NULL));
	EXPECT_EQ(-EBADF, sluice_arena_attach(&b, null, NULL));
	EXPECT_EQ(-EBADF, sluice_arena_attach(&b, empty, NULL));
	EXPECT_EQ(-EBADF, sluice_arena_attach(&b, zeros, NULL));
	EXPECT_NE('\0', sluice_strerror()[0]);
	/* The data descriptor is not the arena's. */
	if (self->info.backend != SLUICE_BACKEND_MEMFD)
		return;
	EXPECT_EQ(-EBADF, sluice_arena_attach(&b, sluice_arena_data_fd(self->a), NULL));
}

TEST_F(arena, attach_leaves_no_descriptor_behind)
{
	struct sluice_arena *b;
	unsigned int before = open_fds();

	for (int i = 0; i < 20; i++) {
		ASSERT_EQ(0, sluice_arena_attach(&b, sluice_arena_fd(self->a), NULL));
		sluice_arena_detach(b);
		ASSERT_NE(0, sluice_arena_attach(&b, STDERR_FILENO, NULL));
	}
	EXPECT_EQ(before, open_fds());
}

TEST_F(arena, other_abi_version_is_refused_with_both_versions)
{
	struct shm_header *h = self->info.control;
	char mine[32], other[32];
	struct sluice_arena *b;

	snprintf(mine, sizeof(mine), "%u.%u", SHM_ABI_MAJOR, SHM_ABI_MINOR);
	snprintf(other, sizeof(other), "%u.", SHM_ABI_MAJOR + 77);
	h->abi_major = SHM_ABI_MAJOR + 77;
	EXPECT_EQ(-EPROTO, sluice_arena_attach(&b, sluice_arena_fd(self->a), NULL));
	EXPECT_NE(NULL, strstr(sluice_strerror(), mine));
	EXPECT_NE(NULL, strstr(sluice_strerror(), other));
	h->abi_major = SHM_ABI_MAJOR;
	ASSERT_EQ(0, sluice_arena_attach(&b, sluice_arena_fd(self->a), NULL));
	sluice_arena_detach(b);
}

TEST_F(arena, damaged_header_is_refused)
{
	struct shm_header *h = self->info.control, good = *h, bad[8];
	struct sluice_arena *b;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		bad[i] = good;
	bad[0].data_bytes *= 2;
	bad[1].data_bytes = 0;
	bad[2].control_bytes = 4096;
	bad[3].nblocks = 1 << 30;
	bad[4].block_shift = 3;
	bad[5].block_shift = 200;
	bad[6].data_bytes = UINT64_MAX;
	bad[7].backend = 77;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		*h = bad[i];
		EXPECT_EQ(-EUCLEAN, sluice_arena_attach(&b, sluice_arena_fd(self->a), NULL))
		{
			TH_LOG("header %zu", i);
		}
	}
	*h = good;
}

TEST_F(arena, bad_attach_options)
{
	struct sluice_attach_opts opts = {.sz = 0};
	struct sluice_arena *b;

	EXPECT_EQ(-EINVAL, sluice_arena_attach(&b, sluice_arena_fd(self->a), &opts));
	opts = (struct sluice_attach_opts){.sz = sizeof(opts), .role = 9};
	EXPECT_EQ(-EINVAL, sluice_arena_attach(&b, sluice_arena_fd(self->a), &opts));
}

/* What create refuses, and a word that its sentence must have. */
static const struct {
	struct sluice_arena_opts opts;
	int error;
	const char *says;
} refused[] = {
	{{.sz = 0, .data_bytes = MIB}, -EINVAL, ""},
	{{.sz = sizeof(struct sluice_arena_opts)}, -EINVAL, "0"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = MIB, .block_bytes = 3000},
	 -EINVAL,
	 "3000"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = MIB, .block_bytes = 2048},
	 -EINVAL,
	 "2048"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = MIB, .block_bytes = 1U << 31},
	 -EINVAL,
	 "2147483648"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = 4096 * MIB, .block_bytes = 4096},
	 -EINVAL,
	 "4096"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = MIB, .flags = 1U << 31},
	 -EINVAL,
	 "flag"},
	{{.sz = sizeof(struct sluice_arena_opts),
	  .data_bytes = MIB,
	  .flags = SLUICE_ARENA_HUGE_REQUIRED | SLUICE_ARENA_NO_HUGE},
	 -EINVAL,
	 "huge"},
	{{.sz = sizeof(struct sluice_arena_opts),
	  .data_bytes = MIB,
	  .flags = SLUICE_ARENA_BIND_NODE,
	  .numa_node = 1000},
	 -EINVAL,
	 "1000"},
	{{.sz = sizeof(struct sluice_arena_opts),
	  .data_bytes = MIB,
	  .flags = SLUICE_ARENA_BIND_NODE,
	  .numa_node = -3},
	 -EINVAL,
	 "-3"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = MIB, .backend = 42}, -EINVAL, "42"},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = MIB, .reserved = 1}, -EINVAL, ""},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = 1ULL << 50}, -ENOMEM, ""},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = UINT64_MAX}, 0, ""},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = UINT64_MAX - 4096}, 0, ""},
	{{.sz = sizeof(struct sluice_arena_opts), .data_bytes = 1ULL << 63}, 0, ""},
};

TEST(create_refuses)
{
	unsigned int fds = open_fds();

	for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
		struct sluice_arena *a = NULL;
		int ret = sluice_arena_create(&a, &refused[i].opts);

		EXPECT_GT(0, ret)
		{
			TH_LOG("row %zu was accepted", i);
		}
		EXPECT_TRUE(!refused[i].error || refused[i].error == ret)
		{
			TH_LOG("row %zu: %d, %s", i, ret, sluice_strerror());
		}
		EXPECT_NE(NULL, strstr(sluice_strerror(), refused[i].says))
		{
			TH_LOG("row %zu: '%s' is not in: %s", i, refused[i].says,
			       sluice_strerror());
		}
		EXPECT_LT(10, strlen(sluice_strerror()));
	}
	EXPECT_EQ(fds, open_fds());
}

TEST(an_unknown_backend_is_told_which_there_are)
{
	struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = MIB};
	struct sluice_arena *a = NULL;
	char *before = getenv("SLUICE_BACKEND");

	before = before ? strdup(before) : NULL;
	setenv("SLUICE_BACKEND", "hugetlbfs", 1);
	EXPECT_EQ(-EINVAL, sluice_arena_create(&a, &opts));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "SLUICE_BACKEND=hugetlbfs"));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "memfd"));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "kmod"));
	/* Empty is as good as unset, and the program's own choice goes before it. */
	setenv("SLUICE_BACKEND", "", 1);
	EXPECT_EQ(0, sluice_arena_create(&a, &opts));
	sluice_arena_detach(a);
	setenv("SLUICE_BACKEND", "hugetlbfs", 1);
	opts.backend = SLUICE_BACKEND_MEMFD;
	EXPECT_EQ(0, sluice_arena_create(&a, &opts));
	sluice_arena_detach(a);
	if (before)
		setenv("SLUICE_BACKEND", before, 1);
	else
		unsetenv("SLUICE_BACKEND");
	free(before);
}

TEST(options_of_a_newer_caller)
{
	struct {
		struct sluice_arena_opts known;
		uint64_t newer;
	} opts = {.known = {.sz = sizeof(opts), .data_bytes = MIB}};
	struct sluice_arena *a;

	ASSERT_EQ(0, sluice_arena_create(&a, &opts.known));
	sluice_arena_detach(a);
	/* A field that this library does not know must not be ignored when it is used. */
	opts.newer = 1;
	EXPECT_GT(0, sluice_arena_create(&a, &opts.known));
}

TEST(options_of_an_older_caller)
{
	struct sluice_arena_opts opts = {.data_bytes = MIB, .label = (const char *)1};
	struct sluice_arena *a;

	opts.sz = offsetof(struct sluice_arena_opts, label);
	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	EXPECT_STREQ("", arena_info(a).label);
	sluice_arena_detach(a);
}

TEST(size_is_rounded_up_to_blocks)
{
	struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = 3 * MIB + 1};
	struct sluice_arena *a;

	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	EXPECT_EQ(32 * KIB, arena_info(a).block_bytes);
	EXPECT_EQ(3 * MIB + 32 * KIB, arena_info(a).data_bytes);
	sluice_arena_detach(a);
	opts.data_bytes = 1;
	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	EXPECT_EQ(32 * KIB, arena_info(a).data_bytes);
	EXPECT_EQ(1, arena_info(a).blocks);
	sluice_arena_detach(a);
}

TEST(block_sizes)
{
	struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = 8 * MIB};

	for (opts.block_bytes = 4096; opts.block_bytes <= 8 * MIB; opts.block_bytes *= 2) {
		struct sluice_arena *a;

		ASSERT_EQ(0, sluice_arena_create(&a, &opts));
		EXPECT_EQ(opts.block_bytes, arena_info(a).block_bytes);
		EXPECT_EQ(8 * MIB, arena_info(a).data_bytes);
		EXPECT_LE(arena_info(a).control_bytes, 8 * MIB / 1000 + MIB);
		sluice_arena_detach(a);
	}
}

TEST(ids_differ)
{
	struct sluice_arena *a = arena_new(MIB), *b = arena_new(MIB);

	ASSERT_NE(NULL, a);
	ASSERT_NE(NULL, b);
	EXPECT_NE(arena_info(a).id, arena_info(b).id);
	sluice_arena_detach(a);
	sluice_arena_detach(b);
}

TEST(labels)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = MIB,
		.label = "thirty-two bytes are one too many",
	};
	struct sluice_arena *a;

	EXPECT_EQ(-EINVAL, sluice_arena_create(&a, &opts));
	EXPECT_NE(NULL, strstr(sluice_strerror(), "31"));
	opts.label = "thirty-one bytes are just right";
	ASSERT_EQ(31, strlen(opts.label));
	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	EXPECT_STREQ(opts.label, arena_info(a).label);
	sluice_arena_detach(a);
}

TEST(huge_pages_are_reported_or_required)
{
	struct sluice_arena_opts opts = {.sz = sizeof(opts), .data_bytes = 16 * MIB};
	struct sluice_arena_info info;
	struct sluice_arena *a;
	int ret;

	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	info = arena_info(a);
	EXPECT_LE(info.huge_bytes, info.data_bytes);
	EXPECT_EQ(!info.huge_bytes, !info.huge_page_bytes);
	EXPECT_TRUE(!info.huge_bytes || info.huge_bytes % info.huge_page_bytes == 0);
	sluice_arena_detach(a);

	opts.flags = SLUICE_ARENA_HUGE_REQUIRED;
	ret = sluice_arena_create(&a, &opts);
	if (ret) {
		EXPECT_EQ(-ENOMEM, ret);
		EXPECT_NE(NULL, strstr(sluice_strerror(), "huge"));
		return;
	}
	EXPECT_EQ(arena_info(a).data_bytes, arena_info(a).huge_bytes);
	sluice_arena_detach(a);
}

TEST(node_0_can_be_bound)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.flags = SLUICE_ARENA_BIND_NODE | SLUICE_ARENA_NO_HUGE,
		.data_bytes = MIB,
	};
	struct sluice_arena *a;
	int ret = sluice_arena_create(&a, &opts);

	if (ret == -ENOTSUP)
		SKIP(return, "%s", sluice_strerror());
	ASSERT_EQ(0, ret);
	EXPECT_EQ(0, arena_info(a).numa_node);
	sluice_arena_detach(a);
}

TEST(nothing_is_left_after_detach)
{
	unsigned int fds;
	uint64_t before;

	/* The first time may load and keep things. */
	sluice_arena_detach(arena_new(8 * MIB));
	fds = open_fds();
	before = resident_bytes();
	for (unsigned int i = 0; i < scaled(50); i++) {
		struct sluice_arena *a = arena_new(8 * MIB);

		ASSERT_NE(NULL, a);
		ASSERT_NE(NULL, channel_new(a, "c", 8, 0));
		sluice_arena_detach(a);
	}
	EXPECT_EQ(fds, open_fds());
	EXPECT_LT(resident_bytes(), before + 8 * MIB);
}

TEST(null_is_not_an_arena)
{
	sluice_arena_detach(NULL);
	sluice_channel_close(NULL);
	sluice_batch_release(NULL);
	sluice_batch_abort(NULL);
}

TEST(prefault_threads)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts),
		.data_bytes = 64 * MIB,
		.prefault_threads = 4,
	};
	struct sluice_arena *a;

	ASSERT_EQ(0, sluice_arena_create(&a, &opts));
	EXPECT_LT(0, arena_info(a).create_ns);
	sluice_arena_detach(a);
}

TEST_HARNESS_MAIN
