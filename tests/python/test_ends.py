# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Ends that nobody chose: a killed trainer, Ctrl-C, an interpreter that exits in the middle."""
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="torch is not installed")

HEAD = r"""
import os, signal, sys, threading, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
import sluice, sluice.torch

class Data(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, i):
        return torch.full((1 << 16,), float(i))

def say(*what):
    print(*what, flush=True)

def loader(form, **kw):
    if form == "class":
        return sluice.torch.DataLoader(Data(), 4, num_workers=2, **kw)
    method = kw.pop("multiprocessing_context", "fork")
    context = sluice.context(method)
    return DataLoader(Data(), 4, num_workers=2, multiprocessing_context=context, **kw)
"""

KILLED = """
if __name__ == "__main__":
    it = iter(loader(%(form)r, multiprocessing_context=%(method)r, persistent_workers=%(keep)r))
    kept = [next(it) for _ in range(3)]
    say(*(w.pid for w in it._workers))
    os.kill(os.getpid(), signal.SIGKILL)
"""

CTRL_C = """
if __name__ == "__main__":
    it = iter(loader("class"))
    for k, batch in enumerate(it):
        if k == 3:
            say(*(w.pid for w in it._workers))
"""

# What is alive when the interpreter goes: iterators, batches, queues with objects in them, an
# egress that was never closed, and a thread that waits inside the extension.
EXIT = """
def digest(tensors, tag):
    pass

if __name__ == "__main__":
    its = [iter(loader(form)) for form in ("class", "context")]
    kept = [next(it) for it in its for _ in range(2)]
    q = sluice.Queue()
    for n in (1, 1 << 20):
        q.put(np.ones(n))
    full = sluice.Queue(1)
    full.put(1)
    idle = sluice.Queue()
    threading.Thread(target=idle.get, daemon=True).start()
    threading.Thread(target=full.put, args=(2,), daemon=True).start()
    arena = sluice.Arena("1M")
    channel = arena.channel("c", 2)
    channel.publish({"x": np.arange(5)})
    view = channel.next(1)["x"]
    shared = sluice.share([("a", 1)] * 1000)
    egress = sluice.torch.Egress(digest, workers=1, method="fork")
    egress.submit({"x": torch.ones(1 << 18)})
    time.sleep(0.2)
    say(*(w.pid for it in its for w in it._workers), egress._workers[0].pid)
    %(how)s
"""


def start(tmp_path, text, **more):
    path = tmp_path / "job.py"
    path.write_text(HEAD + text)
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more,
    )  # fmt: skip


def gone(pids, seconds=10):
    """Whether all of them end in this time; a zombie that nobody waits for has ended too."""
    until = time.monotonic() + seconds
    while True:
        left = []
        for pid in pids:
            try:
                with open("/proc/%d/stat" % pid) as f:
                    if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                        left.append(pid)
            except FileNotFoundError:
                pass
        if not left:
            return True
        if time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.05)


@pytest.mark.parametrize(
    "form,method,keep",
    [("class", "fork", False), ("class", "spawn", True), ("context", "fork", True)],
)
def test_trainer_killed(form, method, keep, tmp_path):
    before = set(os.listdir("/dev/shm"))
    p = start(tmp_path, KILLED % {"form": form, "method": method, "keep": keep})
    out, err = p.communicate(timeout=90)
    assert p.returncode == -signal.SIGKILL, err
    pids = [int(x) for x in out.split()]
    assert len(pids) == 2 and gone(pids), "a worker outlived its trainer"
    # Others here have names there too; torch puts its process's number into them.
    ours = ["sluice", *("_%d_" % pid for pid in (p.pid, *pids))]
    new = set(os.listdir("/dev/shm")) - before
    assert not {name for name in new if any(part in name for part in ours)}


def test_ctrl_c(tmp_path):
    p = start(tmp_path, CTRL_C)
    pids = [int(x) for x in p.stdout.readline().split()]
    os.killpg(p.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
    begun = time.monotonic()
    out, err = p.communicate(timeout=60)
    assert time.monotonic() - begun < 20
    assert p.returncode in (-signal.SIGINT, 130) and "KeyboardInterrupt" in err, err
    assert "Fatal" not in err and len(pids) == 2 and gone(pids)


@pytest.mark.parametrize("how", ["pass", "sys.exit(3)", "raise RuntimeError('boom')"])
def test_interpreter_exit(how, tmp_path):
    p = start(tmp_path, EXIT % {"how": how})
    try:
        out, err = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGABRT)
        pytest.fail("the interpreter hangs at exit: " + p.communicate()[1][-3000:])
    status, said = {"pass": (0, 0), "sys.exit(3)": (3, 0)}.get(how, (1, 1))
    assert p.returncode == status, err
    assert ("boom" in err) if said else err == "", err
    pids = [int(x) for x in out.split()]
    assert len(pids) == 5 and gone(pids), "a worker outlived its trainer"


ALONE = """
if __name__ == "__main__":
    from multiprocessing import resource_tracker

    for form in ("class", "context"):
        it = iter(loader(form))
        next(it)
        del it
    q = sluice.Queue()
    q.put(np.ones(1 << 20))
    q.get()
    sluice.share([1] * 1000)
    with open("/proc/thread-self/children") as f:
        say(f.read().split(), resource_tracker._resource_tracker._fd)
"""


def test_no_helper_process(tmp_path):
    """Neither a daemon of ours nor multiprocessing's resource tracker."""
    if not os.path.exists("/proc/thread-self/children"):
        pytest.skip("this kernel does not list children")
    p = start(tmp_path, ALONE)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out == "[] None\n", out + err
