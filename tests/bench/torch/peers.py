# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W9's items of 32 MiB, and a batch of W2 and of W3, through what others have: SPDL's pool, Ray's
object store, iceoryx2, torch.

What arrives is of the kind that was sent, but for the rows of "bytes as a view".  SPDL and iceoryx2
hand out views of their memory where bytes were sent, and sluice bytes objects: for "bytes" they
make bytes objects of them, and for "bytes as a view" sluice is given an array of the same memory
and hands out an array over the extent.  W2's batch is a tensor of 64 x 2048 int64 and a list of 64
strings of 8 KiB, W3's a tensor of 32 x 12 MiB, each made once: no collating is in it.

A peer that is not installed, or that does not work here, has a row that says why.  Every
measurement is a process of its own, so none finds what another left behind.
"""
import functools
import importlib.metadata
import os
import signal
import subprocess
import sys
import time

# As in W9: a fresh tensor shall not cost more in page faults than the way to hand it over.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import w9  # noqa: E402
from side import Report  # noqa: E402
from w9 import BYTES  # noqa: E402

VIEW, TOKENS, IMAGES = "bytes as a view", "W2 ids and text", "W3 images"
KINDS = ("bytes", VIEW, "numpy", "torch", TOKENS, IMAGES)
SIZES = {TOKENS: 64 * (2048 * 8 + 8192), IMAGES: 32 * (12 << 20)}
PACKAGES = {"SPDL": "spdl-core", "Ray": "ray", "iceoryx2": "iceoryx2"}


def payload(kind, view=None):
    """view makes of the bytes what whoever sends them hands out as a view."""
    import torch

    if kind == TOKENS:
        text = ["%08d" % i * 1024 for i in range(64)]
        return {"ids": torch.arange(64 * 2048).reshape(64, 2048), "text": text}
    if kind == IMAGES:
        return torch.rand(32, 3, 1024, 1024)
    if kind == VIEW:
        return view(w9.payload("bytes")) if view else w9.payload("bytes")
    return w9.payload(kind)


def timed(get, kind, seconds):
    """MB/s of this kind of payload."""
    return w9.timed(get, seconds) * SIZES.get(kind, BYTES) / BYTES


def produce(q, kind, view):
    import torch

    torch.set_num_threads(1)
    obj = payload(kind, view)
    while True:
        q.put(obj.clone() if kind == "torch" else obj)


def through(ctx, kind, seconds, view=None):
    q = ctx.Queue(4)
    p = ctx.Process(target=produce, args=(q, kind, view), daemon=True)
    p.start()
    try:
        return timed(q.get, kind, seconds)
    finally:
        p.kill()
        p.join()
        q.close()


class Source:
    """What SPDL's worker iterates over."""

    def __init__(self, kind):
        self.kind = kind

    def __iter__(self):
        obj = payload(self.kind)
        while True:
            yield obj.clone() if self.kind == "torch" else obj


def spdl(kind, seconds):
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    size = SIZES.get(kind, BYTES)
    pool = SharedMemorySegmentPool(size + 4096, w9.SEGMENTS if size <= BYTES else 4)
    items = iterate_in_subprocess(
        functools.partial(Source, kind), buffer_size=4, mp_context="fork", daemon=True, arena=pool
    )
    it = iter(items)
    try:
        get = (lambda: bytes(next(it))) if kind == "bytes" else lambda: next(it)
        return timed(get, kind, seconds)
    finally:
        pool.close()
        pool.unlink()


def ray(kind, seconds):
    import ray

    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=max(16 * BYTES, 6 * SIZES.get(kind, 0)),
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )  # fmt: skip
    try:

        @ray.remote(num_cpus=1)
        class Producer:
            def __init__(self):
                self.obj = payload(kind)

            def make(self):
                return self.obj.clone() if kind == "torch" else self.obj

        producer = Producer.remote()
        flying = [producer.make.remote() for _ in range(4)]

        def get():
            flying.append(producer.make.remote())
            return ray.get(flying.pop(0))

        return timed(get, kind, seconds)
    finally:
        ray.shutdown()


def _iceoryx_service(name):
    import ctypes

    import iceoryx2 as iox2

    iox2.set_log_level(iox2.LogLevel.Fatal)
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    service = (
        node.service_builder(iox2.ServiceName.new(name))
        .publish_subscribe(iox2.Slice[ctypes.c_uint8])
        .subscriber_max_buffer_size(4)
        .enable_safe_overflow(False)
        .open_or_create()
    )
    return iox2, node, service


