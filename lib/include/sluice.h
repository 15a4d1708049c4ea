/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * sluice - move batches between the processes of one host through a shared arena
 *
 * Conventions
 * - Functions return 0 or a positive count on success and a negative errno on failure.  Functions
 *   that return a pointer return NULL on failure and set errno.  sluice_strerror() then has one
 *   sentence that names the object, the value and the limit.
 * - Every options struct starts with its own size (.sz = sizeof(opts)); fields that are left out
 *   are zero, and zero is the default.
 * - Timeouts are in nanoseconds: 0 does not wait (-EAGAIN), SLUICE_FOREVER waits for ever, anything
 *   else is relative (-ETIMEDOUT).  OR-ing SLUICE_ABSTIME makes it a CLOCK_MONOTONIC time.
 * - The library never prints, never exits and installs no signal handler.
 * - Any thread may use an arena, and retain or release a batch.  An endpoint, and a batch that is
 *   being written, belong to one thread at a time, and so does reading events.
 * - -EINTR may also come without a handler, when the process was stopped and continued.
 * - After fork() the child must call sluice_arena_reattach() first; any other call on an inherited
 *   handle fails with -ECHILD.
 * Environment
 * - SLUICE_BACKEND: memfd or kmod, for arenas whose creator names no backend; unset: kmod where
 *   /dev/sluice can be opened, else memfd.  Anything else is -EINVAL.
 */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#include <sluice_dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whatever a build's -fvisibility says: this is what the library exports. */
#pragma GCC visibility push(default)

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

#define SLUICE_FOREVER UINT64_MAX
#define SLUICE_ABSTIME (1ULL << 63)

#define SLUICE_MAX_PEERS     128
#define SLUICE_MAX_ENDPOINTS 256
#define SLUICE_MAX_CHANNELS  64
#define SLUICE_MAX_CAPACITY  16384
#define SLUICE_MAX_TENSORS   4096
#define SLUICE_MAX_BLOBS     64
#define SLUICE_MAX_DIMS	     32
#define SLUICE_LABEL_LEN     32

struct sluice_arena;
struct sluice_channel;
struct sluice_batch;
struct io_uring;

/* ------------------------------------------------------------------ errors and logging */

/**
 * sluice_strerror - the last error of the calling thread, as one sentence
 *
 * Return: a string that stays valid until the next failing call of this thread; "" if none failed.
 */
const char *sluice_strerror(void);

/**
 * sluice_version - version of the library that is loaded, "MAJOR.MINOR.PATCH"
 */
const char *sluice_version(void);

enum sluice_log_level {
	SLUICE_LOG_ERROR,
	SLUICE_LOG_WARN,
	SLUICE_LOG_INFO,
	SLUICE_LOG_DEBUG,
};

typedef void (*sluice_log_fn)(void *arg, enum sluice_log_level level, const char *msg);

/**
 * sluice_log_set - hand in the function that gets log lines
 * @fn: called with one line without a newline, from any thread; NULL turns logging off (default)
 * @arg: passed through
 * @max: lines above this level are not built
 */
void sluice_log_set(sluice_log_fn fn, void *arg, enum sluice_log_level max);

/* ------------------------------------------------------------------ arenas */

enum sluice_backend {
	SLUICE_BACKEND_AUTO, /* /dev/sluice where usable, else memfd; or $SLUICE_BACKEND */
	SLUICE_BACKEND_MEMFD, /* no module, no privileges */
	SLUICE_BACKEND_KMOD, /* the kernel module */
};

enum sluice_role {
	SLUICE_ROLE_RW, /* produces and consumes */
	SLUICE_ROLE_CONSUMER, /* data region read-only: can consume and release, not produce */
};

enum sluice_arena_flags {
	SLUICE_ARENA_HUGE_REQUIRED = 1 << 0, /* -ENOMEM unless all data is on huge pages */
	SLUICE_ARENA_NO_HUGE = 1 << 1, /* 4 KiB pages only */
	SLUICE_ARENA_NO_HUGETLB = 1 << 2, /* do not take pages from the hugetlb pool */
	SLUICE_ARENA_BIND_NODE = 1 << 3, /* .numa_node is meant */
	SLUICE_ARENA_POISON = 1 << 4, /* debugging: fill freed extents with 0xdb */
};

