# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W7: device to host, 64x21x512x512 float32 (1.41 GB) a step, digested on the CPU."""
import time

import deeplab
import torch
from side import Report

import sluice.torch


def digest(tensors, tag):
    """What a worker does with a result: reads every byte of it once."""
    tensors["out"].view(torch.int64).max()


class Net:
    """DeepLabV3-ResNet50 with random weights: torchvision's, or its layers written down here."""

    def __init__(self):
        try:
            from torchvision.models.segmentation import deeplabv3_resnet50

            model = deeplabv3_resnet50(weights=None, weights_backbone=None)
            self.logits = lambda x: model(x)["out"]
        except ImportError:
            model = deeplab.DeepLab()
            self.logits = model
        model.cuda().eval()
        self.x = torch.rand(64, 3, 512, 512, device="cuda")

    @torch.no_grad()
    def __call__(self):
        return self.logits(self.x)


def timed(step, seconds, finish=lambda: None, warm=3):
    """Steps a second; finish() waits until the last result is processed, and is part of it."""
    for i in range(warm):
        step(i)
    finish()
    torch.cuda.synchronize()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        step(n)
        n += 1
    torch.cuda.synchronize()
    stopped = time.perf_counter()
    finish()
    timed.tail = time.perf_counter() - stopped
    return n / (time.perf_counter() - begun)


def main():
    # Once a run, after the last step, its result still has to be copied and read: 0.2 s here, which
    # is a twentieth of 4 s.  So the rows that the goal compares run for longer than the others.
    r = Report("W7", seconds=12.0, stock_seconds=4.0, workers=6)
    a = r.args
    if not torch.cuda.is_available():
        r.rows.append({"form": "all", "skipped": "no GPU"})
        return r.finish()
    net = Net()
    tails = []

    def compute():
        return timed(lambda i: net(), a.seconds)

    def inline():
        return timed(lambda i: digest({"out": net().cpu()}, i), a.stock_seconds, warm=1)

    def pool():
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(a.workers) as p:
            jobs = []

            def step(i):
                jobs.append(p.apply_async(digest, ({"out": net().cpu()}, i)))
                while len(jobs) > a.workers:
                    jobs.pop(0).get()

            return timed(step, a.stock_seconds, lambda: [j.get() for j in jobs], warm=1)

    def egress():
        with sluice.torch.Egress(digest, workers=a.workers) as out:
            # every extent once, in every worker
            warm = 2 * (a.workers + 2)
            try:
                return timed(lambda i: out.submit({"out": net()}, i), a.seconds, out.flush, warm)
            finally:
                tails.append(timed.tail)

    def copied():
        """Compute, and each result copied to pinned memory beside it: no process takes it."""
        out = net()
        host = [torch.empty(out.shape, pin_memory=True) for _ in range(2)]
        stream = torch.cuda.Stream()

        def step(i):
            out = net()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                host[i % 2].copy_(out, non_blocking=True)
            out.record_stream(stream)

        return timed(step, a.stock_seconds)

    got = r.alternate(
        {
            "ceiling: compute only": compute,
            "bound: compute, copied beside it": copied,
            "stock, in line": inline,
            "stock, worker processes": pool,
            "sluice Egress": egress,
        },
        "steps/s",
    )
    r.alternate({"sluice Egress, after its last step": lambda: tails.pop(0)}, "s")
    ceiling = got["ceiling: compute only"]
    limit = got["bound: compute, copied beside it"] / ceiling
    ratio = got["sluice Egress"] / ceiling
    r.goal("Egress / ceiling", ratio, 0.97, limit, "compute, copied beside it")
    r.finish()


if __name__ == "__main__":
    main()
