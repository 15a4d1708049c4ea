# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W6: host to device, a ResNet-18 sized convolution net, 64 images of 3x512x512 a batch."""
import time

import torch
from loaders import Images
from side import Report
from torch.utils.data import DataLoader

import sluice.torch


def model():
    try:
        from torchvision.models import resnet18

        return resnet18().cuda()
    except ImportError:
        pass
    layers, c = [], 3
    for width, depth, stride in ((64, 5, 4), (128, 4, 2), (256, 4, 2), (512, 4, 2)):
        for k in range(depth):
            conv = torch.nn.Conv2d(c, width, 3, stride if k == 0 else 1, 1, bias=False)
            layers += [conv, torch.nn.BatchNorm2d(width), torch.nn.ReLU(True)]
            c = width
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 1000)]
    return torch.nn.Sequential(*layers, *head).cuda()


def steps(batches, net, optimizer, seconds, warm):
    def step(x):
        optimizer.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        optimizer.step()

    it = iter(batches)
    for _ in range(warm):
        step(next(it))
    torch.cuda.synchronize()
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        step(next(it))
        n += 1
        if n % 4 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return n / (time.perf_counter() - begun)


def main():
    r = Report("W6", seconds=4.0, workers=8, batch=64)
    a = r.args
    if not torch.cuda.is_available():
        r.rows.append({"form": "all", "skipped": "no GPU"})
        return r.finish()
    ds = Images((3, 512, 512))
    net = model()
    opt = torch.optim.SGD(net.parameters(), 0.01)
    kw = {"batch_size": a.batch, "multiprocessing_context": "fork"}

    def run(batches, workers=a.workers):
        # every worker's first batches, and the memory for them, before the clock runs
        return lambda: steps(batches(), net, opt, a.seconds, 2 * workers + 2)

    def stock(workers, pin):
        if not workers:
            loader = DataLoader(ds, a.batch)
        else:
            loader = DataLoader(ds, num_workers=workers, pin_memory=pin, **kw)
        return (b.to("cuda", non_blocking=pin) for b in loader)

    def feed():
        loader = sluice.torch.DataLoader(ds, num_workers=a.workers, pin_memory=True, **kw)
        return sluice.torch.CudaFeed(loader, "cuda")

    fixed = torch.rand(a.batch, 3, 512, 512, device="cuda")
    got = r.alternate(
        {
            "ceiling: batch on the GPU": run(lambda: iter(lambda: fixed, None)),
            "stock, single process": run(lambda: stock(0, False), 0),
            "stock, workers": run(lambda: stock(a.workers, False)),
            "stock, pinned and non-blocking": run(lambda: stock(a.workers, True)),
            "sluice CudaFeed": run(feed),
        },
        "steps/s",
    )
    ceiling = got["ceiling: batch on the GPU"]
    best = max(v for k, v in got.items() if k.startswith("stock"))
    ours = got["sluice CudaFeed"]
    r.goal("CudaFeed / ceiling", ours / ceiling, 0.98)
    r.goal("CudaFeed / best stock", ours / best, 1)
    r.finish()


if __name__ == "__main__":
    main()