/**
 * struct sluice_arena_opts - what to create
 * @sz: sizeof(struct sluice_arena_opts)
 * @flags: enum sluice_arena_flags
 * @data_bytes: size of the data region; rounded up to the block size; at least one block
 * @block_bytes: unit of allocation, a power of two from 4 KiB to 1 GiB; 0 chooses 32 KiB, or more
 *	for arenas above 4 GiB.  The control region stays below 0.1 % of the data region + 1 MiB:
 *	a block size too small for that is -EINVAL.
 * @numa_node: with SLUICE_ARENA_BIND_NODE, the node whose memory is used
 * @prefault_threads: threads that fault the memory in; 0 chooses by size and CPUs
 * @backend: enum sluice_backend
 * @label: shown by tools; may be NULL
 */
struct sluice_arena_opts {
	size_t sz;
	uint32_t flags;
	uint32_t block_bytes;
	uint64_t data_bytes;
	int32_t numa_node;
	uint32_t prefault_threads;
	uint32_t backend;
	uint32_t reserved;
	const char *label;
};

/**
 * sluice_arena_create - reserve, fault in and attach to a new arena
 * @out: the handle
 * @opts: what to create
 *
 * All memory is there on return.  Nothing has a name: descriptors and mappings keep it alive.
 *
 * Return: 0; -ENOMEM (the sentence has asked, free and the limit), -EINVAL, -ENOTSUP (backend).
 */
int sluice_arena_create(struct sluice_arena **out, const struct sluice_arena_opts *opts);

/**
 * struct sluice_attach_opts - how to attach
 * @sz: sizeof(struct sluice_attach_opts)
 * @role: enum sluice_role
 * @data_fd: the second descriptor of a memfd arena, or 0 to find it (see sluice_arena_attach());
 *	a descriptor that was opened read-only allows SLUICE_ROLE_CONSUMER only
 * @reserved: 0
 */
struct sluice_attach_opts {
	size_t sz;
	uint32_t role;
	int32_t data_fd;
	uint64_t reserved;
};

/**
 * sluice_arena_attach - attach this process to an arena by descriptor
 * @out: the handle
 * @fd: what sluice_arena_fd() returned in another process, inherited or received; it is duplicated,
 *	so the caller keeps and may close its own
 * @opts: NULL for read-write
 *
 * A memfd arena is two descriptors.  The second is taken from @opts, or, when that is 0, found
 * where an inheriting process has it (same number) or through /proc/PID/fd of a live peer of the
 * same user.  Between users, or without /proc, use sluice_arena_send() and sluice_arena_recv().
 *
 * Return: 0; -EPROTO (versions differ: the sentence has both), -EBADF (no arena), -EUCLEAN (the
 * header is damaged), -EXDEV (another pid namespace, memfd only), -EUSERS (SLUICE_MAX_PEERS),
 * -ENOENT (the second descriptor cannot be found), -EACCES (it is read-only, the role is not).
 */
int sluice_arena_attach(struct sluice_arena **out, int fd, const struct sluice_attach_opts *opts);

/**
 * sluice_arena_reattach - make an arena inherited through fork() usable in the child
 * @out: the child's own handle, over the inherited mappings: nothing is mapped again
 * @inherited: the parent's handle as inherited.  It and every channel and batch made from it must
 *	not be used any more in the child; its memory is taken over by @out.
 *
 * The child is a new peer.  Batches that the parent holds stay the parent's.
 *
 * Return: 0 or a negative errno as sluice_arena_attach().
 */
int sluice_arena_reattach(struct sluice_arena **out, struct sluice_arena *inherited);

/**
 * sluice_arena_detach - leave the arena
 * @a: the handle, or NULL; every channel of it must be closed and every batch released, what is
 *	not is given back here and the handles must not be used any more
 */
void sluice_arena_detach(struct sluice_arena *a);

/**
 * sluice_arena_fd - the descriptor that stands for the arena
 * @a: the arena
 *
 * Return: a close-on-exec descriptor owned by @a.
 */
int sluice_arena_fd(const struct sluice_arena *a);

/**
 * sluice_arena_data_fd - the second descriptor of a memfd arena
 * @a: the arena
 *
 * Return: a close-on-exec descriptor owned by @a; -ENOTSUP for a kmod arena, which has only one.
 */
int sluice_arena_data_fd(const struct sluice_arena *a);

/**
 * sluice_arena_send - pass the arena to another process over an AF_UNIX socket
 * @a: the arena
 * @sock: a connected stream, seqpacket or datagram socket
 * @role: SLUICE_ROLE_CONSUMER passes descriptors that cannot be made writable (data region)
 *
 * Blocks as @sock does.  The descriptors stay the sender's.
 *
 * Return: 0, or what sendmsg() failed with.
 */
