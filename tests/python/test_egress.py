# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Egress, as far as it goes without a GPU: the copies are plain ones."""
import pytest

import sluice

torch = pytest.importorskip("torch", reason="torch is not installed")

import sluice.torch  # noqa: E402


def _check(tensors, tag):
    if tag == "bad":
        raise ValueError("cannot digest %s" % tag)
    assert (tensors["x"] == tag).all() and tensors["more"][0].dtype == torch.bool


def _batch(tag):
    return {"x": torch.full((1000, 100), float(tag)), "more": [torch.ones(3, dtype=torch.bool)]}


def test_every_result_arrives():
    with sluice.torch.Egress(_check, workers=2, method="fork") as out:
        for i in range(20):
            out.submit(_batch(i), i)
        out.flush()


def test_exception_comes_back():
    with pytest.raises(ValueError, match="cannot digest bad") as e:
        with sluice.torch.Egress(_check, workers=1, method="fork") as out:
            out.submit(_batch(0), "bad")
            out.flush()
    assert "_check" in str(e.value.__cause__)


def _die(tensors, tag):
    import os

    os._exit(7)


def test_worker_that_dies():
    with sluice.torch.Egress(_die, workers=1, method="fork") as out:
        out.submit(_batch(0), 0)
        with pytest.raises(RuntimeError, match="egress worker 0 .* exited with status 7"):
            out.flush()
        out._open = 0
