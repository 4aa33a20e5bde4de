"""The three numbers of a roofline that calibration measured before it had classes of operators, for comparison.

FLOP/s of a transformer block's products, bytes/s of its other operators, forward and backward at three widths, and the
fixed time of an operator; an operator takes the larger of FLOPs and bytes over these rates, and the fixed time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from edgefl.devices import Device
from edgefl.devices.processors import ROOFLINE

WIDTHS, HEAD, TOKENS, ROWS = (64, 192, 384), 32, 64, 1024
SETS = 4
"""Sets of operands, which take turns."""

aten = torch.ops.aten
Act = tuple[int, float, float, Callable[[], Any]]
"""How often a block has an operator, its FLOPs, its bytes, and a call."""


def _filled(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5)


def _products(width: int) -> Iterator[Act]:
    wide, groups, heads = 4 * width, ROWS // TOKENS, width // HEAD
    flops, moved = 2.0 * ROWS * width * wide, 4.0 * (ROWS * width + width * wide + ROWS * wide)
    x, g, w, bias = _filled(ROWS, width), _filled(ROWS, wide), _filled(wide, width), _filled(wide)
    yield 3, flops, moved, lambda: torch.addmm(bias, x, w.t())
    yield 3, flops, moved, lambda: g.mm(w)
    yield 3, flops, moved, lambda: g.t().mm(x)
    q, k, v = (_filled(groups, heads, TOKENS, HEAD) for _ in range(3))
    of_attention = 4.0 * groups * heads * TOKENS**2 * HEAD
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    out, norms = forward(q, k, v)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    yield 1, of_attention, 0.0, lambda: forward(q, k, v)
    yield 1, 2.5 * of_attention, 0.0, lambda: backward(out, q, k, v, out, norms, 0.0, False)


def _movements(width: int) -> Iterator[Act]:
    once = 4.0 * ROWS * width
    x, y, w = _filled(ROWS, width), _filled(ROWS, width), _filled(width)
    wide, of_wide = _filled(ROWS, 4 * width), _filled(ROWS, 4 * width)
    out, mean, deviation = torch.native_layer_norm(x, [width], w, w, 1e-6)
    heads = _filled(ROWS // TOKENS, TOKENS, 3 * width // HEAD, HEAD)
    yield 2, 0, 2 * once, lambda: torch.native_layer_norm(x, [width], w, w, 1e-6)
    yield 2, 0, 3 * once, lambda: aten.native_layer_norm_backward(out, x, [width], mean, deviation, w, w, [True] * 3)
    yield 1, 0, 8 * once, lambda: F.gelu(wide)
    yield 1, 0, 12 * once, lambda: aten.gelu_backward(wide, of_wide)
    yield 4, 0, 3 * once, lambda: x + y
    yield 4, 0, 2 * once, lambda: wide[:, : 2 * width].sum(0)
    yield 2, 0, 6 * once, lambda: heads.transpose(1, 2).contiguous()


def roofline(here: Device, now: Callable[[], float], repeat: int = 3) -> Device:
    """The machine with the rates of a roofline, by a clock; its fixed time is that of ``here``."""
    amounts, seconds = [0.0, 0.0], [0.0, 0.0]
    with torch.no_grad():
        acts = [(kind, [act for width in WIDTHS for act in make(width)])
                for _ in range(SETS) for kind, make in enumerate((_products, _movements))]  # fmt: skip
        best: dict[tuple[int, int], float] = {}
        for _ in range(repeat):
            kept = []
            for turn, (_, calls) in enumerate(acts):
                for index, (*_, call) in enumerate(calls):
                    began = now()
                    kept.append(call())
                    best[turn, index] = min(best.get((turn, index), 1e9), now() - began)
                kept = kept[-8:]
    for turn, (kind, calls) in enumerate(acts):
        for index, (times, flops, moved, _) in enumerate(calls):
            amounts[kind] += times * (flops, moved)[kind]
            seconds[kind] += times * best[turn, index]
    flops_per_second, bytes_per_second = (amount / took for amount, took in zip(amounts, seconds, strict=True))
    return replace(
        here,
        flops_per_second=flops_per_second,
        memory_bytes_per_second=bytes_per_second,
        processor=ROOFLINE,
    )
