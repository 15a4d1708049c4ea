# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Arena, Channel, Batch, View."""
import ctypes
import errno
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import sluice
from sluice import _core


@pytest.fixture
def arena():
    with sluice.Arena("4M", label="test", flags=_core.POISON) as a:
        yield a


def free_bytes(arena):
    gc.collect()
    return arena.stats()["free_bytes"]


def test_sizes():
    assert _core.parse_bytes("64M") == 64 << 20
    assert _core.parse_bytes("1.5GiB") == 3 << 29
    assert _core.parse_bytes("4096") == 4096
    with pytest.raises(ValueError, match="lots"):
        _core.parse_bytes("lots")


def test_too_large_is_refused_at_create():
    for size in (1 << 50, 1 << 62, 2**64 - 1):
        with pytest.raises(OSError) as e:
            sluice.Arena(size)
        assert e.value.errno in (errno.ENOMEM, errno.EINVAL)
        assert str(size) in str(e.value)


def test_sizes_of_too_many_bits_are_refused(arena):
    for wrong in (-1, 2**32, 2**32 + 4096, 2**64):
        with pytest.raises(OverflowError):
            arena.channel("c", wrong)
        with pytest.raises(OverflowError):
            sluice.Arena(1 << 20, block_bytes=wrong)
    for wrong in (-1, 2**64, 2**64 + (1 << 20)):
        with pytest.raises(OverflowError):
            sluice.Arena(wrong)


