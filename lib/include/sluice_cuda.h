/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * sluice_cuda - stream copies straight from and to a sluice arena
 *
 * The conventions of sluice.h hold here too, and in addition:
 * - The CUDA driver is loaded by the first call that needs it; linking this library loads nothing.
 * - Streams are CUstream or cudaStream_t, which are one type; device addresses are void *.
 * - No call creates a CUDA context unless SLUICE_CUDA_CREATE_CONTEXT asks for it, none changes which
 *   context is current, and none starts a thread.
 * - An extent that a copy reads or writes goes back only when that copy has completed.  When a
 *   sticky CUDA error (-EIO) makes that impossible to know, the extents in flight stay leased until
 *   the process leaves the arena.
 * - Copies are no part of a CUDA graph: calls that name a stream that is being captured fail (-EPERM).
 *   The others, too, while their thread captures or, in global mode, any other thread does.
 * - After fork() every handle is dead in the child (-ECHILD): CUDA does not survive a fork.
 */
#ifndef SLUICE_CUDA_H
#define SLUICE_CUDA_H

#include "sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

struct sluice_cuda;
struct sluice_cuda_feed;
struct sluice_cuda_batch;
struct sluice_cuda_drain;

#define SLUICE_CUDA_MAX_DEPTH	1024
#define SLUICE_CUDA_MAX_THREADS 16

/**
 * sluice_cuda_strerror - the last error of the calling thread in this library, as one sentence
 *
 * Names CUDA's own error where there was one, and is sluice_strerror() where libsluice refused.
 *
 * Return: a string that stays valid until the next failing call of this thread; "" if none failed.
 */
const char *sluice_cuda_strerror(void);

/**
 * struct sluice_cuda_probe - what this host has
 * @sz: sizeof(struct sluice_cuda_probe), set by the caller
 * @devices: their number
 * @driver_version: 1000 * major + 10 * minor, as cuDriverGetVersion() has it
 */
struct sluice_cuda_probe {
	size_t sz;
	uint32_t devices;
	uint32_t driver_version;
};

/**
 * sluice_cuda_probe - look for a driver and devices; creates no context
 * @p: filled up to p->sz; may be NULL
 *
 * Return: 0; -ENOENT (no driver), -ENODEV (no device), -EPROTO (the driver is too old).
 */
int sluice_cuda_probe(struct sluice_cuda_probe *p);

/* ------------------------------------------------------------------ attaching an arena */

enum sluice_cuda_flags {
	SLUICE_CUDA_DEVICE = 1 << 0, /* .device is meant, else the current context */
	SLUICE_CUDA_CREATE_CONTEXT = 1 << 1, /* create the device's primary context if need be */
};

/**
 * struct sluice_cuda_opts - which context, and how to register
 * @sz: sizeof(struct sluice_cuda_opts)
 * @flags: enum sluice_cuda_flags
 * @device: with SLUICE_CUDA_DEVICE, the ordinal whose primary context is used
 * @chunk_bytes: largest single registration, a multiple of 2 MiB; 0 means 64 GiB (drivers refuse
 *	512 GiB).  This library's copies go across chunks; CUDA may refuse one of the caller's own
 *	that begins in one chunk and ends in the next.
 * @threads: that register chunks side by side, 0 and 1 for the calling one alone, at most
 *	SLUICE_CUDA_MAX_THREADS; of use with a .chunk_bytes that makes several
 *
 * Only the attachment that registers the arena decides about chunks and threads.
 */
struct sluice_cuda_opts {
	size_t sz;
	uint32_t flags;
	int32_t device;
	uint64_t chunk_bytes;
	uint32_t threads;
	uint32_t reserved;
};

