# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the tests share."""
import dataclasses
import math
import os
import sys

import numpy as np

import sluice
from sluice import _core


def same(a, b):
    """Equal in type and value, all the way down; NaN equals NaN."""
    torch = sys.modules.get("torch")  # not imported here: a spawned child need not wait for it
    if torch is not None and isinstance(a, torch.Tensor):
        if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.layout != b.layout or a.requires_grad != b.requires_grad:
            return False
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        a, b = a.detach().contiguous(), b.detach().contiguous()
        return not a.numel() or bytes(raw(a)) == bytes(raw(b))
    if isinstance(a, np.ndarray):
        if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return same(a.__dict__, b.__dict__)
    return a == b


def raw(t):
    """The bytes of a contiguous tensor, whatever its dtype."""
    torch = sys.modules["torch"]
    t = t.resolve_conj().resolve_neg().contiguous()
    return t.reshape(-1).view(torch.uint8).numpy()


def round_trip(obj, **kw):
    q = sluice.Queue(**kw)
    try:
        q.put(obj)
        return q.get(timeout=10)
    finally:
        q.close()


def fds():
    return len(os.listdir("/proc/self/fd"))


def maps():
    with open("/proc/self/maps") as f:
        return sum("sluice" in line for line in f)


def extents():
    """Extents that anybody holds in the arenas that this process has attached."""
    arenas = [a for a in _core._attached.values() if not a.closed]
    return sum(a.stats()[what] for a in arenas for what in ("writing", "ready", "held", "parked"))


def rss():
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    raise RuntimeError("no RssAnon in /proc/self/status")
