# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Results as TAP, in the file named by --tap; memory and processes looked after between tests."""
import gc
import multiprocessing
import os
import signal
import sys

import pytest

# Who starts this in the background may have had interrupts ignored, and so would all children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--tap", help="write TAP to this file")


class _Tap:
    def __init__(self, path):
        self.out = open(path, "w")
        self.n = 0
        self.out.write("TAP version 13\n")

    def result(self, ok, name, why=""):
        self.n += 1
        self.out.write("%sok %d - %s%s\n" % ("" if ok else "not ", self.n, name, why))
        self.out.flush()

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("/")[-1].replace("#", "")
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.result(True, name, " # SKIP " + str(why).replace("Skipped: ", ""))
        elif report.failed:
            self.result(False, name)
            for line in report.longreprtext.splitlines():
                self.out.write("# %s\n" % line)
        elif report.when == "call":
            self.result(True, name)

    def pytest_collectreport(self, report):
        if report.failed:
            self.result(False, "collect " + report.nodeid)
            self.out.write("# %s\n" % str(report.longrepr).replace("\n", "\n# "))

    def pytest_sessionfinish(self):
        self.out.write("1..%d\n" % self.n)
        self.out.close()


def pytest_configure(config):
    path = config.getoption("--tap")
    if path:
        config.pluginmanager.register(_Tap(path))


def pytest_collection_finish():
    # What torch brought along need not be walked again after every test.
    gc.collect()
    gc.freeze()


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
