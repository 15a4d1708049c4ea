# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W5: does the four-cache experiment find what is known to be the cause?"""
import functools
import time

import loaders
import torch
from loaders import Images
from side import Report
from torch.utils.data import DataLoader

from sluice import _diagnose


def arrays(samples):
    return torch.stack(samples).numpy()


def slow(samples):
    time.sleep(0.2)
    return torch.stack(samples)[:, :1, :8, :8].clone()


class Read(torch.utils.data.Dataset):
    """A data set that takes 20 ms for a sample."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.full((8,), i)


def train(batch):
    time.sleep(0.3)


# What each job is made to suffer from: (collate function, data set, step, part of the work).
JOBS = {
    "images, default collate": (None, Images, None, ("ipc",)),
    "images as NumPy arrays": (arrays, Images, None, ("ipc",)),
    "images pickled in collate": (loaders.collate_pickled, Images, None, ("ipc", "collate")),
    "slow collate": (slow, Images, None, ("collate",)),
    "slow data set": (None, Read, None, ("fetch",)),
    "slow training step": (None, Read, train, ("step",)),
}


def main():
    r = Report("W5", seconds=1.0, workers=2, batch=16, size=512)
    a = r.args

    def loader(collate, ds):
        data = ds((3, a.size, a.size)) if ds is Images else ds()
        return DataLoader(data, a.batch, num_workers=a.workers, collate_fn=collate,
                          multiprocessing_context="fork")  # fmt: skip

    for job, (collate, ds, step, wanted) in JOBS.items():
        make = functools.partial(loader, collate, ds)
        found = _diagnose.run(make, step, a.seconds, a.rounds)
        for row in found["rows"]:
            form = _diagnose.LABELS[row["cache"]]
            rate = 1 / row["per_batch"]
            r.rows.append({"form": form, "unit": "batches/s", "median": rate, "job": job})
            print("W5     %-28s %-40s %.2f batches/s" % (job, form, rate), flush=True)
        print("W5     %s: %s" % (job, found["verdict"]), flush=True)
        r.rows[-1]["verdict"] = found["verdict"]
        share = sum(found["shares"][w] for w in wanted) / sum(found["shares"].values())
        if collate is loaders.collate_pickled and "pickling in collate_fn" not in found["verdict"]:
            share = 0.0
        what = " and ".join(_diagnose.PARTS[w] for w in wanted)
        r.goal("%s: share of %s" % (job, what), share, 0.5)
    r.finish()


if __name__ == "__main__":
    main()
