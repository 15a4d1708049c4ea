# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""torchdata's StatefulDataLoader resumes with our context as it does with torch's."""
import pickle

import pytest
from test_loader import Map
from util import same

import sluice

torch = pytest.importorskip("torch", reason="torch is not installed")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="torchdata is not installed: pip install torchdata"
)

N = 40


class Counting(torch.utils.data.IterableDataset):
    """Remembers by itself how far it is, as a reader of shards does."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        while self.at < N:
            i, self.at = self.at, self.at + 1
            if i % info.num_workers == info.id:
                yield {"i": i, "x": torch.full((50, 50), float(i)), "name": "name-%d" % i}
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def loader(ds, context, **kw):
    return stateful.StatefulDataLoader(
        ds(), 2, num_workers=2, multiprocessing_context=context, **kw
    )


@pytest.mark.parametrize(
    "ds,method,done",
    [(Map, "fork", 1), (Map, "fork", 6), (Counting, "fork", 1), (Counting, "spawn", 6)],
)
def test_resume(ds, method, done):
    want = list(loader(ds, method))
    first = loader(ds, sluice.context(method))
    it = iter(first)
    got = [next(it) for _ in range(done)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    del it, first
    second = loader(ds, sluice.context(method))
    second.load_state_dict(state)
    got += list(second)
    assert len(got) == len(want) and all(map(same, want, got))


def test_state_is_the_same_as_with_torchs_queues():
    states = []
    for context in ("fork", sluice.context("fork")):
        torch.manual_seed(3)
        one = loader(Counting, context, snapshot_every_n_steps=1, persistent_workers=True)
        for _ in range(2):
            it = iter(one)
            for _ in range(5):
                next(it)
            states.append(one.state_dict())
            list(it)
    assert states[0] == states[2] and states[1] == states[3]
