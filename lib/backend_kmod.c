// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The kernel module: one descriptor is the arena and carries the right to write, bells are files,
 * and the kernel itself tells who died.
 *
 * The peer's own bell is rung for deaths (by the kernel) and for events; each endpoint that sleeps
 * has a bell of its own. backend_id of a slot is the kernel's id of the peer, which it never uses
 * again. A peer that is still joining has none; it is watched by its pidfd until then.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kmod/uapi/sluice.h"
#include "internal.h"

#define DEVICE	   "/dev/sluice"
#define OUR_BELL   SHM_NONE /* what epoll says of peer_fd, instead of a slot */
#define HUGE_BYTES (2u << 20)

static int device_open(void)
{
	struct sluice_ioc_hello hello = {.size = sizeof(hello), .abi = SLUICE_ABI_VERSION};
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC), err;

	if (fd < 0) {
		err = errno;
		return sluice_fail(err == EMFILE || err == ENFILE || err == ENOMEM ? err : ENOTSUP,
				   "backend kmod: " DEVICE ": %s%s", strerror(err),
				   err == ENOENT   ? " (is the module loaded?)"
				   : err == EACCES ? " (its group may use it)"
						   : "");
	}
	if (!ioctl(fd, SLUICE_IOC_HELLO, &hello))
		return fd;
	err = errno;
	close(fd);
	if (err == EPROTO)
		return sluice_fail(ENOTSUP,
				   "backend kmod: the module speaks version %u, this library "
				   "version %u: update the older of them",
				   hello.abi, SLUICE_ABI_VERSION);
	return sluice_fail(ENOTSUP, "backend kmod: " DEVICE " does not answer: %s", strerror(err));
}