int sluice_arena_send(struct sluice_arena *a, int sock, enum sluice_role role);

/**
 * sluice_arena_recv - receive what sluice_arena_send() sent, and attach
 * @out: the handle
 * @sock: the other end
 * @role: what to attach as; not more than what was sent
 *
 * Blocks as @sock does.
 *
 * Return: 0; -EPROTO (something else came, or the other end is closed), what recvmsg() failed with,
 * or as sluice_arena_attach().
 */
int sluice_arena_recv(struct sluice_arena **out, int sock, enum sluice_role role);

/**
 * struct sluice_arena_info - facts about an arena
 * @sz: sizeof(struct sluice_arena_info), set by the caller
 * @id: random, never 0
 * @backend: enum sluice_backend
 * @role: enum sluice_role of this handle
 * @control_bytes: size of the control region
 * @data_bytes: size of the data region, exact
 * @block_bytes: unit of allocation
 * @blocks: data_bytes / block_bytes
 * @huge_bytes: bytes of the data region on huge pages, as found at creation
 * @huge_page_bytes: size of those pages; 0 without
 * @numa_node: the node that was bound to, or -1
 * @peers: attached now
 * @peer_id: of this handle; never used twice in this arena
 * @control: address of the control region in this process
 * @data: address of the data region in this process; read-only for SLUICE_ROLE_CONSUMER
 * @create_ns: how long creation took, faulting included
 * @label: for humans
 */
struct sluice_arena_info {
	size_t sz;
	uint64_t id;
	uint32_t backend;
	uint32_t role;
	uint64_t control_bytes;
	uint64_t data_bytes;
	uint64_t block_bytes;
	uint64_t blocks;
	uint64_t huge_bytes;
	uint64_t huge_page_bytes;
	int32_t numa_node;
	uint32_t peers;
	uint64_t peer_id;
	void *control;
	void *data;
	uint64_t create_ns;
	char label[SLUICE_LABEL_LEN];
};

/**
 * sluice_arena_info - read the facts
 * @a: the arena
 * @info: filled up to info->sz
 */
int sluice_arena_info(const struct sluice_arena *a, struct sluice_arena_info *info);

/**
 * struct sluice_arena_usage - how full the arena is
 * @sz: sizeof(struct sluice_arena_usage), set by the caller
 * @free_bytes: sum of all free runs
 * @largest_free_bytes: the largest run: the largest batch that fits now
 * @free_runs: number of runs; (1 - largest / free) is the external fragmentation
 * @writing: extents being filled
 * @ready: extents queued
 * @held: extents held by readers
 * @parked: extents without a holder of their own that shared references keep alive
 * @shared: shared references (sluice_batch_share(), sluice_batch_open())
 * @reserved_bytes: bytes in extents that are not free
 */
struct sluice_arena_usage {
	size_t sz;
	uint64_t free_bytes;
	uint64_t largest_free_bytes;
	uint64_t free_runs;
	uint64_t writing;
	uint64_t ready;
	uint64_t held;
	uint64_t parked;
	uint64_t shared;
	uint64_t reserved_bytes;
};

/**
 * sluice_arena_usage - walk the block table
 * @a: the arena
 * @usage: filled up to usage->sz; a snapshot that others change while it is taken
 *
 * Return: 0; -ETIMEDOUT (the allocator lock could not be had for 1 s), -EUCLEAN.
 */
int sluice_arena_usage(struct sluice_arena *a, struct sluice_arena_usage *usage);

/* ------------------------------------------------------------------ peers and events */

enum sluice_peer_state {
	SLUICE_PEER_ALIVE = 1,
	SLUICE_PEER_LEFT, /* is leaving */
	SLUICE_PEER_DEAD, /* what it had is being taken back */
};

/**
 * struct sluice_peer_info - one peer
 * @sz: sizeof(struct sluice_peer_info), set by the caller
 * @id: never used twice in this arena
 * @pid: of the process, in the pid namespace of the arena
 * @state: enum sluice_peer_state
 * @role: enum sluice_role
 * @extents: extents it holds or writes now
 * @bytes: their size
 * @oldest_ns: how long it has held the oldest of them
 * @joined_ns: CLOCK_MONOTONIC time at which it joined
 * @comm: name of the process when it joined
 */
struct sluice_peer_info {
	size_t sz;
	uint64_t id;
	uint32_t pid;
	uint32_t state;
	uint32_t role;
	uint32_t extents;
	uint64_t bytes;
	uint64_t oldest_ns;
	uint64_t joined_ns;
	char comm[16];
};

