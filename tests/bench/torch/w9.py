# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W9: items of 32 MiB of each kind, against a pool of shared-memory segments."""
import multiprocessing
import os
import time
from multiprocessing import shared_memory

# A fresh tensor of 32 MiB costs more in page faults than any way to hand it over.  NumPy asks for
# huge pages by itself, torch when it is told to, for both sides alike.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from side import Report  # noqa: E402

import sluice  # noqa: E402

BYTES = 32 << 20
SEGMENTS = 8


def payload(kind):
    """Never zeros: memory that was not written yet is one page, however large it looks."""
    if kind == "bytes":
        return b"x" * BYTES
    if kind == "numpy":
        return np.ones(BYTES // 4, np.float32)
    return torch.ones(BYTES // 4)


def produce(q, kind):
    torch.set_num_threads(1)
    obj = payload(kind)
    while True:
        q.put(obj.clone() if kind == "torch" else obj)


def seen_as(kind, segment):
    """The memory of a segment as what was sent, uncopied."""
    if kind == "bytes":
        return segment.buf[:BYTES]
    if kind == "numpy":
        return np.frombuffer(segment.buf, np.float32, BYTES // 4)
    return torch.frombuffer(segment.buf, dtype=torch.float32, count=BYTES // 4)


def produce_segments(q, free, names, kind):
    """The shared-memory pool by hand: copy into a free segment, send its number."""
    torch.set_num_threads(1)
    segments = [shared_memory.SharedMemory(n) for n in names]
    views = [seen_as(kind, s) for s in segments]
    obj = payload(kind)
    while True:
        k = free.get()
        views[k][:] = obj.clone() if kind == "torch" else obj
        q.put(k)


def timed(get, seconds):
    for _ in range(4):
        get()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        get()
        n += 1
    return n * BYTES / (time.perf_counter() - begun) / 1e6


def through(ctx, kind, seconds):
    q = ctx.Queue(4)
    p = ctx.Process(target=produce, args=(q, kind), daemon=True)
    p.start()
    try:
        return timed(q.get, seconds)
    finally:
        p.kill()
        p.join()
        q.close()


def by_hand(kind, seconds):
    ctx = multiprocessing.get_context("fork")
    segments = [shared_memory.SharedMemory(create=True, size=BYTES) for _ in range(SEGMENTS)]
    q, free = ctx.Queue(), ctx.Queue()
    for k in range(SEGMENTS):
        free.put(k)
    names = [s.name for s in segments]
    p = ctx.Process(target=produce_segments, args=(q, free, names, kind), daemon=True)
    p.start()

    def get():
        # Bytes have to be copied out.  When the receiver is done with a view, nothing says: here it
        # is at once.
        k = q.get()
        view = seen_as(kind, segments[k])
        if kind == "bytes":
            bytes(view)
        del view
        free.put(k)

    try:
        return timed(get, seconds)
    finally:
        p.kill()
        p.join()
        for s in segments:
            s.close()
            s.unlink()


def made_and_copied(seconds):
    """A fresh tensor, then one memcpy of it: what its producer does whatever carries it."""
    obj = payload("torch")
    dst = torch.zeros_like(obj)
    return timed(lambda: dst.copy_(obj.clone()), seconds)


def main():
    r = Report("W9", seconds=1.5)
    torch.set_num_threads(1)
    s = r.args.seconds
    for kind in ("bytes", "numpy", "torch"):
        stock = torch.multiprocessing if kind == "torch" else multiprocessing
        forms = {
            "stock queue": lambda: through(stock.get_context("fork"), kind, s),
            "shared_memory by hand": lambda: by_hand(kind, s),
            "sluice": lambda: through(sluice.context("fork"), kind, s),
        }
        bound = "bound: made, then one memcpy"
        if kind == "torch":
            forms[bound] = lambda: made_and_copied(s)
        got = r.alternate(forms, "MB/s", payload=kind)
        for label, other in (("stock", "stock queue"), ("shared_memory by hand",) * 2):
            limit = got[bound] / got[other] if bound in got else None
            r.goal("%s / %s" % (kind, label), got["sluice"] / got[other], 1, limit, bound[7:])
    r.finish()


if __name__ == "__main__":
    main()
