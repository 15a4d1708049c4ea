# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What collate functions build stands in the extent, and stays while somebody has it."""
import ctypes
import gc
import struct
import weakref

import pytest
from util import same

import sluice
from sluice import _core, _sluice, _store

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

import sluice.torch  # noqa: E402
from sluice.torch import _collate  # noqa: E402

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


class LargeRows(Rows):
    """Together they are larger than the caches, and copied by our own code."""

    def __getitem__(self, i):
        return torch.arange(700001) + i


def large(samples):
    return {
        "rows": torch.stack(samples),
        "after each other": torch.cat(samples),
        "columns": torch.stack(samples, 1),
        "odd": torch.cat([s[1 : 4096 + k] for k, s in enumerate(samples)]),
        "strided": torch.stack([s[::3] for s in samples]),
        "bytes": torch.cat([s.to(torch.uint8)[k:] for k, s in enumerate(samples)]),
        "bool": torch.stack([s > 5 for s in samples]),
    }


def into_given(samples):
    """What a collate function fills by hand, then reads."""
    out = sluice.torch.arena_empty((4, 700001), torch.int64)
    torch.stack(samples, out=out[:2])
    torch.cat([out[0], out[1]], out=out[2:].view(-1))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.cat([out[1, 1:], out[0, :1]], out=out[0])
    return out


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


@pytest.mark.parametrize("fn", [arena, large, into_given])
def test_large_same_as_stock(fn, poison):
    data = torch.utils.data.Subset(LargeRows(), range(10))
    want = list(DataLoader(data, 2, collate_fn=fn))
    loader = sluice.torch.DataLoader(data, 2, collate_fn=fn, num_workers=1)
    for w, batch in zip(want, loader):
        assert same(w, batch)
        del batch


def test_negative_and_conjugate_rows():
    """Their memory is not what they are: not to be copied as it stands."""
    rows = [torch.full((1 << 20,), 1 + 2j).conj() for _ in range(2)]
    neg = [torch._neg_view(torch.ones(1 << 20)) for _ in range(2)]
    q = sluice.Queue(4)
    q.put(torch.zeros(1 << 22, dtype=torch.complex64))  # the size of what comes next
    st = _store.store()
    try:
        for batch in (rows, neg):
            out = _collate.arena_collate(batch)
            assert _collate._large(out)
            assert same(out, torch.stack([t.resolve_conj().resolve_neg() for t in batch]))
    finally:
        st.drop_extent()
        q.close()


@pytest.fixture
def extent(monkeypatch):
    """A function that opens an extent of a size; what it returns grows with copies of our own."""
    copies = []
    copy = _sluice.copy_parts

    def counted(to, rows):
        copies.append(len(rows))
        return copy(to, rows)

    monkeypatch.setattr(_sluice, "copy_parts", counted)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    q = sluice.Queue(4)
    q.put(torch.zeros(1 << 20))
    st = _store.store()

    def open_of(nbytes):
        st.drop_extent()
        st.hint = (q._uid, nbytes)
        del copies[:]
        return copies

    yield open_of
    st.drop_extent()
    q.close()
    torch.set_num_threads(threads)


def _in_place(fn, *args, **kw):
    with _collate._Joining():
        out = fn(*args, **kw)
    ex = _store.store().extent
    assert ex.view.ptr <= out.data_ptr() < ex.view.ptr + ex.capacity
    return out


DTYPES = "uint8 int16 int32 int64 float16 bfloat16 float32 float64 bool".split()


@pytest.mark.parametrize("nbytes", [_sluice.COPY_PAST_BYTES - 1, _sluice.COPY_PAST_BYTES])
@pytest.mark.parametrize("name", DTYPES)
def test_sizes_and_types(extent, name, nbytes):
    """Equal on both sides of each threshold; past the caches goes what put() writes so."""
    dtype = getattr(torch, name)
    size = torch.empty((), dtype=dtype).element_size()
    copies = extent(nbytes)
    n = 0
    page = 4096 // size
    for row in (1, 2, page - 1, page, page + 1, 50000):
        rows = [(torch.arange(row) + k).to(dtype) for k in range(3)]
        calls = (
            (_in_place, torch.stack, rows),
            (_in_place, torch.cat, tuple(rows)),
            (_in_place, torch.stack, [r.view(-1, 1) for r in rows], -3),
            (_collate.arena_collate, rows),
        )
        for call, *args in calls:
            want = torch.cat(rows) if args[0] is torch.cat else torch.stack(rows)
            assert same(call(*args).view(want.shape), want)
            n += 1
    assert len(copies) == (n if nbytes >= _sluice.COPY_PAST_BYTES else 0)


