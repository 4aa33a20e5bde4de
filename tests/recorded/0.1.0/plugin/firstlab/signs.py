from math import prod
from typing import Literal

import torch
from pydantic import Field

from edgefl.work import CodecKind


class Signs(CodecKind):
    """The sign of each number, eight in a byte, and one scale for each tensor."""

    class Options(CodecKind.Options):
        dtype: Literal["signs"] = "signs"
        scale: Literal["mean", "max"] = Field("mean", description="the size that every number gets")

    def wire(self, shape, dtype):
        return {":signs": ((-(-prod(shape) // 8),), "uint8"), ":scale": ((), "float32")}

    def encode(self, value, base):
        change = (value if base is None else value - base.to(value.dtype)).float().flatten()
        size = change.abs().mean() if self.args.get("scale", "mean") == "mean" else change.abs().max()
        bits = torch.zeros(-(-len(change) // 8) * 8, dtype=torch.uint8)
        bits[: len(change)] = change >= 0
        powers = 2 ** torch.arange(8, dtype=torch.uint8)
        return {":signs": (bits.view(-1, 8) * powers).sum(1, dtype=torch.uint8), ":scale": size}

    def decode(self, wire, shape, dtype, base):
        powers = 2 ** torch.arange(8, dtype=torch.uint8)
        bits = (wire[":signs"][:, None] & powers).ne(0).flatten()[: prod(shape)]
        change = (bits.float() * 2 - 1).view(shape) * wire[":scale"]
        return (change if base is None else base.float() + change).to(dtype)
