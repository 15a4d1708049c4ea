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


def made_and_copied(seconds):
    """A fresh tensor, then one memcpy of it: what its producer has to do whatever carries it."""
    dst = torch.zeros(SHAPE)
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        dst.copy_(torch.ones(SHAPE))
        n += 1
    return n / (time.perf_counter() - begun)


def main():
    r = Report("W1", seconds=1.0)
    torch.set_num_threads(1)
    stock = torch.multiprocessing.get_context("fork")
    ours = sluice.context("fork")
    s = r.args.seconds
    got = r.alternate(
        {
            "bound: one memcpy": lambda: memcpy_rate(BYTES),
            "stock": lambda: rate(multiprocessing.get_context("fork"), "numpy", s),
            "sluice": lambda: rate(ours, "numpy", s),
        },
        "images/s",
        payload="numpy",
    )
    copy = got["bound: one memcpy"]
    r.goal("numpy / memcpy", got["sluice"] / copy, 0.85)
    r.goal("numpy / stock", got["sluice"] / got["stock"], 40, copy / got["stock"], "one memcpy")
    for kind, factor in (("fresh", 3), ("same", 20)):
        forms = {
            "stock file_descriptor": lambda: rate(stock, kind, s, "file_descriptor"),
            "stock file_system": lambda: rate(stock, kind, s, "file_system"),
            "sluice": lambda: rate(ours, kind, s),
        }
        if kind == "fresh":
            forms["bound: made, then one memcpy"] = lambda: made_and_copied(s)
        got = r.alternate(forms, "images/s", payload="torch " + kind)
        if kind == "fresh":
            made = got["bound: made, then one memcpy"]
            limit = made / copy
            r.goal("torch fresh / memcpy", got["sluice"] / copy, 0.85, limit, "made, then memcpy")
        for strategy in ("file_descriptor", "file_system"):
            ratio = got["sluice"] / got["stock " + strategy]
            r.goal("torch %s / %s" % (kind, strategy), ratio, factor)
    r.finish()


if __name__ == "__main__":
    main()
