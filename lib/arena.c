// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Arenas: create, attach, reattach after fork, detach, pass on. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define MIN_BLOCK     4096u
#define MAX_BLOCK     (1u << 30)
#define DEFAULT_BLOCK (32u << 10)
#define MAX_LEASES    (1ULL << 28) /* what a cell can name */

static const struct sluice_backend_ops *const backends[] = {
	&sluice_backend_kmod,
	&sluice_backend_memfd,
};

/*
 * Copy an options struct of a caller that may be older or newer than this library: what it does not
 * have is zero, what we do not know must be.
 */
int opts_copy(void *to, size_t size, const void *from, const char *name)
{
	size_t given = 0;

	memset(to, 0, size);
	if (!from)
		return 0;
	memcpy(&given, from, sizeof(given));
	if (given < 2 * sizeof(size_t) || given > 4096)
		return sluice_fail(EINVAL, "%s.sz: %zu is not its size, which is %zu", name, given,
				   size);
	for (size_t i = size; i < given; i++)
		if (((const uint8_t *)from)[i])
			return sluice_fail(
				EINVAL,
				"%s.sz: %zu bytes with fields that are set and not known "
				"to this library, which has %zu",
				name, given, size);
	memcpy(to, from, min_u64(given, size));
	return 0;
}

/* The way back: fill as much as the caller's struct has room for; what we do not know is zero. */
int info_copy(void *to, const void *from, size_t size, const char *name)
{
	size_t given;

	memcpy(&given, to, sizeof(given));
	if (given < 2 * sizeof(size_t) || given > 4096)
		return sluice_fail(EINVAL, "%s.sz: %zu is not its size, which is %zu", name, given,
				   size);
	memset(to, 0, given);
	memcpy(to, from, min_u64(given, size));
	memcpy(to, &given, sizeof(given));
	return 0;
}

int arena_check(const struct sluice_arena *a)
{
	if (arena_forked(a))
		return sluice_fail(ECHILD,
				   "arena %016llx: inherited through fork(): call "
				   "sluice_arena_reattach() in the child",
				   (unsigned long long)a->hdr.arena_id);
	return 0;
}

/* ------------------------------------------------------------------ handles */

/* A page that reads 0 in a forked child: no system call is needed to notice a fork. */
static const uint8_t *alive_page(void)
{
	uint8_t *page =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return NULL;
	if (madvise(page, 4096, MADV_WIPEONFORK)) {
		munmap(page, 4096);
		return NULL;
	}
	*page = 1;
	return page;
}

static struct sluice_arena *arena_new(void)
{
	struct sluice_arena *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->alive = alive_page();
	if (!a->alive) {
		free(a);
		return NULL;
	}
	a->region.ctl_fd = a->region.data_fd = -1;
	a->watch_fd = a->event_fd = a->peer_fd = -1;
	a->event_tell = -1;
	a->event_poll = -1;
	a->slot = SHM_NONE;
	pthread_mutex_init(&a->watch_lock, NULL);
	pthread_mutex_init(&a->pool_lock, NULL);
	return a;
}

static void arena_free(struct sluice_arena *a)
{
	while (a->pool) {
		struct sluice_batch *b = a->pool;

		a->pool = b->next;
		sluice_manifest_fini(&b->manifest);
		free(b);
	}
	if (a->event_poll >= 0) {
		close(a->event_poll);
		close(a->event_tell);
	}
	if (a->region.ctl && a->ops)
		a->ops->detach(&a->region);
	munmap((void *)a->alive, 4096);
	pthread_mutex_destroy(&a->watch_lock);
	pthread_mutex_destroy(&a->pool_lock);
	free(a);
}

static void arena_point(struct sluice_arena *a)
{
	uint8_t *ctl = a->region.ctl;

	a->root = (struct shm_root *)(ctl + SHM_ROOT_OFF);
	a->peers = (struct shm_peer *)(ctl + SHM_PEERS_OFF);
	a->endpoints = (struct shm_endpoint *)(ctl + SHM_ENDPOINTS_OFF);
	a->channels = (struct shm_channel *)(ctl + SHM_CHANNELS_OFF);
	a->events = (struct shm_event *)(ctl + SHM_EVENTS_OFF);
	a->cells = (shm_u64 *)(ctl + SHM_CELLS_OFF);
	a->leases = (struct shm_lease *)(ctl + SHM_LEASES_OFF);
	a->nleases = a->hdr.nblocks + SHM_NALIAS;
}

