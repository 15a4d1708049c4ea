# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What collate functions build stands in the extent, and stays while somebody has it."""
import gc

import pytest
from util import same

import sluice
from sluice import _core, _store

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

import sluice.torch  # noqa: E402

N = 24


class Rows(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.arange(30000) + i


def arena(samples):
    return sluice.torch.arena_collate(samples)


def joined(samples):
    return {
        "rows": torch.cat(samples),
        "matrix": torch.cat([s[None] for s in samples], 0),
        "columns": torch.stack(samples, -1),
        "half": torch.stack(samples).to(torch.int32),
    }


def ragged(samples):
    return torch.cat([s[: 1000 * (int(s[0]) % 7)] for s in samples]), torch.cat(
        [torch.ones(2), torch.ones(3, dtype=torch.int64)]
    )


def grad(samples):
    w = torch.ones(2, requires_grad=True)
    return torch.stack([w, w]).detach() + len(samples)


class Repeating:
    """A worker's third batch comes again later, as when somebody looks for the bottleneck."""

    def __init__(self, fn):
        self.fn = fn
        self.calls = 0

    def __call__(self, samples):
        self.calls += 1
        if self.calls > 4 and self.calls % 2:
            return self.kept
        out = self.fn(samples)
        if self.calls == 3:
            self.kept = out
        return out


@pytest.fixture
def poison(monkeypatch):
    monkeypatch.setattr(_store, "FLAGS", _core.POISON)


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("fn", [arena, joined, ragged, grad])
def test_same_as_stock(fn, repeat, poison):
    collate = (lambda: Repeating(fn)) if repeat else (lambda: fn)
    want = list(DataLoader(Rows(), 2, collate_fn=collate()))
    loader = sluice.torch.DataLoader(
        Rows(), 2, collate_fn=collate(), num_workers=1, prefetch_factor=4
    )
    n = 0
    for w, batch in zip(want, loader):
        assert same(w, batch)
        del batch  # free, if nobody else has it
        gc.collect()
        n += 1
    assert n == len(want)


def _placed(samples):
    out = torch.cat(samples)
    ex = _store.store().extent
    return out, ex is not None and ex.view.ptr <= out.data_ptr() < ex.view.ptr + ex.capacity


def test_joined_in_place():
    loader = sluice.torch.DataLoader(Rows(), 2, num_workers=1, collate_fn=_placed)
    assert [b[1] for b in loader] == [False] + [True] * (N // 2 - 1)