static int kmod_usable(void)
{
	int fd = device_open();

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

/* ------------------------------------------------------------------ memory */

static void kmod_detach(struct sluice_region *r)
{
	munmap(r->ctl, r->control_bytes);
	munmap(r->data, r->data_bytes);
	close(r->ctl_fd);
	r->ctl = r->data = NULL;
	r->ctl_fd = -1;
}

/* Takes over @fd, also when it fails. */
static int region_map(struct sluice_region *r, int fd)
{
	struct sluice_ioc_arena_info info = {.size = sizeof(info)};
	int prot = PROT_READ;
	int err;

	if (ioctl(fd, SLUICE_IOC_ARENA_INFO, &info)) {
		err = errno == ENOTTY ? EBADF : errno;
		close(fd);
		return sluice_fail(err, "descriptor %d: not an arena of the kernel module", fd);
	}
	*r = (struct sluice_region){
		.ctl_fd = fd,
		.data_fd = -1,
		.control_bytes = info.control_bytes,
		.data_bytes = info.data_bytes,
		.huge_bytes = info.huge_bytes,
		.huge_page_bytes = info.huge_bytes ? HUGE_BYTES : 0,
		.data_ro = info.role == SLUICE_IOC_ROLE_CONSUMER,
	};
	if (!r->data_ro)
		prot |= PROT_WRITE;
	r->ctl = mmap(NULL, r->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
		      0);
	/* All pages are there: let no access pay for finding that out. */
	r->data = mmap(NULL, r->data_bytes, prot, MAP_SHARED | MAP_POPULATE, fd,
		       (off_t)info.data_offset);
	if (r->ctl != MAP_FAILED && r->data != MAP_FAILED)
		return 0;
	err = errno;
	if (r->ctl != MAP_FAILED)
		munmap(r->ctl, r->control_bytes);
	if (r->data != MAP_FAILED)
		munmap(r->data, r->data_bytes);
	r->ctl = r->data = NULL;
	r->ctl_fd = -1;
	close(fd);
	return sluice_fail(err, "arena: cannot map %llu + %llu bytes: %s",
			   (unsigned long long)info.control_bytes,
			   (unsigned long long)info.data_bytes, strerror(err));
}

static unsigned long long parameter(const char *name)
{
	unsigned long long value = 0;
	char path[64], text[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/sys/module/sluice/parameters/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n > 0) {
		text[n] = '\0';
		value = strtoull(text, NULL, 10);
	}
	return value;
}

static int create_fail(int err, const struct sluice_region_req *req)
{
	unsigned long long asked = req->data_bytes;
	const char *limit = err == EFBIG    ? "max_arena_bytes"
			    : err == ENOSPC ? "max_total_bytes"
			    : err == EDQUOT ? "max_user_bytes or max_user_arenas"
					    : NULL;

	if (limit && err != EDQUOT && parameter(limit))
		return sluice_fail(ENOMEM,
				   "arena: %llu data bytes asked, over the limit %s=%llu of the "
				   "kernel module",
				   asked, limit, parameter(limit));
	if (limit)
		return sluice_fail(ENOMEM,
				   "arena: %llu data bytes asked, over the limit %s of the kernel "
				   "module (the kernel log says how much is left)",
				   asked, limit);
	if (err == ENOMEM && req->flags & SLUICE_ARENA_HUGE_REQUIRED)
		return sluice_fail(ENOMEM,
				   "arena: %llu data bytes asked, all on huge pages: not enough "
				   "memory, or it is too fragmented",
				   asked);
	if (err == ENOMEM)
		return sluice_fail(ENOMEM,
				   "arena: %llu data bytes asked, not enough free memory, or over "
				   "the limit of the memory cgroup",
				   asked);
	if (err == EINVAL && req->flags & SLUICE_ARENA_BIND_NODE)
		return sluice_fail(EINVAL, "arena: NUMA node %d has no memory, or is none",
				   req->numa_node);
	return sluice_fail(err, "arena: the kernel module refused %llu bytes: %s", asked,
			   strerror(err));
}

static int kmod_create(struct sluice_region *r, const struct sluice_region_req *req)
{
	struct sluice_ioc_arena_create args = {
		.size = sizeof(args),
		.flags = req->flags & SLUICE_ARENA_NO_HUGE	   ? 0
			 : req->flags & SLUICE_ARENA_HUGE_REQUIRED ? SLUICE_IOC_HUGE_REQUIRED
								   : SLUICE_IOC_HUGE_PREFERRED,
		.control_bytes = req->control_bytes,
		.data_bytes = req->data_bytes,
		.node = req->flags & SLUICE_ARENA_BIND_NODE ? req->numa_node : -1,
	};
	int dev, fd;

	if (req->flags & SLUICE_ARENA_HUGE_REQUIRED && req->flags & SLUICE_ARENA_NO_HUGE)
		return sluice_fail(EINVAL, "arena flags ask for huge pages and for none");
	dev = device_open();
	if (dev < 0)
		return dev;
	if (req->label)
		snprintf(args.label, sizeof(args.label), "%s", req->label);
	fd = ioctl(dev, SLUICE_IOC_ARENA_CREATE, &args);
	if (fd < 0)
		fd = create_fail(errno, req);
	close(dev);
	return fd < 0 ? fd : region_map(r, fd);
}

static int kmod_attach(struct sluice_region *r, int fd, int data_fd, enum sluice_role role)
{
	struct sluice_ioc_arena_info info = {.size = sizeof(info)};
	int own;

	if (ioctl(fd, SLUICE_IOC_ARENA_INFO, &info))
		return sluice_fail(EBADF, "descriptor %d: not an arena of the kernel module", fd);
	if (role != SLUICE_ROLE_CONSUMER && info.role == SLUICE_IOC_ROLE_CONSUMER)
		return sluice_fail(EACCES, "descriptor %d: it was passed for consuming only", fd);
	/* A consumer keeps nothing that could do more. */
	own = role == SLUICE_ROLE_CONSUMER ? ioctl(fd, SLUICE_IOC_ARENA_RESTRICT)
					   : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return sluice_fail(errno, "descriptor %d: cannot be duplicated: %s", fd,
				   strerror(errno));
	return region_map(r, own);
}

static int kmod_pass(struct sluice_arena *a, enum sluice_role role, int fds[2], int *own)
{
	fds[0] = a->region.ctl_fd;
	if (role != SLUICE_ROLE_CONSUMER || a->region.data_ro)
		return 1;
	*own = ioctl(fds[0], SLUICE_IOC_ARENA_RESTRICT);
	if (*own < 0)
		return sluice_fail(errno, "arena %016llx: no read-only descriptor: %s",
				   (unsigned long long)a->hdr.arena_id, strerror(errno));
	fds[0] = *own;
	return 1;
}

/* ------------------------------------------------------------------ deaths */

static void kmod_leave(struct sluice_arena *a)
{
	if (a->peer_fd >= 0)
		close(a->peer_fd);
	if (a->watch_fd >= 0)
		close(a->watch_fd);
	a->peer_fd = a->watch_fd = -1;
}

static int kmod_join(struct sluice_arena *a)
{
	struct sluice_ioc_peer_attach args = {
		.size = sizeof(args),
		.role = a->role == SLUICE_ROLE_CONSUMER ? SLUICE_IOC_ROLE_CONSUMER
							: SLUICE_IOC_ROLE_PRODUCER,
	};
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = OUR_BELL};
	int err;

	a->peer_fd = ioctl(a->region.ctl_fd, SLUICE_IOC_PEER_ATTACH, &args);
	if (a->peer_fd < 0)
		return sluice_fail(errno, "arena %016llx: the kernel module refused this peer: %s",
				   (unsigned long long)a->hdr.arena_id, strerror(errno));
	a->watch_fd = epoll_create1(EPOLL_CLOEXEC);
	if (a->watch_fd < 0 || fcntl(a->peer_fd, F_SETFL, O_NONBLOCK) ||
	    epoll_ctl(a->watch_fd, EPOLL_CTL_ADD, a->peer_fd, &ev)) {
		err = errno;
		kmod_leave(a);
		return sluice_fail(err, "no descriptor to watch the peers with: %s", strerror(err));
	}
	a->peer_bell = args.bell;
	st_rlx(&a->peers[a->slot].backend_id, args.peer);
	return 0;
}