def test_names_that_are_no_utf8():
    """A thread that is called so, a label that another program chose or that was cut."""
    script = """if True:
        import ctypes, sluice
        assert not ctypes.CDLL(None).prctl(15, b"w\\xc3\\xa4\\xff", 0, 0, 0)  # PR_SET_NAME
        arena = sluice.Arena(1 << 20)
        print(ascii(arena.peers()[0]["comm"]))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == r"'w\xe4\ufffd'", done.stderr


def test_publish_and_next(arena):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with arena.channel("c", 4) as ch:
        ch.publish({"x": x, "y": np.arange(3)}, tag=9, meta=b"hello")
        with ch.next(1) as b:
            assert b.keys() == ["x", "y"] and len(b) == 2 and b.tag == 9
            assert b["x"].shape == (3, 4) and b["x"].dtype == (2, 32)
            assert (np.asarray(b["x"]) == x).all() and b.blob("meta") == b"hello"
            with pytest.raises(KeyError, match="z"):
                b["z"]
            with pytest.raises(KeyError, match="nope"):
                b.blob("nope")


def test_use_after_release(arena):
    with arena.channel("c", 4) as ch:
        ch.publish({"x": np.arange(3)})
        b = ch.next(1)
        b.release()
        b.release()
        with pytest.raises(ValueError, match="released"):
            b["x"]
        with pytest.raises(ValueError, match="released"):
            b.info()
    ch.close()
    with pytest.raises(ValueError, match="closed"):
        ch.next(0)
    arena.close()
    arena.close()
    with pytest.raises(ValueError, match="closed"):
        arena.stats()


def test_timeout_and_end(arena):
    with arena.channel("c", 1, consume=False) as tx:
        rx = arena.channel("c", create=False, produce=False)
        t = time.monotonic()
        with pytest.raises(TimeoutError):
            rx.next(0.05)
        assert time.monotonic() - t >= 0.05
        tx.publish({"x": np.arange(3)})
        with pytest.raises(TimeoutError):
            tx.publish({"x": np.arange(3)}, timeout=0.01)
        tx.close()
        assert len(list(rx)) == 1
        with pytest.raises(EOFError):
            rx.next(1)


def test_give_up_writing(arena):
    before = free_bytes(arena)
    with arena.channel("c", 1) as ch:
        with ch.begin(1 << 20) as b:
            b.add("x", (2, 32), (10,))
            assert b.state == "writing" and free_bytes(arena) < before
        assert b.state == "released" and free_bytes(arena) == before
        with pytest.raises(ValueError, match="not being written"):
            b.add("x", (2, 32), (10,))


def test_does_not_fit(arena):
    with arena.channel("c", 1) as ch:
        with pytest.raises(OSError) as e:
            ch.begin(1 << 40)
        assert e.value.errno == errno.E2BIG
        with ch.begin(100) as b, pytest.raises(OSError) as e:
            b.add("x", (2, 32), (1 << 20,))
        assert e.value.errno == errno.ENOSPC


def test_view_keeps_extent(arena):
    before = free_bytes(arena)
    with arena.channel("c", 1) as ch:
        ch.publish({"x": np.arange(1000)})
        a = np.asarray(ch.next(1)["x"])  # batch and view are gone already
        gc.collect()
        assert (a == np.arange(1000)).all()
        part = a[10:20]
        del a
        assert free_bytes(arena) < before and part[0] == 10
        del part
        assert free_bytes(arena) == before


def test_close_under_a_view():
    arena = sluice.Arena("1M")
    ch = arena.channel("c", 1)
    ch.publish({"x": np.arange(1000)})
    a = np.asarray(ch.next(1)["x"])
    ch.close()
    arena.close()
    del arena, ch
    gc.collect()
    assert (a == np.arange(1000)).all()


def test_memoryview(arena):
    with arena.channel("c", 1) as ch:
        ch.publish({"x": np.arange(6, dtype=np.int16).reshape(2, 3)})
        m = memoryview(ch.next(1)["x"])
        assert m.format == "h" and m.shape == (2, 3) and m.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_order_that_a_buffer_is_asked_for(arena):
    """By those who ask for contiguous memory and then do not look at strides."""
    get, buf = ctypes.pythonapi.PyObject_GetBuffer, ctypes.create_string_buffer(256)
    simple, strides, c, f, anyhow = 0, 0x18, 0x38, 0x58, 0x98
    cases = (
        ((2, 3), None, {simple, strides, c, anyhow}),
        ((2, 3), (1, 2), {strides, f, anyhow}),
        ((2, 3), (6, 2), {strides}),
        ((6,), (1,), {simple, strides, c, f, anyhow}),
        ((3, 0), (9, 5), {simple, strides, c, f, anyhow}),
    )
    with arena.channel("c", 2) as ch, ch.begin(4096, len(cases)) as b:
        for k, (shape, step, given) in enumerate(cases):
            view = ctypes.py_object(b.add("x%d" % k, (1, 8), shape, step))
            for flags in (simple, strides, c, f, anyhow):
                try:
                    assert get(view, buf, flags) == 0
                    ctypes.pythonapi.PyBuffer_Release(buf)
                    assert flags in given, (shape, step, hex(flags))
                except BufferError:
                    assert flags not in given, (shape, step, hex(flags))


def test_dtype_without_buffer_format(arena):
    with arena.channel("c", 1) as ch, ch.begin(100) as b:
        with pytest.raises(BufferError, match="DLPack"):
            memoryview(b.add("x", (4, 16), (3,)))


def test_dlpack(arena):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    before = free_bytes(arena)
    with arena.channel("c", 2) as ch:
        ch.publish({"x": np.arange(5.0)})
        v = ch.next(1)["x"]
        assert v.__dlpack_device__() == (1, 0)
        old = v.__dlpack__()
        new = v.__dlpack__(max_version=(1, 0))
        assert '"dltensor"' in repr(old) and '"dltensor_versioned"' in repr(new)
        with pytest.raises(BufferError, match="pinned"):
            v.__dlpack__(dl_device=(3, 0))
        with pytest.raises(BufferError, match="copy"):
            v.__dlpack__(copy=True)
        del old, new  # capsules that nobody took free themselves
        t = torch.from_dlpack(v)
        del v
        assert t.tolist() == [0, 1, 2, 3, 4] and free_bytes(arena) < before
        del t
    assert free_bytes(arena) == before


def _child(arena, name):
    with arena.channel(name, create=False, consume=False) as ch:
        ch.publish({"pid": np.array([os.getpid()])})


def test_arena_in_child(ctx):
    with sluice.Arena("1M") as arena:
        rx = arena.channel("c", 2)
        p = ctx.Process(target=_child, args=(arena, "c"))
        p.start()
        assert np.asarray(rx.next(20)["pid"])[0] == p.pid
        p.join()
        assert p.exitcode == 0


def _holds(batch, arena, out):
    try:
        batch["x"]
        out.put("no error")
    except ValueError as e:
        out.put(str(e))


def test_parents_batch_in_forked_child():
    ctx = sluice.context("fork")
    with sluice.Arena("1M") as arena, arena.channel("c", 2) as ch:
        ch.publish({"x": np.arange(3)})
        b = ch.next(1)
        out = ctx.Queue()
        p = ctx.Process(target=_holds, args=(b, arena, out))
        p.start()
        assert "parent" in out.get(timeout=20)
        p.join()
        assert np.asarray(b["x"])[2] == 2


def test_ctrl_c_ends_a_wait(arena):
    with arena.channel("c", 1) as ch:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        t = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ch.next(20)
        assert time.monotonic() - t < 5


def test_wait_lets_other_threads_run(arena):
    with arena.channel("c", 1) as ch:
        t = threading.Thread(target=lambda: (time.sleep(0.1), ch2.publish({"x": np.arange(2)})))
        ch2 = arena.channel("c", create=False, consume=False)
        t.start()
        assert len(ch.next(20)) == 1
        t.join()
        ch2.close()


def _asleep(ch):
    while not ch._raw.totals()["sleeps"]:
        time.sleep(0.001)


def test_ctrl_c_where_a_socket_blocks(arena):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with a, b:
        a.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                a.send(bytes(4096))
        a.setblocking(True)
        for call in (lambda: arena.send(a.fileno()), lambda: sluice.Arena.recv(a.fileno())):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                call()


def test_dtype_of_too_many_bits(arena):
    with arena.channel("c", 2) as c, c.begin(64, 1) as b:
        for dtype in ((257, 8), (1, 264), (-1, 8)):
            with pytest.raises(ValueError, match="0 to 255"):
                b.add("x", dtype, (4,))


def test_batch_and_its_channel(arena):
    """What is being written keeps the endpoint, unless somebody closes it."""
    batch = arena.channel("c", 2).begin(8, 1)
    gc.collect()
    np.asarray(batch.add("x", (0, 64), (1,)))[0] = 7
    with arena.channel("c", create=False, produce=False) as c:
        batch.publish()
        assert np.asarray(c.next(1)["x"]) == 7
    before = free_bytes(arena)
    for finish in (lambda b: b.publish(), lambda b: b._raw.seal()):
        d = arena.channel("d", 2)
        batch = d.begin(1000, 1)
        d.close()
        with pytest.raises(ValueError, match="the channel is closed"):
            finish(batch)
        batch.release()
    del batch
    assert free_bytes(arena) == before


def test_publish_while_another_thread_waits_for_room(arena):
    """The endpoint sleeps in that thread, whose room comes with what is published."""
    with arena.channel("c", 1) as c, arena.channel("c", create=False, produce=False) as rx:
        first, second = c.begin(1 << 20, 1), c.begin(2 << 20, 1)
        got = []
        t = threading.Thread(target=lambda: got.append(c.begin(3 << 20, 1, 20)))
        t.start()
        _asleep(c)
        first.publish(timeout=1)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            second.publish(timeout=0.1)
        assert time.monotonic() - begun < 5
        rx.next(1).release()
        second.publish(timeout=5)
        rx.next(1).release()
        t.join()
        assert got[0].state == "writing"
        got[0].release()


def test_released_while_sharing_waits(arena):
    """What is shared was held when it was asked for: it goes, whoever lets go of it meanwhile."""
    with arena.channel("c", 1) as c, arena.channel("d", 2) as d:
        # The endpoint is another thread's.
        c.publish({"x": np.arange(9)})
        batch = c.next(1)
        taker = threading.Thread(target=d.next, args=(20,))
        taker.start()
        _asleep(d)
        sharer = threading.Thread(target=d._raw.share, args=(batch._raw,))
        sharer.start()
        time.sleep(0.05)
        batch.release()
        with arena.channel("d", create=False, consume=False) as d2:
            d2.publish({"x": np.arange(2)})
        taker.join()
        sharer.join()
        assert (np.asarray(d.next(1)["x"]) == np.arange(9)).all()

        # There is no room for the note that goes first.
        for n in (9, 1):
            d.publish({"x": np.arange(n)})
        batch, note = d.next(1), d.next(1)
        c.publish({"x": np.arange(2)})
        args = note._raw, None, None, batch._raw, d._raw, []
        sharer = threading.Thread(target=c._raw.share_both, args=args)
        sharer.start()
        _asleep(c)
        batch.release()
        with arena.channel("c", create=False, produce=False) as c2:
            for n in (2, 1):
                assert np.asarray(c2.next(20)["x"]).size == n
        sharer.join()
        assert (np.asarray(d.next(1)["x"]) == np.arange(9)).all()


def test_peer_killed_is_an_event():
    ctx = multiprocessing.get_context("fork")
    with sluice.Arena("1M") as arena, arena.channel("c", 2) as ch:

        def die():
            arena.channel("c", create=False).begin(1000)
            ch2 = arena.channel("c", create=False)
            ch2.publish({"x": np.arange(1)})
            os.kill(os.getpid(), signal.SIGKILL)

        p = ctx.Process(target=die)
        p.start()
        assert len(ch.next(20)) == 1
        ev = arena.event(20)
        p.join()
        assert ev["pid"] == p.pid
        gc.collect()
        assert arena.stats()["writing"] == 0


def test_shutdown_ends_the_stream_for_everybody(arena):
    with arena.channel("c", 4) as ch:
        rx = arena.channel("c", create=False, produce=False)
        ch.publish({"x": np.arange(3)})
        ch.shutdown()
        with pytest.raises(OSError):
            ch.publish({"x": np.arange(3)}, timeout=1)
        assert len(list(rx)) == 1
        rx.close()


def _over_socket(sock, consumer, out):
    with sluice.Arena.recv(sock.fileno(), consumer) as arena:
        with arena.channel("c", create=False, produce=False) as ch, ch.next(20) as b:
            view = b["x"]
            a = np.asarray(view)
            out.put((view.readonly, not a.flags.writeable, a.tolist()))
        if not consumer:
            with arena.channel("d", create=False, consume=False) as ch:
                ch.publish({"x": np.arange(2)})
        try:
            out.put(pickle.loads(pickle.dumps(arena)).id == arena.id)
        except Exception as e:
            out.put(repr(e))


@pytest.mark.parametrize("consumer", [False, True])
def test_sent_over_a_socket(consumer):
    """Also to a process that only reads, which never gets the right to write."""
    ctx = multiprocessing.get_context("fork")
    here, there = socket.socketpair()
    with sluice.Arena("1M") as arena, arena.channel("c", 2) as ch:
        back = arena.channel("d", 2)
        out = ctx.Queue()
        p = ctx.Process(target=_over_socket, args=(there, consumer, out))
        p.start()
        arena.send(here.fileno(), consumer)
        ch.publish({"x": np.arange(4)})
        assert out.get(timeout=20) == (consumer, consumer, [0, 1, 2, 3])
        if not consumer:
            assert np.asarray(back.next(20)["x"]).tolist() == [0, 1]
        assert out.get(timeout=20) is True
        p.join(20)
        assert p.exitcode == 0
        back.close()
    here.close()
    there.close()


def test_read_only_view_in_dlpack():
    """Which DLPack before 1.0 cannot say, so it is refused there."""
    ctx = multiprocessing.get_context("fork")
    here, there = socket.socketpair()
    out = ctx.Queue()

    def look():
        arena = sluice.Arena.recv(there.fileno(), True)
        view = arena.channel("c", create=False, produce=False).next(20)["x"]
        said = ["dltensor_versioned" in repr(view.__dlpack__(max_version=(1, 0)))]
        try:
            view.__dlpack__()
        except BufferError as e:
            said.append(str(e))
        out.put(said)

    with sluice.Arena("1M") as arena, arena.channel("c", 2) as ch:
        p = ctx.Process(target=look)
        p.start()
        arena.send(here.fileno(), True)
        ch.publish({"x": np.arange(4)})
        assert out.get(timeout=20) == [True, "DLPack before 1.0 cannot say read-only"]
        p.join(20)
    here.close()
    there.close()


def test_arena_that_is_closed_on_its_way():
    q = sluice.Queue(4)
    a = sluice.Arena("1M")
    q.put(a)
    number = a.fd()
    a.close()
    del a
    with pytest.raises(OSError, match="process %d closed the arena before it" % os.getpid()):
        q.get(timeout=5)
    a = sluice.Arena("1M")
    assert a.fd() == number
    q.put(a)
    a.close()
    other = sluice.Arena("1M")
    assert other.fd() == number and other.id != a.id
    with pytest.raises(OSError, match="process %d closed the arena before it" % os.getpid()):
        q.get(timeout=5)
    assert not other.closed and other.stats()["peers"] == 1
    q.close()
