# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""torch.utils.data.DataLoader whose workers hand over batches through arenas."""
import functools
import multiprocessing
import queue
import time
import weakref

import torch
from torch.utils.data import DataLoader as _Stock
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torch.utils.data._utils.pin_memory import pin_memory as _pin

from .. import _gpu
from .._context import context, fate, is_ours

_POLL = 0.25


class _Iter(_MultiProcessingDataLoaderIter):
    def __init__(self, loader):
        self._sluice_loader = weakref.ref(loader)
        self._sluice_pin = loader.pin_memory and torch.cuda.is_available()
        # No pin thread: what arrives is pinned already.
        loader.pin_memory, asked = False, loader.pin_memory
        try:
            super().__init__(loader)
        finally:
            loader.pin_memory = asked

    def _sluice_dead(self):
        return [
            (i, w)
            for i, w in enumerate(self._workers)
            if self._workers_status[i] and not w.is_alive()
        ]

    def _sluice_fail(self, dead, cause):
        for i, _ in dead:
            self._mark_worker_as_unavailable(i)
        loader = self._sluice_loader()
        if loader is not None and getattr(loader, "_iterator", None) is self:
            loader._iterator = None  # a persistent loader starts anew
        raise RuntimeError(
            "; ".join("DataLoader worker %d (pid %d) %s" % (i, w.pid, fate(w)) for i, w in dead)
        ) from cause

    def _try_get_data(self, timeout=5.0):
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                data = self._data_queue.get(timeout=max(0, min(left, _POLL)))
                return True, _pin(data) if self._sluice_pin else data
            except queue.Empty:
                dead = self._sluice_dead()
                if dead:
                    self._sluice_fail(dead, None)
                if left <= 0:
                    return False, None
            except Exception as e:
                # torch's SIGCHLD handler raises here before the exit status can be read
                until = time.monotonic() + 0.5
                while not self._sluice_dead() and time.monotonic() < until:
                    time.sleep(0.005)
                dead = self._sluice_dead()
                if dead:
                    self._sluice_fail(dead, e)
                raise

    def _shutdown_workers(self):
        super()._shutdown_workers()
        if self._sluice_pin:
            _gpu.drain()


class DataLoader(_Stock):
    """torch.utils.data.DataLoader with the same arguments.

    Batches arrive in shared memory that the worker stacked them into, without a copy; with
    pin_memory=True that memory is registered with the GPU, without a pin thread.  A worker that
    dies is reported within a second, with its number, pid and signal.
    """

    @functools.wraps(_Stock.__init__)
    def __init__(self, *args, **kw):
        pin = bool(kw.get("pin_memory", False))
        names = _positional()
        if "pin_memory" in names and len(args) > names.index("pin_memory"):
            pin = bool(args[names.index("pin_memory")])
        super().__init__(*args, **kw)
        if self.num_workers > 0:
            ctx = self.multiprocessing_context
            if not is_ours(ctx):
                method = ctx.get_start_method() if ctx else multiprocessing.get_start_method()
                pin = pin and torch.cuda.is_available()
                self.multiprocessing_context = context(method, pin=pin)

    def _get_iterator(self):
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _Iter(self)


def _positional():
    code = _Stock.__init__.__code__
    return code.co_varnames[1 : code.co_argcount]