/**
 * sluice_peer_list - who is attached, and what they hold
 * @a: the arena
 * @peers: array of @n; peers[0].sz must be set, the others are set by the call
 * @n: its length
 *
 * Return: the number of peers, which may be larger than @n; or a negative errno.
 */
int sluice_peer_list(struct sluice_arena *a, struct sluice_peer_info *peers, unsigned int n);

enum sluice_event_type {
	SLUICE_EVENT_PEER_DEAD = 1,
	SLUICE_EVENT_OVERRUN, /* events were missed; .peer_id is how many */
};

/**
 * struct sluice_event - what happened to another peer
 * @sz: sizeof(struct sluice_event), set by the caller
 * @type: enum sluice_event_type
 * @pid: of the dead process
 * @peer_id: its id
 * @extents: extents that were taken back from it
 * @bytes: their size
 * @lost: batches that it had begun and not published
 * @signal: what killed it where the kernel tells, else 0
 * @exit_code: what it exited with where the kernel tells, else -1
 * @time_ns: CLOCK_MONOTONIC time of the recovery
 */
struct sluice_event {
	size_t sz;
	uint32_t type;
	uint32_t pid;
	uint64_t peer_id;
	uint64_t extents;
	uint64_t bytes;
	uint64_t lost;
	int32_t signal;
	int32_t exit_code;
	uint64_t time_ns;
};

/**
 * sluice_event_next - the next event
 * @a: the arena
 * @ev: filled
 * @timeout_ns: see the conventions
 *
 * Return: 0, -EAGAIN, -ETIMEDOUT, -EINTR.
 */
int sluice_event_next(struct sluice_arena *a, struct sluice_event *ev, uint64_t timeout_ns);

/**
 * sluice_event_fd - a descriptor that polls readable when a peer may have died
 * @a: the arena
 *
 * Call sluice_event_next() with timeout 0 until -EAGAIN when it does.
 *
 * Return: a descriptor owned by @a, or a negative errno.
 */
int sluice_event_fd(struct sluice_arena *a);

/* ------------------------------------------------------------------ channels */

enum sluice_channel_flags {
	SLUICE_CHANNEL_PRODUCE = 1 << 0, /* this endpoint publishes */
	SLUICE_CHANNEL_CONSUME = 1 << 1, /* this endpoint receives */
	SLUICE_CHANNEL_KEEP_OPEN = 1 << 2, /* no end of stream when the last producer leaves */
	SLUICE_CHANNEL_NO_SPIN = 1 << 3, /* this endpoint sleeps at once */
	SLUICE_CHANNEL_POLL = 1 << 4, /* this endpoint does without io_uring */
};

/**
 * struct sluice_channel_opts - a channel, and one endpoint of it
 * @sz: sizeof(struct sluice_channel_opts)
 * @flags: enum sluice_channel_flags; neither PRODUCE nor CONSUME means both, and an endpoint that is
 *	both is a partner of its own: it never gets -EPIPE or the end of the stream
 * @capacity: batches that may be queued, 1 to SLUICE_MAX_CAPACITY; 0 means 64 (create only)
 * @spin_ns: longest time to spin before sleeping; 0 adapts (at most 50 us, none on one CPU)
 * @publish_timeout_ns: how long sluice_batch_publish() waits for room; 0 means for ever
 */
struct sluice_channel_opts {
	size_t sz;
	uint32_t flags;
	uint32_t capacity;
	uint64_t spin_ns;
	uint64_t publish_timeout_ns;
};

/**
 * sluice_channel_create - create a channel and open an endpoint of it
 * @out: the endpoint, for one thread at a time
 * @a: the arena
 * @name: 1 to 31 bytes, not yet used in this arena
 * @opts: NULL for the defaults
 *
 * Return: 0; -EEXIST, -EINVAL, -ENOSPC (channels, ring cells or endpoints are used up).
 */
int sluice_channel_create(struct sluice_channel **out, struct sluice_arena *a, const char *name,
			  const struct sluice_channel_opts *opts);

/**
 * sluice_channel_open - open another endpoint of an existing channel
 * @out: the endpoint, for one thread at a time
 * @a: the arena
 * @name: of the channel
 * @opts: NULL for the defaults; capacity is ignored
 *
 * Return: 0; -ENOENT, -ENOSPC, -EPERM (PRODUCE asked of a consumer-only arena).
 */
int sluice_channel_open(struct sluice_channel **out, struct sluice_arena *a, const char *name,
			const struct sluice_channel_opts *opts);

