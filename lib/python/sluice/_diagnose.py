# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The four-cache experiment.

One run for each place where a cache can stand: nowhere; in front of the collate function, in the
worker; in front of the hand-over to this process; in the training loop.  What a run saves against
the one before it is what the work between the two caches costs.  One more run has no cache and
sluice's queues, so the table also says what would be gained.
"""
import argparse
import copy
import importlib
import json
import os
import sys
import time
import warnings

PLAIN, SLUICE, COLLATE, IPC, TRAINER = "plain", "sluice", "collate", "ipc", "trainer"

LABELS = {
    PLAIN: "nothing: the job as it is",
    SLUICE: "nothing, through sluice's queues",
    COLLATE: "samples, before they are collated",
    IPC: "the batch, before it is handed over",
    TRAINER: "the batch, in the training loop",
}
PARTS = {
    "fetch": "fetching samples",
    "collate": "collating",
    "ipc": "handing batches over",
    "step": "the training step",
}
# A row ends after so many times its seconds, however few batches it got.
PATIENCE = 10


class Failure(Exception):
    """One sentence for whoever started this."""


# ---------------------------------------------------------------------- in the worker


class _Caching:
    """worker_init_fn: the loader's own, then a cache in the fetchers of this worker."""

    def __init__(self, init, where, anew):
        self.init, self.where, self.anew = init, where, anew

    def __call__(self, worker_id):
        if self.init is not None:
            self.init(worker_id)
        from torch.utils.data._utils import fetch

        wrap = _before_ipc if self.where == IPC else _before_collate
        for cls in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            cls.fetch = wrap(cls.fetch, self.anew)


def _before_collate(fetch, anew):
    kept = []

    def cached(self, index):
        if kept:
            return self.collate_fn(list(kept[0]) if type(kept[0]) is list else kept[0])
        collate = self.collate_fn

        def note(samples):
            kept.append(list(samples) if type(samples) is list else samples)
            return collate(samples)

        self.collate_fn = note
        try:
            return fetch(self, index)
        finally:
            self.collate_fn = collate

    return cached


def _before_ipc(fetch, anew):
    kept = []

    def cached(self, index):
        if not kept:
            kept.append(fetch(self, index))
        return _anew(kept[0]) if anew else kept[0]

    return cached


def _anew(batch):
    """The batch in new shared memory, as torch's queues move one that they have not seen yet.

    A tensor sent a second time costs them nothing, which no job can make use of.
    """
    import torch

    from .torch._cuda import _map

    def shared(t):
        if t.device.type != "cpu" or t.layout is not torch.strided or not t.numel():
            return t
        storage = t._typed_storage() if hasattr(t, "_typed_storage") else t.storage()
        new = t.new(storage._new_shared(t.numel())).view(t.shape)
        return new.copy_(t.detach())

    try:
        return _map(batch, shared)
    except RecursionError:  # it contains itself
        return copy.deepcopy(batch)