/**
 * sluice_cuda_attach - make an arena known to CUDA in this process
 * @out: the handle, for any thread
 * @a: the arena; it must stay attached until after sluice_cuda_detach()
 * @opts: NULL for the context that is current on this thread
 *
 * Data and control region are registered once in a process, for all devices; further attachments
 * of the same arena share that.  What somebody else has registered already is used as it is.  A
 * context that is not a primary one, and current when an arena is attached first, must live until
 * the arena's last detach: the registration goes with it.
 *
 * Return: 0; -ENOENT, -ENODEV, -EPROTO as sluice_cuda_probe(); -ENXIO (no such device); -ENOTCONN
 * (no context is current, or the device has none yet, and none may be created); -EPERM (the arena
 * is attached read-only and the device cannot register that); -ENOMEM; -ECHILD; -EIO.
 */
int sluice_cuda_attach(struct sluice_cuda **out, struct sluice_arena *a,
		       const struct sluice_cuda_opts *opts);

/**
 * sluice_cuda_detach - give the handle back
 * @c: the handle, or NULL; copies of sluice_cuda_copy() are waited for.  The last attachment of an
 *	arena unregisters it.  Works when the context is gone, too.
 *
 * Return: 0; -EBUSY (a feed or drain is open: the handle stays valid); -ECHILD.
 */
int sluice_cuda_detach(struct sluice_cuda *c);

/**
 * struct sluice_cuda_stats - counters of one attachment
 * @sz: sizeof(struct sluice_cuda_stats), set by the caller
 * @registered_bytes: of data and control region, in this process
 * @register_ns: how long that took
 * @chunks: registrations that this library made
 * @foreign: registrations that were there before
 * @device: ordinal
 * @stream_writes: 1 when the GPU announces completions itself, 0 when host functions do
 * @h2d_copies: host to device, all feeds and direct copies of this handle
 * @h2d_bytes: their size
 * @d2h_copies: device to host, all drains
 * @d2h_bytes: their size
 * @held: extents that copies of sluice_cuda_copy() hold now
 * @quarantined: extents that a sticky error has left leased
 */
struct sluice_cuda_stats {
	size_t sz;
	uint64_t registered_bytes;
	uint64_t register_ns;
	uint32_t chunks;
	uint32_t foreign;
	int32_t device;
	uint32_t stream_writes;
	uint64_t h2d_copies;
	uint64_t h2d_bytes;
	uint64_t d2h_copies;
	uint64_t d2h_bytes;
	uint64_t held;
	uint64_t quarantined;
};

/** sluice_cuda_stats - read the counters; any thread */
int sluice_cuda_stats(struct sluice_cuda *c, struct sluice_cuda_stats *st);

/**
 * sluice_cuda_copy - copy a held batch into device memory of the caller's
 * @c: an attachment of the batch's arena
 * @b: a held batch.  On success one local reference is taken over, and given back by a later call
 *	on @c, sluice_cuda_reap() among them, once the copy has completed.  On failure it is still
 *	the caller's.
 * @dst: device memory; tensor i stands at @dst + its .offset
 * @dst_bytes: size of @dst; at least the batch's payload_bytes
 * @stream: where the copy runs; NULL is the legacy default stream
 *
 * Return: 0; -ENOSPC (@dst is too small), -EPERM (@stream is being captured), -EINVAL, -EIO, -ESHUTDOWN (the context is gone), -ECHILD.
 */
int sluice_cuda_copy(struct sluice_cuda *c, struct sluice_batch *b, void *dst, uint64_t dst_bytes,
		     struct CUstream_st *stream);

/**
 * sluice_cuda_reap - give back what completed copies of sluice_cuda_copy() still hold
 * @c: the attachment
 *
 * Return: how many are still in flight, or a negative errno.
 */
int sluice_cuda_reap(struct sluice_cuda *c);

/* ------------------------------------------------------------------ feed: host to device */

