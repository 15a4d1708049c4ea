# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W8: shipping 1.2 million (path, label) entries to workers that are spawned."""
import time

from side import Report
from torch.utils.data import DataLoader, Dataset

import sluice


class Entries(Dataset):
    def __init__(self, entries):
        self.entries = entries

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        path, label = self.entries[i]
        return len(path), label


def first_batch(entries, workers, share):
    """Seconds from the iterator's creation to the first batch; sharing itself is part of it."""
    begun = time.perf_counter()
    ds = Entries(sluice.share(entries) if share else entries)
    it = iter(DataLoader(ds, 64, num_workers=workers, multiprocessing_context="spawn"))
    next(it)
    elapsed = time.perf_counter() - begun
    del it
    return elapsed


def main():
    r = Report("W8", entries=1200000, workers="1,4,8")
    a = r.args
    path = "/data/train/n%08d/img_%07d.jpg"
    entries = [(path % (i % 1000, i), i % 1000) for i in range(a.entries)]
    ours = {}
    for workers in map(int, a.workers.split(",")):
        got = r.alternate(
            {
                "none: 64 entries": lambda: first_batch(entries[:64], workers, False),
                "stock": lambda: first_batch(entries, workers, False),
                "sluice.share": lambda: first_batch(entries, workers, True),
            },
            "s",
            workers=workers,
        )
        ours[workers] = got["sluice.share"]
    few, many = min(ours), max(ours)
    ratio = ours[many] / ours[few]
    r.goal("%d workers / %d" % (many, few), ratio, most=1.2)
    r.finish()


if __name__ == "__main__":
    main()
