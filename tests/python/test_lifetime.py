# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""An extent is not reused while any storage over it lives, whatever became of the tensor."""
import collections
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import sluice
from sluice import _core, _gpu, _store

torch = pytest.importorskip("torch", reason="torch is not installed")

N = 1 << 18


def _autograd(t):
    w = torch.ones(N, requires_grad=True)
    return (w * t).sum()  # saves t for the backward pass


KEEP = {
    "itself": lambda t: t,
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "parameter": lambda t: torch.nn.Parameter(t),
    "numpy": lambda t: t.numpy(),
    "slice": lambda t: t[5:],
    "view": lambda t: t.view(2, -1),
    "untyped storage": lambda t: t.storage(),
    "dlpack": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "memoryview": lambda t: memoryview(t.numpy()),
    "autograd": _autograd,
}


def check(kept):
    if isinstance(kept, torch.Tensor) and kept.grad_fn is not None:
        w = torch.ones(N, requires_grad=True)
        del w
        (leaf,) = {f[0].variable for f in kept.grad_fn.next_functions[0][0].next_functions if f[0]}
        kept.backward()
        return float(leaf.grad.sum()) == N
    if isinstance(kept, memoryview):
        kept = np.asarray(kept)
    if isinstance(kept, torch.Tensor):
        kept = kept.detach().numpy()
    if not isinstance(kept, np.ndarray):
        kept = np.array([kept[i] for i in range(100)])  # a bare storage
    return bool((np.asarray(kept[:]).reshape(-1)[:100] == 1).all())


@pytest.fixture
def poisoned(monkeypatch):
    monkeypatch.setattr(_store, "FLAGS", _core.POISON)
    monkeypatch.setattr(_store, "_store", None)
    return _store.store()


@pytest.mark.parametrize("how", KEEP)
def test_no_reuse_under_a_live_view(how, poisoned):
    q = sluice.Queue()
    q.put(torch.ones(N))
    kept = KEEP[how](q.get(timeout=5))
    gc.collect()
    for _ in range(20):
        q.put(torch.full((N,), 7.0))
        assert q.get(timeout=5)[0] == 7
    assert check(kept)
    del kept
    gc.collect()
    assert sum(a.stats()["held"] for a in poisoned.arenas) == 0
    q.close()


def test_poison_shows_what_is_free(poisoned):
    q = sluice.Queue()
    q.put(torch.ones(N))
    t = q.get(timeout=5)
    address = t.data_ptr()
    del t
    gc.collect()
    from sluice import _sluice

    assert bytes(memoryview(_sluice.view_at(address + 4096, 16))) == b"\xdb" * 16
    q.close()


def test_poison_is_asked_for_by_the_environment():
    ask = "from sluice import _core, _store; print(_store.FLAGS == _core.POISON)"
    for value, answer in (("1", "True"), ("", "False")):
        run = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "SLUICE_POISON": value}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert run.stdout.strip() == answer


def test_tensor_outlives_queue_and_arena(poisoned):
    q = sluice.Queue()
    q.put(torch.ones(N))
    t = q.get(timeout=5)
    q.close()
    _store._store = None
    del q
    poisoned.arenas.clear()
    poisoned.channels.clear()
    gc.collect()
    assert bool((t == 1).all())


def test_two_threads_look_what_the_gpu_is_done_with(monkeypatch):
    """One that saw an event pass must not free what stands behind it."""

    class Event:
        def __init__(self, passed):
            self.passed = passed

        def query(self):
            time.sleep(0.05)
            return self.passed

    class Retired:
        def __init__(self, passed):
            self.passed = passed

        def free(self):
            freed.append(self.passed)

    freed = []
    entries = [([Event(p)], Retired(p)) for p in (True, False)]
    monkeypatch.setattr(_gpu, "_pending", collections.deque(entries))
    threads = [threading.Thread(target=_gpu.drain) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert freed == [True] and _gpu.drain() == 1
