# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Move batches between the processes of a training host through shared memory, not pipes.

    sluice.Queue(maxsize)        instead of multiprocessing.Queue
    sluice.context("spawn")      instead of multiprocessing.get_context("spawn")
    sluice.share(obj)            one read-only copy of a dataset for all workers
    sluice.torch.DataLoader      instead of torch.utils.data.DataLoader
    sluice.Arena, Channel, Batch the library itself
"""
from . import _sluice
from ._context import context
from ._core import Arena, Batch, Channel, View
from ._queue import Empty, Full, ParentDied, Queue
from ._share import share

__version__ = _sluice.version()
__all__ = [
    "Arena",
    "Batch",
    "Channel",
    "Empty",
    "Full",
    "ParentDied",
    "Queue",
    "View",
    "context",
    "share",
]


def __getattr__(name):
    if name == "torch":
        import importlib

        return importlib.import_module(".torch", __name__)
    raise AttributeError("module 'sluice' has no attribute %r" % name)
