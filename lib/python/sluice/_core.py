# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Arena, Channel and Batch: the library's own words, for those who want them."""
import errno
import operator
import os
import threading
import weakref
from multiprocessing import context as _mp_context
from multiprocessing import reduction

from . import _sluice

View = _sluice.View

HUGE_REQUIRED = 1 << 0
NO_HUGE = 1 << 1
NO_HUGETLB = 1 << 2
BIND_NODE = 1 << 3
POISON = 1 << 4

PRODUCE = 1 << 0
CONSUME = 1 << 1
KEEP_OPEN = 1 << 2

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(size):
    """12345, "64M" or "1.5GiB"."""
    if not isinstance(size, str):
        try:
            return operator.index(size)
        except TypeError:
            raise TypeError("%r is no size: write bytes, or a text like '64M'" % (size,)) from None
    text = size.strip().upper()
    number = text.rstrip("BI").rstrip("KMGT")
    unit = text[len(number) :].rstrip("BI")
    try:
        return int(float(number) * _UNITS[unit])
    except (KeyError, ValueError):
        raise ValueError("%r is no size: write bytes, or a number with K, M, G or T" % (size,))


# Arenas of this process by id: an arena is mapped once, however often it arrives.
_attached = weakref.WeakValueDictionary()
_attach_lock = threading.Lock()
_attach_gen = 0


def _key(arena_id, consumer):
    """One that is attached for reading alone is no substitute for one that is not."""
    return (arena_id, "consumer") if consumer else arena_id


def attach_by_id(arena_id, fd_pair, consumer=False):
    """The arena with this id; fd_pair() opens its two descriptors if it is not attached yet."""
    global _attach_lock, _attach_gen
    if _attach_gen != _sluice.fork_generation():
        _attach_lock = threading.Lock()
        _attach_gen = _sluice.fork_generation()
    with _attach_lock:
        arena = _attached.get(_key(arena_id, consumer))
        if arena is not None and not arena.closed:
            return arena
        fd, data_fd = fd_pair()
        try:
            arena = Arena.attach(fd, max(data_fd, 0), consumer)
            if arena.id != arena_id:  # its descriptor's number stands for another one by now
                arena.close()
                raise OSError(errno.ESTALE, "the arena was closed before it arrived here")
            return arena
        finally:
            os.close(fd)
            if data_fd >= 0:
                os.close(data_fd)


class _Descriptors:
    """Two descriptors on their way to another process."""

    def __init__(self, fd, data_fd):
        if _mp_context.get_spawning_popen() is not None:
            self.pid = 0
            self.fd = reduction.DupFd(fd)
            self.data_fd = reduction.DupFd(data_fd) if data_fd >= 0 else None
        else:
            self.pid, self.fd, self.data_fd = os.getpid(), fd, data_fd

    def open(self):
        if not self.pid:
            return self.fd.detach(), self.data_fd.detach() if self.data_fd else -1
        fd = _sluice.fd_of(self.pid, self.fd)
        return fd, _sluice.fd_of(self.pid, self.data_fd) if self.data_fd >= 0 else -1


def _unpickle_arena(arena_id, descriptors, consumer=False):
    try:
        return attach_by_id(arena_id, descriptors.open, consumer)
    except OSError as e:
        if e.errno not in (errno.EBADF, errno.ENOENT, errno.ESTALE):
            raise
        raise OSError(
            e.errno, "process %d closed the arena before it arrived here" % descriptors.pid
        ) from e


class Arena(_sluice.Arena):
    """Arena(data_bytes, block_bytes=0, flags=0, numa_node=0, backend=0, label=None)

    One memory object: reserved and faulted in here, or OSError with ENOMEM.  It has no name and
    lives as long as a process has it.  close() lets go of it; the memory itself stays mapped in
    this process until the last tensor over it is gone.  Usable after fork, and can be sent to
    other processes like any argument.
    """

    _consumer = False

    def __new__(cls, data_bytes, **kw):
        arena = super().__new__(cls, parse_bytes(data_bytes), **kw)
        arena.id = arena.info()["id"]
        _attached[arena.id] = arena
        return arena

    def __init__(self, data_bytes, **kw):
        pass

    @classmethod
    def attach(cls, fd, data_fd=0, consumer=False, /):
        """The arena behind a descriptor; a consumer only reads, in its views too."""
        return cls._known(super().attach(fd, data_fd, consumer), consumer)

    @classmethod
    def recv(cls, sock_fd, consumer=False, /):
        """The arena that the other end of an AF_UNIX socket gives away by send()."""
        return cls._known(super().recv(sock_fd, consumer), consumer)

    @staticmethod
    def _known(arena, consumer):
        arena.id, arena._consumer = arena.info()["id"], bool(consumer)
        key = _key(arena.id, consumer)
        known = _attached.get(key)
        if known is None or known.closed:
            _attached[key] = arena
        return arena

    def __reduce__(self):
        return _unpickle_arena, (self.id, _Descriptors(self.fd(), self.data_fd()), self._consumer)

    def channel(self, name, capacity=0, *, create=True, produce=True, consume=True, flags=0):
        """Create a channel, or open another endpoint of it with create=False."""
        flags |= (PRODUCE if produce else 0) | (CONSUME if consume else 0)
        return Channel(self._channel(name, create=create, capacity=capacity, flags=flags))

    def stats(self):
        """How full it is, and who is attached and holds what."""
        return {**self.info(), **self.usage(), "holders": self.peers()}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        if self.closed:
            return "<sluice.Arena closed>"
        i = self.info()
        return "<sluice.Arena %s of %d bytes, %d peers>" % (i["label"], i["data_bytes"], i["peers"])