/* ------------------------------------------------------------------ creation */

static int choose_backend(uint32_t asked, const struct sluice_backend_ops **ops)
{
	const char *env = asked == SLUICE_BACKEND_AUTO ? getenv("SLUICE_BACKEND") : NULL;
	int err = -ENOTSUP;

	if (asked > SLUICE_BACKEND_KMOD)
		return sluice_fail(EINVAL, "backend %u: there are memfd (%u) and kmod (%u)", asked,
				   SLUICE_BACKEND_MEMFD, SLUICE_BACKEND_KMOD);
	for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
		const struct sluice_backend_ops *b = backends[i];

		if (env && *env ? strcmp(env, b->name) : asked && asked != b->id)
			continue;
		err = b->usable();
		if (!err) {
			*ops = b;
			return 0;
		}
		if (asked != SLUICE_BACKEND_AUTO || (env && *env))
			return err;
	}
	if (!env || !*env)
		return err;
	return sluice_fail(EINVAL, "SLUICE_BACKEND=%s: say memfd or kmod, or leave it unset", env);
}

static uint64_t default_block(uint64_t data_bytes)
{
	if (data_bytes <= 4ULL << 30)
		return DEFAULT_BLOCK;
	if (data_bytes <= 64ULL << 30)
		return 64 << 10;
	return max_u64(256 << 10, 1ULL << (64 - __builtin_clzll(data_bytes / (MAX_LEASES / 2))));
}

static int header_init(struct shm_header *h, const struct sluice_arena_opts *o)
{
	uint64_t block = o->block_bytes ? o->block_bytes : default_block(o->data_bytes);
	uint64_t limit;
	struct stat st;

	if (!o->data_bytes || o->data_bytes > 1ULL << 50)
		return sluice_fail(EINVAL, "arena: %llu data bytes, must be 1 to 2^50",
				   (unsigned long long)o->data_bytes);
	if (block < MIN_BLOCK || block > MAX_BLOCK || block & (block - 1))
		return sluice_fail(EINVAL,
				   "arena: block size %llu is not a power of two from %u to %u",
				   (unsigned long long)block, MIN_BLOCK, MAX_BLOCK);
	h->magic = SHM_MAGIC;
	h->abi_major = SHM_ABI_MAJOR;
	h->abi_minor = SHM_ABI_MINOR;
	h->block_shift = (uint32_t)__builtin_ctzll(block);
	h->nblocks = (o->data_bytes + block - 1) >> h->block_shift;
	h->data_bytes = h->nblocks << h->block_shift;
	h->control_bytes = SHM_LEASES_OFF + (h->nblocks + SHM_NALIAS) * sizeof(struct shm_lease);
	h->control_bytes = (h->control_bytes + 4095) & ~4095ULL;
	limit = h->data_bytes / 1000 + (1 << 20);
	if (h->nblocks + SHM_NALIAS > MAX_LEASES)
		return sluice_fail(
			EINVAL,
			"arena: %llu blocks of %llu bytes, above the limit of %llu: take "
			"larger blocks",
			(unsigned long long)h->nblocks, (unsigned long long)block,
			MAX_LEASES - SHM_NALIAS);
	if (h->control_bytes > limit)
		return sluice_fail(
			EINVAL,
			"arena: blocks of %llu bytes need a control region of %llu bytes, "
			"above 0.1 %% of the data + 1 MiB (%llu): take larger blocks",
			(unsigned long long)block, (unsigned long long)h->control_bytes,
			(unsigned long long)limit);
	h->flags = o->flags;
	h->numa_node = o->flags & SLUICE_ARENA_BIND_NODE ? o->numa_node : -1;
	h->creator_pid = (uint32_t)getpid();
	h->pid_ns = stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
	if (o->label)
		snprintf(h->label, sizeof(h->label), "%s", o->label);
	while (!h->arena_id)
		if (getrandom(&h->arena_id, sizeof(h->arena_id), 0) != sizeof(h->arena_id))
			h->arena_id = now_ns() ^ (uint64_t)getpid() << 40;
	return 0;
}