/**
 * struct sluice_cuda_feed_opts - a feed
 * @sz: sizeof(struct sluice_cuda_feed_opts)
 * @depth: device buffers, 1 to SLUICE_CUDA_MAX_DEPTH: how many batches may be on the device or on
 *	the way to it; 0 means 4.  As many extents may be held by copies.
 * @flags: 0
 * @buffer_bytes: size of a device buffer to begin with; a buffer grows when a batch needs more
 * @stream: the stream to copy on, which must outlive the feed; NULL creates one.  Not
 *	cudaStreamPerThread, which is another one on every thread.
 */
struct sluice_cuda_feed_opts {
	size_t sz;
	uint32_t depth;
	uint32_t flags;
	uint64_t buffer_bytes;
	struct CUstream_st *stream;
};

/**
 * sluice_cuda_feed_open - copy the batches of a channel to the device, ahead of their use
 * @out: the feed, for one thread at a time
 * @c: the attachment
 * @ch: an endpoint that consumes, of the same arena; the feed uses it alone until it is closed
 * @opts: NULL for the defaults
 *
 * Return: 0; -EINVAL, -ENOMEM, -EIO, -ESHUTDOWN, -ECHILD.
 */
int sluice_cuda_feed_open(struct sluice_cuda_feed **out, struct sluice_cuda *c,
			  struct sluice_channel *ch, const struct sluice_cuda_feed_opts *opts);

/**
 * sluice_cuda_feed_next - the next batch, on the device
 * @f: the feed
 * @out: the batch, to be given back with sluice_cuda_batch_release()
 * @stream: work put on this stream after the call finds the batch complete; NULL is the legacy
 *	default stream
 * @timeout_ns: for a batch to arrive; see the conventions of sluice.h
 *
 * Also starts the copies of what has arrived behind it, as far as device buffers are free; several
 * at a time where @depth is large and more than half of it is ready.  The host waits only when no
 * batch is there, or when @depth copies are not complete.
 *
 * Return: 0; what sluice_channel_next() returns, in order with the batches; -EBUSY (the caller holds
 * every device buffer); -ENOMEM (no device memory for a buffer: nothing is lost, call again
 * when there is some); -EIO; -ESHUTDOWN; -ECHILD.
 */
int sluice_cuda_feed_next(struct sluice_cuda_feed *f, struct sluice_cuda_batch **out,
			  struct CUstream_st *stream, uint64_t timeout_ns);

/**
 * sluice_cuda_feed_pump - start the copies of what has arrived; never waits
 * @f: the feed
 *
 * Return: how many batches are on the device or on the way to it and not yet handed out, or a negative
 * errno as sluice_cuda_feed_next().
 */
int sluice_cuda_feed_pump(struct sluice_cuda_feed *f);

/**
 * sluice_cuda_batch_info - facts about a batch on the device
 * @b: the batch
 * @info: filled up to info->sz; .payload is the device address, .payload_offset and .extent_bytes
 *	are those of the extent it came from
 */
int sluice_cuda_batch_info(const struct sluice_cuda_batch *b, struct sluice_batch_info *info);

/**
 * sluice_cuda_batch_tensor - look at a tensor on the device
 * @b: the batch
 * @i: 0 to info.tensors - 1
 * @view: filled up to view->sz; .data is a device address, the rest is in host memory and valid
 *	as long as @b
 *
 * Return: 0, or -EINVAL.
 */
int sluice_cuda_batch_tensor(const struct sluice_cuda_batch *b, unsigned int i,
			     struct sluice_tensor *view);

/**
 * sluice_cuda_batch_blob - look at a metadata blob, in host memory
 * @b: the batch
 * @i: 0 to info.blobs - 1
 * @name: its name, or NULL
 * @data: where the bytes stand, valid as long as @b
 * @len: how many
 *
 * Blobs of more than 64 KiB in all are not copied: such a batch keeps its extent until its release.
 *
 * Return: 0, or -EINVAL.
 */
int sluice_cuda_batch_blob(const struct sluice_cuda_batch *b, unsigned int i, const char **name,
			   const void **data, uint64_t *len);

