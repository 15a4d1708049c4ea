# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Pinned batches, releases that wait for the GPU, CudaFeed and Egress: on a host with a GPU."""
import gc
import os
import time

import pytest
from test_loader import Iter, Map, stacked
from util import same

import sluice
from sluice import _gpu

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

import sluice.torch  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch finds no GPU on this machine"
)

N = 1 << 20
# Clock cycles for which a stream is kept busy: 10 ms and more on every GPU there is.
BUSY = 25_000_000


@pytest.fixture(autouse=True)
def nothing_waits_afterwards(monkeypatch):
    monkeypatch.setattr(_gpu, "_streams", {})
    yield
    gc.collect()
    _gpu.drain_all()


def _tensors(obj):
    found = []
    sluice.torch._cuda._map(obj, found.append)
    return found


def in_arena(t):
    """Whether its memory is a mapping of an arena, not a pinned copy."""
    with open("/proc/self/maps") as f:
        for line in f:
            first, last = (int(x, 16) for x in line.split(None, 1)[0].split("-"))
            if first <= t.data_ptr() < last:
                return "sluice" in line
    return False


def _fill(q, n):
    """More than fits into the one arena that it may have: extents are used again and again."""
    from sluice import _store

    torch.set_num_threads(1)  # those of the parent are not here, as in torch's own workers
    budget = iter([1 << 30])
    _store.memory_available = lambda: next(budget, 0)
    for i in range(n):
        q.put(torch.full((N,), float(i)))


@pytest.mark.parametrize("side", [False, True], ids=["current stream", "side stream"])
def test_release_waits_for_copies(side):
    ctx = sluice.context("fork", pin=True, timeout=60, fallback=False)
    q = ctx.Queue()
    n = 40
    p = ctx.Process(target=_fill, args=(q, n))
    p.start()
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    places, seen = set(), []
    for _ in range(n):
        t = q.get(timeout=60)
        assert t.is_pinned() and in_arena(t)
        places.add(t.data_ptr())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY)
            dev = t.to("cuda", non_blocking=True)
            seen.append(torch.stack([dev.min(), dev.max()]))
        if side:
            sluice.torch.record_stream(t, stream)
        del t, dev
    torch.cuda.synchronize()
    p.join(30)
    assert len(places) < n, "no extent was used twice, so nothing was tested"
    assert [s.tolist() for s in seen] == [[i, i] for i in range(n)]
    q.close()


def test_record_stream_is_what_holds_an_extent():
    q = sluice.Queue(pin=True)
    side = torch.cuda.Stream()
    for recorded in (False, True):
        q.put(torch.ones(N))
        t = q.get(timeout=10)
        if recorded:
            sluice.torch.record_stream(t, side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(20 * BUSY)
            dev = t.to("cuda", non_blocking=True)
        del t
        gc.collect()
        torch.cuda.current_stream().synchronize()
        waiting, until = _gpu.drain(), time.monotonic() + 0.05
        while waiting and time.monotonic() < until:
            waiting = _gpu.drain()
        assert not side.query(), "the side stream was done too early for this test"
        assert waiting == (1 if recorded else 0)
        side.synchronize()
        assert _gpu.drain() == 0
    assert float(dev.sum()) == N
    q.close()


LOADERS = {
    "class": lambda ds, **kw: sluice.torch.DataLoader(
        ds, multiprocessing_context="fork", pin_memory=True, **kw
    ),
    "context": lambda ds, **kw: DataLoader(
        ds, multiprocessing_context=sluice.context("fork", pin=True), pin_memory=True, **kw
    ),
}


@pytest.mark.parametrize("form", LOADERS)
@pytest.mark.parametrize("ds,collate", [(Map, None), (Map, stacked), (Iter, None)])
def test_pinned_batches(form, ds, collate):
    kw = {"batch_size": 4, "num_workers": 2, "collate_fn": collate}
    want = list(DataLoader(ds(), **kw))
    for _ in range(2):
        got = list(LOADERS[form](ds(), **kw))
        assert len(got) == len(want) and all(map(same, want, got))
        for t in [t for batch in got for t in _tensors(batch)]:
            assert t.is_pinned() and in_arena(t) and t.pin_memory().data_ptr() == t.data_ptr()


def test_no_pin_thread():
    it = iter(sluice.torch.DataLoader(Map(), 4, num_workers=1, pin_memory=True))
    assert not hasattr(it, "_pin_memory_thread")
    list(it)


def test_export_as_pinned_memory():
    with sluice.Arena("1M") as arena, arena.channel("c", 1) as ch:
        ch.publish({"x": torch.arange(5)})
        view = ch.next(1)["x"]
        with pytest.raises(BufferError, match="not pinned"):
            view.__dlpack__(dl_device=(3, 0))
        _gpu.pin(arena)
        assert arena.pinned and "dltensor" in repr(view.__dlpack__(dl_device=(3, 0)))
        assert view.__dlpack_device__() == (1, 0)
        del view


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_feed(depth):
    want = list(DataLoader(Map(), 4))
    loader = sluice.torch.DataLoader(Map(), 4, num_workers=2, pin_memory=True)
    feed = sluice.torch.CudaFeed(loader, "cuda", depth)
    assert len(feed) == len(want)
    for _ in range(3):
        got = []
        for batch in feed:
            assert all(t.is_cuda for t in _tensors(batch))
            torch.cuda._sleep(BUSY // 5)
            got.append(sluice.torch._cuda._map(batch, lambda t: t.cpu()))
        assert len(got) == len(want) and all(map(same, want, got))


def test_feed_left_early():
    loader = sluice.torch.DataLoader(Map(), 2, num_workers=2, pin_memory=True)
    for _ in range(3):
        for batch in sluice.torch.CudaFeed(loader, "cuda"):
            break
    assert batch["s"].image.is_cuda


def _check(tensors, tag):
    if tag == "bad":
        raise ValueError("cannot digest %s in %d" % (tag, os.getpid()))
    assert not torch.cuda.is_initialized()
    assert bool((tensors["x"] == tag).all()) and tensors["x"].dtype == torch.bfloat16
    assert bool((tensors["more"][0] == 3 * tag).all())


def _result(i):
    torch.cuda._sleep(BUSY // 5)
    x = torch.full((1000, 100), float(i), device="cuda", dtype=torch.bfloat16)
    # a view that is not contiguous, and one tensor that is on the CPU already
    more = [torch.full((64, 32), 3 * i, device="cuda").t(), torch.ones(3)]
    return {"x": x, "more": more}


def test_egress_of_device_tensors():
    with sluice.torch.Egress(_check, workers=2) as egress:
        for i in range(24):
            egress.submit(_result(i), i)
        egress.flush()
        with pytest.raises(ValueError, match="cannot digest bad") as e:
            egress.submit(_result(0), "bad")
            egress.flush()
        assert "_check" in str(e.value.__cause__)
        egress.submit(_result(5), 5)