int sluice_arena_create(struct sluice_arena **out, const struct sluice_arena_opts *opts)
{
	uint64_t start = now_ns();
	struct sluice_region_req req;
	struct sluice_arena_opts o;
	struct sluice_arena *a;
	struct stat st;
	int err;

	err = opts_copy(&o, sizeof(o), opts, "sluice_arena_opts");
	if (err)
		return err;
	if (o.reserved)
		return sluice_fail(EINVAL, "sluice_arena_opts.reserved: %u, must be 0", o.reserved);
	if (o.flags & ~0x1fu)
		return sluice_fail(EINVAL, "arena: flags 0x%x are not known", o.flags);
	if (o.label && strlen(o.label) >= SLUICE_LABEL_LEN)
		return sluice_fail(EINVAL, "arena: the label has %zu bytes, the limit is %u",
				   strlen(o.label), SLUICE_LABEL_LEN - 1);
	a = arena_new();
	if (!a)
		return sluice_fail(ENOMEM, "no memory for an arena handle");
	err = header_init(&a->hdr, &o);
	if (!err)
		err = choose_backend(o.backend, &a->ops);
	if (err)
		goto fail;
	a->hdr.backend = a->ops->id;
	req = (struct sluice_region_req){
		.control_bytes = a->hdr.control_bytes,
		.data_bytes = a->hdr.data_bytes,
		.flags = o.flags,
		.numa_node = o.numa_node,
		.threads = o.prefault_threads,
		.label = o.label,
	};
	err = a->ops->create(&a->region, &req);
	if (err)
		goto fail;
	arena_point(a);
	/* One free run; every other word of a fresh region is right as zero. */
	st_rlx(&a->leases[0].nblocks, (uint32_t)a->hdr.nblocks);
	a->hdr.huge_bytes = a->region.huge_bytes;
	a->hdr.huge_page_bytes = a->region.huge_page_bytes;
	a->hdr.data_fd = a->region.data_fd;
	if (a->region.data_fd >= 0 && !fstat(a->region.data_fd, &st)) {
		a->hdr.data_dev = st.st_dev;
		a->hdr.data_ino = st.st_ino;
	}
	a->hdr.create_ns = now_ns() - start;
	memcpy(a->region.ctl, &a->hdr, sizeof(a->hdr));
	err = peer_join(a);
	if (err)
		goto fail;
	*out = a;
	return 0;
fail:
	arena_free(a);
	return err;
}

/* ------------------------------------------------------------------ attaching */

/* The header was copied: is it one that we can work with, and does it fit what is mapped? */
static int header_check(const struct sluice_arena *a)
{
	const struct shm_header *h = &a->hdr;
	struct stat st;

	if (h->magic != SHM_MAGIC)
		return sluice_fail(EBADF, "descriptor %d: not an arena", a->region.ctl_fd);
	if (h->abi_major != SHM_ABI_MAJOR || h->abi_minor > SHM_ABI_MINOR)
		return sluice_fail(EPROTO,
				   "arena %016llx: laid out by version %u.%u, this library has "
				   "version %u.%u",
				   (unsigned long long)h->arena_id, h->abi_major, h->abi_minor,
				   SHM_ABI_MAJOR, SHM_ABI_MINOR);
	if (h->backend != a->ops->id || h->block_shift < 12 || h->block_shift > 30 || !h->nblocks ||
	    h->nblocks + SHM_NALIAS > MAX_LEASES || h->data_bytes != h->nblocks << h->block_shift ||
	    h->data_bytes != a->region.data_bytes || h->control_bytes > a->region.control_bytes ||
	    h->control_bytes <
		    SHM_LEASES_OFF + (h->nblocks + SHM_NALIAS) * sizeof(struct shm_lease))
		return sluice_fail(
			EUCLEAN,
			"arena %016llx: its header is damaged (%llu blocks, control %llu, "
			"data %llu bytes; mapped %llu and %llu)",
			(unsigned long long)h->arena_id, (unsigned long long)h->nblocks,
			(unsigned long long)h->control_bytes, (unsigned long long)h->data_bytes,
			(unsigned long long)a->region.control_bytes,
			(unsigned long long)a->region.data_bytes);
	if (a->ops->id == SLUICE_BACKEND_MEMFD && h->pid_ns && !stat("/proc/self/ns/pid", &st) &&
	    st.st_ino != h->pid_ns)
		return sluice_fail(
			EXDEV,
			"arena %016llx: its peers live in another pid namespace, where the "
			"memfd backend cannot watch them: use the kernel module",
			(unsigned long long)h->arena_id);
	return 0;
}

