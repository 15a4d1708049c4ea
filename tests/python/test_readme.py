# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The diffs of README's Python section run: with their - lines and with their + lines alike."""
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")

HEAD = """
import multiprocessing, sys
import numpy
import torch
import sluice, sluice.torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return {"x": torch.full((64, 64), float(i)), "name": "n%d" % i}

def show(loader):
    for batch in loader:
        print(batch["x"].shape, float(batch["x"].sum()), batch["name"][-1], flush=True)

def put(q):
    q.put({"a": numpy.arange(5), "b": ["text"] * 3})

def net(x):
    return x * 2

def fn(tensors, tag):
    with open(sys.argv[1], "a") as f:
        f.write("%d %g\\n" % (tag, float(tensors["out"].sum())))
"""

# What stands around the lines of a diff: what one of its lines says, and the program.
PROGRAMS = {
    "import DataLoader": """
%(lines)s
if __name__ == "__main__":
    show(DataLoader(Data(), 32, num_workers=2))
""",
    "loader = DataLoader(": """
from torch.utils.data import DataLoader
data = Data()
if __name__ == "__main__":
    %(lines)s
    show(loader)
""",
    "q = ": """
if __name__ == "__main__":
    %(lines)s
    p = multiprocessing.get_context("fork").Process(target=put, args=(q,))
    p.start()
    print(q.get(timeout=30))
    p.join()
""",
    "self.entries = ": """
class Entries(torch.utils.data.Dataset):
    def __init__(self, entries):
        %(lines)s
    def __len__(self):
        return len(self.entries)
    def __getitem__(self, i):
        path, label = self.entries[i]
        return {"x": torch.tensor([label]), "name": path}

if __name__ == "__main__":
    entries = Entries([("/data/%%d.jpg" %% i, i) for i in range(1000)])
    show(torch.utils.data.DataLoader(entries, 250, num_workers=1))
""",
    "sluice.torch.Egress(": """
if __name__ == "__main__":
    batches = [torch.full((8, 8), float(i)) for i in range(6)]
    %(lines)s
    print("".join(sorted(open(sys.argv[1]))))
""",
}


def diffs():
    with open(README) as f:
        section = f.read().split("\n## Python\n")[1].split("\n## ")[0]
    return re.findall(r"```diff\n(.*?)```", section, re.S)


def program(diff, take):
    (template,) = [t for key, t in PROGRAMS.items() if key in diff] or [None]
    assert template, "no program for this diff of README:\n" + diff
    lines = [x[1:] for x in diff.splitlines() if x[0] in (" ", take)]
    (indent,) = re.findall(r"^( *)%\(lines\)s", template, re.M)
    return HEAD + template % {"lines": ("\n" + indent).join(lines)}


def test_every_form_has_a_diff():
    found = diffs()
    assert len(found) == len(PROGRAMS)
    for key in PROGRAMS:
        assert sum(key in d for d in found) == 1, key
    for d in found:
        assert [x[0] for x in d.splitlines() if x[0] != " "] == ["-", "+"], "one line each:\n" + d


@pytest.mark.parametrize("key", PROGRAMS)
def test_diff(key, tmp_path):
    (diff,) = [d for d in diffs() if key in d]
    said = {}
    for take in "-+":
        path = tmp_path / ("before.py" if take == "-" else "after.py")
        path.write_text(program(diff, take))
        run = subprocess.run(
            [sys.executable, str(path), str(path) + ".out"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        said[take] = run.stdout
    assert said["-"] == said["+"] != ""
