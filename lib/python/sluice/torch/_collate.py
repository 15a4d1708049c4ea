# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""default_collate that stacks straight into the extent in which the batch will be sent."""
import torch
import torch.overrides
from torch.utils.data._utils import collate as _stock
from torch.utils.data._utils import fetch as _fetch

from .. import _sluice
from .._codec import codec
from .._store import store

_stock_tensor_fn = _stock.default_collate_fn_map[torch.Tensor]


def _level():
    """A function: the level of torch.func (vmap, grad) that is at work, or None."""
    functorch = getattr(torch._C, "_functorch", None)
    try:
        return functorch.maybe_current_level
    except AttributeError:
        pass

    def level():
        try:
            return functorch.current_level()
        except (AttributeError, RuntimeError):
            return None

    return level


_transformed = _level()


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


def _large(out):
    """Whether it stands in an extent whose copies are larger than the caches.

    As put() decides: by the size of the whole object, whose other tensors go through the same
    caches before anybody reads this one.
    """
    ex = store().extent
    return (
        ex is not None
        and ex.capacity >= _sluice.COPY_PAST_BYTES
        and ex.view.ptr <= out.data_ptr() < ex.view.ptr + ex.capacity
    )


def _look(tensors, dim, new):
    """(shape, rows) of plain tensors joined in dim, or None if that is better left to torch.

    rows: where they stand, if joining is to copy them one after another, else None.
    """
    first = tensors[0]
    if first.is_nested:  # of some, even the shape cannot be asked
        return None
    if _transformed() is not None:  # what looks like a plain tensor there has no memory
        return None
    dtype, shape = first.dtype, first.shape
    seen = _sluice.join_look(
        tensors,
        -1 if new else dim,
        not dim and not dtype.is_complex,
        first.element_size(),
        torch.Tensor,
        torch.strided,
        dtype,
        shape,
    )
    if seen is None:
        return None
    total, rows = seen
    return (*shape[:dim], total, *shape[dim if new else dim + 1 :]), rows


def _fill(func, tensors, dim, out, rows):
    """torch.stack() or torch.cat() into memory of the extent; the shapes fit.

    A worker has one thread.  Who gave torch more of them wants its loops, which share the work.
    """
    if (
        rows
        and _large(out)
        and torch.get_num_threads() == 1
        and _sluice.copy_parts(out.data_ptr(), rows)
    ):
        return out
    return func(tensors, dim, out=out)


def collate_tensor_fn(batch, *, collate_fn_map=None):
    plain = tuple(batch)
    if any(t.requires_grad for t in plain):
        plain = tuple(t.detach() for t in plain)
    seen = _look(plain, 0, True)
    if seen is None:
        return _stock_tensor_fn(batch, collate_fn_map=collate_fn_map)
    shape, rows = seen
    out = _out(shape, batch[0].dtype)
    if out is None:
        return torch.stack(batch, 0)
    with torch.no_grad():
        return _fill(torch.stack, plain, 0, out, rows)


def _joined(func, tensors, dim=0, **kw):
    """The result of torch.stack() or torch.cat() in the extent, or None."""
    out = kw.pop("out", None)
    if kw or not isinstance(tensors, (list, tuple)) or not tensors:
        return None
    tensors = tuple(tensors)  # keeps what is copied, whatever another thread does to the list
    first = tensors[0]
    new = func is torch.stack
    if type(first) is not torch.Tensor or type(dim) is not int or store().hint is None:
        return None
    n = first.dim() + new
    if not -n <= dim < n:
        return None
    dim %= n
    seen = _look(tensors, dim, new)
    if seen is None:
        return None
    shape, rows = seen
    if out is None:
        out = _out(shape, first.dtype)
        if out is None:
            return None
    elif (
        type(out) is not torch.Tensor
        or out.dtype is not first.dtype
        or out.shape != shape
        or not out.is_contiguous()
        or out.requires_grad
        or out.is_neg()
    ):
        return None
    return _fill(func, tensors, dim, out, rows)


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