int sluice_arena_attach(struct sluice_arena **out, int fd, const struct sluice_attach_opts *opts)
{
	struct sluice_attach_opts o;
	struct sluice_arena *a;
	int err;

	err = opts_copy(&o, sizeof(o), opts, "sluice_attach_opts");
	if (err)
		return err;
	if (o.reserved)
		return sluice_fail(EINVAL, "sluice_attach_opts.reserved: must be 0");
	if (o.role > SLUICE_ROLE_CONSUMER)
		return sluice_fail(EINVAL, "attach: role %u is not known", o.role);
	a = arena_new();
	if (!a)
		return sluice_fail(ENOMEM, "no memory for an arena handle");
	err = sluice_fail(EBADF, "descriptor %d: not an arena", fd);
	for (size_t i = 0; err == -EBADF && i < sizeof(backends) / sizeof(backends[0]); i++) {
		a->ops = backends[i];
		err = a->ops->attach(&a->region, fd, o.data_fd, o.role);
	}
	if (err)
		goto fail;
	a->role = o.role;
	if (a->region.control_bytes < SHM_LEASES_OFF)
		err = sluice_fail(EBADF, "descriptor %d: too small to be an arena", fd);
	if (err)
		goto fail;
	memcpy(&a->hdr, a->region.ctl, sizeof(a->hdr));
	a->hdr.label[SLUICE_LABEL_LEN - 1] = '\0';
	err = header_check(a);
	if (err)
		goto fail;
	arena_point(a);
	err = peer_join(a);
	if (err)
		goto fail;
	*out = a;
	return 0;
fail:
	arena_free(a);
	return err;
}

int sluice_arena_reattach(struct sluice_arena **out, struct sluice_arena *inherited)
{
	struct sluice_arena *a;
	int err;

	if (!arena_forked(inherited))
		return sluice_fail(EINVAL, "arena %016llx: this process has not inherited it",
				   (unsigned long long)inherited->hdr.arena_id);
	a = arena_new();
	if (!a)
		return sluice_fail(ENOMEM, "no memory for an arena handle");
	a->ops = inherited->ops;
	a->region = inherited->region;
	a->hdr = inherited->hdr;
	a->role = inherited->role;
	arena_point(a);
	err = peer_join(a);
	if (err) {
		a->region.ctl = NULL; /* still the inherited handle's */
		arena_free(a);
		return err;
	}
	/* What the parent's handle had open in this process; the arena itself is left alone. */
	inherited->region.ctl = NULL;
	pthread_mutex_init(&inherited->pool_lock, NULL);
	while (inherited->open)
		endpoint_free(inherited->open);
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++)
		if (inherited->watch[i].word && inherited->watch[i].pidfd >= 0)
			close(inherited->watch[i].pidfd);
	inherited->ops->leave(inherited);
	arena_free(inherited);
	*out = a;
	return 0;
}

void sluice_arena_detach(struct sluice_arena *a)
{
	if (!a || arena_forked(a))
		return;
	while (a->open)
		sluice_channel_close(a->open);
	peer_leave(a);
	arena_free(a);
}

/* ------------------------------------------------------------------ passing on */

int sluice_arena_fd(const struct sluice_arena *a)
{
	int err = arena_check(a);

	return err ? err : a->region.ctl_fd;
}

