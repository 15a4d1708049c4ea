# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The charts of the workloads, and that those in the tree show the figures beside them."""
import glob
import os
import subprocess
import sys
from xml.dom import minidom

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(HERE, "..", "bench")
sys.path.insert(0, os.path.join(BENCH, "torch"))

import plot  # noqa: E402

DOC = {
    "workload": "W9 <new>",
    "date": "2026-01-02T03:04:05+00:00",
    "kernel": "6.1",
    "cpus": 2,
    "versions": {"python": "3.11", "gpu": "none & more"},
    "rows": [
        {"form": "stock", "unit": "MB/s", "median": 50.0, "values": [50.0], "payload": "bytes"},
        {"form": "sluice", "unit": "MB/s", "median": 200.0, "values": [1.0], "payload": "bytes"},
        {"form": "peer", "unit": "MB/s", "payload": "bytes", "skipped": "is <not> there"},
        {"form": "stock", "unit": "s", "median": 3.0, "values": [3.0]},
        {"goal": "sluice / stock", "value": 4.0, "bound": "> 1", "met": True},
    ],
}


def test_chart():
    picture = plot.svg(DOC)
    top = minidom.parseString(picture).documentElement
    bars = [r for r in top.getElementsByTagName("rect")]
    assert [float(r.getAttribute("width")) for r in bars] == [plot.LENGTH / 4, plot.LENGTH] + [
        plot.LENGTH
    ]
    assert [r.getAttribute("class") for r in bars] == ["bar", "bar us", "bar"]
    words = [t.firstChild.data for t in top.getElementsByTagName("text")]
    assert "is <not> there" in words and "payload: bytes, MB/s" in words
    assert words.count("longer is better") == 1 and words.count("shorter is better") == 1
    assert words[-1] == "none & more, 2 CPUs, Linux 6.1, python 3.11; 2026-01-02"


def test_nothing_to_draw():
    assert plot.svg({**DOC, "rows": [{"goal": "x", "value": 1, "bound": "1", "met": True}]}) is None


def test_charts_in_the_tree_are_those_of_the_figures():
    files = glob.glob(os.path.join(BENCH, "results", "torch-*.json"))
    assert files
    for path in files:
        with open(path) as f:
            picture = plot.svg(plot.json.load(f))
        if picture is not None:
            with open(path[:-5] + ".svg") as f:
                assert f.read() == picture, "run tests/bench/torch/plot.py " + path


def test_bad_file(tmp_path):
    (tmp_path / "x.json").write_text('{"rows": 3}')
    for args, why in (([], "usage"), ([str(tmp_path / "x.json")], "is no result of a workload")):
        command = [sys.executable, os.path.join(BENCH, "torch", "plot.py"), *args]
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert run.returncode == 1 and why in run.stderr and run.stderr.count("\n") == 1
