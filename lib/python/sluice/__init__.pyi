# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
from . import diagnose as diagnose
from . import torch as torch
from ._context import context as context
from ._core import Arena as Arena
from ._core import Batch as Batch
from ._core import Channel as Channel
from ._core import View as View
from ._queue import Empty as Empty
from ._queue import Full as Full
from ._queue import ParentDied as ParentDied
from ._queue import Queue as Queue
from ._share import share as share

__version__: str
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
