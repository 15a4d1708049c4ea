# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the machine allows: workers that only copy, a bus that only copies, both at once.

No transport is in it: every worker copies rows into memory of its own and counts.
"""
import mmap
import multiprocessing
import struct
import time

import numpy

from sluice import _sluice

SLOTS = 4  # as many batches as a loader's worker has in flight


def _huge(nbytes):
    m = mmap.mmap(-1, nbytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    try:
        m.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    return m


def _copier(ready, go, out, k, row, rows, seconds, past):
    source = numpy.ones(row, numpy.uint8)
    memory = numpy.frombuffer(_huge(SLOTS * rows * row), numpy.uint8)
    memory.fill(1)  # faulted in before the clock runs
    slots = memory.reshape(SLOTS, rows, row)
    parts = struct.pack("PN", source.ctypes.data, row) * rows
    ready.release()
    go.wait()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        slot = slots[n % SLOTS]
        if past:
            _sluice.copy_parts(slot.ctypes.data, parts)
        else:
            for i in range(rows):
                numpy.copyto(slot[i], source)
        n += 1
    out[k] = n / (time.perf_counter() - begun)


def memcpy(workers, row, rows, seconds, past=False, meanwhile=None):
    """Batches a second of `rows` rows that so many processes copy; meanwhile() runs beside them.

    past: with the stores that go past the caches, which sluice itself uses for large batches.
    """
    ctx = multiprocessing.get_context("fork")
    ready, go, out = ctx.Semaphore(0), ctx.Event(), ctx.Array("d", workers, lock=False)
    args = ((ready, go, out, k, row, rows, seconds, past) for k in range(workers))
    ps = [ctx.Process(target=_copier, args=a, daemon=True) for a in args]
    for p in ps:
        p.start()
    for _ in ps:
        ready.acquire()
    go.set()
    beside = meanwhile() if meanwhile else None
    for p in ps:
        p.join()
    return sum(out), beside


def best_memcpy(workers, row, rows, seconds):
    """The better of both kinds of store."""
    return max(memcpy(workers, row, rows, seconds, past)[0] for past in (False, True))


class Bus:
    """Copies from pinned memory to the GPU, and nothing else."""

    def __init__(self, nbytes):
        import torch

        self.torch = torch
        self.host = torch.ones(nbytes, dtype=torch.uint8).pin_memory()
        self.device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def rate(self, seconds):
        torch = self.torch
        torch.cuda.synchronize()
        n, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for _ in range(4):
                self.device.copy_(self.host, non_blocking=True)
            torch.cuda.synchronize()
            n += 4
        return n / (time.perf_counter() - begun)


def both(workers, row, rows, seconds, bus):
    """The lower of the two rates when the workers copy and the bus is busy at the same time."""
    copied, moved = memcpy(workers, row, rows, seconds, True, lambda: bus.rate(seconds))
    return min(copied, moved)
