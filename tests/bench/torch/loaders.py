# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Loaders of W2 to W4, stock and ours, and how fast they go."""
import pickle
import time

import torch
from torch.utils.data import DataLoader, Dataset

import sluice.torch

# Seconds, in those of the row, after which it ends with two batches.
SLOW = 4


class Tokens(Dataset):
    def __init__(self, text):
        self.text = text

    def __len__(self):
        return 1 << 30

    def __getitem__(self, i):
        ids = torch.full((2048,), i)
        return (ids, "%08d" % i * 1024) if self.text else ids


class Images(Dataset):
    """One image of 12 MiB made once: what is measured is what comes after decoding."""

    def __init__(self, shape=(3, 1024, 1024)):
        self.image = torch.rand(shape)

    def __len__(self):
        return 1 << 30

    def __getitem__(self, i):
        return self.image


class Graphs(Dataset):
    """12 MiB in 200 tensors, as a heterogeneous graph has them."""

    def __init__(self):
        self.sample = {"part%03d" % k: torch.rand(15728) for k in range(200)}

    def __len__(self):
        return 1 << 30

    def __getitem__(self, i):
        return self.sample


def collate_graph(samples):
    return {k: torch.cat([s[k] for s in samples]) for k in samples[0]}


def collate_graph_arena(samples):
    out = {}
    for k, v in samples[0].items():
        dst = sluice.torch.arena_empty((len(samples) * v.shape[0],), v.dtype)
        out[k] = torch.cat([s[k] for s in samples], out=dst)
    return out


def collate_private(samples):
    return torch.stack(samples)


def collate_shared(samples):
    first = samples[0]
    storage = first._typed_storage() if hasattr(first, "_typed_storage") else first.storage()
    out = first.new(storage._new_shared(first.numel() * len(samples)))
    return torch.stack(samples, out=out.view(len(samples), *first.shape))


def collate_pickled(samples):
    return pickle.dumps(torch.stack(samples))


def rate(make, seconds, device=None, touch=False):
    """Batches a second in the steady state; every byte is read where `touch` says so."""
    loader = make()
    it = iter(loader)
    workers = max(loader.num_workers, 1)
    # Every worker makes its first batches, and the memory for them, before the clock runs, and what
    # is ready by then is taken.  A slow consumer, for whom all of it is always ready, need not wait
    # for that.
    begun = time.perf_counter()
    for k in range(3 * workers):
        batch = next(it)
        if k >= workers and time.perf_counter() - begun > 2 * seconds:
            break
    n, begun = 0, time.perf_counter()
    while True:
        batch = next(it)
        if device is not None:
            dev = batch.to(device, non_blocking=True)
        elif touch:
            batch.view(torch.int64).max()
        n += 1
        elapsed = time.perf_counter() - begun
        if elapsed > seconds and (n >= min(workers, 8) or elapsed > SLOW * seconds and n > 1):
            break
    if device is not None:
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - begun
        del dev
    del batch, it, loader
    return n / elapsed


def pair(ds, seconds, device=None, collate=None, ours_collate=None, **kw):
    """{label: function} for alternate()."""
    return {
        "stock": lambda: rate(
            lambda: DataLoader(ds, collate_fn=collate, multiprocessing_context="fork", **kw),
            seconds,
            device,
        ),
        "sluice": lambda: rate(
            lambda: sluice.torch.DataLoader(
                ds, collate_fn=ours_collate or collate, multiprocessing_context="fork", **kw
            ),
            seconds,
            device,
        ),
    }
