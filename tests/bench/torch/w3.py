# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W3: image batches, four ways to collate; pinned and copied to the GPU where there is one."""
import loaders
import torch
from loaders import Images, pair
from side import Report, memcpy_rate


def main():
    r = Report("W3", seconds=2.0, workers=2, batch=32, gpu_workers="8,12", size=1024)
    a = r.args
    ds = Images((3, a.size, a.size))
    nbytes = a.batch * 12 * a.size * a.size
    kw = {"batch_size": a.batch, "num_workers": a.workers}
    copy = memcpy_rate(nbytes)
    note = {"batch": "%d MB" % (nbytes // 10**6)}
    got = r.alternate(pair(ds, a.seconds, **kw), "batches/s", collate="default", **note)
    ratio = got["sluice"] / got["stock"]
    r.goal("default collate / stock", ratio, ">= 4", ratio >= 4)
    default = got["sluice"]
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        for workers, factor in zip(map(int, a.gpu_workers.split(",")), (12, 18)):
            pinned = {"batch_size": a.batch, "num_workers": workers, "pin_memory": True}
            got = r.alternate(
                pair(ds, a.seconds, device="cuda", **pinned), "batches/s", to="GPU", workers=workers
            )
            ratio = got["sluice"] / got["stock"]
            r.goal("pinned, %d workers / stock" % workers, ratio, ">= %d" % factor, ratio >= factor)
    got = r.alternate(
        pair(ds, a.seconds, collate=loaders.collate_private, **kw), "batches/s", collate="private"
    )
    bound = 1 / (1 / default + 1 / copy)
    r.goal("private collate", got["sluice"], ">= %.2f" % bound, got["sluice"] >= bound)
    got = r.alternate(
        pair(
            ds,
            a.seconds,
            collate=loaders.collate_shared,
            ours_collate=loaders.sluice.torch.arena_collate,
            **kw,
        ),
        "batches/s",
        collate="straight into shared memory",
    )
    ratio = got["sluice"] / default
    r.goal("shared collate / our default", ratio, ">= 0.9", ratio >= 0.9)
    # Minutes for what stays slow whatever carries it: one round.
    r.alternate(
        pair(ds, a.seconds, collate=loaders.collate_pickled, **kw),
        "batches/s",
        rounds=1,
        collate="pickle",
    )
    r.finish()


if __name__ == "__main__":
    main()
