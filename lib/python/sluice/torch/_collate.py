# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""default_collate that stacks straight into the extent in which the batch will be sent."""
import torch
import torch.overrides
from torch.utils.data._utils import collate as _stock
from torch.utils.data._utils import fetch as _fetch

from .._codec import codec
from .._store import store

_stock_tensor_fn = _stock.default_collate_fn_map[torch.Tensor]


def _out(shape, dtype):
    """An uninitialised tensor in the extent that the next object goes into, or None."""
    how = codec.torch.dtypes.get(dtype)
    if how is None:
        return None
    ex = store().open_extent()
    if ex is None:
        return None
    n = how[1] // 8
    for d in shape:
        n *= d
    if not n:
        return None
    view = ex.alloc(n)
    if view is None:
        return None
    t = codec.torch.over(view, how[0], how[1], shape)
    return t.view(dtype) if how[2] else t


def _plain(t, first):
    return (
        type(t) is torch.Tensor
        and t.layout is torch.strided
        and t.device.type == "cpu"
        and t.dtype is first.dtype
        and t.shape == first.shape
    )


def collate_tensor_fn(batch, *, collate_fn_map=None):
    first = batch[0]
    if not all(_plain(t, first) for t in batch):
        return _stock_tensor_fn(batch, collate_fn_map=collate_fn_map)
    out = _out((len(batch), *first.shape), first.dtype)
    if out is None:
        return torch.stack(batch, 0)
    with torch.no_grad():
        return torch.stack([t.detach() for t in batch], 0, out=out)


def _joined(func, tensors, dim=0, **kw):
    """The result of torch.stack() or torch.cat() in the extent, or None."""
    if kw or not isinstance(tensors, (list, tuple)) or not tensors:
        return None
    first = tensors[0]
    new = func is torch.stack
    if type(first) is not torch.Tensor or type(dim) is not int:
        return None
    n = first.dim() + new
    if not -n <= dim < n:
        return None
    dim %= n
    # Without the joined dimension all shapes are the same; a cat() of others is torch's business.
    rest = list(first.shape)
    total = len(tensors) if new else 0
    if not new:
        del rest[dim]
    for t in tensors:
        if (
            type(t) is not torch.Tensor
            or t.layout is not torch.strided
            or t.device.type != "cpu"
            or t.dtype is not first.dtype
            or t.requires_grad
            or t.dim() != first.dim()
        ):
            return None
        shape = list(t.shape)
        if not new:
            total += shape.pop(dim)
        if shape != rest:
            return None
    rest.insert(dim, total)
    out = _out(tuple(rest), first.dtype)
    return None if out is None else func(tensors, dim, out=out)


_JOINS = {torch.stack, torch.cat} | {
    getattr(torch, name) for name in ("concat", "concatenate") if hasattr(torch, name)
}


class _Joining(torch.overrides.TorchFunctionMode):
    """Inside of it torch.stack() and torch.cat() write straight into the extent."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _JOINS:
            out = _joined(func, *args, **(kwargs or {}))
            if out is not None:
                return out
        return func(*args, **(kwargs or {}))


class _InPlace:
    """A custom collate function whose large results need no copy."""

    def __init__(self, fn):
        self.fn = fn

    def __call__(self, samples):
        with _Joining():
            return self.fn(samples)


def install():
    """In a worker: what collate functions stack, their default_collate too, stands in place."""
    if _stock.default_collate_fn_map[torch.Tensor] is collate_tensor_fn:
        return  # inherited
    _stock.default_collate_fn_map[torch.Tensor] = collate_tensor_fn
    in_place_already = _stock.default_collate, arena_collate
    init = _fetch._BaseDatasetFetcher.__init__

    def in_place(self, dataset, auto_collation, collate_fn, drop_last):
        if auto_collation and not any(collate_fn is f for f in in_place_already):
            collate_fn = _InPlace(collate_fn)
        init(self, dataset, auto_collation, collate_fn, drop_last)

    _fetch._BaseDatasetFetcher.__init__ = in_place


def arena_collate(batch):
    """default_collate; in a worker of a sluice loader it stacks straight into the extent."""
    collate_map = dict(_stock.default_collate_fn_map)
    collate_map[torch.Tensor] = collate_tensor_fn
    return _stock.collate(batch, collate_fn_map=collate_map)


def arena_empty(shape, dtype=torch.float32):
    """An uninitialised tensor for a custom collate to fill: in the extent where possible."""
    shape = tuple(shape)
    out = _out(shape, dtype)
    return torch.empty(shape, dtype=dtype) if out is None else out
