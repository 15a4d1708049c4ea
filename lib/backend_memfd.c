// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The embedded default: memory from memfds, deaths from pidfds, and, where a bell must be a
 * descriptor, autobound datagram sockets.  No module, no privileges.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

#define NAME_LEN 5 /* of an autobound address, after its NUL */

static int memfd_usable(void)
{
	return 0;
}

/* ------------------------------------------------------------------ memory */

static bool same_file(int fd, const struct shm_header *h)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == h->data_dev && st.st_ino == h->data_ino;
}

static int open_peers_fd(uint32_t pid, int fd, const struct shm_header *h, bool read_only)
{
	char path[64];
	int found;

	snprintf(path, sizeof(path), "/proc/%u/fd/%d", pid, fd);
	found = open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	if (found >= 0 && !same_file(found, h)) {
		close(found);
		found = -1;
	}
	return found;
}

/*
 * The data memfd that belongs to a control memfd: under its number here when it was inherited, else
 * through /proc/PID/fd of a peer.
 *
 * Return: a descriptor of our own, or a negative errno.
 */
static int find_data_fd(int ctl_fd, bool read_only)
{
	struct shm_header h;
	int fd;

	if (pread(ctl_fd, &h, sizeof(h), 0) != sizeof(h) || h.magic != SHM_MAGIC)
		return sluice_fail(EBADF, "descriptor %d: not the control region of an arena",
				   ctl_fd);
	if (same_file(h.data_fd, &h))
		return fcntl(h.data_fd, F_DUPFD_CLOEXEC, 0);
	fd = open_peers_fd(h.creator_pid, h.data_fd, &h, read_only);
	for (unsigned int i = 0; fd < 0 && i < SLUICE_MAX_PEERS; i++) {
		struct shm_peer p;

		if (pread(ctl_fd, &p, sizeof(p), (off_t)(SHM_PEERS_OFF + i * sizeof(p))) !=
		    sizeof(p))
			break;
		if (peer_state(ld_rlx(&p.word)) == PEER_ALIVE)
			fd = open_peers_fd(peer_pid(ld_rlx(&p.word)), (int)ld_rlx(&p.backend_id),
					   &h, read_only);
	}
	if (fd < 0)
		return sluice_fail(ENOENT,
				   "descriptor %d: the data region of this arena was not inherited "
				   "and is not to be had through /proc: pass both descriptors, or "
				   "use sluice_arena_send()",
				   ctl_fd);
	return fd;
}

static int memfd_attach(struct sluice_region *r, int fd, int data_fd, enum sluice_role role)
{
	bool read_only = role == SLUICE_ROLE_CONSUMER;
	int found = -1, err;

	if (!data_fd) {
		found = find_data_fd(fd, read_only);
		if (found < 0)
			return found;
		data_fd = found;
	}
	err = sluice_region_map(r, fd, data_fd, read_only);
	if (found >= 0)
		close(found);
	return err;
}

static int memfd_pass(struct sluice_arena *a, enum sluice_role role, int fds[2], int *own)
{
	char path[32];

	fds[0] = a->region.ctl_fd;
	fds[1] = a->region.data_fd;
	if (role != SLUICE_ROLE_CONSUMER || a->region.data_ro)
		return 2;
	/* A second open, read-only: what it maps can never be made writable. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", a->region.data_fd);
	*own = open(path, O_RDONLY | O_CLOEXEC);
	if (*own < 0)
		return sluice_fail(errno, "arena %016llx: no read-only descriptor: %s",
				   (unsigned long long)a->hdr.arena_id, strerror(errno));
	fds[1] = *own;
	return 2;
}

/* ------------------------------------------------------------------ sockets that ring */

/* A datagram socket with an autobound abstract name: the kernel finds a free one. */
static int socket_open(uint64_t *name)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(addr);
	int fd, err;

	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return sluice_fail(errno, "no socket for a bell: %s", strerror(errno));
	if (bind(fd, (struct sockaddr *)&addr, sizeof(sa_family_t)) ||
	    getsockname(fd, (struct sockaddr *)&addr, &len)) {
		err = errno;
		close(fd);
		return sluice_fail(err, "no name for a bell: %s", strerror(err));
	}
	*name = 0;
	memcpy(name, addr.sun_path + 1, NAME_LEN);
	return fd;
}

static void socket_drain(int fd)
{
	char buf[16];

	while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) >= 0)
		;
}

static int socket_for_ringing(void)
{
	static int fd = -1; /* one for the process, unbound: sending needs no address */
	int mine = __atomic_load_n(&fd, __ATOMIC_ACQUIRE);

	if (mine < 0) {
		int none = -1, made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		if (made < 0)
			return -1;
		/* Of two threads that come here first, one keeps its socket. */
		if (!__atomic_compare_exchange_n(&fd, &none, made, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE)) {
			close(made);
			made = none;
		}
		mine = made;
	}
	return mine;
}

static void socket_ring(struct sluice_arena *a, uint64_t name)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t len = offsetof(struct sockaddr_un, sun_path) + 1 + NAME_LEN;
	int fd = socket_for_ringing();

	/* An autobound name is five hex digits: a damaged one must not reach anybody else. */
	for (int i = 0; i < NAME_LEN; i++) {
		char c = (char)(name >> 8 * i);

		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			return;
	}
	memcpy(addr.sun_path + 1, &name, NAME_LEN);
	if (sendto(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&addr, len) == 1 ||
	    errno != EAGAIN)
		return; /* rung, or closed: nobody listens */
	/*
	 * Either its queue is full, and then it rings already; or all that others have not read has
	 * used up what our socket may have on the way.  Another one has that for itself.
	 */
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	sendto(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&addr, len);
	close(fd);
}