/**
 * sluice_cuda_batch_release - give the device buffer back
 * @b: the batch, or NULL; on the thread that uses the feed
 * @stream: the buffer is written again only after the work that is on this stream now
 *
 * Return: 0; -EPERM (@stream is being captured: @b is still the caller's); -EIO, -ESHUTDOWN, -ECHILD.
 * In all other cases the handle is gone; the buffer, too, when it could not be known what @stream does
 * with it (see .lost of the statistics).
 */
int sluice_cuda_batch_release(struct sluice_cuda_batch *b, struct CUstream_st *stream);

/**
 * struct sluice_cuda_feed_stats - counters of one feed, that is of one copy stream
 * @sz: sizeof(struct sluice_cuda_feed_stats), set by the caller
 * @batches: whose copy was started
 * @bytes: copied
 * @waits: times that sluice_cuda_feed_next() found no batch copied ahead
 * @wait_ns: time in those calls until one had arrived
 * @stalls: times that the host waited for a copy to complete
 * @stall_ns: time spent so
 * @grown: times that a device buffer was allocated or made larger
 * @device_bytes: of all device buffers
 * @ready: batches copied ahead, not yet handed out
 * @held: extents that copies hold now
 * @lost: device buffers that stay unused, and missing from .depth, because the stream of their release
 *	could be neither followed nor waited for
 */
struct sluice_cuda_feed_stats {
	size_t sz;
	uint64_t batches;
	uint64_t bytes;
	uint64_t waits;
	uint64_t wait_ns;
	uint64_t stalls;
	uint64_t stall_ns;
	uint64_t grown;
	uint64_t device_bytes;
	uint32_t ready;
	uint32_t held;
	uint32_t lost;
	uint32_t reserved;
};

/** sluice_cuda_feed_stats - read the counters */
int sluice_cuda_feed_stats(struct sluice_cuda_feed *f, struct sluice_cuda_feed_stats *st);

/**
 * sluice_cuda_feed_close - wait for the copies, free the device buffers
 * @f: the feed, or NULL; every batch of it must be released.  Batches that were copied ahead and not
 *	handed out are lost; the channel stays open.
 */
void sluice_cuda_feed_close(struct sluice_cuda_feed *f);

/* ------------------------------------------------------------------ drain: device to host */

enum sluice_cuda_drain_flags {
	SLUICE_CUDA_DRAIN_HOST_SIGNAL = 1
					<< 0, /* announce by host function even if the GPU could */
	SLUICE_CUDA_DRAIN_NO_WAKE = 1 << 1, /* workers always spin: no host function at all */
};

/**
 * struct sluice_cuda_drain_opts - a drain
 * @sz: sizeof(struct sluice_cuda_drain_opts)
 * @depth: batches that may be in flight, 1 to SLUICE_CUDA_MAX_DEPTH; 0 means 16
 * @flags: enum sluice_cuda_drain_flags
 * @stream: the stream to copy on, as for a feed; NULL creates one
 */
struct sluice_cuda_drain_opts {
	size_t sz;
	uint32_t depth;
	uint32_t flags;
	struct CUstream_st *stream;
};

/**
 * sluice_cuda_drain_open - send device tensors to the consumers of a channel
 * @out: the drain, for one thread at a time
 * @c: the attachment; its arena must be read-write
 * @ch: an endpoint that produces, of the same arena; the drain uses it alone until it is closed
 * @opts: NULL for the defaults
 *
 * Return: 0; -EINVAL, -EPERM, -ENOMEM, -EIO, -ESHUTDOWN, -ECHILD.
 */
int sluice_cuda_drain_open(struct sluice_cuda_drain **out, struct sluice_cuda *c,
			   struct sluice_channel *ch, const struct sluice_cuda_drain_opts *opts);

/**
 * struct sluice_blob - metadata bytes to go with a batch
 * @name: up to 255 bytes
 * @data: in host memory
 * @len: may be 0
 */
struct sluice_blob {
	const char *name;
	const void *data;
	uint64_t len;
};

