# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""python3 -m sluice.diagnose names what limits a job."""
import json
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

import sluice.torch  # noqa: E402
from sluice import _diagnose  # noqa: E402

BIG = 6 << 20


class Map(Dataset):
    def __init__(self, delay=0.0, nbytes=1000):
        self.delay, self.nbytes = delay, nbytes

    def __len__(self):
        return 24

    def __getitem__(self, i):
        time.sleep(self.delay)
        return torch.full((self.nbytes,), i, dtype=torch.uint8)


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(16):
            time.sleep(0.02)
            yield {"x": torch.full((10,), i), "name": "n%d" % i}


def slow(samples):
    time.sleep(0.15)
    return torch.stack(samples)


# Made before: what a batch costs is handing it over, and next to nothing else.
ARRAYS = [np.full(BIG, i, np.uint8) for i in range(4)]


def arrays(samples):
    return list(ARRAYS)


def pickled(samples):
    return pickle.dumps(torch.cat([s.repeat(BIG // 1000) for s in samples]))


def fetching():
    return DataLoader(Map(0.03), 4, num_workers=2, multiprocessing_context="fork")


def collating():
    return DataLoader(Map(), 4, num_workers=2, collate_fn=slow, multiprocessing_context="fork")


def handing_over():
    return DataLoader(Map(), 4, num_workers=1, collate_fn=arrays, multiprocessing_context="fork")


def pickling():
    return DataLoader(Map(), 4, num_workers=1, collate_fn=pickled, multiprocessing_context="fork")


def streaming():
    return DataLoader(Stream(), 4, num_workers=1, multiprocessing_context="spawn")


def quick():
    return DataLoader(Map(), 4, num_workers=2, multiprocessing_context="fork")


def ours():
    return sluice.torch.DataLoader(Map(0.03), 4, num_workers=1, multiprocessing_context="fork")


def in_this_process():
    return DataLoader(Map(), 4)


def no_loader():
    return [1, 2, 3]


def train(batch):
    time.sleep(0.25)


NUMBER = 3


def diagnose(tmp_path, what, *options):
    out = tmp_path / "found.json"
    argv = ["test_diagnose:" + what, "--seconds", "0.25", "--rounds", "1", "--json", str(out)]
    assert _diagnose.main([*argv, *options]) == 0
    return json.loads(out.read_text())


CASES = {
    "fetching": ("fetch", "the dataset is the bottleneck"),
    "collating": ("collate", "the collate function is the bottleneck"),
    "handing_over": ("ipc", "IPC is the bottleneck, 25.2 MB in 4 NumPy arrays go through a pipe"),
    "streaming": ("fetch", "the dataset is the bottleneck"),
}


@pytest.mark.parametrize("what", CASES)
def test_cause(what, tmp_path, capsys):
    # The rows are measured one after another: of three rounds, one may meet a busy machine.
    found = diagnose(tmp_path, what, "--no-sluice-row", "--rounds", "3")
    part, words = CASES[what]
    assert max(found["shares"], key=found["shares"].get) == part
    assert words in found["verdict"]
    assert [r["cache"] for r in found["rows"]] == ["plain", "collate", "ipc"]
    assert all(r["batches"] >= 3 for r in found["rows"])
    said = capsys.readouterr().out
    assert "verdict: " + found["verdict"] in said and "the batch, before it is handed over" in said


def test_pickling_in_collate_is_named(tmp_path):
    found = diagnose(tmp_path, "pickling", "--no-sluice-row")
    assert "pickling in collate_fn is the cause" in found["verdict"]


def test_step_is_the_limit(tmp_path):
    found = diagnose(tmp_path, "quick", "--step", "test_diagnose:train")
    assert max(found["shares"], key=found["shares"].get) == "step"
    # "is the limit", or "takes most" of the time where others keep the CPUs busy.
    assert found["verdict"].startswith("the training step ")
    assert [r["cache"] for r in found["rows"]] == ["plain", "sluice", "collate", "ipc", "trainer"]


def test_gain_is_measured(tmp_path):
    found = diagnose(tmp_path, "handing_over")
    gain = found["rows"][0]["per_batch"] / found["rows"][1]["per_batch"]
    assert found["rows"][1]["cache"] == "sluice" and gain > 1
    assert found["verdict"].endswith("through sluice the same job is %.1f times as fast" % gain)


def test_a_loader_of_ours_has_no_such_row(tmp_path):
    found = diagnose(tmp_path, "ours")
    assert [r["cache"] for r in found["rows"]] == ["plain", "collate", "ipc"]


COUNTERS = """#!%s
import json, os, sys, time
assert sys.argv[1:4] == ["stat", "--json", "-i"], sys.argv
n = 0
while True:
    n += 1
    counts = [{"kind": "pipe", "dir": "in", "bytes": 5000 * n},
              {"kind": "pipe", "dir": "out", "bytes": 77},
              {"kind": "unix_stream", "dir": "in", "bytes": 1000 * n}]
    processes = [{"pid": 1, "counts": counts}, {"pid": os.getppid(), "counts": counts}]
    print(json.dumps({"processes": processes}), flush=True)
    time.sleep(0.02)
"""


def test_bytes_are_counted_where_counters_load(tmp_path, capsys):
    program = tmp_path / "counters"
    program.write_text(COUNTERS % sys.executable)
    program.chmod(0o755)
    found = diagnose(tmp_path, "quick", "--no-sluice-row", "--sluice", str(program))
    assert found["not_counted"] is None
    for row in found["rows"]:
        assert row["bytes"]["pipe"] == pytest.approx(5 * row["bytes"]["socket"])
        assert row["bytes"]["socket"] > 0 == row["bytes"]["arena"]
    assert "pipe     socket      arena" in capsys.readouterr().out


def test_what_is_said_where_they_do_not(tmp_path, capsys):
    program = tmp_path / "counters"
    program.write_text("#!/bin/sh\necho 'sluice: the kernel refuses' >&2\nexit 3\n")
    program.chmod(0o755)
    for path, why in (("/nowhere/sluice", "no program /nowhere"), (str(program), "kernel refuses")):
        found = diagnose(tmp_path, "quick", "--no-sluice-row", "--sluice", path)
        assert why in found["not_counted"]
        assert "bytes are not counted: " + found["not_counted"] in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv,why",
    [
        (["nowhere:f"], "cannot import nowhere"),
        (["test_diagnose"], "write module:function"),
        ([".test_diagnose:quick"], "write module:function"),
        (["test_diagnose:nothing"], "has no nothing"),
        (["test_diagnose:NUMBER"], "is a int and cannot be called"),
        (["test_diagnose:no_loader"], "returned a list, not a DataLoader"),
        (["test_diagnose:in_this_process"], "num_workers=0"),
        (["test_diagnose:quick", "--step", "test_diagnose:nothing"], "has no nothing"),
    ],
)
def test_bad_input(argv, why, capsys):
    assert _diagnose.main(argv) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and why in said.err


def test_as_a_program(tmp_path):
    job = tmp_path / "job.py"
    job.write_text("from test_diagnose import fetching\n")
    here = os.path.dirname(os.path.abspath(__file__))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    command = [sys.executable, "-m", "sluice.diagnose", "job:fetching"]
    run = subprocess.run(
        [*command, "--rounds", "1", "--seconds", "0.2"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "verdict: fetching samples takes most" in run.stdout
    run = subprocess.run(
        [*command, "--seconds", "0"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert run.returncode == 2 and "--seconds 0: more than 0" in run.stderr


def test_module_that_is_no_python(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_job.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert _diagnose.main(["broken_job:f"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot import broken_job" in said


def _in_itself(samples):
    batch = [torch.stack(samples)]
    batch.append(batch)
    return {"batch": batch, "again": batch}


def test_batch_that_contains_itself():
    def make():
        return DataLoader(Map(), 4, num_workers=1, collate_fn=_in_itself,
                          multiprocessing_context="fork")  # fmt: skip

    found = _diagnose.run(make, seconds=0.1, rounds=1)
    assert [r["cache"] for r in found["rows"]] == ["plain", "sluice", "collate", "ipc"]
    for row in found["rows"]:
        assert row["content"]["parts"]["tensor"] == {"count": 2, "bytes": 8000}