/* ------------------------------------------------------------------ deaths */

static int memfd_join(struct sluice_arena *a)
{
	a->watch_fd = epoll_create1(EPOLL_CLOEXEC);
	if (a->watch_fd < 0)
		return sluice_fail(errno, "no descriptor to watch the peers with: %s",
				   strerror(errno));
	st_rlx(&a->peers[a->slot].backend_id, (uint32_t)a->region.data_fd);
	return 0;
}

static void memfd_leave(struct sluice_arena *a)
{
	if (a->event_fd >= 0)
		close(a->event_fd);
	if (a->watch_fd >= 0)
		close(a->watch_fd);
	a->event_fd = a->watch_fd = -1;
}

static int memfd_watch(struct sluice_arena *a, unsigned int slot, uint64_t word)
{
	uint64_t found, start = ld_rlx(&a->peers[slot].start_time);
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = slot};
	uint32_t pid = peer_pid(word);
	int fd, err;

	a->watch[slot].pidfd = -1;
	if (pid == (uint32_t)getpid())
		return 0; /* another handle of this process dies with us */
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	err = fd < 0 ? -errno : 0;
	/* Where pidfds are refused it can still be asked, from time to time, whether there is one. */
	if (err && kill((pid_t)pid, 0) && errno == ESRCH)
		return -ESRCH;
	/* The pid may belong to somebody else by now. */
	found = start ? peer_start_time(pid) : 0;
	if (found && found != start) {
		if (!err)
			close(fd);
		return -ESRCH;
	}
	if (err)
		return err;
	if (epoll_ctl(a->watch_fd, EPOLL_CTL_ADD, fd, &ev)) {
		err = -errno;
		close(fd);
		return err;
	}
	a->watch[slot].pidfd = fd;
	return 0;
}

static void memfd_unwatch(struct sluice_arena *a, unsigned int slot)
{
	int fd = a->watch[slot].pidfd;

	if (fd < 0)
		return;
	/* Closing is not enough: a forked child may have the same file open. */
	epoll_ctl(a->watch_fd, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
	a->watch[slot].pidfd = -1;
}

static void memfd_collect(struct sluice_arena *a, void (*dead)(unsigned int slot, void *arg),
			  void *arg)
{
	struct epoll_event ev[SLUICE_MAX_PEERS];
	int n = epoll_wait(a->watch_fd, ev, SLUICE_MAX_PEERS, 0);

	for (int i = 0; i < n; i++) {
		if (ev[i].data.u32 == SHM_NONE)
			socket_drain(a->event_fd);
		else
			dead(ev[i].data.u32, arg);
	}
}

static bool memfd_is_dead(struct sluice_arena *a, unsigned int slot)
{
	struct pollfd p = {.fd = a->watch[slot].pidfd, .events = POLLIN};

	return p.fd >= 0 && poll(&p, 1, 0) == 1;
}

static void memfd_death_reason(struct sluice_arena *a, uint32_t pid, int *sig, int *code)
{
	siginfo_t si = {0};

	/* Only a parent is told, and it must still find its child: WNOWAIT. */
	if (waitid(P_PID, pid, &si, WEXITED | WNOHANG | WNOWAIT) || si.si_pid != (pid_t)pid)
		return;
	if (si.si_code == CLD_EXITED)
		*code = si.si_status;
	else
		*sig = si.si_status;
}

/* ------------------------------------------------------------------ bells */

static int memfd_bell_open(struct sluice_channel *ch)
{
	uint64_t name;
	int fd = socket_open(&name);

	if (fd < 0)
		return fd;
	ch->bell_fd = fd;
	st_rlx(&ch->ep->bell_name, name);
	/* Release: who reads the kind (after S1, in W2) reads the name too. */
	st_rel(&ch->ep->bell_kind, BELL_SOCKET);
	return 0;
}

static void memfd_bell_ring(struct sluice_arena *a, struct shm_endpoint *to)
{
	socket_ring(a, ld_rlx(&to->bell_name));
}

static void memfd_bell_drain(struct sluice_channel *ch)
{
	socket_drain(ch->bell_fd);
}

/* pidfds do not tell of those that join later, nor of recoveries that others do. */
static int memfd_event_open(struct sluice_arena *a)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = SHM_NONE};
	uint64_t name;
	int fd, err;

	if (a->event_fd >= 0)
		return 0;
	fd = socket_open(&name);
	if (fd < 0)
		return fd;
	if (epoll_ctl(a->watch_fd, EPOLL_CTL_ADD, fd, &ev)) {
		err = errno;
		close(fd);
		return sluice_fail(err, "no bell for events: %s", strerror(err));
	}
	a->event_fd = fd;
	st_rel(&a->peers[a->slot].event_bell, name); /* pairs with wake_everybody() */
	return 0;
}

const struct sluice_backend_ops sluice_backend_memfd = {
	.id = SLUICE_BACKEND_MEMFD,
	.name = "memfd",
	.usable = memfd_usable,
	.create = sluice_region_create,
	.attach = memfd_attach,
	.detach = sluice_region_unmap,
	.pass = memfd_pass,
	.join = memfd_join,
	.leave = memfd_leave,
	.bell_open = memfd_bell_open,
	.bell_ring = memfd_bell_ring,
	.bell_drain = memfd_bell_drain,
	.event_open = memfd_event_open,
	.event_ring = socket_ring,
	.watch = memfd_watch,
	.unwatch = memfd_unwatch,
	.collect = memfd_collect,
	.is_dead = memfd_is_dead,
	.death_reason = memfd_death_reason,
};
