# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What pip installs: one wheel for Python 3.9 and newer that works by itself."""
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        pytest.skip("python3-dev is not installed")
    if not (shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("there is no C compiler")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run = subprocess.run(
        [*command, "-w", str(out), os.path.join(TOP, "lib", "python")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )  # fmt: skip
    if "No module named" in run.stdout and run.returncode:
        pytest.skip("pip or setuptools is not installed")
    if "needs the headers of liburing" in run.stdout:
        pytest.skip("liburing is not installed (Debian: liburing-dev)")
    assert run.returncode == 0, run.stdout[-3000:]
    (path,) = out.iterdir()
    return path


def test_one_for_every_python(wheel):
    assert "-cp39-abi3-linux" in wheel.name
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"sluice"}
    package = os.path.join(TOP, "lib", "python", "sluice")
    for folder, _, files in os.walk(package):
        for f in files:
            if f.endswith((".py", ".pyi", "py.typed")):
                assert os.path.relpath(os.path.join(folder, f), os.path.dirname(package)) in names
    assert "sluice/_sluice.abi3.so" in names


@pytest.mark.parametrize(
    "header, package",
    [("liburing.h", "liburing-dev"), ("Python.h", "python3-dev"), ("stdio.h", "libc6-dev")],
)
def test_what_is_missing_is_named(wheel, header, package, tmp_path):
    """A compiler that does not find a header: one sentence, before anything is compiled."""
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\ncase \"$*\" in *%s*) exit 1 ;; esac\nexec cc \"$@\"\n" % header)
    cc.chmod(0o755)
    lib = shutil.copytree(os.path.join(TOP, "lib"), tmp_path / "lib")
    run = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext"], cwd=os.path.join(lib, "python"),
        env={**os.environ, "CC": str(cc)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode
    said = run.stdout.splitlines()[-1]
    assert said.startswith("error: building sluice needs ") and package in said


USE = """
import sluice, sys
assert sluice.__file__.startswith(sys.argv[1]), sluice.__file__
q = sluice.Queue()
q.put({"a": [b"x" * 100000]})
assert q.get(timeout=10) == {"a": [b"x" * 100000]}
assert "torch" not in sys.modules and "numpy" not in sys.modules
with sluice.Arena("1M") as a:
    assert sluice.__version__ and a.stats()["peers"] == 1
print("works")
"""


def test_unpacked_wheel_works(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=60,
    )  # fmt: skip
    assert run.stdout == "works\n", run.stdout