/* The kernel's ids of those that live; how many, or a negative errno. */
static int living(struct sluice_arena *a, struct sluice_ioc_peer_info *infos, unsigned int room)
{
	struct sluice_ioc_peer_list list = {
		.size = sizeof(list),
		.count = room,
		.peers = (uintptr_t)infos,
	};

	if (ioctl(a->peer_fd, SLUICE_IOC_PEER_LIST, &list))
		return -errno;
	return list.count <= room ? (int)list.count : -E2BIG;
}

/* Twice the slots: who left may not have closed its descriptor yet. */
#define LIVING_ROOM (2 * SLUICE_MAX_PEERS)

static bool is_living(const struct sluice_ioc_peer_info *infos, int n, uint32_t id)
{
	for (int i = 0; i < n; i++)
		if (infos[i].peer == id)
			return true;
	return n < 0; /* when in doubt, nobody is dead */
}

static int kmod_watch(struct sluice_arena *a, unsigned int slot, uint64_t word)
{
	struct sluice_ioc_peer_info infos[LIVING_ROOM];
	struct peer_watch *w = &a->watch[slot];
	uint32_t id = ld_rlx(&a->peers[slot].backend_id);

	if (peer_state(word) == PEER_JOINING) {
		w->kernel_id = 0;
		return sluice_backend_memfd.watch(a, slot, word);
	}
	w->pidfd = -1;
	/* Deaths from now on are told; was it before? */
	if (!is_living(infos, living(a, infos, LIVING_ROOM), id))
		return -ESRCH;
	w->kernel_id = id;
	return 0;
}

static void kmod_unwatch(struct sluice_arena *a, unsigned int slot)
{
	sluice_backend_memfd.unwatch(a, slot);
	a->watch[slot].kernel_id = 0;
}

struct dead_peers {
	struct sluice_arena *a;
	void (*dead)(unsigned int slot, void *arg);
	void *arg;
};

static void found_dead(const struct dead_peers *d, uint32_t id, const struct sluice_bell_record *r)
{
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		struct peer_watch *w = &d->a->watch[i];

		if (!w->word || w->kernel_id != id)
			continue;
		w->dead_pid = peer_pid(w->word);
		w->status = -1;
		if (r && SLUICE_DEAD_REASON(r->arg) == SLUICE_DEAD_EXIT)
			w->status = (int)SLUICE_DEAD_STATUS(r->arg);
		d->dead(i, d->arg);
	}
}

/* Records were merged: compare with those that live. */
static void look_at_all(const struct dead_peers *d)
{
	struct sluice_ioc_peer_info infos[LIVING_ROOM];
	int n = living(d->a, infos, LIVING_ROOM);

	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		uint32_t id = d->a->watch[i].kernel_id;

		if (d->a->watch[i].word && id && !is_living(infos, n, id))
			found_dead(d, id, NULL);
	}
}

static void read_bell(const struct dead_peers *d)
{
	struct sluice_bell_record r[16];
	ssize_t n;

	while ((n = read(d->a->peer_fd, r, sizeof(r))) > 0) {
		for (size_t i = 0; i < (size_t)n / sizeof(r[0]); i++) {
			if (r[i].type == SLUICE_BELL_PEER_DEAD)
				found_dead(d, r[i].from_peer, &r[i]);
			else if (r[i].type == SLUICE_BELL_OVERFLOW)
				look_at_all(d);
		}
	}
}

