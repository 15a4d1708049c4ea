# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The type stubs say what is there, and a type checker gets out of them what a user needs."""
import os
import shutil
import subprocess
import sys

import pytest

import sluice

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mypy.ini")
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(sluice.__file__)))

# What stubtest may find, and why that is as it should be.
ALLOWED = r"""
sluice._sluice.View.__buffer__  # how checkers know of the buffer protocol; in C before 3.12
sluice.torch.DataLoader.__init__  # inherited in the stub: the arguments of the torch installed
"""


def tool(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip("%s is not installed (Debian: mypy)" % name)
    return path


def run(tmp_path, *command):
    env = {**os.environ, "MYPYPATH": PACKAGE, "PYTHONPATH": PACKAGE,
           "MYPY_CACHE_DIR": str(tmp_path / "cache")}  # fmt: skip
    return subprocess.run(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=300,
    )  # fmt: skip


def test_stubs_and_package_agree(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "allowed").write_text(ALLOWED)
    options = ["--concise", "--mypy-config-file", CONFIG, "--allowlist", "allowed"]
    if sys.version_info >= (3, 12):
        options.append("--ignore-unused-allowlist")
    # How to say in a stub that Arena has a layout of its own, only new checkers know.
    if "--ignore-disjoint-bases" in run(tmp_path, tool("stubtest"), "--help").stdout:
        options.append("--ignore-disjoint-bases")
    found = run(tmp_path, tool("stubtest"), *options, "sluice")
    assert found.returncode == 0, found.stdout


USE = """
import sluice
from typing import Any, List, Tuple
from typing_extensions import assert_type

q = sluice.Queue(8, fallback=False)
q.put({"a": 1}, timeout=1.0)
assert_type(q.qsize(), int)
sluice.Queue("8")  # error
q.put(1, 2, 3, 4)  # error
ctx = sluice.context("spawn")
ctx.Queue(3).get_nowait()
p = ctx.Process(target=print, daemon=True)
sluice.context(5)  # error
entries = sluice.share([("a.jpg", 1)])
assert_type(entries[0], Tuple[str, int])
assert_type(entries[1:], List[Tuple[str, int]])
assert_type(sluice.share({"a": 1.5})["a"], float)
entries[0] = ("b.jpg", 2)  # error
with sluice.Arena("4M") as arena, arena.channel("c", capacity=4) as channel:
    channel.publish({"x": bytearray(8)}, tag=9)
    with channel.next(1.0) as batch:
        assert_type(batch["x"], sluice.View)
        batch.begin(3)  # error
    for batch in channel:
        assert_type(batch.tag, int)
sluice.torch.arena_empty((3, 4))
sluice.torch.Egress(workers=4)  # error
"""


def test_what_a_user_gets(tmp_path):
    (tmp_path / "use.py").write_text(USE)
    found = run(tmp_path, tool("mypy"), "--strict", "--config-file", CONFIG, "use.py")
    lines = {int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line}
    wanted = {n for n, line in enumerate(USE.splitlines(), 1) if line.endswith("# error")}
    assert lines == wanted, found.stdout
    assert all(line.startswith("use.py:") for line in found.stdout.splitlines()[:-1])


def test_package_is_marked_as_typed():
    assert os.path.exists(os.path.join(os.path.dirname(sluice.__file__), "py.typed"))