/**
 * sluice_channel_close - close this endpoint
 * @ch: the endpoint, or NULL
 *
 * When the last endpoint that may produce is closed, consumers get the end of the stream after the
 * last batch, unless the channel was created with SLUICE_CHANNEL_KEEP_OPEN.  The channel itself
 * goes when its last endpoint is closed; what is then still queued is freed.
 */
void sluice_channel_close(struct sluice_channel *ch);

/**
 * sluice_channel_shutdown - end the stream for everybody
 * @ch: any endpoint
 *
 * Nothing can be published from now on (-ESHUTDOWN); consumers still get what is queued, then the
 * end of the stream.  There is no way back.
 */
int sluice_channel_shutdown(struct sluice_channel *ch);

/**
 * sluice_channel_next - take the next batch
 * @ch: an endpoint that consumes
 * @out: the batch, to be given back with sluice_batch_release()
 * @timeout_ns: see the conventions
 *
 * Every published batch goes to exactly one consumer.  The order of one producer's batches is kept.
 *
 * Return: 0; -EAGAIN or -ETIMEDOUT; -ENODATA at the end of the stream; -EOWNERDEAD at the end of a
 * stream whose last producer died instead of closing (the batch it was writing is missing);
 * -EINTR; -EBADMSG (a peer published garbage: that batch was dropped, the channel goes on);
 * -ENOMEM (for the handle: nothing is lost, call again); -EUCLEAN (the control region is damaged).
 */
int sluice_channel_next(struct sluice_channel *ch, struct sluice_batch **out, uint64_t timeout_ns);

/**
 * sluice_channel_pollfd - a descriptor for the caller's own poll, epoll or io_uring loop
 * @ch: the endpoint
 *
 * It polls readable (POLLIN) after sluice_channel_arm() returned 0 and something happened.
 *
 * Return: a descriptor owned by @ch, or a negative errno.
 */
int sluice_channel_pollfd(struct sluice_channel *ch);

/**
 * sluice_channel_arm - ask for a doorbell
 * @ch: the endpoint
 *
 * An endpoint that consumes asks for batches; one that only produces, for room in the channel (not
 * in the arena).  It lasts until the descriptor polls readable or the next call with this endpoint.
 *
 * Return: 1 when there is something to do now (a batch, room, or the end): call
 * sluice_channel_next() or publish with timeout 0 instead of sleeping; 0 when the descriptor of
 * sluice_channel_pollfd() will become readable; or a negative errno.
 */
int sluice_channel_arm(struct sluice_channel *ch);

/**
 * sluice_channel_arm_ring - the same with a one-shot poll in the caller's io_uring
 * @ch: the endpoint
 * @ring: the caller's ring; one sqe is taken and not submitted
 * @user_data: of the completion
 *
 * One ring can wait for many channels.  Return as sluice_channel_arm(); -EBUSY without a free sqe.
 * No sqe is taken unless 0 is returned.
 */
int sluice_channel_arm_ring(struct sluice_channel *ch, struct io_uring *ring, uint64_t user_data);

/**
 * struct sluice_channel_stats - counters of one endpoint, one peer or a whole channel
 * @sz: sizeof(struct sluice_channel_stats), set by the caller
 * @published: batches
 * @published_bytes: their payload
 * @consumed: batches
 * @consumed_bytes: their payload
 * @space_waits: times that a producer found the arena or the channel full
 * @space_wait_ns: time spent so
 * @batch_waits: times that a consumer found the channel empty
 * @batch_wait_ns: time spent so
 * @spins: waits that ended while spinning
 * @sleeps: waits that ended in the kernel (each is one system call or more)
 * @doorbells: rung (each is one system call)
 * @doorbells_suppressed: not needed because nobody slept
 * @queued: batches queued now (channel only)
 * @capacity: of the channel
 * @producers: endpoints that may produce now
 * @consumers: endpoints that may consume now
 *
 * What user space counts is a claim: the numbers of a hostile peer are its own.
 */
struct sluice_channel_stats {
	size_t sz;
	uint64_t published;
	uint64_t published_bytes;
	uint64_t consumed;
	uint64_t consumed_bytes;
	uint64_t space_waits;
	uint64_t space_wait_ns;
	uint64_t batch_waits;
	uint64_t batch_wait_ns;
	uint64_t spins;
	uint64_t sleeps;
	uint64_t doorbells;
	uint64_t doorbells_suppressed;
	uint32_t queued;
	uint32_t capacity;
	uint32_t producers;
	uint32_t consumers;
};

