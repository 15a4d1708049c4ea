# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""default_collate that stacks straight into the extent in which the batch will be sent."""
import torch
from torch.utils.data._utils import collate as _stock

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
    address = ex.alloc(n)
    if address is None:
        return None
    t = codec.torch.at(address, n, how[0], how[1], shape)
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


def install():
    """In a worker: every use of default_collate, a custom collate's too, stacks in place."""
    _stock.default_collate_fn_map[torch.Tensor] = collate_tensor_fn


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
