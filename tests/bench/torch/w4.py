# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W4: one sample in 200 tensors."""
from loaders import Graphs, collate_graph, collate_graph_arena, pair
from side import Report


def main():
    r = Report("W4", seconds=2.0, workers=2, batch=32)
    a = r.args
    kw = {"batch_size": a.batch, "num_workers": a.workers}
    forms = pair(Graphs(), a.seconds, collate=collate_graph, **kw)
    forms["sluice, arena_empty in collate"] = pair(
        Graphs(), a.seconds, collate=collate_graph_arena, **kw
    )["sluice"]
    got = r.alternate(forms, "batches/s")
    ratio = max(v for k, v in got.items() if k != "stock") / got["stock"]
    r.goal("best form / stock", ratio, ">= 15", ratio >= 15)
    r.finish()


if __name__ == "__main__":
    main()
