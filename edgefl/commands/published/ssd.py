"""SSD-300 on a MobileNet v1, built from its description, to predict what a step costs.

Source: pytorch-ssd (dusty-nv's fork of qfgaohao's), files mobilenet.py and mobilenetv1_ssd.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SHAPES = 6
"""Default boxes of a position."""


def _convolution(c1: int, c2: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(c1, c2, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(c2),
        nn.ReLU(inplace=True),
    ]  # fmt: skip


def _separable(c1: int, c2: int, stride: int) -> list[nn.Module]:
    return [*_convolution(c1, c1, 3, stride, c1), *_convolution(c1, c2, 1)]


def _smaller(c1: int, inner: int, c2: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(c1, inner, 1), nn.ReLU(), nn.Conv2d(inner, c2, 3, stride=2, padding=1), nn.ReLU(),
    )  # fmt: skip


class MobileNetSsd(nn.Module):
    """``[batch, 3, 300, 300]`` to the 3000 boxes ``[batch, 3000, 4]`` and scores ``[batch, 3000, classes]``."""

    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        shapes = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        shapes += [(512, 512, 1)] * 5
        first = [*_convolution(3, 32, 3, 2), *(layer for shape in shapes for layer in _separable(*shape))]
        last = [*_separable(512, 1024, 2), *_separable(1024, 1024, 1)]
        self.parts = nn.ModuleList([
            nn.Sequential(*first), nn.Sequential(*last), _smaller(1024, 256, 512), _smaller(512, 128, 256),
            _smaller(256, 128, 256), _smaller(256, 128, 256),
        ])  # fmt: skip
        channels = (512, 1024, 512, 256, 256, 256)
        self.boxes = nn.ModuleList(nn.Conv2d(c, _SHAPES * 4, 3, padding=1) for c in channels)
        self.scores = nn.ModuleList(nn.Conv2d(c, _SHAPES * classes, 3, padding=1) for c in channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes and scores of all positions of the six maps."""
        boxes, scores = [], []
        for part, box, score in zip(self.parts, self.boxes, self.scores, strict=True):
            x = part(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(len(x), -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(len(x), -1, self.classes))
        return torch.cat(boxes, 1), torch.cat(scores, 1)
