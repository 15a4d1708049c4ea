# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W4: one sample in 200 tensors."""
import bounds
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
    rows, row = 200 * a.batch, 4 * 15728
    forms["bound: workers only copy"] = bounds.best_memcpy(a.workers, row, rows, a.seconds)
    got = r.alternate(forms, "batches/s")
    ours = max(v for k, v in got.items() if k.startswith("sluice"))
    copy = got["bound: workers only copy"]
    r.goal("best form / stock", ours / got["stock"], 15, copy / got["stock"], "workers only copy")
    r.finish()


if __name__ == "__main__":
    main()
