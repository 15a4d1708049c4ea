# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Release after the GPU has read: an event behind the last copy gates the extent.

When the last storage over an extent is gone, C queues the extent instead of freeing it.  The
consumer's next get() records an event on its current stream, and on every stream named to
record_stream(), and frees the extent when all of them have passed.
"""
import collections
import sys
import threading

from . import _sluice

_pending = collections.deque()
_streams = {}  # by handle: objects of equal streams come and go
# A signal handler may come here too, in the middle of what it interrupted.
_lock = threading.RLock()


def pin(arena):
    """Register an arena with the GPU of the current device; once for each arena."""
    if arena.pinned:
        return
    torch = sys.modules["torch"]
    torch.cuda.current_stream().synchronize()  # makes the context current in this thread
    with _lock:  # twice is an error
        arena._pin()


def record_stream(obj, stream):
    """Memory of obj is read on this stream too: no extent is reused before its work is done."""
    with _lock:
        _streams[stream.device.index, stream.cuda_stream] = stream


def _events():
    torch = sys.modules["torch"]
    events = []
    for stream in [torch.cuda.current_stream(), *_streams.values()]:
        ev = torch.cuda.Event()
        ev.record(stream)
        events.append(ev)
    return events


def _note_retired():
    retired = _sluice.retired_take()
    if retired is not None:
        _pending.append((_events(), retired))


def drain():
    """Free what the GPU is done with.  The number of batches that still wait."""
    with _lock:
        _note_retired()
        while _pending:
            entry = _pending.popleft()  # nobody else's from here on
            if not all(ev.query() for ev in entry[0]):
                _pending.appendleft(entry)
                break
            entry[1].free()
        return len(_pending)


def drain_all():
    """Wait for the GPU, then free everything."""
    with _lock:
        _note_retired()
    while _pending:
        events, retired = _pending.popleft()
        for ev in events:
            ev.synchronize()
        retired.free()
