# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""System calls a batch, of trainer and workers together, for batches of 1 and of 200 tensors.

strace counts a job of few batches and one of many; the difference is what a batch takes, without
what starting and ending takes.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from side import Report

TENSORS = (1, 200)
FORMS = ("stock file_descriptor", "stock file_system", "sluice")


def job(form, tensors, batches):
    """What strace looks at."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Parts(Dataset):
        sample = {"part%03d" % k: torch.ones(3 * 2**20 // 4 // tensors) for k in range(tensors)}

        def __len__(self):
            return 4 * batches

        def __getitem__(self, i):
            return self.sample

    torch.set_num_threads(1)
    kw = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"}
    if form == "sluice":
        import sluice.torch

        loader = sluice.torch.DataLoader(Parts(), **kw)
    else:
        torch.multiprocessing.set_sharing_strategy(form.split()[1])
        loader = DataLoader(Parts(), **kw)
    for _ in loader:
        pass


def counted(form, tensors, batches):
    """{call: count} of the whole job."""
    strace = shutil.which("strace")
    if strace is None:
        raise ImportError("strace is not installed")
    with tempfile.NamedTemporaryFile("r") as out:
        command = [sys.executable, os.path.abspath(__file__), "--job", form, str(tensors)]
        command = [strace, "-c", "-f", "-U", "calls,name", "-o", out.name, *command, str(batches)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=300)
        found = {m[2]: int(m[1]) for m in re.finditer(r"^ *(\d+) +(\w+)$", out.read(), re.M)}
    total = found.pop("total", None)
    if done.returncode or total is None:
        why = (done.stderr.strip() or "strace counted nothing").splitlines()[-1]
        raise ImportError("strace cannot count here: %s" % why)
    return found


def main():
    if sys.argv[1:2] == ["--job"]:
        return job(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    r = Report("calls", few=10, many=40)
    a = r.args
    for tensors in TENSORS:
        most = {}

        def rate(form):
            few, many = (counted(form, tensors, n) for n in (a.few, a.many))
            diff = {k: (many[k] - few.get(k, 0)) / (a.many - a.few) for k in many}
            most[form] = sorted(diff.items(), key=lambda kv: -kv[1])[:5]
            return sum(diff.values())

        got = r.alternate(
            {form: (lambda form=form: rate(form)) for form in FORMS},
            "calls/batch",
            tensors=tensors,
        )
        for row in r.rows[-len(FORMS) :]:
            if row["form"] in most:
                row["calls"] = {k: round(v, 2) for k, v in most[row["form"]]}
        if "sluice" in got:
            fewest = min(v for k, v in got.items() if k != "sluice")
            text = "%d tensors: sluice / the better stock" % tensors
            r.goal(text, got["sluice"] / fewest, most=1)
    r.finish()


if __name__ == "__main__":
    main()