def _odd_rows():
    a, b = torch.arange(2.0 * 4096).view(2, 4096)
    yield "every other", torch.stack, [a[::2], b[::2]]
    yield "transposed", torch.stack, [a.view(64, 64).t(), b.view(64, 64)]
    yield "no memory", torch.stack, [a, torch._efficientzerotensor(4096)]
    yield "no memory at first", torch.cat, [torch._efficientzerotensor(4096), b]
    yield "names", torch.cat, [a.view(2, -1).rename("row", "column")] * 2
    yield "complex", torch.stack, [torch.complex(a, b), torch.complex(b, a).conj()]
    yield "another dimension", torch.stack, [a, b], 1


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_left_to_torch(extent):
    """Whose memory is not what they are, or is not in one piece."""
    for what, join, *args in _odd_rows():
        copies = extent(1 << 24)
        want = join(*args)
        got = _in_place(join, *args)
        assert torch.equal(got.rename(None), want.rename(None)), what
        assert got.names == want.names, what
        assert not copies, what


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_refused_as_stock(extent):
    """torch.stack() does not know names, and cannot write what requires grad into memory."""
    named = [torch.ones(4096).rename("row")] * 2
    copies = extent(1 << 24)
    with pytest.raises(RuntimeError, match="named tensors"), _collate._Joining():
        torch.stack(named)
    w = torch.ones(4096, requires_grad=True)
    with _collate._Joining():
        out = torch.stack([w, w])
    assert out.grad_fn is not None
    with pytest.raises(RuntimeError, match="automatic differentiation"), _collate._Joining():
        torch.stack([w, w], out=sluice.torch.arena_empty((2, 4096)))
    assert not copies


def test_torch_has_threads(extent):
    """Its loops share the work between them, so ours does not take it away."""
    rows = [torch.arange(100000) + k for k in range(4)]
    for threads in (1, 2):
        copies = extent(1 << 24)
        torch.set_num_threads(threads)
        assert same(_in_place(torch.stack, rows), torch.stack(rows))
        assert len(copies) == (threads == 1)


@pytest.mark.parametrize("mode", ["inference_mode", "no_grad"])
def test_modes(extent, mode):
    with getattr(torch, mode)():
        rows = [torch.arange(100000) + k for k in range(4)]
        copies = extent(1 << 24)
        want, got = torch.stack(rows), _in_place(torch.stack, rows)
        assert len(copies) == 1
    assert same(got, want) and got.is_inference() == want.is_inference()


@pytest.mark.parametrize("collate", [torch.stack, _collate.collate_tensor_fn])
def test_sources_stay(extent, collate, monkeypatch):
    """What another thread takes out of the list meanwhile is copied all the same."""
    rows = [torch.full((1 << 20,), float(k)) for k in range(2)]
    want = torch.stack(rows)
    refs = [weakref.ref(t) for t in rows]
    out_of = _collate._out

    def emptied(shape, dtype):
        del rows[:]
        return out_of(shape, dtype)

    def copy(to, parts):
        assert all(ref() is not None for ref in refs)
        return counted(to, parts)

    monkeypatch.setattr(_collate, "_out", emptied)
    copies = extent(1 << 24)
    counted = _sluice.copy_parts
    monkeypatch.setattr(_sluice, "copy_parts", copy)
    assert same(_in_place(collate, rows), want)
    assert len(copies) == 1 and not rows


def _answer(fn, *args):
    try:
        return [t.tolist() for t in fn(*args).unbind()]
    except Exception as e:
        return type(e), str(e)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_as_stock():
    """Their shape cannot be asked: what can be joined, and what is said, is torch's business."""
    nested = [torch.nested.nested_tensor([torch.ones(2), torch.ones(n)]) for n in (1, 3)]
    want = _answer(torch.utils.data.default_collate, nested), _answer(torch.cat, nested)
    q = sluice.Queue(4)
    q.put(torch.zeros(1 << 20))
    try:
        with _collate._Joining():
            assert want[1] == _answer(torch.cat, nested)
        assert want[0] == _answer(_collate.arena_collate, nested)
    finally:
        _store.store().drop_extent()
        q.close()


def test_vmap_as_stock():
    """Inside of it tensors look plain, and have no memory that could be copied."""
    try:
        from torch.func import vmap
    except ImportError:
        vmap = pytest.importorskip("functorch", reason="this torch has no vmap").vmap
    x = torch.arange(6.0).reshape(2, 3)
    joins = (
        lambda t: torch.stack([t, t]),
        lambda t: torch.cat([t, t]),
        lambda t: torch.stack([t, t], -1),
        lambda t: sluice.torch.arena_collate([t, t]),
    )
    q = sluice.Queue(4)
    q.put(torch.zeros(1 << 20))
    try:
        for join in joins:
            want = torch.stack([join(row) for row in x])
            with _collate._Joining():
                assert same(vmap(join)(x), want)
    finally:
        _store.store().drop_extent()
        q.close()


def test_copy_parts():
    src = bytes(range(251)) * 200
    for start, sizes in ((0, (5, 0, 4096, 8191)), (3, (20000, 4100)), (61, (4095, 4097, 40000))):
        a, b = ctypes.create_string_buffer(src, len(src)), ctypes.create_string_buffer(60000)
        parts = [struct.pack("PN", ctypes.addressof(a) + 7 * k, n) for k, n in enumerate(sizes)]
        parts = b"".join(parts)
        assert _sluice.copy_parts(ctypes.addressof(b) + start, parts)
        want = b"".join(src[7 * k : 7 * k + n] for k, n in enumerate(sizes))
        assert b.raw[start : start + len(want)] == want
        assert not any(b.raw[:start]) and not any(b.raw[start + len(want) :])
        assert not _sluice.copy_parts(ctypes.addressof(a) + 1, parts), "it overlaps"
        assert a.raw == src


def _placed(samples):
    out = torch.cat(samples)
    ex = _store.store().extent
    return out, ex is not None and ex.view.ptr <= out.data_ptr() < ex.view.ptr + ex.capacity


def test_joined_in_place():
    loader = sluice.torch.DataLoader(Rows(), 2, num_workers=1, collate_fn=_placed)
    assert [b[1] for b in loader] == [False] + [True] * (N // 2 - 1)
