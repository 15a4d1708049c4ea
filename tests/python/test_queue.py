# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""sluice.Queue in the place of multiprocessing.Queue."""
import collections
import errno
import gc
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from util import fds, maps

import sluice
from sluice import _queue, _sluice, _store
from sluice._codec import codec

BIG = 1 << 20


def test_order_and_sizes():
    q = sluice.Queue()
    objs = [np.full(n, i) for i, n in enumerate((1, BIG // 8, 2, BIG // 4))]
    for o in objs:
        q.put(o)
    assert q.qsize() == 4 and not q.empty() and not q.full()
    for o in objs:
        assert (q.get(timeout=5) == o).all()
    assert q.empty()
    q.close()


def test_full_and_empty():
    q = sluice.Queue(2)
    with pytest.raises(queue.Empty):
        q.get(False)
    with pytest.raises(queue.Empty):
        q.get(timeout=0.02)
    q.put(1)
    q.put(np.zeros(BIG))
    assert q.full()
    for timeout in (0.02, None):
        for obj in (3, np.zeros(BIG)):
            with pytest.raises(queue.Full):
                q.put(obj, timeout is not None, timeout)
    assert q.get() == 1
    assert q.get().nbytes == 8 * BIG
    q.put(4)
    assert q.get_nowait() == 4
    q.close()
    with pytest.raises(ValueError, match="closed"):
        q.put(1)


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_empty_while_another_thread_waits(timeout):
    q = sluice.Queue()
    got = []
    t = threading.Thread(target=lambda: got.append(q.get()))
    assert not q.stats()["sleeps"]
    t.start()
    while not q.stats()["sleeps"]:
        time.sleep(0.001)
    with pytest.raises(queue.Empty):
        q.get(timeout=timeout)
    q.put(7)
    t.join()
    assert got == [7]
    q.close()


def test_failed_put_leaves_nothing(monkeypatch):
    monkeypatch.setattr(_store, "_store", None)  # the arenas of this test alone
    q = sluice.Queue(1)
    q.put(np.zeros(BIG))
    for _ in range(3):
        with pytest.raises(queue.Full):
            q.put(np.zeros(BIG), False)
    a = q.get()
    del a
    gc.collect()
    for arena in _store.store().arenas:
        assert arena.stats()["reserved_bytes"] == 0
    q.close()


def test_unbounded_put_never_waits():
    q = sluice.Queue()
    n = 5000
    for i in range(n):
        q.put(i)
    assert q.qsize() == n
    assert [q.get(timeout=10) for _ in range(n)] == list(range(n))
    q.close()


def test_what_waits_in_the_backlog_is_what_was_put():
    torch = pytest.importorskip("torch")
    q = sluice.Queue()
    n = 2500
    put = [torch.full((1000,), float(i)) for i in range(n)]
    arrays = [np.full(10, i) for i in range(n)]
    for t, a in zip(put, arrays):
        q.put((t, a))
    for t, a in zip(put, arrays):
        t.fill_(-1.0)
        t.resize_(1 << 16)
        t.set_()
        a[:] = -1
    for i in range(n):
        t, a = q.get(timeout=10)
        assert (t == float(i)).all() and (a == i).all()
    q.close()


def _echo(a, b):
    while True:
        x = a.get()
        b.put(x)
        if x is None:
            return


def test_processes(ctx):
    a, b = ctx.Queue(), ctx.Queue(3)
    p = ctx.Process(target=_echo, args=(a, b))
    p.start()
    objs = [0, "x" * 5000, np.arange(BIG), {"k": [np.ones(5), b"y" * BIG]}, None]
    t = threading.Thread(target=lambda: [a.put(o) for o in objs])
    t.start()
    got = [b.get(timeout=30) for _ in objs]
    t.join()
    p.join(20)
    assert p.exitcode == 0
    assert got[0] == 0 and got[1] == "x" * 5000 and (got[2] == objs[2]).all()
    assert got[3]["k"][1] == objs[3]["k"][1] and got[4] is None


def _put_and_leave(q, n):
    for i in range(n):
        q.put(np.full(BIG, i))


def test_producer_may_exit_before_get(ctx):
    """As with multiprocessing.Queue: exit waits until what was put can be got."""
    q = ctx.Queue()
    p = ctx.Process(target=_put_and_leave, args=(q, 3))
    p.start()
    time.sleep(0.5)
    for i in range(3):
        a = q.get(timeout=30)
        assert a[0] == a[-1] == i
    p.join(20)
    assert p.exitcode == 0
    assert a[0] == 2, "memory of a producer that is gone stays"


def _cancelled(q):
    q.put(np.zeros(BIG))
    q.cancel_join_thread()


def test_cancel_join_thread():
    ctx = sluice.context("fork")
    q = ctx.Queue()
    p = ctx.Process(target=_cancelled, args=(q,))
    p.start()
    p.join(20)
    assert p.exitcode == 0


def _consume(q, out, n):
    for _ in range(n):
        out.put(q.get()[0])


def test_many_producers_and_consumers():
    ctx = sluice.context("fork")
    q, out = ctx.Queue(4), ctx.Queue()
    n, workers = 40, 3
    ps = [ctx.Process(target=_put_and_leave, args=(q, n)) for _ in range(workers)]
    cs = [ctx.Process(target=_consume, args=(q, out, n)) for _ in range(workers)]
    for p in ps + cs:
        p.start()
    got = sorted(int(out.get(timeout=60)) for _ in range(n * workers))
    assert got == sorted(list(range(n)) * workers)
    for p in ps + cs:
        p.join(20)
        assert p.exitcode == 0


def _between(name, a, b):
    if name == "first":
        b.put(os.getpid())
    else:
        a.put(b.get(timeout=20))


def test_children_only(ctx):
    """A queue that its creator drops at once still connects its children."""
    a, b = ctx.Queue(), ctx.Queue()
    p1 = ctx.Process(target=_between, args=("first", a, b))
    p2 = ctx.Process(target=_between, args=("second", a, b))
    p1.start()
    p2.start()
    del b
    assert a.get(timeout=30) == p1.pid
    p1.join()
    p2.join()


def test_spill(monkeypatch):
    """Without room in any arena an object goes through a file of its own, or put() raises."""
    monkeypatch.setattr(_store.Store, "begin", lambda *a, **k: None)
    before = fds()
    q = sluice.Queue()
    q.put(np.arange(BIG))
    a = q.get(timeout=5)
    assert (a == np.arange(BIG)).all()
    assert q.stats()["objects"]["spilled: no room"] == 1
    _store.store().reap_spills()
    q.close()
    assert fds() <= before + 4
    q = sluice.Queue(fallback=False)
    with pytest.raises(MemoryError, match="no arena had room for"):
        q.put(np.arange(BIG))
    q.close()


def test_holders_are_named(monkeypatch):
    budget = iter([80 << 20])
    monkeypatch.setattr(_store, "memory_available", lambda: next(budget, 0))
    monkeypatch.setattr(_store, "_store", None)
    q = sluice.Queue(fallback=False, timeout=0.1)
    kept = []
    with pytest.raises(MemoryError, match=r"pid %d .* holds \d+ bytes" % os.getpid()):
        for _ in range(20):
            q.put(np.zeros(BIG))
            kept.append(q.get(timeout=5))
    q.close()


def test_large_object_without_proc(monkeypatch):
    monkeypatch.setattr(_sluice, "memory_free", lambda: 2**64 - 1)
    monkeypatch.setattr(_store, "_store", None)
    q = sluice.Queue()
    q.put(np.ones(BIG))
    assert q.get(timeout=5).sum() == BIG and q.stats()["objects"] == {"stored": 1}
    q.close()


def test_small_control_group(monkeypatch):
    """Where 18 objects are too much for the memory there is, an arena for fewer is made."""
    monkeypatch.setattr(_sluice, "memory_free", lambda: 140 << 20)
    monkeypatch.setattr(_store, "_store", None)
    q = sluice.Queue(16)
    for _ in range(3):
        q.put(np.ones(BIG))
        assert q.get(timeout=5).sum() == BIG
    assert q.stats()["objects"] == {"stored": 3}
    q.close()


def test_why_there_is_no_arena(monkeypatch):
    monkeypatch.setattr(_sluice, "memory_free", lambda: 1 << 20)
    monkeypatch.setattr(_store, "_store", None)
    q = sluice.Queue(4, fallback=False)
    with pytest.raises(MemoryError, match=r"no further arena: \d+ bytes are more than 1/4 of the"):
        q.put(np.ones(BIG))
    q.close()
    budget = iter([80 << 20])
    monkeypatch.setattr(_sluice, "memory_free", lambda: next(budget, 0))
    q = sluice.Queue(4, fallback=False, timeout=0.05)
    with pytest.raises(MemoryError, match="waiting in queues: 1 objects; no further arena: "):
        for _ in range(3):
            q.put(np.ones(BIG))
    q.close()
    monkeypatch.setattr(_sluice, "memory_free", lambda: 1 << 20)
    monkeypatch.setattr(_store, "_store", None)
    q = sluice.Queue(4)
    with pytest.raises(MemoryError, match=r"\d+ bytes: no arena had room, and 1048576"):
        q.put(np.ones(BIG))
    q.put("small")
    assert q.get(timeout=5) == "small"
    q.close()


@pytest.mark.parametrize("size", [0, 4096], ids=["taken away", "short"])
def test_spilled_file_that_is_too_small(size):
    """A producer that lies about its file costs the consumer this object, not its life."""
    q = sluice.Queue(4)
    fd = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    liar = _sluice.encode((os.getpid(), fd, 1 << 20), codec)
    q._send(liar, _queue._SPILLED, None, True, 1)
    with pytest.raises(ValueError, match="an object of 1048576 bytes in a file of %d" % size):
        q.get(timeout=5)
    os.close(fd)
    q.put(np.ones(3))
    assert q.get(timeout=5).sum() == 3
    q.close()


def test_spilled_file_waits_for_a_descriptor(monkeypatch):
    monkeypatch.setattr(_store.Store, "begin", lambda *a, **k: None)
    q = sluice.Queue(4)
    q.put(np.arange(BIG))
    q.put("next")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert q.stats()["queued"] == 2  # has opened what get() needs
    last = os.open("/dev/null", 0)
    os.close(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, limits[1]))
    try:
        with pytest.raises(OSError, match=r"RLIMIT_NOFILE of this process is %d" % last):
            q.get(timeout=5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert q.qsize() == 2
    assert q.get(timeout=5).sum() == np.arange(BIG).sum() and q.get(timeout=5) == "next"
    q.close()


def test_spilled_file_cannot_shrink(monkeypatch):
    monkeypatch.setattr(_store.Store, "begin", lambda *a, **k: None)
    q = sluice.Queue(4)
    q.put(np.ones(BIG))
    with pytest.raises(PermissionError):
        os.ftruncate(_store.store().spills[-1][1], 0)
    assert q.get(timeout=5).sum() == BIG
    q.close()


FEW = """
import resource, os, sys
import numpy as np
import sluice
last = os.open("/dev/null", 0)
os.close(last)
for few in range(0, 60, 2):
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + few, 4096))
    try:
        q = sluice.Queue(4)
        q.put(np.ones(100000))
        print("works:", q.get(timeout=5).sum())
        break
    except OSError as e:
        print(e)
"""


def test_too_few_descriptors():
    """Whichever call it is that gets none: the sentence has the limit."""
    run = subprocess.run([sys.executable, "-c", FEW], stdout=subprocess.PIPE, text=True, timeout=60)
    *said, last = run.stdout.splitlines()
    assert len(said) >= 3 and last == "works: 100000.0"
    for line in said:
        assert "Too many open files (RLIMIT_NOFILE of this process is " in line


@pytest.mark.parametrize("maxsize", [16385, 1 << 32])
def test_too_long(maxsize):
    with pytest.raises(ValueError, match="maxsize is at most 16384; Queue\\(\\) has no limit"):
        sluice.Queue(maxsize)
    assert sluice.Queue(16384)._maxsize == 16384


def test_arguments_are_looked_at():
    with pytest.raises(TypeError):
        sluice.Queue("8")
    with pytest.raises(TypeError, match="no argument 'pinn'"):
        sluice.context("fork", pinn=True)
    with pytest.raises(TypeError, match="1.5 is no size"):
        sluice.Arena(1.5)
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        sluice.share([1])["a"]


def test_no_room_for_semaphores(monkeypatch):
    def full(ctx):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sluice._context.Event", full)
    with pytest.raises(OSError, match="no semaphore in /dev/shm for an Event: No space left"):
        sluice.context("fork").Event()


def test_kept_batches_do_not_stall():
    q = sluice.Queue()
    kept = []
    for i in range(30):
        q.put(np.full(BIG, i, np.uint8))
        kept.append(q.get(timeout=5))
    assert [int(a[-1]) for a in kept] == list(range(30))
    q.close()


def test_pickled_outside_of_spawning():
    q = sluice.Queue()
    q2 = pickle.loads(pickle.dumps(q))
    q.put(3)
    assert q2.get(timeout=5) == 3
    q.close()
    q2.close()


def _die(q, n, attached):
    for i in range(n):
        q.put(np.full(BIG, i))
    os.read(attached, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_producer_killed():
    ctx = sluice.context("fork")
    q = ctx.Queue()
    attached, tell = os.pipe()
    p = ctx.Process(target=_die, args=(q, 2, attached))
    p.start()
    assert q.get(timeout=20)[0] == 0
    os.write(tell, b"x")
    p.join()
    os.close(attached)
    os.close(tell)
    assert q.get(timeout=20)[0] == 1, "what was published before a death is readable"
    with pytest.raises(queue.Empty):
        q.get(timeout=0.05)
    q.put(5)
    assert q.get(timeout=5) == 5
    q.close()


def test_consumer_killed():
    ctx = sluice.context("fork")
    a, b = ctx.Queue(), ctx.Queue()
    for _ in range(3):
        p = ctx.Process(target=_echo, args=(a, b))
        p.start()
        a.put(np.arange(BIG))
        assert b.get(timeout=20).nbytes == 8 * BIG
        p.kill()
        p.join()
        a.put(np.arange(BIG))  # nobody takes it; the next one does
        p = ctx.Process(target=_echo, args=(a, b))
        p.start()
        assert b.get(timeout=20).nbytes == 8 * BIG
        a.put(None)
        assert b.get(timeout=20) is None
        p.join(20)
        assert p.exitcode == 0


ORPHAN = r"""
import os, signal, sys, time
import numpy as np
import sluice

def work(q, r):
    os.write(1, b"%%d\n" %% os.getpid())
    while True:
        r.put(np.zeros(1 << 20))
        q.get()

if __name__ == "__main__":
    ctx = sluice.context("%s")
    q, r = ctx.Queue(1), ctx.Queue(1)
    ps = [ctx.Process(target=work, args=(q, r)) for _ in range(2)]
    for p in ps:
        p.start()
    r.get()
    r.get()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_main_killed(method, tmp_path):
    path = tmp_path / "orphan.py"
    path.write_text(ORPHAN % method)
    before = set(os.listdir("/dev/shm"))
    p = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, timeout=60)
    assert p.returncode == -signal.SIGKILL
    pids = [int(x) for x in p.stdout.split()]
    assert len(pids) == 2
    until = time.monotonic() + 10
    while any(os.path.exists("/proc/%d" % pid) for pid in pids):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.05)
    # multiprocessing's own semaphores, if any, are its tracker's business
    assert not {x for x in set(os.listdir("/dev/shm")) - before if "sluice" in x}


def test_nothing_left_open():
    ctx = sluice.context("fork")

    def once():
        a, b = ctx.Queue(), ctx.Queue()
        p = ctx.Process(target=_echo, args=(a, b))
        p.start()
        a.put(np.arange(BIG))
        x = b.get(timeout=20)
        a.put(None)
        assert b.get(timeout=20) is None
        p.join()
        del x
        a.close()
        b.close()

    for _ in range(3):
        once()
    gc.collect()
    before = fds(), maps()
    for _ in range(20):
        once()
    gc.collect()
    assert (fds(), maps()) == before


def test_closed_queues_leave_no_channels(monkeypatch):
    monkeypatch.setattr(_store, "_store", None)
    st = _store.store()
    for k in range(40):
        q = sluice.Queue()
        q.put(np.full(BIG >> 3, k))
        assert q.get(timeout=5)[0] == k
        if k % 2:
            q.close()
    del q
    gc.collect()
    assert len(st.arenas) == 1 and not st.channels


def test_copy_of_a_closed_queue_goes_on():
    q = sluice.Queue()
    copy = pickle.loads(pickle.dumps(q))
    q.put(np.full(BIG, 1))
    assert copy.get(timeout=5)[0] == 1
    copy.put(2)
    q.close()
    assert copy.get(timeout=5) == 2
    for k in (3, 4):
        copy.put(np.full(BIG, k))
        assert copy.get(timeout=5)[0] == k
    copy.close()


def _late_reader(q, go):
    go.get()
    assert [int(q.get(timeout=20)[-1]) for _ in range(3)] == [0, 1, 2]


def test_close_before_anybody_has_it():
    ctx = sluice.context("fork")
    q, go = ctx.Queue(), ctx.Queue()
    p = ctx.Process(target=_late_reader, args=(q, go))
    p.start()
    for k in range(3):
        q.put(np.full(BIG, k))
    q.close()
    for _ in range(3):  # whoever opens a channel next looks for those that may go
        r = sluice.Queue()
        r.put(np.zeros(BIG))
        r.get(timeout=5)
        r.close()
    go.put(1)
    p.join(30)
    assert p.exitcode == 0


def _until_asleep(q):
    while not q.stats()["sleeps"]:
        time.sleep(0.001)


def test_close_ends_the_waits_of_other_threads():
    q = sluice.Queue()
    said = []

    def wait():
        try:
            q.get()
        except ValueError as e:
            said.append(str(e))

    t = threading.Thread(target=wait, daemon=True)
    assert not q.stats()["sleeps"]
    t.start()
    _until_asleep(q)
    q.close()
    t.join(20)
    assert said == ["the channel is closed"]


@pytest.mark.parametrize(
    "use,error",
    [("get_nowait", (RuntimeError, "signal handler")), ("close", (ValueError, "is closed"))],
)
def test_signal_handler_uses_the_queue_that_it_interrupted(use, error):
    q = sluice.Queue()
    before = signal.signal(signal.SIGUSR2, lambda *_: getattr(q, use)())
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        with pytest.raises(error[0], match=error[1]):
            q.get(timeout=20)
    finally:
        signal.signal(signal.SIGUSR2, before)
        q.close()


def test_damaged_messages():
    q = sluice.Queue()
    for tag in (_queue._INLINE, _queue._STORED, _queue._SPILLED):
        batch = q._sender().begin(0, 1)
        batch.add("py", (1, 8), (0,))
        batch.set_tag(tag)
        batch.publish()
        with pytest.raises(ValueError, match="damaged object"):
            q.get(timeout=5)
    q.put(5)
    assert q.get(timeout=5) == 5
    q.close()


def test_ctrl_c_in_get():
    q = sluice.Queue()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        q.get(timeout=20)
    q.close()


def test_lagging_consumer_makes_nothing_grow():
    """One that lets go a little later than the producer needs it, as when the GPU copies."""
    array = np.ones(1 << 20)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(_store, "PATIENCE_MIN", 5.0)
        m.setattr(_store, "PATIENCE_MAX", 5.0)
        m.setattr(_store, "_store", None)
        q = sluice.Queue(16, timeout=5.0)
        kept = collections.deque()

        def lag():
            # As many as the arena has room for, and one more while the producer waits.
            time.sleep(0.2)
            kept.popleft()

        q.put(array)
        kept.append(q.get())
        arena = _store.store().arenas[0]
        while arena.usage()["largest_free_bytes"] > array.nbytes + (1 << 16):
            q.put(array)
            kept.append(q.get())
        for _ in range(4):
            t = threading.Thread(target=lag)
            t.start()
            q.put(array)
            kept.append(q.get())
            t.join()
        assert _store.store().arenas == [arena]
        kept.clear()
        q.close()


def _adopted(q, back):
    for _ in range(3):
        a = q.get()
        back.put((a.__array_interface__["data"][0], float(a[0]), float(a[-1])))
    a[1] = 77.0
    back.put("written")


def test_adopted_array_is_handed_over_uncopied():
    ctx = sluice.context("fork")
    q, back = ctx.Queue(), ctx.Queue()
    a = q.adopt(np.arange(float(BIG)))
    assert (a == np.arange(float(BIG))).all()
    p = ctx.Process(target=_adopted, args=(q, back))
    p.start()
    for k in range(3):
        a[0] = k
        q.put(a)
        address, first, last = back.get(timeout=30)
        assert (first, last) == (k, BIG - 1)
    assert back.get(timeout=30) == "written" and a[1] == 77.0, "both see what either writes"
    assert q.stats()["objects"]["handed over"] == 3
    # What is no longer what was adopted is copied.
    q.put(a[: BIG // 2])
    assert q.stats()["objects"]["handed over"] == 3
    p.join(20)
    assert p.exitcode == 0
    q.get(timeout=5)
    del a
    gc.collect()
    q.close()


def test_adopted_tensor():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q = sluice.Queue()
    t = q.adopt(torch.zeros(BIG))
    for k in range(3):
        t.fill_(k)
        q.put(t)
        got = q.get(timeout=5)
        assert got.data_ptr() == t.data_ptr() and float(got[5]) == k
    t.requires_grad_()
    q.put(t)
    got = q.get(timeout=5)
    assert got.requires_grad and got.data_ptr() != t.data_ptr()
    assert q.stats()["objects"]["handed over"] == 3
    del t, got
    gc.collect()
    assert sum(a.stats()["held"] for a in _store.store().arenas) == 0
    q.close()


def interrupted(call, *args):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        call(*args)


def _announced(q, obj):
    """A batch whose message is out, as of a producer that is just about to publish it."""
    plan = _sluice.encode(obj, codec)
    source, batch = _store.store().begin(q._uid, plan.nbytes + 256, 1)
    batch.write(plan)
    q._sender().put(_sluice.encode(source, codec), _queue._STORED)
    return batch


def test_interrupted_get_loses_nothing():
    """Between a message and its batch: or every later message would find another's batch."""
    q = sluice.Queue()
    for k in (1, 2):  # the second time the consumer knows the message
        batch = _announced(q, np.full(BIG, k))
        interrupted(q.get, True, 20)
        assert q.qsize() == 1
        batch.publish()
        q.put(np.full(BIG, 10 * k))
        assert [q.get(timeout=5)[-1] for _ in range(2)] == [k, 10 * k]
        assert q.empty()
    q.close()


def test_consumer_short_of_descriptors_loses_nothing(monkeypatch):
    q = sluice.Queue()
    for k in (1, 2):
        q.put(np.full(BIG, k))
    with monkeypatch.context() as m:
        m.setattr(_queue, "attach_by_id", _fail(OSError(errno.EMFILE, "too many open files")))
        with pytest.raises(OSError, match="too many open files"):
            q.get(timeout=5)
    assert [q.get(timeout=5)[-1] for _ in range(2)] == [1, 2]
    q.close()


def _fail(error):
    def fail(*args, **kw):
        raise error

    return fail


@pytest.mark.parametrize("adopt", [False, True])
def test_interrupted_put_is_delivered_late(adopt, monkeypatch):
    """What a message has announced has to follow, or every later one would mean another's batch."""
    monkeypatch.setattr(_store, "DATA_CAPACITY", 2)
    monkeypatch.setattr(_store, "_store", None)
    q = sluice.Queue(8)
    arrays = [np.full(BIG, k) for k in range(3)]
    if adopt:
        arrays = [q.adopt(a) for a in arrays]
    q.put(arrays[0])
    q.put(arrays[1])
    interrupted(q.put, arrays[2])
    got = [int(q.get(timeout=5)[-1]) for _ in range(2)]
    q.join_thread()
    q.put(np.full(BIG, 3))
    got += [int(q.get(timeout=5)[-1]) for _ in range(2)]
    assert got == [0, 1, 2, 3] and q.empty()
    q.close()


def test_feeder_that_failed_is_followed_by_another(monkeypatch):
    q = sluice.Queue()
    n = _queue.UNBOUNDED + 1
    with monkeypatch.context() as m:
        for k in range(n - 1):
            q.put(k)
        m.setattr(q, "_send_now", _fail(OSError(errno.EIO, "for once")))
        q._backlog.append((_sluice.encode(n - 1, codec), _queue._INLINE, None))
        q.put(n)
        q.join_thread()
    q.put(n + 1)
    assert [q.get(timeout=10) for _ in range(n + 2)] == list(range(n + 2))
    q.close()
