"""Packed linear layers with low-rank factors beside them: the product is bitsandbytes' own, int8's by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Json = dict[str, Any]


class Rows(torch.autograd.Function):
    """A product with a weight of 8 bits and a scale for each row, which is made again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, largest: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        """``[..., in] -> [..., out]``."""
        ctx.held = packed, largest
        return F.linear(x, made(packed, largest, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """The gradient of the input alone."""
        return gradient @ made(*ctx.held, gradient.dtype), None, None, None


def made(packed: Tensor, largest: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight ``[out, in]``."""
    return packed.to(dtype).mul_(largest[:, None] * (1 / 127))


class EightBits(nn.Module):
    """A frozen linear layer in int8."""

    def __init__(self, rows: int, columns: int, bias: Tensor | None):
        super().__init__()
        self.bias = bias
        self.packed, self.largest = torch.zeros(rows, columns, dtype=torch.int8), torch.zeros(rows, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        out: Tensor = Rows.apply(x, self.packed, self.largest, self.bias)
        return out


@cache
def table() -> Tensor:
    """The values of 8 bits, of which the library has one table for all layers."""
    from bitsandbytes.functional import create_dynamic_map

    found: Tensor = create_dynamic_map()
    return found


class FourBits(nn.Module):
    """A frozen linear layer in NF4, whose product is bitsandbytes' own."""

    def __init__(self, rows: int, columns: int, bias: Tensor | None, dtype: torch.dtype, double: bool):
        from bitsandbytes.functional import QuantState

        super().__init__()
        self.bias = bias
        blocks = -(-rows * columns // 64)
        more: Json = {}
        if double:
            scales = torch.zeros(-(-blocks // 256), dtype=torch.float32)
            inner = QuantState(absmax=scales, code=table(), blocksize=256, dtype=torch.float32)
            more = {"offset": torch.zeros((), dtype=torch.float32), "state2": inner}
        absmax = torch.zeros(blocks, dtype=torch.uint8 if double else torch.float32)
        self.packed = torch.zeros(rows * columns // 2, 1, dtype=torch.uint8)
        self.state: Any = QuantState(
            absmax=absmax, shape=torch.Size((rows, columns)), blocksize=64, quant_type="nf4", dtype=dtype, **more
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        from bitsandbytes import matmul_4bit

        out: Tensor = matmul_4bit(x, self.packed, quant_state=self.state, bias=self.bias)
        return out


class Adapted(nn.Module):
    """A frozen, packed layer and LoRA's factors in float32."""

    def __init__(self, layer: nn.Linear, to: str, rank: int):
        super().__init__()
        rows, columns = layer.weight.shape
        dtype = layer.weight.dtype
        bias = None if layer.bias is None else nn.Parameter(torch.zeros(rows, dtype=dtype), requires_grad=False)
        packed = EightBits(rows, columns, bias) if to == "int8" else FourBits(rows, columns, bias, dtype, "-" in to)
        self.base = packed
        self.first = nn.Parameter(torch.zeros(rank, columns, dtype=torch.float32))
        self.second = nn.Parameter(torch.zeros(rows, rank, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; the factors' part is computed in float32, of an input that stays, as in PEFT."""
        out: Tensor = self.base(x)
        x = x.to(torch.float32)
        change = F.linear(F.linear(x, self.first), self.second) * 2.0
        return (out + change).to(out.dtype)


@contextmanager
def without_weights() -> Iterator[None]:
    """Make linear layers without memory: only what is packed of them is ever there."""
    original: Any = nn.Linear.__init__

    def on_meta(layer: nn.Linear, *given: Any, **named: Any) -> None:
        original(layer, *given, **{**named, "device": "meta"})  # timm's layers name the device, None

    changed: Any = on_meta
    nn.Linear.__init__ = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Linear.__init__ = original  # type: ignore[method-assign]


def pack(model: Any, options: Json, rank: int) -> None:
    """Freeze a model of one modality but for its classifier, and pack the linear layers of its blocks.

    The other linear layers get memory, the classifier in float32.
    """
    model.requires_grad_(False)
    for name, tower in model.stacks():
        for part in list(tower.blocks.modules()):
            for child, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, child, Adapted(layer, options[name]["quantize"], rank))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.to_empty(device="cpu")
    model.head = nn.Linear(model.head.in_features, model.head.out_features, dtype=torch.float32)
    model.head.register_forward_pre_hook(lambda _, given: (given[0].to(torch.float32),))