/** sluice_channel_stats - counters of this endpoint alone */
int sluice_channel_stats(struct sluice_channel *ch, struct sluice_channel_stats *st);

/**
 * struct sluice_channel_info - one channel of an arena
 * @sz: sizeof(struct sluice_channel_info), set by the caller
 * @name: of the channel
 * @closed: nothing can be published any more
 * @stats: of the whole channel, endpoints that are gone included
 */
struct sluice_channel_info {
	size_t sz;
	char name[SLUICE_LABEL_LEN];
	uint32_t closed;
	uint32_t reserved;
	struct sluice_channel_stats stats;
};

/**
 * sluice_channel_list - the channels of an arena
 * @a: the arena
 * @info: array of @n; info[0].sz must be set
 * @n: its length
 *
 * Return: the number of channels, which may be larger than @n; or a negative errno.
 */
int sluice_channel_list(struct sluice_arena *a, struct sluice_channel_info *info, unsigned int n);

/**
 * sluice_peer_stats - counters of all endpoints that a peer has open now
 * @a: the arena
 * @peer_id: the peer
 * @st: filled
 *
 * Return: 0, or -ESRCH.
 */
int sluice_peer_stats(struct sluice_arena *a, uint64_t peer_id, struct sluice_channel_stats *st);

/* ------------------------------------------------------------------ batches */

/**
 * struct sluice_tensor - one tensor of a batch
 * @sz: sizeof(struct sluice_tensor), set by the caller
 * @name: NUL-terminated; valid as long as the batch
 * @data: first element; 256-byte aligned by default; NULL only when @bytes is 0
 * @dtype: element type
 * @ndim: 0 to SLUICE_MAX_DIMS; 0 is a scalar
 * @shape: @ndim extents; valid as long as the batch
 * @strides: @ndim strides in elements, none negative; valid as long as the batch
 * @bytes: from the first byte to the end of the last element
 * @offset: of @data in the payload of the batch
 */
struct sluice_tensor {
	size_t sz;
	const char *name;
	void *data;
	struct sluice_dtype dtype;
	uint32_t ndim;
	const int64_t *shape;
	const int64_t *strides;
	uint64_t bytes;
	uint64_t offset;
};

/**
 * struct sluice_batch_opts - room for a batch
 * @sz: sizeof(struct sluice_batch_opts)
 * @bytes: payload: the sum of all tensors and blobs
 * @tensors: how many tensors and blobs will be added; 0 means 16.  Room for their descriptions and
 *	for the alignment of each is reserved on top of @bytes.
 * @align: of each tensor, a power of two from 8 to 4096; 0 means 256
 * @timeout_ns: wait for room; see the conventions
 */
struct sluice_batch_opts {
	size_t sz;
	uint64_t bytes;
	uint32_t tensors;
	uint32_t align;
	uint64_t timeout_ns;
};

/**
 * sluice_batch_begin - reserve an extent to write a batch into
 * @ch: an endpoint that produces
 * @out: the batch; ended by sluice_batch_publish() or sluice_batch_abort()
 * @bytes: payload: the sum of all tensors and blobs
 * @timeout_ns: see the conventions
 *
 * Return: 0; -EAGAIN or -ETIMEDOUT (the sentence names who holds the arena and for how long);
 * -E2BIG (can never fit); -ESHUTDOWN; -EPIPE (every consumer died); -EPERM (consumer-only);
 * -EINTR.
 */
int sluice_batch_begin(struct sluice_channel *ch, struct sluice_batch **out, uint64_t bytes,
		       uint64_t timeout_ns);

/** sluice_batch_begin_opts - the same with all options */
int sluice_batch_begin_opts(struct sluice_channel *ch, struct sluice_batch **out,
			    const struct sluice_batch_opts *opts);

/**
 * sluice_batch_tensor_add - place a tensor in the batch
 * @b: a batch being written
 * @name: up to 255 bytes; NULL is ""
 * @dtype: element type
 * @ndim: dimensions
 * @shape: @ndim extents
 * @strides: in elements; NULL for row-major and contiguous
 *
 * Return: where to write the elements, or NULL with errno EINVAL, ENOSPC (does not fit what was
 * reserved: the sentence says by how much), EROFS (already published), ENOMEM.  For an empty tensor
 * the address is valid and must not be written to.
 */
void *sluice_batch_tensor_add(struct sluice_batch *b, const char *name, struct sluice_dtype dtype,
			      uint32_t ndim, const int64_t *shape, const int64_t *strides);

