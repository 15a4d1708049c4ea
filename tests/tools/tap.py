# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the tests of the program share: TAP, a scratch directory, and running sluice.

$SLUICE names another build of the program to test, for example one with sanitizers.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback

SLUICE = os.environ.get("SLUICE") or os.path.abspath("build/sluice")
MEDDLE = os.path.abspath("build/test/tools/meddle.so")
HOLDER = os.path.abspath("build/test/tools/holder")

tests = []


class Skip(Exception):
    pass


def test(f):
    tests.append(f)
    return f


def sluice(*args, meddle=False, wrap=(), **kw):
    env = dict(os.environ, LC_ALL="C.UTF-8")
    env.pop("TERM", None)
    if meddle:
        env["LD_PRELOAD"] = MEDDLE
    return subprocess.run([*wrap, SLUICE, *args], capture_output=True, env=env, timeout=120, **kw)


def sluice_json(*args, **kw):
    r = sluice(*args, "--json", **kw)
    # Strict: what is not UTF-8 or not one object on one line is an error.
    text = r.stdout.decode("utf-8")
    assert text.endswith("\n") and text.count("\n") == 1, text[-200:]
    return r.returncode, json.loads(text), r.stderr.decode("utf-8", "replace")


def equal(got, want, what=""):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def main():
    """Runs the tests, each in a scratch directory of its own, which it gets as its argument."""
    print(f"1..{len(tests)}")
    failed = 0
    for n, f in enumerate(tests, 1):
        name = f.__name__.replace("_", " ")
        scratch = tempfile.mkdtemp(prefix="sluice-test-")
        os.chmod(scratch, 0o755)
        try:
            f(scratch)
            print(f"ok {n} - {name}", flush=True)
        except Skip as e:
            print(f"ok {n} - {name} # SKIP {e}", flush=True)
        except Exception:
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print(f"not ok {n} - {name}", flush=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1 if failed else 0)
