# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The stock DataLoader's behaviour, from ours."""
import collections
import gc
import inspect
import itertools
import os
import random
import signal
import time

import pytest
from util import extents, fds, maps, rss, same

import sluice

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    get_worker_info,
)

import sluice.torch  # noqa: E402

Sample = collections.namedtuple("Sample", "image label name")
N = 22


def sample(i):
    return Sample(torch.full((3, 40, 40), float(i)), i, "name-%d" % i)


class Map(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        s = sample(i)
        return {"s": s, "np": s.image.numpy()[0].copy(), "f": i / 3}


class Iter(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (sample(i) for i in range(first, N, step))


def as_lists(samples):
    return [len(samples), [s for s in samples]]


def stacked(samples):
    return torch.stack([s["s"].image for s in samples]), ["x"] * len(samples)


FORMS = {
    "class": lambda ds, method, **kw: sluice.torch.DataLoader(
        ds, multiprocessing_context=method if kw.get("num_workers") else None, **kw
    ),
    "context": lambda ds, method, **kw: DataLoader(
        ds, multiprocessing_context=sluice.context(method) if kw.get("num_workers") else None, **kw
    ),
}


def both(form, ds, method="fork", epochs=2, **kw):
    stock = DataLoader(ds, multiprocessing_context=method if kw.get("num_workers") else None, **kw)
    ours = FORMS[form](ds, method, **kw)
    for _ in range(epochs):
        want = list(stock)
        got = list(ours)
        assert len(want) == len(got)
        for a, b in zip(want, got):
            assert same(a, b)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ds", [Map, Iter])
@pytest.mark.parametrize("workers", range(5))
def test_workers(form, ds, workers):
    both(form, ds(), num_workers=workers, batch_size=4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "persistent,drop_last,prefetch", itertools.product([False, True], [False, True], [1, 3])
)
def test_options(form, persistent, drop_last, prefetch):
    both(
        form,
        Map(),
        num_workers=2,
        batch_size=4,
        persistent_workers=persistent,
        drop_last=drop_last,
        prefetch_factor=prefetch,
        epochs=2,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("collate", [as_lists, stacked, lambda x: x[0]["s"].image])
def test_collate(form, collate):
    both(form, Map(), num_workers=2, batch_size=4, collate_fn=collate)


@pytest.mark.parametrize("form", FORMS)
def test_samplers(form):
    sampler = BatchSampler(SequentialSampler(Map()), 5, True)
    both(form, Map(), num_workers=2, batch_sampler=sampler)
    both(form, Map(), num_workers=2, batch_size=None)
    g = torch.Generator()
    for _ in range(2):
        g.manual_seed(7)
        stock = list(DataLoader(Map(), 4, True, num_workers=2, generator=g))
        g.manual_seed(7)
        kw = {"num_workers": 2, "shuffle": True, "generator": g, "batch_size": 4}
        assert all(map(same, stock, FORMS[form](Map(), "fork", **kw)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_method(form, method):
    both(form, Map(), method, num_workers=1, batch_size=8, epochs=1)


def test_signature_is_torchs():
    assert inspect.signature(sluice.torch.DataLoader) == inspect.signature(DataLoader)


def test_in_order():
    if "in_order" not in DataLoader.__init__.__code__.co_varnames:
        pytest.skip("this torch has no in_order")
    loader = sluice.torch.DataLoader(Map(), 4, num_workers=3, in_order=False)
    got = sorted(int(b["s"].label[0]) for b in loader)
    assert got == list(range(0, N, 4))


def _init(i):
    random.seed(i)
    Map.offset = 100 * i


class Info(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        w = get_worker_info()
        return w.id, w.num_workers, Map.offset


def test_worker_init_and_info():
    got = list(sluice.torch.DataLoader(Info(), 1, num_workers=2, worker_init_fn=_init))
    assert [[int(x) for x in b] for b in got] == [[0, 2, 0], [1, 2, 100]] * 2


class Fails(Map):
    def __getitem__(self, i):
        if i == 5:
            raise KeyError("no such image")
        return super().__getitem__(i)


@pytest.mark.parametrize("form", FORMS)
def test_worker_traceback(form):
    it = iter(FORMS[form](Fails(), "fork", num_workers=2, batch_size=4))
    next(it)
    with pytest.raises(KeyError, match="(?s)worker process 1.*__getitem__.*no such image"):
        next(it)
    assert same(next(it), list(DataLoader(Map(), 4))[2])


class Slow(Map):
    def __getitem__(self, i):
        time.sleep(0.05 if i < 8 else 30)
        return super().__getitem__(i)


def test_timeout():
    it = iter(sluice.torch.DataLoader(Slow(), 4, num_workers=1, timeout=1))
    next(it)
    next(it)
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(it)


def test_collated_in_place():
    """After the first batch a worker stacks straight into the extent."""
    loader = sluice.torch.DataLoader(Map(), 2, num_workers=1, collate_fn=_placed)
    assert [b[1] for b in loader][2:] == [True] * (N // 2 - 2)


def _placed(samples):
    out = sluice.torch.arena_collate([s["s"].image for s in samples])
    from sluice._store import store

    ex = store().extent
    return out, ex is not None and ex.view.ptr <= out.data_ptr() < ex.view.ptr + ex.capacity


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_killed(persistent):
    loader = sluice.torch.DataLoader(
        Slow(), 1, num_workers=2, persistent_workers=persistent, prefetch_factor=2
    )
    for _ in range(3):
        it = iter(loader)
        next(it)
        pid = it._workers[1].pid
        os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match=r"worker 1 \(pid %d\) was killed by.*SIGKILL" % pid):
            while True:
                next(it)
        # the machine may be busy; on a quiet one it is a quarter of a second
        assert time.monotonic() - begun < 5
        for w in it._workers:
            w.kill()
        del it


def test_worker_killed_at_random():
    """Killed wherever it is: an error or all batches, and the next iterator is whole."""
    want = list(DataLoader(Map(), 2))
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    loader = sluice.torch.DataLoader(Map(), 2, num_workers=2)
    before = extents()  # of workers that tests before this one killed, until somebody looks
    for _ in range(int(os.environ.get("SLUICE_KILLS", "100"))):
        it = iter(loader)
        victim = it._workers[rng.randrange(2)].pid
        when = rng.randrange(8)
        try:
            for k, batch in enumerate(it):
                if k == when:
                    os.kill(victim, signal.SIGKILL)
                assert same(batch, want[k]), "seed %d" % seed
        except RuntimeError as e:
            assert str(victim) in str(e), "seed %d" % seed
        except ProcessLookupError:
            pass
        batch = None
        del it
    assert all(map(same, want, loader))
    gc.collect()
    assert extents() <= before


def test_epochs_leave_nothing():
    loader = sluice.torch.DataLoader(Map(), 2, num_workers=2)
    for _ in range(5):
        for b in loader:
            pass
    del b
    gc.collect()
    before = fds(), maps(), extents()
    memory = rss()
    for _ in range(int(os.environ.get("SLUICE_EPOCHS", "100"))):
        for b in loader:
            assert extents() > 0
        del b
        gc.collect()
        assert (fds(), maps(), extents()) == before
        assert rss() - memory < 16 << 20


def test_data_parallel_epochs_with_kept_batches():
    loader = sluice.torch.DataLoader(Map(), 2, num_workers=2, persistent_workers=True)
    kept = [list(loader) for _ in range(4)]
    gc.collect()
    for epoch in kept:
        assert [int(b["s"].label[0]) for b in epoch] == list(range(0, N, 2))
        assert all((b["s"].image[0] == b["s"].label[0]).all() for b in epoch)
