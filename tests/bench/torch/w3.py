# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W3: image batches, four ways to collate; pinned and copied to the GPU where there is one."""
import bounds
import loaders
import torch
from loaders import Images, pair
from side import Report, memcpy_rate


def main():
    workers = {"workers": 2, "gpu_workers": "8,12"}
    r = Report("W3", seconds=2.0, batch=32, size=1024, only="", custom_rounds=2, **workers)
    a = r.args
    ds = Images((3, a.size, a.size))
    row = 12 * a.size * a.size
    kw = {"batch_size": a.batch, "num_workers": a.workers}

    def wanted(what):
        return not a.only or what in a.only.split(",")

    if wanted("default"):
        forms = pair(ds, a.seconds, **kw)
        forms["bound: workers only copy"] = bounds.best_memcpy(a.workers, row, a.batch, a.seconds)
        note = {"batch": "%d MB" % (a.batch * row // 10**6)}
        got = r.alternate(forms, "batches/s", collate="default", **note)
        limit = got["bound: workers only copy"] / got["stock"]
        ratio = got["sluice"] / got["stock"]
        r.goal("default collate / stock", ratio, 4, limit, "workers only copy")
    if torch.cuda.is_available() and wanted("gpu"):
        torch.zeros(1, device="cuda")
        bus = bounds.Bus(a.batch * row)
        for workers, factor in zip(map(int, a.gpu_workers.split(",")), (12, 18)):
            pinned = {"batch_size": a.batch, "num_workers": workers, "pin_memory": True}
            forms = pair(ds, a.seconds, device="cuda", **pinned)
            copy, move = "bound: workers only copy", "bound: only copies to the GPU"
            both = "bound: workers copy, then the bus"
            forms[copy] = lambda: bounds.memcpy(workers, row, a.batch, a.seconds, True)
            forms[move] = lambda: bus.rate(a.seconds)
            forms[both] = lambda: bounds.both(workers, row, a.batch, a.seconds, bus)
            got = r.alternate(forms, "batches/s", to="GPU", workers=workers)
            what, ours = "pinned, %d workers" % workers, got["sluice"]
            limit = got[both] / got["stock"]
            r.goal(what + " / stock", ours / got["stock"], factor, limit, both[7:])
            # The bus is slower than the workers' memcpy where there are enough of them.
            ceiling = min(got[copy], got[move])
            r.goal(what + " / ceiling", ours / ceiling, 0.9, got[both] / ceiling, both[7:])
        del bus
    if wanted("private"):
        forms = pair(ds, a.seconds, collate=loaders.collate_private, **kw)
        forms["sluice, default collate"] = pair(ds, a.seconds, **kw)["sluice"]
        got = r.alternate(forms, "batches/s", a.custom_rounds, collate="private")
        # No slower than the default collate and one memcpy of the batch after each other.
        copy = memcpy_rate(a.batch * row)
        least = 1 / (1 / got["sluice, default collate"] + 1 / (copy * a.workers))
        r.goal("private collate / default and memcpy", got["sluice"] / least, 1)
    if wanted("shared"):
        arena = loaders.sluice.torch.arena_collate
        short = a.seconds / 2
        forms = pair(ds, short, collate=loaders.collate_shared, ours_collate=arena, **kw)
        forms["sluice, default collate"] = pair(ds, short, **kw)["sluice"]
        note = {"collate": "straight into shared memory"}
        # Ours do the same work: what they differ by is noise, which short rounds average.
        got = r.alternate(forms, "batches/s", 4 * a.custom_rounds, **note)
        ratio = got["sluice"] / got["sluice, default collate"]
        r.goal("shared collate / our default", ratio, 0.9)
    if not wanted("pickle"):
        return r.finish()
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
