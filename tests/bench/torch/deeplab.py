# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The layers of DeepLabV3 over a ResNet-50 of output stride 8, for hosts without torchvision."""
import torch
from torch import nn
from torch.nn import functional


def conv(a, b, size, stride=1, dilation=1):
    pad = dilation * (size // 2)
    return [nn.Conv2d(a, b, size, stride, pad, dilation, bias=False), nn.BatchNorm2d(b)]


class Bottleneck(nn.Module):
    def __init__(self, a, width, stride, dilation):
        super().__init__()
        b = 4 * width
        self.body = nn.Sequential(
            *conv(a, width, 1), nn.ReLU(True),
            *conv(width, width, 3, stride, dilation), nn.ReLU(True),
            *conv(width, b, 1),
        )  # fmt: skip
        self.side = nn.Sequential(*conv(a, b, 1, stride)) if a != b or stride > 1 else nn.Identity()

    def forward(self, x):
        return torch.relu_(self.body(x) + self.side(x))


def resnet50():
    layers = [*conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    a = 64
    for width, blocks, stride, before, dilation in (
        (64, 3, 1, 1, 1),
        (128, 4, 2, 1, 1),
        (256, 6, 1, 1, 2),
        (512, 3, 1, 2, 4),
    ):
        for k in range(blocks):
            layers.append(Bottleneck(a, width, 1 if k else stride, dilation if k else before))
            a = 4 * width
    return nn.Sequential(*layers)


class DeepLab(nn.Module):
    def __init__(self, classes=21):
        super().__init__()
        self.backbone = resnet50()
        self.views = nn.ModuleList(
            [nn.Sequential(*conv(2048, 256, 1), nn.ReLU(True))]
            + [nn.Sequential(*conv(2048, 256, 3, 1, d), nn.ReLU(True)) for d in (12, 24, 36)]
        )
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), *conv(2048, 256, 1), nn.ReLU(True))
        self.head = nn.Sequential(
            *conv(1280, 256, 1), nn.ReLU(True), *conv(256, 256, 3), nn.ReLU(True),
            nn.Conv2d(256, classes, 1),
        )  # fmt: skip

    def forward(self, image):
        x = self.backbone(image)
        mean = self.mean(x).expand(-1, -1, *x.shape[2:])
        x = self.head(torch.cat([*(view(x) for view in self.views), mean], 1))
        return functional.interpolate(x, size=image.shape[2:], mode="bilinear", align_corners=False)
