# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Where a producer keeps its large objects: arenas of its own, which grow with what it sends.

A descriptor on the queue names the arena; a consumer attaches it at first sight.  So nobody has to
say in advance how large a batch is, producers never wait for each other's space, and an arena goes
when the last process that has it mapped goes.
"""
import errno
import fcntl
import os
import resource
import threading

from . import _sluice
from ._core import CONSUME, POISON, PRODUCE, Arena, parse_bytes

ARENA_MIN = parse_bytes(os.environ.get("SLUICE_ARENA_MIN", "16M"))
# An arena has room for so many objects of the size that made it necessary: what a loader's
# prefetching keeps in flight for each worker, one that is being written, one that is in use.
ARENA_OBJECTS = 4
# Most of the time somebody is just about to let go.  Another arena is made when that was not so for
# as long as making it takes: a consumer that lags (a busy bus, a slow step) then makes nothing
# grow, and one that keeps what it gets costs at most twice the time.
PATIENCE_MIN = 0.02
PATIENCE_MAX = 2.0
# Never take more than this part of what is free for one arena.
MEMORY_SHARE = 4
DATA_CAPACITY = 1024
# Consuming too, or a channel whose reader died would refuse what the next reader is for.
FLAGS_BOTH = PRODUCE | CONSUME
# Debugging: freed extents are filled with 0xdb, so a use after release shows.
FLAGS = POISON if os.environ.get("SLUICE_POISON") else 0


def memory_available():
    """Bytes that this process may still take: of the machine, its nodes and control groups."""
    free = _sluice.memory_free()
    if free < 1 << 63:
        return free
    # In a chroot without /proc; the page cache does not count here.
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def explain(e):
    """What an OSError says, with the limit that its errno does not name."""
    if e.errno == errno.EMFILE and "RLIMIT_NOFILE" not in e.strerror:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return "%s (RLIMIT_NOFILE of this process is %d)" % (e.strerror, limit)
    return e.strerror


def slack(nbytes):
    """Room for the next object like this one, whose strings may be a little longer."""
    return nbytes + (nbytes >> 6) + 4096


class Extent:
    """An extent that is filled before anybody knows what else belongs to the object."""

    def __init__(self, uid, batch, source, capacity):
        self.uid = uid
        self.batch = batch
        self.source = source
        self.capacity = capacity
        self.view = batch.add("py", (1, 8), (capacity,))
        self.used = 64
        self.thread = threading.get_ident()

    def alloc(self, nbytes):
        """A View, or None.  It keeps the extent once that is sealed."""
        at = (self.used + 255) & ~255
        if at + nbytes > self.capacity:
            return None
        self.used = at + nbytes
        return self.batch.piece(self.view.ptr + at, nbytes)

    def drop(self):
        """Give it up; what was built in it and is still in use keeps it."""
        if self.batch.pieces:
            self.batch.seal()
        self.batch.release()


class Store:
    def __init__(self):
        self.arenas = []
        self.channels = {}
        self.hint = None  # (queue uid, bytes) of the last large object
        self.extent = None
        self.retired = set()  # uids of queues that nothing is put on any more
        self.spills = []  # (queue uid, descriptor) until a consumer has it
        self.full = 0
        self.refused = None  # why the last arena was not made
        self.cost = 0.0  # seconds that making a byte of the last arena took
        self.gen = _sluice.fork_generation()

    def _channel(self, arena, uid):
        ch = self.channels.get((arena.id, uid))
        if ch is None:
            self._reap_channels()
            try:
                ch = arena._channel(uid, create=True, capacity=DATA_CAPACITY, flags=FLAGS_BOTH)
            except FileExistsError:  # a consumer's, of a queue that another one here was a copy of
                ch = arena._channel(uid, create=False, flags=FLAGS_BOTH)
            self.channels[arena.id, uid] = ch
        return ch

    def _try(self, uid, nbytes, timeout, alive=None):
        for arena in self.arenas:
            try:
                ch = self._channel(arena, uid)
                batch = ch.begin(nbytes, 1, timeout, alive)
            except OSError as e:
                if e.errno not in (errno.ETIMEDOUT, errno.E2BIG, errno.ENOSPC):
                    raise
                if e.errno == errno.ETIMEDOUT:
                    timeout = 0  # waited long enough; the others are only looked at
                continue
            return (os.getpid(), arena.fd(), arena.data_fd(), arena.id), batch
        return None

    def _grow(self, nbytes, objects, least):
        free = memory_available()
        for count in (objects, ARENA_OBJECTS, least):
            size = max(ARENA_MIN, count * (slack(nbytes) + (1 << 16)))
            if size <= free // MEMORY_SHARE:
                break
        else:
            self.refused = "%d bytes are more than 1/%d of the %d that are free" % (
                size,
                MEMORY_SHARE,
                free,
            )
            return False
        try:
            arena = Arena(size, flags=FLAGS, label="py-%d" % os.getpid())
        except OSError as e:
            if e.errno not in (errno.ENOMEM, errno.EPERM, errno.EMFILE):
                raise
            self.refused = e.strerror
            return False
        self.arenas.insert(0, arena)
        self.refused = None
        self.cost = arena.info()["create_ns"] / 1e9 / size
        return True

    def _patience(self, nbytes, objects):
        return min(max(self.cost * objects * nbytes, PATIENCE_MIN), PATIENCE_MAX)

    def begin(self, uid, nbytes, timeout, alive=None, objects=ARENA_OBJECTS, patient=False):
        """(source, batch being written), or None if there is no room within the timeout.

        objects: how many of this size will be on their way at a time, for the first arena.
        patient: wait before another arena is made, whatever the timeout.
        """
        got = self._try(uid, nbytes, 0)
        if got is None and self.arenas:
            wait = self._patience(nbytes, objects)
            if timeout is not None and not patient:
                wait = min(timeout, wait)
            got = self._try(uid, nbytes, wait, alive)
        if got is None and self._grow(nbytes, objects, 1 if not self.arenas else 2):
            got = self._try(uid, nbytes, 0)
        if got is None and self.arenas:
            got = self._try(uid, nbytes, timeout, alive)
        if got is None:
            self.full += 1
        return got

    def open_extent(self):
        """The extent that the next object is being built in, or None before there is a pattern."""
        ex = self.extent
        if ex is None and self.hint is not None:
            uid, nbytes = self.hint
            got = self.begin(uid, nbytes, 0, patient=True)
            if got is None:
                return None
            ex = self.extent = Extent(uid, got[1], got[0], nbytes)
        if ex is not None and ex.thread != threading.get_ident():
            return None
        return ex

    def drop_extent(self):
        ex, self.extent = self.extent, None
        if ex is not None:
            ex.drop()

    def channel_of(self, source, uid):
        """The queue's channel in the arena that a source names."""
        ch = self.channels.get((source[3], uid))
        if ch is None:
            ch = self._channel(next(a for a in self.arenas if a.id == source[3]), uid)
        return ch

    def in_flight(self, uids):
        """Whether objects of these queues would be lost if this process ended now."""
        self.reap_spills()
        if any(uid in uids for uid, fd in self.spills):
            return True
        for (arena_id, uid), ch in self.channels.items():
            if uid in uids:
                t = ch.totals()
                if t["queued"] and t["consumers"] < 2:
                    return True
        return False

    def spill(self, uid, plan):
        """A file of its own for one object: (pid, descriptor, bytes)."""
        free = memory_available()
        if plan.nbytes > free:  # the kernel would end a process of this control group, perhaps this
            raise MemoryError(
                "an object of %d bytes: no arena had room, and %d are free" % (plan.nbytes, free)
            )
        try:
            fd = os.memfd_create("sluice-spill", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as e:
            why = "no file for an object of %d bytes: %s" % (plan.nbytes, explain(e))
            raise OSError(e.errno, why) from e
        try:
            os.posix_fallocate(fd, 0, plan.nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            _sluice.write_fd(fd, plan)
        except BaseException:
            os.close(fd)
            raise
        self.reap_spills()
        self.spills.append((uid, fd))
        return os.getpid(), fd, plan.nbytes

    def reap_spills(self):
        """A consumer seals a file once it has it."""
        left = []
        for uid, fd in self.spills:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW:
                os.close(fd)
            else:
                left.append((uid, fd))
        self.spills = left

    def retire(self, uid):
        """A queue is closed: its channels go as soon as what was put has arrived."""
        self._let_go_of_extent(uid)
        self.retired.add(uid)
        self._reap_channels()

    def _reap_channels(self):
        for key, ch in list(self.channels.items()):
            if key[1] in self.retired:
                t = ch.totals()
                if not t["queued"] or t["consumers"] > 1:  # who has it open gets what is in it
                    self.channels.pop(key).close()
        self.retired.intersection_update(uid for _, uid in self.channels)

    def forget(self, uid):
        """A queue is closed, and all that was put has arrived."""
        self._let_go_of_extent(uid)
        for key in [k for k in self.channels if k[1] == uid]:
            self.channels.pop(key).close()

    def _let_go_of_extent(self, uid):
        if self.hint and self.hint[0] == uid:
            self.hint = None
        if self.extent is not None and self.extent.uid == uid:
            self.drop_extent()  # while its channel is open

    def holders(self):
        lines = []
        for arena in self.arenas:
            for p in arena.peers():
                if p["extents"]:
                    lines.append(
                        "pid %d (%s) holds %d bytes in %d extents, the oldest for %.1f s"
                        % (p["pid"], p["comm"], p["bytes"], p["extents"], p["oldest"])
                    )
        waiting = sum(arena.usage()["ready"] for arena in self.arenas)
        if waiting:
            lines.append("waiting in queues: %d objects" % waiting)
        if self.refused:
            lines.append("no further arena: " + self.refused)
        return "; ".join(lines) or "nobody holds anything"


_store = None


def store():
    global _store
    if _store is None or _store.gen != _sluice.fork_generation():
        _store = Store()
    return _store