def _iceoryx_produce(name, kind):
    import ctypes

    iox2, _, service = _iceoryx_service(name)
    publisher = (
        service.publisher_builder()
        .initial_max_slice_len(BYTES)
        .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
        .create()
    )
    obj = payload(kind)
    while True:
        src = obj.clone().numpy() if kind == "torch" else obj
        address = src if isinstance(src, bytes) else src.ctypes.data
        sample = publisher.loan_slice_uninit(BYTES)
        ctypes.memmove(sample.payload().as_ptr(), address, BYTES)
        sample.assume_init().send()


def iceoryx2(kind, seconds):
    import ctypes
    import multiprocessing

    name = "sluice-bench-%d" % os.getpid()
    # Before the library is used here: it may have threads, which a fork does not take along.
    import iceoryx2  # noqa: F401

    p = multiprocessing.get_context("spawn").Process(
        target=_iceoryx_produce, args=(name, kind), daemon=True
    )
    p.start()
    _, _, service = _iceoryx_service(name)
    subscriber = service.subscriber_builder().create()

    def get():
        # Its samples announce themselves by nothing but being there.
        while True:
            sample = subscriber.receive()
            if sample is not None:
                if kind == "bytes":
                    ctypes.string_at(sample.payload().as_ptr(), BYTES)
                sample.delete()
                return
            time.sleep(0)

    try:
        return timed(get, kind, seconds)
    finally:
        p.kill()
        p.join()


def by_hand(kind, seconds):
    return w9.by_hand(kind, seconds)


def torch_queue(strategy, kind, seconds):
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy(strategy)
    return through(torch.multiprocessing.get_context("fork"), kind, seconds)


def stock(kind, seconds):
    import multiprocessing

    return through(multiprocessing.get_context("fork"), kind, seconds)


def ours(kind, seconds):
    import numpy

    import sluice

    view = functools.partial(numpy.frombuffer, dtype=numpy.uint8)
    return through(sluice.context("fork"), kind, seconds, view)


FORMS = {
    "multiprocessing.Queue": stock,
    "torch, file_descriptor": functools.partial(torch_queue, "file_descriptor"),
    "torch, file_system": functools.partial(torch_queue, "file_system"),
    "shared_memory by hand": by_hand,
    "SPDL": spdl,
    "Ray": ray,
    "iceoryx2": iceoryx2,
    "sluice": ours,
}
# What is for some kinds only.
ONLY = {
    "multiprocessing.Queue": ("bytes", "numpy"),
    "torch, file_descriptor": ("torch", TOKENS, IMAGES),
    "torch, file_system": ("torch", TOKENS, IMAGES),
    "shared_memory by hand": ("bytes", "numpy", "torch"),
    "Ray": ("bytes", "numpy", "torch", TOKENS, IMAGES),
    "iceoryx2": ("bytes", VIEW, "numpy", "torch"),  # flat memory
}


def one(form, kind, seconds, limit):
    """A rate from a process of its own; ImportError with the reason where there is none."""
    if form in PACKAGES:
        try:
            importlib.metadata.version(PACKAGES[form])
        except importlib.metadata.PackageNotFoundError:
            raise ImportError("%s is not installed" % PACKAGES[form])
    command = [sys.executable, os.path.abspath(__file__), "--one", form, kind, str(seconds)]
    p = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise ImportError("no result within %d s" % limit)
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
    for line in out.splitlines():
        if line.startswith("rate "):
            return float(line.split()[1])
        if line.startswith("skip "):
            raise ImportError(line[5:])
    raise ImportError((err.strip() or "it said nothing").splitlines()[-1][:200])


def main():
    if sys.argv[1:2] == ["--one"]:
        form, kind, seconds = sys.argv[2:5]
        try:
            print("rate %r" % FORMS[form](kind, float(seconds)), flush=True)
        except ImportError as e:
            print("skip %s" % e, flush=True)
        return
    r = Report("peers", seconds=1.0, limit=60)
    a = r.args
    for kind in KINDS:
        forms = {
            form: functools.partial(one, form, kind, a.seconds, a.limit)
            for form in FORMS
            if kind in ONLY.get(form, KINDS)
        }
        got = r.alternate(forms, "MB/s", payload=kind)
        if "SPDL" in got and "sluice" in got:
            r.goal("%s / SPDL" % kind, got["sluice"] / got["SPDL"], 1)
    for form, package in PACKAGES.items():
        for row in r.rows:
            if row.get("form") == form and "median" in row:
                row["version"] = importlib.metadata.version(package)
    r.finish()


if __name__ == "__main__":
    main()
