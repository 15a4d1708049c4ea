# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""multiprocessing contexts whose queues are ours.

A stock torch DataLoader takes one as multiprocessing_context; so does anything else that is
written against multiprocessing.get_context().
"""
import multiprocessing
import os
import signal
import sys
from multiprocessing import context as mp
from multiprocessing import synchronize

from . import _queue


def _in_worker(creator):
    """First thing in a child: collate straight into extents, and notice a dead parent."""
    if os.getppid() == creator:
        _queue._direct_child = True
    if "torch" in sys.modules:
        from .torch import _collate

        _collate.install()


class _Worker:
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self._sluice_creator = os.getpid()

    def run(self):
        _in_worker(self._sluice_creator)
        try:
            super().run()
        except _queue.ParentDied:
            sys.exit(1)


class ForkProcess(_Worker, mp.ForkProcess):
    pass


class SpawnProcess(_Worker, mp.SpawnProcess):
    pass


class ForkServerProcess(_Worker, mp.ForkServerProcess):
    pass


class Event(synchronize.Event):
    """One that a process which only looks at it cannot leave locked when it is killed."""

    def is_set(self):
        return self._flag.get_value() > 0


class _Queues:
    def __init__(self, **options):
        super().__init__()
        for name in options.keys() - {"pin", "fallback", "timeout"}:
            raise TypeError("context() has no argument %r: pin, fallback, timeout" % name)
        self._options = options

    def Queue(self, maxsize=0):
        return _queue.Queue(maxsize, **self._options)

    def Event(self):
        try:
            return Event(ctx=self.get_context())
        except OSError as e:  # which names nothing
            raise OSError(
                e.errno, "no semaphore in /dev/shm for an Event: " + os.strerror(e.errno)
            ) from e

    def __reduce__(self):
        return context, (self.get_start_method(), self._options)


class ForkContext(_Queues, mp.ForkContext):
    Process = ForkProcess


class SpawnContext(_Queues, mp.SpawnContext):
    Process = SpawnProcess


class ForkServerContext(_Queues, mp.ForkServerContext):
    Process = ForkServerProcess


def is_ours(ctx):
    return isinstance(ctx, _Queues)


_contexts = {"fork": ForkContext, "spawn": SpawnContext, "forkserver": ForkServerContext}


def fate(child):
    """What became of a child."""
    code = child.exitcode
    if code is None:
        return "is gone"
    if code < 0:
        try:
            return "was killed by signal %s" % signal.Signals(-code).name
        except ValueError:
            return "was killed by signal %d" % -code
    return "exited with status %d" % code


def context(method=None, options=None, /, **kw):
    """A multiprocessing context for "fork", "spawn" or "forkserver" (default: the current one).

    Keywords go to every Queue of it: pin, fallback, timeout.
    """
    if method is None:
        method = multiprocessing.get_start_method()
    if method not in _contexts:
        raise ValueError("start method %r: choose one of %s" % (method, ", ".join(_contexts)))
    return _contexts[method](**(options or {}), **kw)
