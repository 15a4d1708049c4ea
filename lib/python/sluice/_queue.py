# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""A queue of Python objects with the interface of multiprocessing.Queue.

Small objects travel inside a control arena that the queues of a context share.  Large ones stand
in an arena of the producer (see _store), one extent each, and only their descriptor is queued.
"""
import collections
import errno
import fcntl
import itertools
import operator
import os
import threading
import time
import weakref
from multiprocessing import process, util
from queue import Empty, Full

from . import _gpu, _sluice
from ._codec import codec
from ._core import CONSUME, KEEP_OPEN, NO_HUGE, PRODUCE, Arena, _Descriptors, attach_by_id
from ._store import ARENA_OBJECTS, explain, slack, store

CONTROL_BYTES = 8 << 20
CONTROL_BLOCK = 4096
UNBOUNDED = 2048
_MAXSIZE_MAX = 16384  # SLUICE_MAX_CAPACITY
INLINE_MAX = 16 << 10
# Adopted objects of a queue whose message is kept in the control arena.
_NOTES_MAX = 64
# How long a producer waits for room before it takes the slow path.
ROOM_TIMEOUT = 1.0

# A queue that holds more large objects than this gets arenas as it fills.
ARENA_OBJECTS_MAX = 16

# What a consumer may have too little of when it attaches an arena; the object can be had later.
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_INLINE, _STORED, _SPILLED = 0, 1, 2  # enum wire_tag

# Consuming too: an object that is put after the death of every reader waits for the next one.
_TX = PRODUCE | CONSUME | KEEP_OPEN

_generation = _sluice.fork_generation
_serial = itertools.count(1)
_control = []
_control_gen = -1


class ParentDied(RuntimeError):
    """The process that created this one is gone: nobody waits for what it does."""


def _alive():
    """Ends a wait in a worker whose parent is gone."""
    parent = _parent_pid()
    if parent and os.getppid() != parent:
        raise ParentDied("the parent process %d is gone" % parent)


def _parent_pid():
    p = process.parent_process()
    return p.pid if p is not None and _direct_child else 0


_direct_child = False  # set in workers of our contexts whose getppid() is the creator


def _control_channel(name, capacity):
    """A new channel in a control arena that has room for one more."""
    global _control, _control_gen
    if _control_gen != _sluice.fork_generation():
        _control, _control_gen = [], _sluice.fork_generation()
    for arena in _control:
        try:
            return arena, arena._channel(name, create=True, capacity=capacity, flags=_TX)
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
    arena = Arena(CONTROL_BYTES, block_bytes=CONTROL_BLOCK, label="py-queues", flags=NO_HUGE)
    _control.append(arena)
    return arena, arena._channel(name, create=True, capacity=capacity, flags=_TX)


def _extent_of(array):
    """Where its elements stand: changes when an adopted tensor is resized or replaced in place."""
    try:
        return array.data_ptr(), array.shape, array.stride(), array.requires_grad
    except AttributeError:
        return array.ctypes.data, array.shape, array.strides, array.dtype


# Channels that a child may not have opened yet: (endpoint, children that may).
_limbo = []


def _retire(ch, older):
    """Close the creator's endpoint, which holds the channel, once no new child can come for it."""
    alive = {p.pid for p in process.active_children()}
    _limbo[:] = [(c, users) for c, users in _limbo if users & alive or c.close()]
    users = alive - set(older)
    if users:
        _limbo.append((ch, users))
    else:
        ch.close()


# Queues whose objects this process has to stay for, and those that may have a feeder.
_staying = set()
_feeding = weakref.WeakSet()
_armed = -1


def _arm_exit():
    global _armed
    if _armed != _sluice.fork_generation():
        _armed = _sluice.fork_generation()
        util.Finalize(None, _finish, exitpriority=-5)


def _finish():
    for q in list(_feeding):
        q.join_thread()
    try:
        while store().in_flight(_staying):
            _alive()
            time.sleep(0.002)
    except ParentDied:
        pass


