# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the machine allows: workers that only copy, a bus that only copies, one after the other.

No transport is in it: every worker copies rows into memory of its own and counts.
"""
import mmap
import multiprocessing
import struct
import time

import numpy

from sluice import _sluice

SLOTS = 4  # batches that a worker may be ahead, as a loader's
COLD = 2  # batches that a worker which only copies fills in turn: none is in its caches when it is


def _huge(nbytes):
    m = mmap.mmap(-1, nbytes, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    try:
        m.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    return m


def _copier(ready, go, done, took, moved, k, row, rows, seconds, past):
    """Copies until the time is over; with `moved` never further ahead of it than its slots."""
    source = numpy.ones(row, numpy.uint8)
    count = SLOTS if moved is not None or rows * row < 64 << 20 else COLD
    memory = numpy.frombuffer(_huge(count * rows * row), numpy.uint8)
    memory.fill(1)  # faulted in before the clock runs
    slots = memory.reshape(count, rows, row)
    parts = struct.pack("PN", source.ctypes.data, row) * rows
    ready.release()
    go.wait()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        if moved is not None and n >= moved.value // len(done) + SLOTS:
            time.sleep(0.0001)
            continue
        slot = slots[n % count]
        if past:
            _sluice.copy_parts(slot.ctypes.data, parts)
        else:
            for i in range(rows):
                numpy.copyto(slot[i], source)
        n += 1
        done[k] = n
    took[k] = time.perf_counter() - begun


def _run(workers, row, rows, seconds, past, moved, beside):
    """Batches a second that the workers copy; beside(batches copied so far) is called meanwhile."""
    ctx = multiprocessing.get_context("fork")
    ready, go, done = ctx.Semaphore(0), ctx.Event(), ctx.Array("q", workers, lock=False)
    took = ctx.Array("d", workers, lock=False)
    args = ((ready, go, done, took, moved, k, row, rows, seconds, past) for k in range(workers))
    ps = [ctx.Process(target=_copier, args=a, daemon=True) for a in args]
    for p in ps:
        p.start()
    for _ in ps:
        ready.acquire()
    begun = time.perf_counter()
    go.set()
    while beside and time.perf_counter() - begun < seconds:
        beside(sum(done))
    for p in ps:
        p.join()
    return sum(n / t for n, t in zip(done, took))


def memcpy(workers, row, rows, seconds, past=False):
    """Batches a second of `rows` rows that so many processes copy.

    past: with the stores that go past the caches, which sluice itself uses for large batches.
    """
    return _run(workers, row, rows, seconds, past, None, None)


def best_memcpy(workers, row, rows, seconds):
    """A function for that rate with the better kind of store, which the first call finds out."""
    kinds = [False, True]

    def rate():
        rates = {past: memcpy(workers, row, rows, seconds, past) for past in kinds}
        kinds[:] = [max(rates, key=rates.get)]
        return rates[kinds[0]]

    return rate


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
    """Batches a second that workers copy and the bus then moves: a loader without transport."""
    moved = multiprocessing.get_context("fork").Value("q", 0, lock=False)

    def step(copied):
        if moved.value >= copied:
            time.sleep(0.0001)
            return
        for _ in range(min(copied - moved.value, 4)):
            bus.device.copy_(bus.host, non_blocking=True)
            moved.value += 1
        bus.torch.cuda.synchronize()

    _run(workers, row, rows, seconds, True, moved, step)
    return moved.value / seconds
