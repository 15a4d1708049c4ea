# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W1: one large array from one process to another, queue of size 1."""
import multiprocessing
import time

import numpy as np
import torch
from side import Report, memcpy_rate

import sluice

SHAPE = (3, 1024, 1024)
BYTES = 12 << 20


def produce(q, kind):
    torch.set_num_threads(1)
    same = torch.ones(SHAPE)
    array = np.ones(SHAPE, np.float32)
    if kind == "same" and isinstance(q, sluice.Queue):
        same = q.adopt(same)
    while True:  # until it is killed
        if kind == "numpy":
            q.put(array)
        elif kind == "same":
            q.put(same)
        else:
            q.put(torch.ones(SHAPE) if kind == "fresh" else same.clone())


def rate(ctx, kind, seconds, sharing=None):
    if sharing:
        torch.multiprocessing.set_sharing_strategy(sharing)
    q = ctx.Queue(1)
    p = ctx.Process(target=produce, args=(q, kind), daemon=True)
    p.start()
    for _ in range(5):
        q.get()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        x = q.get()
        assert tuple(x.shape) == SHAPE
        count += 1
    elapsed = time.perf_counter() - begun
    p.kill()
    p.join()
    q.close()
    return count / elapsed


def main():
    r = Report("W1", seconds=1.0)
    torch.set_num_threads(1)
    stock = torch.multiprocessing.get_context("fork")
    ours = sluice.context("fork")
    s = r.args.seconds
    copy = memcpy_rate(BYTES)
    r.alternate({"memcpy": lambda: memcpy_rate(BYTES)}, "images/s")
    got = r.alternate(
        {
            "stock": lambda: rate(multiprocessing.get_context("fork"), "numpy", s),
            "sluice": lambda: rate(ours, "numpy", s),
        },
        "images/s",
        payload="numpy",
    )
    r.goal("numpy / memcpy", got["sluice"] / copy, ">= 0.85", got["sluice"] >= 0.85 * copy)
    ratio = got["sluice"] / got["stock"]
    r.goal("numpy / stock", ratio, ">= 40", ratio >= 40)
    for kind, factor in (("fresh", 3), ("same", 20)):
        got = r.alternate(
            {
                "stock file_descriptor": lambda: rate(stock, kind, s, "file_descriptor"),
                "stock file_system": lambda: rate(stock, kind, s, "file_system"),
                "sluice": lambda: rate(ours, kind, s),
            },
            "images/s",
            payload="torch " + kind,
        )
        for strategy in ("file_descriptor", "file_system"):
            ratio = got["sluice"] / got["stock " + strategy]
            r.goal("torch %s / %s" % (kind, strategy), ratio, ">= %d" % factor, ratio >= factor)
    r.finish()


if __name__ == "__main__":
    main()
