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
    for i in range(warm):
        step(i)
    finish()
    torch.cuda.synchronize()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        step(n)
        n += 1
    torch.cuda.synchronize()
    finish()
    return n / (time.perf_counter() - begun)


def main():
    r = Report("W7", seconds=6.0, workers=6)
    a = r.args
    if not torch.cuda.is_available():
        r.rows.append({"form": "all", "skipped": "no GPU"})
        return r.finish()
    net = Net()

    def compute():
        return timed(lambda i: net(), a.seconds)

    def inline():
        return timed(lambda i: digest({"out": net().cpu()}, i), a.seconds)

    def pool():
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(a.workers) as p:
            jobs = []

            def step(i):
                jobs.append(p.apply_async(digest, ({"out": net().cpu()}, i)))
                while len(jobs) > a.workers:
                    jobs.pop(0).get()

            return timed(step, a.seconds, lambda: [j.get() for j in jobs])

    def egress():
        with sluice.torch.Egress(digest, workers=a.workers) as out:
            # every extent once, in every worker
            warm = 2 * (a.workers + 2)
            return timed(lambda i: out.submit({"out": net()}, i), a.seconds, out.flush, warm)

    got = r.alternate(
        {
            "ceiling: compute only": compute,
            "stock, in line": inline,
            "stock, worker processes": pool,
            "sluice Egress": egress,
        },
        "steps/s",
    )
    ratio = got["sluice Egress"] / got["ceiling: compute only"]
    r.goal("Egress / ceiling", ratio, ">= 0.97", ratio >= 0.97)
    r.finish()


if __name__ == "__main__":
    main()