/**
 * struct sluice_cuda_submit_opts - what goes with the tensors
 * @sz: sizeof(struct sluice_cuda_submit_opts)
 * @tag: see sluice_batch_tag()
 * @blobs: array of @nblobs, copied before the call returns
 * @nblobs: at most SLUICE_MAX_BLOBS
 * @align: of each tensor; 0 means 256
 * @timeout_ns: for room in the arena, in the channel and in the drain; see the conventions
 */
struct sluice_cuda_submit_opts {
	size_t sz;
	uint64_t tag;
	const struct sluice_blob *blobs;
	uint32_t nblobs;
	uint32_t align;
	uint64_t timeout_ns;
};

/**
 * sluice_cuda_drain_submit - send tensors as one batch
 * @d: the drain
 * @tensors: .data is a device address, .bytes and .offset are ignored; all elements in memory order of
 *	.strides, NULL for row-major and contiguous.  tensors[0].sz must be set.
 * @n: their number, at most SLUICE_MAX_TENSORS
 * @stream: the copy waits for the work that is on this stream now; NULL is the legacy default stream
 * @opts: NULL for no metadata, tag 0 and SLUICE_FOREVER
 *
 * Returns at once when there is room.  Consumers get the batch when its bytes have arrived.  Until
 * then the tensors must not change: see sluice_cuda_drain_guard().
 *
 * Return: 0; -EAGAIN or -ETIMEDOUT (the workers are slow); -E2BIG; -ESHUTDOWN (channel or context);
 * -EPIPE; -EINTR; -EXDEV (memory of another device); -EPERM (a stream is being captured); -EINVAL; -EIO; -ECHILD.
 */
int sluice_cuda_drain_submit(struct sluice_cuda_drain *d, const struct sluice_tensor *tensors,
			     unsigned int n, struct CUstream_st *stream,
			     const struct sluice_cuda_submit_opts *opts);

/**
 * sluice_cuda_drain_guard - let a stream overwrite what was submitted
 * @d: the drain
 * @stream: work put on it after the call runs after every copy submitted so far
 */
int sluice_cuda_drain_guard(struct sluice_cuda_drain *d, struct CUstream_st *stream);

/**
 * sluice_cuda_drain_flush - wait until everything submitted is with the consumers
 * @d: the drain
 * @timeout_ns: see the conventions
 *
 * Return: 0; -EAGAIN or -ETIMEDOUT; -EIO, -ESHUTDOWN; -ECHILD.
 */
int sluice_cuda_drain_flush(struct sluice_cuda_drain *d, uint64_t timeout_ns);

/**
 * struct sluice_cuda_drain_stats - counters of one drain, that is of one egress stream
 * @sz: sizeof(struct sluice_cuda_drain_stats), set by the caller
 * @batches: submitted
 * @bytes: their tensors
 * @waits: times that a submission waited for a copy because @depth were in flight; waits for the
 *	arena and the channel are in sluice_channel_stats()
 * @wait_ns: time spent so
 * @lost: batches that an error took back before they had arrived
 * @pending: in flight now
 * @quiet: batches that went without a host function, since no worker slept
 */
struct sluice_cuda_drain_stats {
	size_t sz;
	uint64_t batches;
	uint64_t bytes;
	uint64_t waits;
	uint64_t wait_ns;
	uint64_t lost;
	uint32_t pending;
	uint32_t reserved;
	uint64_t quiet;
};

/** sluice_cuda_drain_stats - read the counters */
int sluice_cuda_drain_stats(struct sluice_cuda_drain *d, struct sluice_cuda_drain_stats *st);

/**
 * sluice_cuda_drain_close - flush, then close
 * @d: the drain, or NULL; the channel stays open
 *
 * Return: 0, or the error with which batches were lost: -EIO, -ESHUTDOWN, -ECHILD.
 */
int sluice_cuda_drain_close(struct sluice_cuda_drain *d);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_CUDA_H */
