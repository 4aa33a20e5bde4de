"""The networks YOLOv8 and YOLO11 of Ultralytics, built from their description, to predict what a step costs.

Sources: the model files yolov8.yaml, yolov8-cls.yaml and yolo11.yaml of Ultralytics; the numbers of parameters are
compared with those of published logs.  The matching of boxes in the loss is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_SCALES = {
    ("v8", "n"): (0.33, 0.25, 1024),
    ("v8", "s"): (0.33, 0.50, 1024),
    ("11", "m"): (0.50, 1.00, 512),
    ("11", "x"): (1.00, 1.50, 512),
}
"""Depth, width and the most channels before the width, by version and size."""

_BINS = 16
"""Bins of each side's distance in the detector's output."""


class _Conv(nn.Sequential):
    def __init__(self, c1: int, c2: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True):
        convolution = nn.Conv2d(c1, c2, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(c2), *([nn.SiLU(inplace=True)] if act else []))


class _Bottleneck(nn.Module):
    def __init__(self, c: int, shortcut: bool, share: float):
        super().__init__()
        inner = int(c * share)
        self.layers, self.shortcut = nn.Sequential(_Conv(c, inner, 3), _Conv(inner, c, 3)), shortcut

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.shortcut else out


class _C3k(nn.Module):
    def __init__(self, c: int, shortcut: bool):
        super().__init__()
        half = c // 2
        self.first, self.second, self.last = _Conv(c, half), _Conv(c, half), _Conv(2 * half, c)
        self.blocks = nn.Sequential(*(_Bottleneck(half, shortcut, 1.0) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([self.blocks(self.first(x)), self.second(x)], 1))
        return out


class _C2f(nn.Module):
    """Splits the channels in two, and concatenates the output of every block."""

    def __init__(self, c1: int, c2: int, share: float, blocks: Sequence[nn.Module]):
        super().__init__()
        c = int(c2 * share)
        self.first, self.last = _Conv(c1, 2 * c), _Conv((2 + len(blocks)) * c, c2)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        out: Tensor = self.last(torch.cat(parts, 1))
        return out


class _Sppf(nn.Module):
    def __init__(self, c: int):
        super().__init__()
        self.first, self.last, self.pool = _Conv(c, c // 2), _Conv(2 * c, c), nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        out: Tensor = self.last(torch.cat(parts, 1))
        return out


class _Attention(nn.Module):
    """Position-sensitive attention with its feed-forward layers: ``[batch, c, height, width]`` to the same."""

    def __init__(self, c: int):
        super().__init__()
        self.heads, self.value = c // 64, 64
        self.key = self.value // 2
        self.qkv = _Conv(c, c + 2 * self.key * self.heads, act=False)
        self.project, self.position = _Conv(c, c, act=False), _Conv(c, c, 3, groups=c, act=False)
        self.feed = nn.Sequential(_Conv(c, 2 * c), _Conv(2 * c, c, act=False))

    def forward(self, x: Tensor) -> Tensor:
        batch, c, height, width = x.shape
        qkv = self.qkv(x).view(batch, self.heads, 2 * self.key + self.value, height * width)
        q, k, v = qkv.split([self.key, self.key, self.value], 2)
        shares = (q.transpose(-2, -1) @ k * self.key**-0.5).softmax(-1)
        out = (v @ shares.transpose(-2, -1)).view(batch, c, height, width)
        x = x + self.project(out + self.position(v.reshape(batch, c, height, width)))
        fed: Tensor = self.feed(x)
        return x + fed


class _C2psa(nn.Module):
    def __init__(self, c: int, n: int):
        super().__init__()
        self.first, self.last = _Conv(c, c), _Conv(c, c)
        self.blocks = nn.Sequential(*(_Attention(c // 2) for _ in range(n)))

    def forward(self, x: Tensor) -> Tensor:
        kept, part = self.first(x).chunk(2, 1)
        out: Tensor = self.last(torch.cat([kept, self.blocks(part)], 1))
        return out


class _Plan:
    """Channels and blocks of one version and size."""

    def __init__(self, version: str, size: str):
        self.depth, self.width, self.most = _SCALES[version, size]
        self.version = version

    def channels(self, c: int) -> int:
        return -(-int(min(c, self.most) * self.width) // 8) * 8

    def repeats(self, n: int) -> int:
        return max(round(n * self.depth), 1)

    def stage(self, c1: int, c2: int, n: int, *, shortcut: bool = True, share: float = 0.5) -> nn.Module:
        """A C2f of YOLOv8, or a C3k2 of YOLO11 (sizes m and x, whose blocks are all C3k)."""
        if self.version == "v8":
            inner = c2 // 2
            return _C2f(c1, c2, 0.5, [_Bottleneck(inner, shortcut, 1.0) for _ in range(self.repeats(n))])
        return _C2f(c1, c2, share, [_C3k(int(c2 * share), True) for _ in range(self.repeats(2))])

    def backbone(self) -> tuple[list[nn.Module], list[int]]:
        """The five stages, and the channels of each one's output."""
        wide = self.version == "11"
        c = [self.channels(n) for n in (64, 128, 256, 512, 1024)]
        outs = [c[0], c[2] if wide else c[1], c[3] if wide else c[2], c[3], c[4]]
        stages: list[nn.Module] = [_Conv(3, c[0], 3, 2)]
        for i, (n, share) in enumerate(((3, 0.25), (6, 0.25), (6, 0.5), (3, 0.5)), start=1):
            stages.append(
                nn.Sequential(_Conv(outs[i - 1], c[i], 3, 2), self.stage(c[i], outs[i], n, share=share)),
            )
        return stages, outs