static bool any_joining(const struct sluice_arena *a)
{
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++)
		if (a->watch[i].word && a->watch[i].pidfd >= 0)
			return true;
	return false;
}

/* The bell is read whatever the epoll says, which hears of a death later than who waits for it. */
static void kmod_collect(struct sluice_arena *a, void (*dead)(unsigned int slot, void *arg),
			 void *arg)
{
	struct dead_peers d = {a, dead, arg};
	struct epoll_event ev[SLUICE_MAX_PEERS];
	int n = 0;

	read_bell(&d);
	if (any_joining(a))
		n = epoll_wait(a->watch_fd, ev, SLUICE_MAX_PEERS, 0);
	for (int i = 0; i < n; i++)
		if (ev[i].data.u32 != OUR_BELL)
			dead(ev[i].data.u32, arg);
}

static bool kmod_is_dead(struct sluice_arena *a, unsigned int slot)
{
	struct sluice_ioc_peer_info infos[LIVING_ROOM];

	if (!a->watch[slot].kernel_id)
		return sluice_backend_memfd.is_dead(a, slot);
	return !is_living(infos, living(a, infos, LIVING_ROOM), a->watch[slot].kernel_id);
}

static void kmod_death_reason(struct sluice_arena *a, uint32_t pid, int *sig, int *code)
{
	for (unsigned int i = 0; i < SLUICE_MAX_PEERS; i++) {
		const struct peer_watch *w = &a->watch[i];

		if (w->dead_pid != pid || w->status < 0)
			continue;
		if (WIFEXITED(w->status))
			*code = WEXITSTATUS(w->status);
		else
			*sig = WTERMSIG(w->status);
		return;
	}
	sluice_backend_memfd.death_reason(a, pid, sig, code);
}

/* ------------------------------------------------------------------ bells */

static int kmod_bell_open(struct sluice_channel *ch)
{
	struct sluice_ioc_bell_open args = {.size = sizeof(args)};
	int fd = ioctl(ch->a->peer_fd, SLUICE_IOC_BELL_OPEN, &args);

	if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK)) {
		int err = errno;

		if (fd >= 0)
			close(fd);
		return sluice_fail(err, "channel %s: the kernel module has no bell for it: %s",
				   ch->name, strerror(err));
	}
	ch->bell_fd = fd;
	st_rlx(&ch->ep->bell_name, args.bell);
	/* Release: who reads the kind (after S1, in W2) reads the name too. */
	st_rel(&ch->ep->bell_kind, BELL_KMOD);
	return 0;
}

static void ring(struct sluice_arena *a, uint64_t bell)
{
	struct sluice_bell_message m = {.to_bell = (uint32_t)bell, .type = SLUICE_BELL_DOORBELL};
	ssize_t n;

	/* A bell that is gone has nobody to wake. */
	do {
		n = write(a->peer_fd, &m, sizeof(m));
	} while (n < 0 && errno == EINTR);
}

static void kmod_bell_ring(struct sluice_arena *a, struct shm_endpoint *to)
{
	ring(a, ld_rlx(&to->bell_name));
}

static void kmod_bell_drain(struct sluice_channel *ch)
{
	struct sluice_bell_record r[16];

	/* Deaths are heard by the peer's own bell as well. */
	while (read(ch->bell_fd, r, sizeof(r)) > 0)
		;
}

static int kmod_event_open(struct sluice_arena *a)
{
	st_rel(&a->peers[a->slot].event_bell, a->peer_bell); /* pairs with wake_everybody() */
	return 0;
}

const struct sluice_backend_ops sluice_backend_kmod = {
	.id = SLUICE_BACKEND_KMOD,
	.name = "kmod",
	.usable = kmod_usable,
	.create = kmod_create,
	.attach = kmod_attach,
	.detach = kmod_detach,
	.pass = kmod_pass,
	.join = kmod_join,
	.leave = kmod_leave,
	.bell_open = kmod_bell_open,
	.bell_ring = kmod_bell_ring,
	.bell_drain = kmod_bell_drain,
	.event_open = kmod_event_open,
	.event_ring = ring,
	.watch = kmod_watch,
	.unwatch = kmod_unwatch,
	.collect = kmod_collect,
	.is_dead = kmod_is_dead,
	.death_reason = kmod_death_reason,
};