/**
 * sluice_batch_bytes_add - copy a metadata blob into the batch
 * @b: a batch being written
 * @name: up to 255 bytes, not NULL
 * @data: @len bytes; NULL leaves the room for the caller to fill
 * @len: may be 0
 *
 * Return: where the bytes stand in the arena, or NULL with errno as sluice_batch_tensor_add().
 */
void *sluice_batch_bytes_add(struct sluice_batch *b, const char *name, const void *data,
			     uint64_t len);

/**
 * sluice_batch_copy - copy into the batch
 * @b: a batch being written
 * @to: where: an address that sluice_batch_tensor_add() returned, or one behind it
 * @from: @bytes bytes that do not overlap them
 * @bytes: may be 0
 *
 * memcpy() for those who fill a batch from memory.  Into a batch of 8 MiB and more it goes past the
 * CPU's caches: an ordinary store first reads the line that it overwrites, a third of all the
 * memory traffic, and pushes out what is read next.  Threads may copy into one batch at a time.
 *
 * Return: 0; -EINVAL (not all of it would be in the batch, and nothing was copied); -EROFS (already
 * published).
 */
int sluice_batch_copy(struct sluice_batch *b, void *to, const void *from, uint64_t bytes);

/**
 * sluice_batch_tag - attach a number to the batch
 * @b: a batch being written
 * @tag: read by sluice_batch_info()
 */
int sluice_batch_tag(struct sluice_batch *b, uint64_t tag);

/**
 * sluice_batch_publish - queue the batch
 * @b: a batch being written.  On success the handle is gone; on failure it is still the caller's.
 *
 * Waits for room in the channel as long as the endpoint's .publish_timeout_ns.
 *
 * Return: 0; -EAGAIN, -ETIMEDOUT, -ESHUTDOWN, -EPIPE, -EINTR.
 */
int sluice_batch_publish(struct sluice_batch *b);

/** sluice_batch_publish_timeout - the same with its own timeout */
int sluice_batch_publish_timeout(struct sluice_batch *b, uint64_t timeout_ns);

/**
 * sluice_batch_post - queue the batch before its payload is there
 * @b: a batch being written, fully described; it stays with the caller, who fills the payload
 * @word: where the completion word stands, in the control region; 8 bytes, aligned
 * @value: what must be stored there, in one piece, once the payload is complete
 * @timeout_ns: for room; see the conventions
 *
 * For payloads that a device writes, which then delivers the batch by storing @value itself (a
 * cuStreamWriteValue64(), an RDMA write): consumers that are awake see it at once.  The caller ends
 * the posting with sluice_batch_posted() or sluice_batch_unpost(), and keeps the channel's endpoint
 * open until then.  Batches behind a posted one wait for it.  When this process dies, what it has
 * posted and not completed is lost.
 *
 * Return: 0 or a negative errno as sluice_batch_publish(); then @b is still being written.
 */
int sluice_batch_post(struct sluice_batch *b, uint64_t **word, uint64_t *value,
		      uint64_t timeout_ns);

/**
 * sluice_batch_posted - the payload of a posted batch is complete
 * @b: a posted batch; the handle is gone.  Any thread; makes no blocking call.
 *
 * Stores the completion word if the device has not, and rings consumers that sleep.
 */
void sluice_batch_posted(struct sluice_batch *b);

/**
 * sluice_batch_quiet - may sluice_batch_posted() come late?
 * @b: a posted batch
 *
 * For devices that are many times faster than a call on their completion.  If so, consumers that come
 * to wait for this batch look for it by themselves, every millisecond at worst, until they have it.
 *
 * Return: 1 when every consumer of the channel is awake: sluice_batch_posted() may be called at
 * any time after the batch is complete; 0 when some sleep, or have slept in loops of their own: it must
 * be called as soon as the batch is complete.
 */
int sluice_batch_quiet(struct sluice_batch *b);

/**
 * sluice_batch_unpost - take a posted batch back: its payload will never be complete
 * @b: a posted batch; on success it is being written again
 *
 * Return: 0; -EALREADY (it was complete: consumers have it, and the handle is gone).
 */
int sluice_batch_unpost(struct sluice_batch *b);

/**
 * sluice_batch_abort - give the extent back unpublished
 * @b: a batch being written, or NULL
 */
void sluice_batch_abort(struct sluice_batch *b);