class _Forever:
    """A sampler whose epochs follow each other without an end."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            n = 0
            for n, index in enumerate(self.sampler, 1):
                yield index
            if not n:
                return

    def __len__(self):
        return 1 << 40


# ---------------------------------------------------------------------- in this process


class _Counters:
    """Bytes that this process got through pipes, sockets and arenas, as sluice stat has them."""

    MEDIA = {"pipe": "pipe", "fifo": "pipe", "splice": "pipe", "vmsplice": "pipe", "tee": "pipe",
             "unix_stream": "socket", "unix_dgram": "socket", "unix_seqpacket": "socket",
             "arena_memfd": "arena", "arena_kmod": "arena"}  # fmt: skip

    def __init__(self, program):
        import shutil
        import subprocess
        import tempfile

        from . import _sluice

        self.why = None
        self.process = None
        found = shutil.which(program)
        if found is None:
            self.why = "there is no program %s (--sluice says where it is)" % program
            return
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        command = [found, "stat", "--json", "-i", "0.1", "-l", _sluice.__file__]
        self.process = subprocess.Popen(command, stdout=self.out, stderr=self.err)
        # Programs are checked by the kernel when they are loaded, which may take a while.
        if self.look(60) is None:
            self.err.seek(0)
            self.why = (self.err.read().strip() or "sluice stat says nothing").splitlines()[0]
            self.close()

    def look(self, patience=20):
        """{medium: bytes} of this process so far, at least as new as this call; None at the end."""
        have = self._lines()
        until = time.monotonic() + patience
        while len(self._lines()) < len(have) + 2 and self.process.poll() is None:
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
        lines = self._lines()
        if not lines or self.process.poll() is not None:
            return None
        got = dict.fromkeys(("pipe", "socket", "arena"), 0)
        for p in json.loads(lines[-1])["processes"]:
            if p["pid"] == os.getpid():
                for c in p["counts"]:
                    if c["dir"] == "in" and c["kind"] in self.MEDIA:
                        got[self.MEDIA[c["kind"]]] += c["bytes"]
        return got

    def _lines(self):
        self.out.seek(0)
        return [line for line in self.out.read().split("\n")[:-1] if line]

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.process = None


def _named(what, spec):
    module, _, name = spec.partition(":")
    if not module or not name or module.startswith("."):
        raise Failure("%s %r: write module:function" % (what, spec))
    try:
        found = importlib.import_module(module)
    except (ImportError, SyntaxError) as e:
        raise Failure("%s %r: cannot import %s: %s" % (what, spec, module, e))
    for part in name.split("."):
        if not hasattr(found, part):
            raise Failure("%s %r: module %s has no %s" % (what, spec, module, name))
        found = getattr(found, part)
    if not callable(found):
        raise Failure("%s %r is a %s and cannot be called" % (what, spec, type(found).__name__))
    return found


def _loader_of(make):
    from torch.utils.data import DataLoader

    loader = make()
    if not isinstance(loader, DataLoader):
        raise Failure("make_loader returned a %s, not a DataLoader" % type(loader).__name__)
    if not loader.num_workers:
        raise Failure(
            "the loader has num_workers=0: no batch passes from one process to another, "
            "so there is nothing to tell apart"
        )
    return loader


def _prepare(loader, where):
    """The loader with its cache, and without an end where its data set can be begun anew."""
    from . import _context

    ours = _context.is_ours(loader.multiprocessing_context)
    if where == SLUICE:
        context = loader.multiprocessing_context
        method = context.get_start_method() if context else None
        pin = bool(loader.pin_memory) and _cuda()
        loader.multiprocessing_context = _context.context(method, pin=pin)
    if where in (COLLATE, IPC):
        anew = not ours and not _is_sluice_loader(loader)
        loader.worker_init_fn = _Caching(loader.worker_init_fn, where, anew)
    if not _iterable(loader):
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        object.__setattr__(loader, name, _Forever(getattr(loader, name)))
    return loader


def _iterable(loader):
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _is_sluice_loader(loader):
    from .torch import DataLoader

    return isinstance(loader, DataLoader)


def _cuda():
    import torch

    return torch.cuda.is_available()


def _sync():
    if _cuda():
        import torch

        torch.cuda.synchronize()


class _Batches:
    """next() over and over; waited counts the seconds in it, begun ones are left out."""

    def __init__(self, loader):
        self.loader, self.it = loader, iter(loader)
        self.waited = self.paused = 0.0
        self.count = 0

    def next(self):
        begun = time.perf_counter()
        try:
            batch = next(self.it)
        except StopIteration:
            # A new epoch of a stream: its workers have to start, which is not what is asked here.
            self.it = iter(self.loader)
            try:
                batch = next(self.it)
            except StopIteration:
                raise Failure("the loader gives no batch")
            self.paused += time.perf_counter() - begun
            self.count += 1
            return batch
        self.waited += time.perf_counter() - begun
        self.count += 1
        return batch


def _measure(make, where, step, seconds, counters):
    loader = _prepare(_loader_of(make), where)
    before = counters.look() if counters.process else None
    batches = _Batches(loader)
    kept = batches.next()
    content = _content(kept)
    if where != TRAINER:
        # Every worker makes its first batch, and the memory for it, before the clock runs.
        limit = time.perf_counter() + 2 * seconds
        for _ in range(loader.num_workers + 1):
            step(batches.next())
            if time.perf_counter() > limit:
                break
    else:
        step(kept)
    _sync()
    batches.waited = batches.paused = 0.0
    n, begun = 0, time.perf_counter()
    while True:
        step(kept if where == TRAINER else batches.next())
        n += 1
        spent = time.perf_counter() - begun - batches.paused
        if spent > seconds and (n >= 3 or spent > PATIENCE * seconds):
            break
    _sync()
    spent = time.perf_counter() - begun - batches.paused
    row = {"cache": where, "batches": n, "seconds": spent, "per_batch": spent / n,
           "waited": batches.waited / spent, "content": content}  # fmt: skip
    after = counters.look() if before is not None else None
    if after is not None:
        row["bytes"] = {k: (after[k] - before[k]) / batches.count for k in after}
    del kept, batches, loader
    return row


def _content(batch):
    """What a batch is made of: bytes and number of tensors, arrays, bytes and strings."""
    found = {}
    pickled = []
    inside = set()  # ids of what is being walked: a batch may contain itself

    def note(kind, nbytes):
        count, total = found.get(kind, (0, 0))
        found[kind] = count + 1, total + nbytes

    def walk(x):
        if hasattr(x, "element_size") and hasattr(x, "numel"):
            note("tensor", x.numel() * x.element_size())
        elif type(x).__module__ == "numpy" and hasattr(x, "nbytes"):
            note("NumPy array", x.nbytes)
        elif isinstance(x, (bytes, bytearray)):
            note("bytes object", len(x))
            if len(x) > 64 and x[0] == 0x80 and 2 <= x[1] <= 5 and x[-1:] == b".":
                pickled.append(len(x))
        elif isinstance(x, str):
            note("string", len(x))
        elif id(x) in inside:
            return
        else:
            inside.add(id(x))
            for v in parts(x):
                walk(v)
            inside.discard(id(x))

    def parts(x):
        if isinstance(x, dict):
            return list(x.values())
        if isinstance(x, (list, tuple)):
            return x
        return list(vars(x).values()) if hasattr(x, "__dict__") else ()

    walk(batch)
    content = {k: {"count": c, "bytes": b} for k, (c, b) in found.items()}
    return {"parts": content, "bytes": sum(b for c, b in found.values()), "pickled": sum(pickled)}


def _shares(rows, with_step):
    """Seconds of a batch for each part of the work: what each cache saves on top of the last."""
    t = {k: rows[k]["per_batch"] for k in (PLAIN, COLLATE, IPC)}
    plain = t[PLAIN]
    # A run with a cache that took longer than the job itself says that the cache saves nothing.
    step = min(rows[TRAINER]["per_batch"], plain) if with_step else 0.0
    ipc = min(max(t[IPC], step), plain)
    collate = min(max(t[COLLATE], ipc), plain)
    return {"fetch": plain - collate, "collate": collate - ipc, "ipc": ipc - step, "step": step}


def _bytes(n):
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return "%.3g %s" % (n, unit)
        n /= 1000
    return "%.3g GB" % n


def _what(content):
    """"402 MB in 1 tensor"."""
    parts = sorted(content["parts"].items(), key=lambda kv: -kv[1]["bytes"])
    words = [
        "%s in %d %s" % (_bytes(p["bytes"]), p["count"], k if p["count"] == 1 else k + "s")
        for k, p in parts[:2]
    ]
    return " and ".join(words) or "nothing that has a size"


def _verdict(rows, shares, with_step):
    total = sum(shares.values())
    worst = max(shares, key=shares.get)
    percent = 100 * shares[worst] / total
    content = rows[PLAIN]["content"]
    gain = rows[PLAIN]["per_batch"] / rows[SLUICE]["per_batch"] if SLUICE in rows else None
    if worst == "step" and percent >= 85:
        return "the training step is the limit (%.0f %% of a batch's time); the loader keeps up" % (
            percent
        )
    said = "%s takes most of a batch's time (%.0f %% of %.3g ms)" % (
        PARTS[worst], percent, 1000 * total)  # fmt: skip
    if worst in ("ipc", "collate") and content["pickled"] > content["bytes"] / 2:
        return said + (
            ": collate_fn returns %s of pickled bytes, which are made, copied through a pipe and "
            "parsed again: pickling in collate_fn is the cause, let it return the tensors"
            % _bytes(content["pickled"])
        )
    if worst == "ipc":
        parts = content["parts"]
        through = sum(p["bytes"] for k, p in parts.items() if k != "tensor")
        if through > content["bytes"] / 2:
            said += ": IPC is the bottleneck, %s go through a pipe" % _what(content)
        else:
            said += ": IPC is the bottleneck, %s get new shared memory for each batch" % (
                _what(content)
            )
    elif worst == "collate":
        said += ": the collate function is the bottleneck"
    elif worst == "fetch":
        said += ": the dataset is the bottleneck, more workers or a cheaper __getitem__ help"
    if gain is not None and worst != "step":
        if gain >= 1.15:
            said += "; through sluice the same job is %.1f times as fast" % gain
        else:
            said += "; other queues change nothing here (sluice's: %.2f times as fast)" % gain
    return said


def _middle(rows):
    """The row of the median round."""
    return sorted(rows, key=lambda r: r["per_batch"])[len(rows) // 2]


def run(make_loader, step=None, seconds=1.0, rounds=3, program="sluice", sluice=True):
    """The rows, what each part of the work costs, and the verdict, as a dict.

    make_loader and step are callables; step may be None.  The rows are measured in turn, `rounds`
    times for `seconds` each, and the median counts.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        warnings.filterwarnings("ignore", message="Length of IterableDataset")
        first = _loader_of(make_loader)
        from . import _context

        todo = [PLAIN, COLLATE, IPC] + ([TRAINER] if step else [])
        ours = _context.is_ours(first.multiprocessing_context) or _is_sluice_loader(first)
        if sluice and not ours:
            todo.insert(1, SLUICE)
        counters = _Counters(program)
        measured = {where: [] for where in todo}
        try:
            for _ in range(rounds):
                for where in todo:
                    do = step or (lambda batch: None)
                    measured[where].append(_measure(make_loader, where, do, seconds, counters))
        finally:
            counters.close()
    rows = {where: _middle(found) for where, found in measured.items()}
    shares = _shares(rows, step is not None)
    return {
        "workers": first.num_workers,
        "rows": list(rows.values()),
        "shares": shares,
        "verdict": _verdict(rows, shares, step is not None),
        "not_counted": counters.why,
    }


