# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Results as TAP, in the file named by --tap; memory and processes looked after between tests."""
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import forkserver, resource_tracker

import pytest

# Who starts this in the background may have had interrupts ignored, and so would all children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Forked children inherit it: what hangs says where.
faulthandler.register(signal.SIGUSR1)


def pytest_addoption(parser):
    parser.addoption("--tap", help="write TAP to this file")
    parser.addoption("--limit", type=float, default=300, help="seconds that a test may take")


class _Tap:
    def __init__(self, path):
        self.out = open(path, "w")
        self.n = 0
        self.out.write("TAP version 13\n")

    def result(self, ok, name, why=""):
        self.n += 1
        self.out.write("%sok %d - %s%s\n" % ("" if ok else "not ", self.n, name, why))
        self.out.flush()

    def note(self, text):
        for line in text.splitlines():
            self.out.write("# %s\n" % line)
        self.out.flush()

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("/")[-1].replace("#", "")
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.result(True, name, " # SKIP " + str(why).replace("Skipped: ", ""))
        elif report.failed:
            self.result(False, name)
            self.note(report.longreprtext)
            self.note(report.capstderr)
        elif report.when == "call":
            self.result(True, name)

    def pytest_collectreport(self, report):
        if report.failed:
            self.result(False, "collect " + report.nodeid)
            self.note(str(report.longrepr))

    def pytest_sessionfinish(self):
        self.out.write("1..%d\n" % self.n)
        self.out.close()


def pytest_configure(config):
    # While a test runs, its standard error is a file that nobody sees who does not live to read it.
    config.unseized_stderr = os.dup(2)
    path = config.getoption("--tap")
    if path and not hasattr(config, "workerinput"):  # pytest-xdist's workers only report
        config.pluginmanager.register(_Tap(path))


def pytest_collection_finish():
    # What torch brought along need not be walked again after every test.
    gc.collect()
    gc.freeze()


def _stat(pid):
    """(parent, state), or None for a process that is gone."""
    try:
        with open("/proc/%s/stat" % pid) as f:
            state, parent = f.read().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return None
    return int(parent), state


def _descendants():
    stats = {int(p): _stat(p) for p in os.listdir("/proc") if p.isdigit()}
    found = {os.getpid()}
    while True:
        more = {p for p, s in stats.items() if s and s[0] in found and s[1] != "Z"} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def _says_where(pid):
    """Whether SIGUSR1 makes it print its stacks; another process would die of it."""
    try:
        with open("/proc/%d/status" % pid) as f:
            caught = next(int(line.split()[1], 16) for line in f if line.startswith("SigCgt:"))
    except OSError:
        return False
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


def _stacks(fd):
    faulthandler.dump_traceback(fd)
    for pid in filter(_says_where, _descendants()):
        os.write(fd, b"\nchild %d:\n" % pid)
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.2)


def _end_children():
    """Of a test that was given up; the helpers of multiprocessing stay."""
    # torch's handler would raise what became of its workers somewhere else.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    torchs = sys.modules.get("torch.utils.data._utils.signal_handling")
    if torchs is not None:
        torchs._SIGCHLD_handler_set = False
    helpers = resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid
    for pid in _descendants().difference(helpers):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    # The traceback has what torch's handler knows them by.
    sys.last_value = sys.last_traceback = sys.last_exc = None
    gc.collect()


GRACE = 30  # seconds that a test which was given up may take to end


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    limit = item.config.getoption("--limit")
    alarms = []

    def give_up(*_):
        alarms.append(time.monotonic())
        if len(alarms) > 1:
            _stacks(item.config.unseized_stderr)
            os._exit(1)
        _stacks(2)
        pytest.fail("takes longer than %g s" % limit)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit, GRACE)
    # Where even signal handlers do not run, the process ends.
    err = item.config.unseized_stderr
    faulthandler.dump_traceback_later(limit + 2 * GRACE, exit=True, file=err)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    if alarms:
        _end_children()


@pytest.fixture(autouse=True)
def no_children_left():
    yield
    gc.collect()
    for p in multiprocessing.active_children():
        p.join(5)
        assert not p.is_alive(), "%r is still running" % p


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def ctx(request):
    import sluice

    return sluice.context(request.param)


sys.path.insert(0, os.path.dirname(__file__))