_FORMATS = {
    "?": 6,
    "b": 0,
    "h": 0,
    "i": 0,
    "l": 0,
    "q": 0,
    "B": 1,
    "H": 1,
    "I": 1,
    "L": 1,
    "Q": 1,
    "e": 2,
    "f": 2,
    "d": 2,
    "Zf": 5,
    "Zd": 5,
}


class Channel:
    """One endpoint of a bounded queue of batches.  A context manager; close() may be repeated."""

    def __init__(self, raw):
        self._raw = raw

    @property
    def name(self):
        return self._raw.name

    @property
    def arena(self):
        return self._raw.arena

    def begin(self, nbytes, tensors=0, timeout=None):
        """A batch to write to, of nbytes payload."""
        return Batch(self._raw.begin(nbytes, tensors, timeout))

    def publish(self, tensors, tag=0, timeout=None, **blobs):
        """Copy a dict of buffers (arrays, CPU tensors, bytes) into one batch and queue it."""
        views = {k: _readable(v) for k, v in tensors.items()}
        size = sum(v.nbytes for v in views.values()) + sum(len(b) for b in blobs.values())
        with self.begin(size, len(views) + len(blobs), timeout) as b:
            for name, v in views.items():
                code = _FORMATS.get(v.format)
                if code is None:
                    raise TypeError(
                        "%r has buffer format %r, which has no dtype" % (name, v.format)
                    )
                bits = 8 * v.itemsize
                shape = v.shape if v.ndim else ()
                dst = b.add(name, (code, bits), shape)
                if v.nbytes:
                    memoryview(dst).cast("B")[:] = _flat(v)
            for name, data in blobs.items():
                b.add_bytes(name, data)
            b.publish(tag=tag, timeout=timeout)

    def next(self, timeout=None):
        """The next batch.  TimeoutError; EOFError at the end of the stream."""
        try:
            return Batch(self._raw.next(timeout))
        except OSError as e:
            if e.errno in (errno.ENODATA, errno.EOWNERDEAD):
                raise EOFError(str(e)) from e
            raise

    def __iter__(self):
        while True:
            try:
                yield self.next()
            except EOFError:
                return

    def shutdown(self):
        self._raw.shutdown()

    def stats(self):
        return self._raw.stats()

    def close(self):
        self._raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def _readable(obj):
    try:
        return memoryview(obj)
    except TypeError:
        pass
    if hasattr(obj, "numpy"):
        return memoryview(obj.detach().numpy())
    raise TypeError("%s offers no buffer" % type(obj).__name__)


def _flat(v):
    return v.cast("B") if v.c_contiguous else v.tobytes()


class Batch:
    """One extent.  Written, then published; or received, then released.

    As a context manager it is given up or released at the end.  What was taken out of it (views,
    tensors, arrays) keeps the memory; release() only ends the use of this object.
    """

    def __init__(self, raw):
        self._raw = raw

    # writing

    def add(self, name, dtype, shape, strides=None):
        """Room for a tensor: dtype is (DLPack code, bits), strides are in elements."""
        return self._raw.add(name, dtype, tuple(shape), strides)

    def add_bytes(self, name, data):
        self._raw.add_bytes(name, data)

    def publish(self, tag=0, timeout=None):
        if tag:
            self._raw.set_tag(tag)
        self._raw.publish(timeout)

    # reading

    @property
    def state(self):
        return self._raw.state

    @property
    def tag(self):
        return self._raw.tag

    def info(self):
        return self._raw.info()

    def items(self):
        return [self._raw.tensor_at(i) for i in range(self._raw.info()["tensors"])]

    def keys(self):
        return [name for name, view in self.items()]

    def __len__(self):
        return self._raw.info()["tensors"]

    def __getitem__(self, key):
        if isinstance(key, int):
            return self._raw.tensor_at(key)[1]
        for name, view in self.items():
            if name == key:
                return view
        raise KeyError("the batch has no tensor %r" % (key,))

    def blob(self, name):
        return self._raw.blob(name)

    def blobs(self):
        return self._raw.blob_names()

    def release(self):
        self._raw.release()

    close = release

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()

