# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Batches to the GPU ahead of their use, and results from the GPU to worker processes."""
import collections
import queue
import threading
import traceback

import torch

from .. import _gpu, _sluice
from .._codec import codec
from .._context import context, fate
from .._queue import _alive
from .._store import Extent, store


def _map(obj, fn):
    """The same nest of lists, tuples and dicts with fn applied to its tensors."""
    if isinstance(obj, torch.Tensor):
        return fn(obj)
    if isinstance(obj, dict):
        return type(obj)({k: _map(v, fn) for k, v in obj.items()})
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return type(obj)(*(_map(v, fn) for v in obj))
    if isinstance(obj, (list, tuple)):
        return type(obj)(_map(v, fn) for v in obj)
    return obj


class CudaFeed:
    """Iterates over a loader with its batches on the device, copied while earlier ones are used.

    depth batches are on their way at a time.  A host batch is kept until its copy is done, so it
    does not matter how soon its extent would be reused.
    """

    def __init__(self, loader, device="cuda", depth=2):
        self.loader = loader
        self.device = torch.device(device)
        self.depth = depth

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        stream = torch.cuda.Stream(self.device)
        flying = collections.deque()
        copied = collections.deque()
        it = iter(self.loader)
        more = True
        while more or flying:
            while more and len(flying) < self.depth:
                try:
                    host = next(it)
                except StopIteration:
                    more = False
                    break
                with torch.cuda.stream(stream):
                    dev = _map(host, lambda t: t.to(self.device, non_blocking=True))
                    done = stream.record_event()
                flying.append((dev, done))
                copied.append((done, host))
                del host
            while copied and copied[0][0].query():
                copied.popleft()
            if not flying:
                break
            dev, done = flying.popleft()
            current = torch.cuda.current_stream(self.device)
            current.wait_event(done)
            _map(dev, lambda t: t.record_stream(current) if t.is_cuda else None)
            yield dev
            del dev
        while copied:
            copied.popleft()[0].synchronize()


def _egress_worker(fn, jobs, results):
    torch.set_num_threads(1)
    while True:
        job = jobs.get()
        if job is None:
            return
        tag, tensors = job
        del job
        outcome = None
        try:
            fn(tensors, tag)
        except Exception as e:
            outcome = e, traceback.format_exc()
        # Free before it is reported: the next result goes there.
        del tensors
        results.put(outcome)
        del outcome


class Egress:
    """Hands results to fn(tensors, tag) in worker processes while the GPU goes on.

    submit() starts the copy from the device straight into a registered arena and returns; it waits
    only when `depth` results are on their way.  What fn raises is raised again by the next submit()
    or by flush(), with the worker's traceback.  A context manager; leaving it flushes.
    """

    def __init__(self, fn, workers=2, depth=None, method="spawn"):
        ctx = context(method)
        self._depth = depth or workers + 2
        self._jobs, self._results = ctx.Queue(), ctx.Queue()
        self._workers = [
            ctx.Process(target=_egress_worker, args=(fn, self._jobs, self._results), daemon=True)
            for _ in range(workers)
        ]
        for w in self._workers:
            w.start()
        self._stream = None
        self._copies = queue.SimpleQueue()
        self._open = 0
        self._failure = None
        self._thread = threading.Thread(target=self._publish, name="sluice-egress", daemon=True)
        self._thread.start()

    def _extent(self, nbytes):
        st = store()
        while True:
            got = st.begin(self._jobs._uid, nbytes, 0.5, _alive, self._depth + 1)
            if got is not None:
                break
            self._collect(0)
            self._check()
        if torch.cuda.is_available():
            for arena in st.arenas:
                _gpu.pin(arena)
        return Extent(self._jobs._uid, got[1], got[0], nbytes)

    def submit(self, tensors, tag=None):
        self._collect(0)
        while self._open >= self._depth:
            self._collect(0.2)
        self._raise()
        sizes = []
        _map(tensors, lambda t: sizes.append(t.numel() * t.element_size() + 256))
        ex = self._extent(sum(sizes) + (1 << 16))
        devices = []
        _map(tensors, lambda t: devices.append(t.device) if t.is_cuda else None)
        event = None
        if devices:
            if self._stream is None:
                self._stream = torch.cuda.Stream(devices[0])
            self._stream.wait_stream(torch.cuda.current_stream(devices[0]))
            with torch.cuda.stream(self._stream):
                host = _map(tensors, lambda t: self._copy(ex, t))
                event = self._stream.record_event()
        else:
            host = _map(tensors, lambda t: self._copy(ex, t))
        plan = _sluice.encode((tag, host), codec, ex.view.ptr, ex.used)
        if plan.nbytes > ex.capacity:
            ex.batch.release()
            raise ValueError("the tag takes more than 64 KiB: pass data as tensors")
        self._open += 1
        self._copies.put((event, ex, plan))

    def _copy(self, ex, t):
        t = t.detach()
        code, bits, extra = codec.torch.dtypes[t.dtype]
        n = t.numel() * t.element_size()
        dst = codec.torch.over(ex.alloc(n), code, bits, tuple(t.shape))
        if extra:
            dst = dst.view(t.dtype)
        dst.copy_(t, non_blocking=True)
        if t.is_cuda:
            t.record_stream(self._stream)
        return dst

    def _publish(self):
        while True:
            item = self._copies.get()
            if item is None:
                return
            event, ex, plan = item
            try:
                if event is not None:
                    event.synchronize()
                ex.batch.write_plan(ex.view.ptr, plan)
                self._jobs._send_stored(ex.source, ex.batch, True, None)
            except Exception as e:
                self._failure = self._failure or (e, traceback.format_exc())
                self._results.put(None)
            del item, event, ex, plan

    def _collect(self, timeout):
        """Take note of what the workers finished."""
        while self._open:
            try:
                r = self._results.get(timeout > 0, timeout or None)
            except queue.Empty:
                self._check()
                return
            self._open -= 1
            if r is not None and self._failure is None:
                self._failure = r
            timeout = 0

    def _check(self):
        for i, w in enumerate(self._workers):
            if w.exitcode is not None:
                raise RuntimeError("egress worker %d (pid %d) %s" % (i, w.pid, fate(w)))

    def _raise(self):
        failure, self._failure = self._failure, None
        if failure is not None:
            error, text = failure
            raise error from RuntimeError("in an egress worker:\n" + text)

    def flush(self):
        """Wait until fn has seen everything that was submitted."""
        while self._open:
            self._collect(0.2)
        self._raise()

    def close(self):
        if not self._workers:
            return
        self._copies.put(None)
        self._thread.join()
        for _ in self._workers:
            self._jobs.put(None)
        for w in self._workers:
            w.join(10)
            if w.is_alive():
                w.kill()
                w.join()
        self._workers = []
        store().forget(self._jobs._uid)
        self._jobs.close()
        self._results.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *exc):
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()
