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


def produce_segments(q, free, names):
    """The shared-memory pool by hand: copy into a free segment, send its number."""
    segments = [shared_memory.SharedMemory(n) for n in names]
    data = np.ones(BYTES, np.uint8)
    while True:
        k = free.get()
        np.frombuffer(segments[k].buf, np.uint8, BYTES)[:] = data
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


def by_hand(seconds):
    ctx = multiprocessing.get_context("fork")
    segments = [shared_memory.SharedMemory(create=True, size=BYTES) for _ in range(SEGMENTS)]
    q, free = ctx.Queue(), ctx.Queue()
    for k in range(SEGMENTS):
        free.put(k)
    names = [s.name for s in segments]
    p = ctx.Process(target=produce_segments, args=(q, free, names), daemon=True)
    p.start()
    try:
        return timed(lambda: free.put(q.get()), seconds)
    finally:
        p.kill()
        p.join()
        for s in segments:
            s.close()
            s.unlink()


def main():
    r = Report("W9", seconds=1.5)
    s = r.args.seconds
    for kind in ("bytes", "numpy", "torch"):
        stock = torch.multiprocessing if kind == "torch" else multiprocessing
        got = r.alternate(
            {
                "stock queue": lambda: through(stock.get_context("fork"), kind, s),
                "shared_memory by hand": lambda: by_hand(s),
                "sluice": lambda: through(sluice.context("fork"), kind, s),
            },
            "MB/s",
            payload=kind,
        )
        ratio = got["sluice"] / got["stock queue"]
        r.goal("%s / stock" % kind, ratio, 1)
    r.finish()


if __name__ == "__main__":
    main()
