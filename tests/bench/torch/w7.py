# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W7: device to host, 64x21x512x512 float32 (1.41 GB) a step, digested on the CPU."""
import time

import torch
from side import Report

import sluice.torch


def digest(tensors, tag):
    """What a worker does with a result: reads every byte of it once."""
    tensors["out"].view(torch.int64).max()


class Net:
    """A segmentation-sized computation whose output has the shape of DeepLabV3's."""

    def __init__(self):
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 256, 3, 8, 1),
            *[m for _ in range(24) for m in (torch.nn.Conv2d(256, 256, 3, 1, 1), torch.nn.ReLU())],
            torch.nn.Conv2d(256, 21, 1),
        ).cuda()
        self.x = torch.rand(64, 3, 512, 512, device="cuda")

    @torch.no_grad()
    def __call__(self):
        y = self.body(self.x)
        return torch.nn.functional.interpolate(y, size=(512, 512), mode="bilinear")


def timed(step, seconds, finish=lambda: None):
    for i in range(3):
        step(i)
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
            return timed(lambda i: out.submit({"out": net()}, i), a.seconds, out.flush)

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