def _print_table(found):
    counted = not found["not_counted"]
    media = ("pipe", "socket", "arena") if counted else ()
    print("%-36s %10s %10s %9s" % ("cached", "batches/s", "ms/batch", "in next()")
          + "".join(" %10s" % m for m in media))  # fmt: skip
    for row in found["rows"]:
        line = "%-36s %10.2f %10.2f %7.0f %%" % (
            LABELS[row["cache"]], 1 / row["per_batch"], 1000 * row["per_batch"],
            100 * row["waited"])  # fmt: skip
        for medium in media:
            line += " %10s" % (_bytes(row["bytes"][medium]) if "bytes" in row else "-")
        print(line)
    if counted:
        print("pipe, socket, arena: what this process got through them, bytes a batch")
    else:
        print("bytes are not counted: %s" % found["not_counted"])
    print("\na batch's time: " + ", ".join(
        "%s %.3g ms" % (PARTS[k], 1000 * s)
        for k, s in found["shares"].items() if s or k != "step"))  # fmt: skip
    print("verdict: %s." % found["verdict"])


def main(argv=None):
    ap = argparse.ArgumentParser(
        prog="python3 -m sluice.diagnose",
        description="Runs a DataLoader with caches in different places and says what limits it.",
    )
    for name, what, more in (
        ("loader", "a function without arguments that returns the job's DataLoader",
         {"metavar": "MODULE:MAKE_LOADER"}),
        ("--step", "a function of one batch that does what training does with it",
         {"metavar": "MODULE:STEP"}),
        ("--seconds", "for each row of each round (default 1)", {"type": float, "default": 1.0}),
        ("--rounds", "the median of them counts (default 3)", {"type": int, "default": 3}),
        ("--json", "write what was found to FILE too", {"metavar": "FILE"}),
        ("--sluice", "the program whose counters are read (default: sluice)",
         {"metavar": "PROGRAM", "default": "sluice"}),
        ("--no-sluice-row", "leave out sluice's queues", {"action": "store_true"}),
    ):  # fmt: skip
        ap.add_argument(name, help=what, **more)
    a = ap.parse_args(argv)
    if not 0 < a.seconds <= 3600:
        ap.error("--seconds %g: more than 0, at most 3600" % a.seconds)
    if not 0 < a.rounds <= 1000:
        ap.error("--rounds %d: more than 0, at most 1000" % a.rounds)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        make = _named("loader", a.loader)
        step = _named("--step", a.step) if a.step else None
        found = run(make, step, a.seconds, a.rounds, a.sluice, not a.no_sluice_row)
    except Failure as e:
        print("sluice.diagnose: %s" % e, file=sys.stderr)
        return 2
    except ImportError as e:
        if e.name != "torch":
            raise
        print("sluice.diagnose: torch is not installed: %s" % e, file=sys.stderr)
        return 2
    _print_table(found)
    if a.json:
        try:
            with open(a.json, "w") as f:
                json.dump(found, f, indent=1)
                f.write("\n")
        except OSError as e:
            print("sluice.diagnose: --json %s: %s" % (a.json, e.strerror), file=sys.stderr)
            return 2
    return 0