/**
 * sluice_batch_seal - finish writing without queueing
 * @b: a batch being written; it becomes one that is held, as if it had come from
 *	sluice_channel_next(), for sluice_batch_share() and sluice_batch_forward()
 *
 * Return: 0; -EROFS, -ENOMEM, -EUCLEAN; then @b is as it was.
 */
int sluice_batch_seal(struct sluice_batch *b);

/**
 * sluice_batch_share - queue a read-only reference to a held batch; nothing is copied
 * @b: a held batch; the caller goes on holding it
 * @ch: an endpoint that produces, same arena
 * @timeout_ns: see the conventions
 *
 * The memory is free again when the last reference is released, in whatever order.
 *
 * Return: 0 or a negative errno as sluice_batch_publish(); -ENOSPC (1,024 references are out).
 */
int sluice_batch_share(struct sluice_batch *b, struct sluice_channel *ch, uint64_t timeout_ns);

/**
 * sluice_batch_forward - queue a held batch itself; nothing is copied
 * @b: a held batch with one local reference.  On success the handle is gone.
 * @ch: an endpoint that produces, same arena
 * @timeout_ns: see the conventions
 *
 * Return: 0 or as sluice_batch_publish(); -EBUSY (more local references), -EXDEV (other arena).
 */
int sluice_batch_forward(struct sluice_batch *b, struct sluice_channel *ch, uint64_t timeout_ns);

/**
 * sluice_batch_token - name a held batch for sluice_batch_open() in another peer
 * @b: a held batch
 * @token: 64 bits, worthless once the batch is free
 */
int sluice_batch_token(const struct sluice_batch *b, uint64_t *token);

/**
 * sluice_batch_open - take a read-only reference to a batch that a live peer holds
 * @a: the arena
 * @out: a held batch
 * @token: from sluice_batch_token()
 *
 * Return: 0; -ESTALE (it is free already), -ENOSPC.
 */
int sluice_batch_open(struct sluice_arena *a, struct sluice_batch **out, uint64_t token);

/**
 * sluice_batch_retain - one more local reference to a held batch
 * @b: the batch, which is returned; any thread of this process
 */
struct sluice_batch *sluice_batch_retain(struct sluice_batch *b);

/**
 * sluice_batch_release - give one local reference back; the last one frees the extent
 * @b: a held batch, or NULL; any thread, any order
 */
void sluice_batch_release(struct sluice_batch *b);

/**
 * struct sluice_batch_info - facts about a batch
 * @sz: sizeof(struct sluice_batch_info), set by the caller
 * @tensors: their number
 * @blobs: their number
 * @payload: first byte of the payload: one contiguous range for one DMA
 * @payload_bytes: from there to the end of the last tensor or blob
 * @payload_offset: of the payload in the data region
 * @extent_bytes: what the batch occupies
 * @producer: peer id of who published it (a claim)
 * @sequence: counts the batches of that producer's endpoint from 0 (a claim)
 * @tag: see sluice_batch_tag()
 */
struct sluice_batch_info {
	size_t sz;
	uint32_t tensors;
	uint32_t blobs;
	void *payload;
	uint64_t payload_bytes;
	uint64_t payload_offset;
	uint64_t extent_bytes;
	uint64_t producer;
	uint64_t sequence;
	uint64_t tag;
};

/**
 * sluice_batch_info - read the facts about a batch
 * @b: a held batch, or one being written
 * @info: filled up to info->sz
 *
 * Return: 0, or -EINVAL.
 */
int sluice_batch_info(const struct sluice_batch *b, struct sluice_batch_info *info);

/**
 * sluice_batch_tensor - look at a tensor
 * @b: a held batch
 * @i: 0 to info.tensors - 1
 * @view: filled up to view->sz
 *
 * Return: 0, or -EINVAL.
 */
int sluice_batch_tensor(const struct sluice_batch *b, unsigned int i, struct sluice_tensor *view);

/**
 * sluice_batch_bytes - look at a metadata blob by name
 * @b: a held batch
 * @name: of the blob
 * @data: where the bytes stand
 * @len: how many
 *
 * Return: 0, or -ENOENT.
 */
int sluice_batch_bytes(const struct sluice_batch *b, const char *name, const void **data,
		       uint64_t *len);

/**
 * sluice_batch_blob - look at a metadata blob by number
 * @b: a held batch
 * @i: 0 to info.blobs - 1
 * @name: its name, or NULL
 * @data: where the bytes stand
 * @len: how many
 *
 * Return: 0, or -EINVAL.
 */
int sluice_batch_blob(const struct sluice_batch *b, unsigned int i, const char **name,
		      const void **data, uint64_t *len);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_H */