int sluice_arena_data_fd(const struct sluice_arena *a)
{
	int err = arena_check(a);

	if (err)
		return err;
	if (a->region.data_fd < 0)
		return sluice_fail(ENOTSUP, "arena %016llx: one descriptor stands for all of it",
				   (unsigned long long)a->hdr.arena_id);
	return a->region.data_fd;
}

struct passed {
	char tag[8];
	uint32_t role;
	uint32_t nfds;
};

static const char passed_tag[8] = "sluice1";

int sluice_arena_send(struct sluice_arena *a, int sock, enum sluice_role role)
{
	struct passed p = {.role = role};
	struct iovec iov = {.iov_base = &p, .iov_len = sizeof(p)};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} ctl = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.buf};
	struct cmsghdr *c = (struct cmsghdr *)ctl.buf;
	int fds[2], own = -1, err = arena_check(a);
	ssize_t n;

	if (err)
		return err;
	memcpy(p.tag, passed_tag, sizeof(p.tag));
	err = a->ops->pass(a, role, fds, &own);
	if (err < 0)
		return err;
	p.nfds = (uint32_t)err;
	msg.msg_controllen = CMSG_SPACE(p.nfds * sizeof(int));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(p.nfds * sizeof(int));
	memcpy(CMSG_DATA(c), fds, p.nfds * sizeof(int));
	do {
		n = sendmsg(sock, &msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	err = n < 0 ? errno : n != sizeof(p) ? EIO : 0;
	if (own >= 0)
		close(own);
	return err ? sluice_fail(err, "arena %016llx: cannot be sent over descriptor %d: %s",
				 (unsigned long long)a->hdr.arena_id, sock, strerror(err))
		   : 0;
}

int sluice_arena_recv(struct sluice_arena **out, int sock, enum sluice_role role)
{
	struct sluice_attach_opts o = {.sz = sizeof(o), .role = role};
	struct passed p;
	struct iovec iov = {.iov_base = &p, .iov_len = sizeof(p)};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} ctl = {0};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = ctl.buf,
		.msg_controllen = sizeof(ctl.buf),
	};
	int fds[2] = {-1, -1}, nfds = 0, err;
	struct cmsghdr *c;
	ssize_t n;

	do {
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return sluice_fail(errno, "descriptor %d: no arena came: %s", sock,
				   strerror(errno));
	for (c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		nfds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		nfds = nfds > 2 ? 2 : nfds;
		memcpy(fds, CMSG_DATA(c), (size_t)nfds * sizeof(int));
	}
	if (n != sizeof(p) || memcmp(p.tag, passed_tag, sizeof(p.tag)) || nfds < 1) {
		err = sluice_fail(EPROTO, "descriptor %d: what came is not an arena", sock);
	} else {
		o.data_fd = nfds > 1 ? fds[1] : 0;
		err = sluice_arena_attach(out, fds[0], &o);
	}
	for (int i = 0; i < nfds; i++)
		close(fds[i]);
	return err;
}

int sluice_arena_info(const struct sluice_arena *a, struct sluice_arena_info *info)
{
	struct sluice_arena_info i = {
		.sz = info->sz,
		.id = a->hdr.arena_id,
		.backend = a->ops->id,
		.role = a->role,
		.control_bytes = a->hdr.control_bytes,
		.data_bytes = a->hdr.data_bytes,
		.block_bytes = 1ULL << a->hdr.block_shift,
		.blocks = a->hdr.nblocks,
		.huge_bytes = a->hdr.huge_bytes,
		.huge_page_bytes = a->hdr.huge_page_bytes,
		.numa_node = a->hdr.numa_node,
		.peer_id = peer_id(a->word),
		.control = a->region.ctl,
		.data = a->region.data,
		.create_ns = a->hdr.create_ns,
	};
	int err = arena_check(a);

	if (err)
		return err;
	for (unsigned int k = 0; k < SLUICE_MAX_PEERS; k++)
		i.peers += peer_state(ld_rlx(&a->peers[k].word)) == PEER_ALIVE;
	memcpy(i.label, a->hdr.label, sizeof(i.label));
	return info_copy(info, &i, sizeof(i), "sluice_arena_info");
}