class Queue:
    """Queue(maxsize=0, *, pin=False, fallback=True, timeout=1.0)

    The interface of multiprocessing.Queue.  What was put arrives equal; arrays and tensors arrive
    as views of shared memory, which lives until the last of them is gone.

    pin: a consumer registers arenas with the GPU, so tensors arrive pinned.
    fallback: an object for which no arena has room within `timeout` seconds goes through a file
    of its own (stats() counts them); without fallback put() raises and says who holds the memory.
    """

    _closed = True  # until there is a channel

    def __init__(self, maxsize=0, *, pin=False, fallback=True, timeout=ROOM_TIMEOUT):
        self._maxsize = max(operator.index(maxsize or 0), 0)
        if self._maxsize > _MAXSIZE_MAX:
            raise ValueError(
                "Queue(%d): maxsize is at most %d; Queue() has no limit" % (maxsize, _MAXSIZE_MAX)
            )
        self._pin = pin
        self._fallback = fallback
        self._timeout = timeout
        self._opid = os.getpid()
        self._older = {p.pid for p in process.active_children()}
        self._uid = "q%x.%x" % (os.getpid(), next(_serial))
        self._arena, self._tx = _control_channel(self._uid, self._maxsize or UNBOUNDED)
        self._init()

    def _init(self):
        self._gen = _sluice.fork_generation()
        self._rx = None
        self._sources = {}
        self._known = {}  # the messages that name them
        self._owed = []  # messages whose get() was interrupted
        self._unopened = []  # files that there was no descriptor for
        self._how = self._known, codec, _alive, Empty, self._owed
        self._stays = False
        self._backlog = collections.deque()
        self._late = []  # (batch, channel) that messages have announced already
        self._feeder = None
        self._lock = threading.Lock()
        self._counts = collections.Counter()
        self._adopted = {}
        self._handed_over = 0
        self._closed = False
        self._join = True

    def _enter(self):
        """Threads, locks and spilled files of a parent are not a child's."""
        if self._gen != _sluice.fork_generation():
            self._init()
        if self._closed:
            raise ValueError("Queue %r is closed" % self)

    def __getstate__(self):
        return (self._arena, self._uid, self._maxsize, self._pin, self._fallback, self._timeout,
                self._opid)

    def __setstate__(self, state):
        (self._arena, self._uid, self._maxsize, self._pin, self._fallback, self._timeout,
         self._opid) = state  # fmt: skip
        self._older = ()
        self._tx = None
        self._init()

    # ------------------------------------------------------------------ put

    def adopt(self, array):
        """Move a tensor or an array to shared memory: putting the result hands it over uncopied.

        As with torch's own sharing, every holder sees what is written to it later.
        """
        self._enter()
        st = store()
        plan = _sluice.encode(array, codec)
        got = st.begin(self._uid, plan.nbytes + 256, self._timeout, _alive)
        if got is None:
            raise MemoryError("no arena has room for %d bytes: %s" % (plan.nbytes, st.holders()))
        source, batch = got
        batch.write(plan)
        batch.seal()
        shared = batch.decode(codec, False)
        key = id(shared)
        ref = weakref.ref(shared, lambda _: self._adopted.pop(key, None))
        channel = st.channels[source[3], self._uid]
        descriptor = _sluice.encode(source, codec)
        note = self._note(descriptor)
        self._adopted[key] = ref, batch, channel, descriptor, note, _extent_of(shared)
        return shared

    def _note(self, descriptor):
        """The message that says where an adopted object is, written once; None without room."""
        if not self._maxsize or len(self._adopted) >= _NOTES_MAX:
            return None
        try:
            note = self._sender().begin(descriptor.nbytes, 1, 0)
        except TimeoutError:
            return None
        note.write(descriptor)
        note.set_tag(_STORED)
        note.seal()
        return note

    def _put_adopted(self, obj, block, timeout):
        """Whether obj is one that was adopted and still is what it was then."""
        entry = self._adopted.get(id(obj))
        if entry is None:
            return False
        ref, batch, channel, descriptor, note, extent = entry
        if ref() is not obj or extent != _extent_of(obj):
            return False
        self._handed_over += 1
        if note is None:
            self._send(descriptor, _STORED, (batch, channel), block, timeout)
            return True
        if not self._stays:
            self._stay_at_exit()
        try:
            self._tx.share_both(note, timeout if block else 0, _alive, batch, channel, self._late)
        except TimeoutError:
            raise Full from None
        finally:
            if self._late:
                self._feed_on()
        return True

    def put(self, obj, block=True, timeout=None):
        if self._closed or self._gen != _generation():
            self._enter()
        if self._adopted and self._put_adopted(obj, block, timeout):
            return
        st = store()
        ex = st.extent
        if ex is not None and ex.thread == threading.get_ident() and ex.used > 64:
            plan = _sluice.encode(obj, codec, ex.view.ptr, ex.used)
            if plan.placed and plan.nbytes <= ex.capacity:
                return self._put_extent(st, ex, plan, block, timeout)
            if plan.placed or ex.batch.pieces:
                # Too small for what else was built in it: the next one is larger.
                st.hint = (self._uid, max(st.hint[1], slack(plan.nbytes)))
                st.drop_extent()
            else:
                ex.used = 64
        plan = _sluice.encode(obj, codec)
        if plan.nbytes <= INLINE_MAX and not (self._pin and plan.payload):
            self._send(plan, _INLINE, None, block, timeout)
            return
        self._put_large(st, plan, block, timeout)
        if ex is not None and st.extent is ex:
            st.drop_extent()

    def put_nowait(self, obj):
        self.put(obj, False)

    def _put_extent(self, st, ex, plan, block, timeout):
        # Sealed and shared, not published: a collate function may keep what it built and send it
        # again, so the extent is free when its tensors are gone here and at the consumer's.
        st.extent = None
        ex.batch.write_plan(ex.view.ptr, plan)
        ex.batch.seal()
        self._counts["built in place"] += 1
        channel = st.channel_of(ex.source, self._uid)
        self._send_stored(ex.source, ex.batch, block, timeout, channel)

    def _put_large(self, st, plan, block, timeout):
        nbytes = plan.nbytes
        got = st.begin(self._uid, nbytes + 256, self._timeout, _alive, self._objects())
        if got is None:
            self._spill(st, plan, block, timeout)
            return
        source, batch = got
        batch.write(plan)
        hint = st.hint[1] if st.hint and st.hint[0] == self._uid else 0
        st.hint = (self._uid, max(hint, slack(nbytes)))
        self._send_stored(source, batch, block, timeout)

    def _objects(self):
        """As many as wait in the queue, one that is being written, one that is in use."""
        return max(ARENA_OBJECTS, min(self._maxsize + 2, ARENA_OBJECTS_MAX))

    def _send_stored(self, source, batch, block, timeout, channel=None):
        # The descriptor first: a consumer that gets it waits for the batch, and if this process
        # ends in between, the end of its stream tells.
        self._counts["stored"] += 1
        self._send(_sluice.encode(source, codec), _STORED, (batch, channel), block, timeout)

    def _spill(self, st, plan, block, timeout):
        why = "no arena had room for %d bytes within %.1f s: %s" % (
            plan.nbytes,
            self._timeout,
            st.holders(),
        )
        if not self._fallback:
            raise MemoryError(why)
        util.debug("sluice: %s; sending it in a file of its own", why)
        ref = st.spill(self._uid, plan)
        self._counts["spilled: no room"] += 1
        self._send(_sluice.encode(ref, codec), _SPILLED, None, block, timeout)

    def _send(self, plan, tag, follows, block, timeout):
        """follows: (batch, None) to publish, (batch, channel) to share, or None."""
        if tag != _INLINE and not self._stays:
            self._stay_at_exit()
        if self._maxsize:
            try:
                self._send_now(plan, tag, follows, timeout if block else 0)
            except TimeoutError:
                if follows is not None and follows[1] is None:
                    follows[0].release()
                raise Full from None
            return
        # Without a limit put() never waits: what the channel has no room for, a thread sends.
        if not self._backlog:
            try:
                return self._send_now(plan, tag, follows, 0)
            except TimeoutError:
                pass
        plan.settle()
        self._backlog.append((plan, tag, follows))
        self._feed_on()

    def _sender(self):
        if self._tx is None:
            self._tx = self._arena._channel(self._uid, create=False, flags=_TX)
        return self._tx

    def _send_now(self, plan, tag, follows, timeout):
        tx = self._sender()
        if follows is None:
            tx.put(plan, tag, timeout, _alive)
            return
        try:
            tx.announce(plan, tag, timeout, _alive, *follows, self._late)
        finally:
            if self._late:
                self._feed_on()

    def _feed_on(self):
        with self._lock:
            if self._feeder is not None:
                return
            feeder = threading.Thread(target=self._feed, name="sluice-feeder", daemon=True)
            feeder.start()
            self._feeder = feeder
        self._stay_at_exit()

    def _feed(self):
        try:
            while True:
                with self._lock:
                    if not self._backlog and not self._late:
                        self._feeder = None
                        return
                if self._late:
                    self._follow(*self._late[0])
                    del self._late[0]
                else:
                    self._send_now(*self._backlog[0], None)
                    self._backlog.popleft()
        except (ParentDied, ValueError, OSError) as e:
            util.debug("sluice: the feeder of %r ends: %s", self, e)
        finally:
            # What is left waits for the next put(), which may have started another one already.
            with self._lock:
                if self._feeder is threading.current_thread():
                    self._feeder = None

    def _follow(self, batch, channel):
        """Interrupted when its message was out: a consumer may be waiting for it."""
        while True:
            try:
                if channel is None:
                    batch.publish(None, _alive)
                else:
                    channel.share(batch, None, _alive)
                return
            except OSError as e:
                if e.errno != errno.ENOSPC:  # so many references at a time
                    raise
            _alive()
            time.sleep(0.001)

    # ------------------------------------------------------------------ get

    def _open_rx(self):
        self._rx = self._arena._channel(self._uid, create=False, flags=CONSUME)

    def get(self, block=True, timeout=None):
        if self._closed or self._gen != _generation():
            self._enter()
        if self._rx is None:
            self._open_rx()
        if not block:
            timeout = 0
        if self._unopened:
            return self._take_spilled(self._unopened.pop(0))
        if self._pin:
            return self._get_pinned(timeout)
        return self._rx.take(timeout, self._how, self)

    def get_nowait(self):
        return self.get(False)

    def _get_pinned(self, timeout):
        # Extents are given back when the GPU has read them, which nobody reports: look.
        deadline = None if timeout is None else time.monotonic() + timeout
        while _gpu.drain():
            left = 0.001 if deadline is None else min(0.001, deadline - time.monotonic())
            try:
                return self._rx.take(left, self._how, self)
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        return self._rx.take(left, self._how, self)

    def _source(self, message, value):
        """The channel that a message names which C has not seen the like of before."""
        pid, fd, data_fd, arena_id = value
        ch = self._sources.get(arena_id)
        if ch is None:
            try:
                ch = self._attach(pid, fd, data_fd, arena_id)
            except OSError as e:
                if e.errno in _SHORT:
                    self._owed.append(message)
                raise
        self._known[message] = ch
        return ch

    def _no_more(self, message, value):
        """The stream ended before the object that a message means."""
        pid, _, _, arena_id = value
        self._known.pop(message, None)
        ch = self._sources.pop(arena_id, None)
        try:
            if ch is None:  # another thread was told first
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            return ch.next(0).decode(codec, False)
        except OSError as e:
            raise OSError(
                e.errno, "process %d died while it sent an object: %s" % (pid, e.strerror)
            ) from e

    def _attach(self, pid, fd, data_fd, arena_id):
        self._reap_sources()
        ds = _Descriptors.__new__(_Descriptors)
        ds.pid, ds.fd, ds.data_fd = pid, fd, data_fd
        try:
            arena = attach_by_id(arena_id, ds.open)
        except OSError as e:
            raise OSError(
                e.errno, "cannot attach the arena of process %d: %s" % (pid, explain(e))
            ) from e
        if self._pin:
            _gpu.pin(arena)
        ch = arena._channel(self._uid, create=False, flags=CONSUME)
        self._sources[arena_id] = ch
        return ch

    def _reap_sources(self):
        """Let go of arenas whose producer is gone and whose batches are all taken."""
        for arena_id, ch in list(self._sources.items()):
            t = ch.totals()
            if not t["producers"] and not t["queued"]:
                ch.close()
                del self._sources[arena_id]
                for m in [m for m, c in self._known.items() if c is ch]:
                    del self._known[m]

    def _take_spilled(self, value):
        pid, fd, nbytes = value
        try:
            mine = _sluice.fd_of(pid, fd)
        except OSError as e:
            if e.errno in _SHORT:
                self._unopened.append(value)
            why = "cannot open the file of an object of process %d: %s" % (pid, explain(e))
            raise OSError(e.errno, why) from e
        try:
            # Its producer must not be able to take away what is mapped here.
            fcntl.fcntl(mine, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            size = os.fstat(mine).st_size
            if not 0 < nbytes <= size:
                raise ValueError("an object of %d bytes in a file of %d" % (nbytes, size))
            obj = _sluice.decode_fd(mine, nbytes, codec)
            fcntl.fcntl(mine, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        finally:
            os.close(mine)
        return obj

    # ------------------------------------------------------------------ the rest of the interface

    def qsize(self):
        self._enter()
        ch = self._tx or self._rx
        if ch is None:
            self._open_rx()
            ch = self._rx
        return ch.totals()["queued"] + len(self._backlog) + len(self._owed) + len(self._unopened)

    def empty(self):
        return self.qsize() == 0

    def full(self):
        return bool(self._maxsize) and self.qsize() >= self._maxsize

    def stats(self):
        """Counters of the channel, and how objects went."""
        self._enter()
        if self._rx is None:
            self._open_rx()
        counts = dict(self._counts)
        if self._handed_over:
            counts["handed over"] = self._handed_over
        return {**self._rx.totals(), "objects": counts}

    def close(self):
        """This process neither puts nor gets any more."""
        if self._gen != _sluice.fork_generation():
            self._init()
        if self._closed:
            return
        self.join_thread()
        self._closed = True
        self._let_go()

    def _let_go(self):
        if self._rx is not None:
            self._rx.close()
        for ch in self._sources.values():
            ch.close()
        self._sources = {}
        self._known.clear()
        self._owed.clear()
        store().retire(self._uid)
        if self._tx is None:
            return
        if self._opid != os.getpid():
            self._tx.close()
        else:
            _retire(self._tx, self._older)

    def __del__(self):
        if not self._closed and self._gen == _sluice.fork_generation():
            self._let_go()

    def join_thread(self):
        """Wait until everything that was put is where a consumer can get it."""
        feeder = self._feeder
        if feeder is not None and self._join:
            feeder.join()

    def cancel_join_thread(self):
        self._join = False
        _staying.discard(self._uid)

    def _stay_at_exit(self):
        """Large objects stand in memory of this process: stay until a consumer has attached it.

        As with multiprocessing.Queue, the process that created the queue does not wait.
        """
        self._stays = True
        if not self._join or self._opid == os.getpid():
            return
        _staying.add(self._uid)
        _feeding.add(self)
        _arm_exit()

    def __repr__(self):
        return "<sluice.Queue %s maxsize=%d>" % (self._uid, self._maxsize)
