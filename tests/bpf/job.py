#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""A small training job: workers hand arrays to a trainer, by Queue, by Pipe or by shared memory.

usage: job.py queue|pipe|shm [numpy] [slow-worker|slow-trainer]

Prints what it knows to have moved: pid of the trainer, pid of each worker, payload bytes.
"""
import json
import multiprocessing as mp
import os
import sys
import time
from multiprocessing import resource_tracker, shared_memory

# Takes longer to start than the rest takes to run in an emulated machine.
numpy = None
if "numpy" in sys.argv:
    import numpy

BYTES = 1 << 18
ITEMS = 8
WORKERS = 2
NAP = 0.4


def make(i):
    if numpy is not None:
        return numpy.full(BYTES, i, dtype=numpy.uint8)
    return bytes([i]) * BYTES


def worker(how, end, slow, index):
    for i in range(ITEMS):
        if slow:
            time.sleep(NAP)
        if how == "queue":
            end.put(make(i))
        elif how == "pipe":
            end.send(make(i))
        else:
            block = shared_memory.SharedMemory(create=True, size=BYTES)
            block.buf[:BYTES] = bytes(make(i))
            end.put(block.name)
            block.close()


def size(item):
    return item.nbytes if numpy is not None and hasattr(item, "nbytes") else len(item)


def main():
    how = sys.argv[1]
    slow = sys.argv[-1]
    got = 0
    context = mp.get_context("fork")
    # One tracker for all, or each worker starts its own that knows nothing of the others.
    if how == "shm":
        resource_tracker.ensure_running()
    if how == "pipe":
        ends = [context.Pipe() for _ in range(WORKERS)]
    else:
        queue = context.Queue(4)
        ends = [(queue, queue)] * WORKERS
    workers = [
        context.Process(target=worker, args=(how, ends[i][1], slow == "slow-worker", i))
        for i in range(WORKERS)
    ]
    for process in workers:
        process.start()
    for i in range(ITEMS * WORKERS):
        if how == "pipe":
            item = ends[i % WORKERS][0].recv()
        else:
            item = ends[0][0].get()
        if how == "shm":
            block = shared_memory.SharedMemory(name=item)
            item = bytes(block.buf[:BYTES])
            block.close()
            block.unlink()
        got += size(item)
        if slow == "slow-trainer":
            time.sleep(NAP)
    for process in workers:
        process.join()
    print(json.dumps({"trainer": os.getpid(), "workers": [p.pid for p in workers], "payload": got}))


if __name__ == "__main__":
    main()
