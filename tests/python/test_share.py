# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""sluice.share(): one copy, read by many."""
import pickle
import time

import numpy as np
import pytest
from util import same

import sluice

ENTRIES = [("/data/%05d.jpg" % i, i) for i in range(5000)]


def test_list():
    s = sluice.share(ENTRIES)
    assert len(s) == 5000 and s[0] == ENTRIES[0] and s[-1] == ENTRIES[-1]
    assert s[10:13] == ENTRIES[10:13] and list(s) == ENTRIES and ENTRIES[7] in s
    assert s == ENTRIES and s != ENTRIES[:-1] and s.index(ENTRIES[3]) == 3
    with pytest.raises(IndexError, match="5000"):
        s[5000]
    assert len(pickle.dumps(s)) < 1000


def test_dict():
    d = {"a": np.arange(1000), "b": {"deep": ["x"] * 50}, 3: "y" * 5000}
    s = sluice.share(d)
    assert list(s) == list(d) and all(same(s[k], d[k]) for k in d)
    assert "a" in s and "z" not in s and dict(s).keys() == d.keys()
    with pytest.raises(KeyError):
        s["z"]


def test_value():
    a = np.arange(100.0)
    s = sluice.share(a)
    assert (np.asarray(s) == a).all() and len(s) == 100 and s[5] == 5


def test_empty():
    assert list(sluice.share([])) == [] and dict(sluice.share({})) == {}


def _read(s, d, out):
    out.put((s[4999], len(s), float(d["x"].sum()), s[4998:]))


def test_workers(ctx):
    s, d = sluice.share(ENTRIES), sluice.share({"x": np.ones(100000)})
    out = ctx.Queue()
    ps = [ctx.Process(target=_read, args=(s, d, out)) for _ in range(2)]
    for p in ps:
        p.start()
    for _ in ps:
        assert out.get(timeout=60) == (ENTRIES[-1], 5000, 100000.0, ENTRIES[-2:])
    for p in ps:
        p.join()
    until = time.monotonic() + 10
    while s.stats()["shared"]:  # of workers that left by _exit(), until somebody looks for deaths
        s._stored.arena.event(0.05)
        assert time.monotonic() < until
    assert s[0] == ENTRIES[0]
