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
    r = Report("W8", entries=1200000, workers="1,4,8", stock_workers="1,4,8")
    a = r.args
    path = "/data/train/n%08d/img_%07d.jpg"
    entries = [(path % (i % 1000, i), i % 1000) for i in range(a.entries)]
    counts = sorted(map(int, a.workers.split(",")))
    few, many = counts[0], counts[-1]
    # The first worker of all reads torch from the disk, whatever it is given.
    first_batch(entries[:64], few, False)
    none, ours = {}, {}
    for workers in counts:
        got = r.alternate(
            {
                "none: 64 entries": lambda: first_batch(entries[:64], workers, False),
                "sluice.share": lambda: first_batch(entries, workers, True),
            },
            "s",
            workers=workers,
        )
        none[workers], ours[workers] = got["none: 64 entries"], got["sluice.share"]
    r.goal(
        "%d workers / %d" % (many, few),
        ours[many] / ours[few],
        limit=none[many] / none[few],
        limited_by="spawning and importing alone",
        most=1.2,
    )
    # Once, and last: it takes as long as all the others, and what there is to see shows at once.
    for workers in map(int, a.stock_workers.split(",")):
        stock = {"stock": lambda: first_batch(entries, workers, False)}
        r.alternate(stock, "s", rounds=1, workers=workers)
    r.finish()


if __name__ == "__main__":
    main()