class Detector(nn.Module):
    """YOLOv8 or YOLO11: ``[batch, 3, height, width]`` to three maps ``[batch, 64 + classes, height', width']``."""

    def __init__(self, version: str, size: str, classes: int):
        super().__init__()
        plan = _Plan(version, size)
        stages, (_, _, c3, c4, c5) = plan.backbone()
        top: list[nn.Module] = [_Sppf(c5), *([_C2psa(c5, plan.repeats(2))] if version == "11" else [])]
        self.stages, self.top = nn.ModuleList(stages), nn.Sequential(*top)
        p3, p4, p5 = (plan.channels(n) for n in (256, 512, 1024))
        self.up = nn.Upsample(scale_factor=2)
        self.down4 = plan.stage(c5 + c4, p4, 3, shortcut=False)
        self.down3 = plan.stage(p4 + c3, p3, 3, shortcut=False)
        self.to4, self.up4 = _Conv(p3, p3, 3, 2), plan.stage(p3 + p4, p4, 3, shortcut=False)
        self.to5, self.up5 = _Conv(p4, p4, 3, 2), plan.stage(p4 + c5, p5, 3, shortcut=False)
        box, score = max(16, p3 // 4, 4 * _BINS), max(p3, min(classes, 100))
        self.boxes = nn.ModuleList(
            nn.Sequential(_Conv(c, box, 3), _Conv(box, box, 3), nn.Conv2d(box, 4 * _BINS, 1)) for c in (p3, p4, p5)
        )
        self.scores = nn.ModuleList(
            nn.Sequential(*_scoring(version, c, score), nn.Conv2d(score, classes, 1)) for c in (p3, p4, p5)
        )
        self.distances = nn.Conv2d(_BINS, 1, 1, bias=False).requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Boxes and scores of the three resolutions."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        five = self.top(x)
        four = self.down4(torch.cat([self.up(five), maps[3]], 1))
        three = self.down3(torch.cat([self.up(four), maps[2]], 1))
        four = self.up4(torch.cat([self.to4(three), four], 1))
        five = self.up5(torch.cat([self.to5(four), five], 1))
        return [
            torch.cat([boxes(m), scores(m)], 1)
            for m, boxes, scores in zip((three, four, five), self.boxes, self.scores, strict=True)
        ]


def _scoring(version: str, c: int, score: int) -> list[nn.Module]:
    if version == "v8":
        return [_Conv(c, score, 3), _Conv(score, score, 3)]
    return [_Conv(c, c, 3, groups=c), _Conv(c, score), _Conv(score, score, 3, groups=score), _Conv(score, score)]


def classifier(size: str, classes: int) -> nn.Module:
    """YOLOv8-cls: ``[batch, 3, height, width]`` to ``[batch, classes]``."""
    stages, outs = _Plan("v8", size).backbone()
    head = [_Conv(outs[-1], 1280), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return nn.Sequential(*stages, *head)
