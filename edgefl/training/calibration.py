"""Calibration: the rates of the machine at hand, from a few seconds of what training consists of.

Nothing of a scenario enters: the operators are those of one transformer block, forward and backward, at three widths.
Times are CPU seconds of this process on one thread, as training runs, so that other processes on the same cores enter
little.  An operand is met again only some operators later, as in training: one that still lies in a cache from the
last repetition would flatter every rate.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.devices import Device
from edgefl.work import Meter

NAME = "this-machine"
SECONDS = 3.5
"""What a calibration takes, about."""
WIDTHS = (64, 192, 384)
HEAD, TOKENS, ROWS = 32, 64, 1024
TURNS = 8
"""Operators after which an operand is met again."""

aten = torch.ops.aten


@dataclass
class _Act:
    """An operator over ``TURNS`` sets of operands; ``times`` is how often a block has it."""

    times: int
    flops: float
    bytes: float
    calls: list[Callable[[], Any]]
    best: list[float]

    @property
    def seconds(self) -> float:
        """Of one call: each set of operands at its fastest."""
        return sum(self.best) / len(self.best)


def _filled(*shape: int) -> Tensor:
    # not zeros, whose pages may be one and the same; not random, which takes longer to draw than to measure
    return torch.full(shape, 0.5)


def _act(times: int, flops: float, touched: float, make: Callable[[], Callable[[], Any]]) -> _Act:
    return _Act(times, flops, touched, [make() for _ in range(TURNS)], [float("inf")] * TURNS)


def _products(width: int) -> Iterator[_Act]:
    """The operators with FLOPs: a layer ``width -> 4 width`` and its two gradients thrice (a block's 12 width^2), and
    attention."""
    wide = 4 * width
    flops = 2.0 * ROWS * width * wide
    touched = 4.0 * (ROWS * width + width * wide + ROWS * wide)

    def forward() -> Callable[[], Any]:
        bias, x, w = _filled(wide), _filled(ROWS, width), _filled(wide, width)
        return lambda: torch.addmm(bias, x, w.t())

    def to_input() -> Callable[[], Any]:
        g, w = _filled(ROWS, wide), _filled(wide, width)
        return lambda: g.mm(w)

    def to_weight() -> Callable[[], Any]:
        g, x = _filled(ROWS, wide), _filled(ROWS, width)
        return lambda: g.t().mm(x)

    for make in (forward, to_input, to_weight):
        yield _act(3, flops, touched, make)
    groups, heads = ROWS // TOKENS, width // HEAD
    attended = 4.0 * groups * heads * TOKENS**2 * HEAD

    def given() -> list[Tensor]:
        return [_filled(groups, heads, TOKENS, HEAD) for _ in range(3)]

    def attend() -> Callable[[], Any]:
        q, k, v = given()
        return lambda: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    def attend_back() -> Callable[[], Any]:
        q, k, v = given()
        out, norms = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        undo = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return lambda: undo(out, q, k, v, out, norms, 0.0, False)

    yield _act(1, attended, 16.0 * ROWS * width, attend)
    yield _act(1, 2.5 * attended, 32.0 * ROWS * width, attend_back)


def _movements(width: int) -> Iterator[_Act]:
    """The operators without: norms, GELU, residuals, gradients of biases, the heads' rearranging."""
    one = 4.0 * ROWS * width

    def over(act: Callable[..., Any], operands: int, columns: int) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            given = [_filled(ROWS, columns) for _ in range(operands)]
            return lambda: act(*given)

        return make

    def norm() -> Callable[[], Any]:
        x, w, b = _filled(ROWS, width), _filled(width), _filled(width)
        return lambda: torch.native_layer_norm(x, [width], w, b, 1e-6)

    def norm_back() -> Callable[[], Any]:
        x, w, b = _filled(ROWS, width), _filled(width), _filled(width)
        out, mean, rstd = torch.native_layer_norm(x, [width], w, b, 1e-6)
        return lambda: aten.native_layer_norm_backward(out, x, [width], mean, rstd, w, b, [True] * 3)

    def rearrange() -> Callable[[], Any]:
        x = _filled(ROWS // TOKENS, TOKENS, 3 * width // HEAD, HEAD)
        return lambda: x.transpose(1, 2).contiguous()

    yield _act(2, 0, 2 * one, norm)
    yield _act(2, 0, 3 * one, norm_back)
    yield _act(1, 0, 8 * one, over(F.gelu, 1, 4 * width))
    yield _act(1, 0, 12 * one, over(aten.gelu_backward, 2, 4 * width))
    yield _act(4, 0, 3 * one, over(torch.add, 2, width))
    yield _act(4, 0, 2 * one, over(lambda x: x.sum(0), 1, 2 * width))
    yield _act(2, 0, 6 * one, rearrange)


def _measure(acts: list[_Act], budget: float) -> None:
    """Run all operators, again and again, for ``budget`` CPU seconds (once at least)."""
    kept: deque[Any] = deque(maxlen=TURNS)  # results live on for a while, as activations do
    began, rounds = time.process_time(), 0
    while rounds < 1 or time.process_time() - began < budget:
        for act in acts:
            for turn, call in enumerate(act.calls):
                started = time.process_time()
                kept.append(call())
                act.best[turn] = min(act.best[turn], time.process_time() - started)
        rounds += 1


def _overhead(budget: float) -> float:
    """Seconds of an operator that has next to nothing to do, in a training step: Python, autograd and dispatch."""
    layers = (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(6))
    model, x = nn.Sequential(*layers), _filled(2, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    meter = Meter()
    with meter.step(0, ""):
        step()
    best, began, rounds = float("inf"), time.process_time(), 0
    while rounds < 5 or time.process_time() - began < budget:
        started = time.process_time()
        step()
        best = min(best, time.process_time() - started)
        rounds += 1
    return best / sum(meter.steps[0, ""].operators.values())


def calibrate_here(seconds: float = SECONDS) -> Device:
    """The machine at hand as a device, its CPU on one thread, measured in about ``seconds`` of CPU time.

    ``flops_per_second`` is all FLOPs of a block over the seconds of its products, ``peak_flops_per_second`` the best
    single product, ``memory_bytes_per_second`` the bytes that its other operators touch over theirs.  Power isn't
    measured: its watts are 0.
    """
    overhead_bytes = psutil.Process().memory_info().rss
    threads, grads = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(1)
    try:
        torch.set_grad_enabled(False)
        products = [act for width in WIDTHS for act in _products(width)]
        movements = [act for width in WIDTHS for act in _movements(width)]
        _measure([*products, *movements], 0.8 * seconds)
        torch.set_grad_enabled(True)
        overhead = _overhead(0.1 * seconds)
    finally:
        torch.set_grad_enabled(grads)
        torch.set_num_threads(threads)
    memory = psutil.virtual_memory()
    return Device(
        name=NAME,
        title=f"{platform.machine()}, one of {os.cpu_count()} CPUs, calibrated",
        ram_bytes=memory.total,
        usable_memory_bytes=memory.available,
        flops_per_second=sum(a.times * a.flops for a in products) / sum(a.times * a.seconds for a in products),
        peak_flops_per_second=max(a.flops / a.seconds for a in products),
        memory_bytes_per_second=sum(a.times * a.bytes for a in movements) / sum(a.times * a.seconds for a in movements),
        seconds_per_operator=overhead,
        runtime_overhead_bytes=overhead_bytes,
        compute_watts=0.0,
        idle_watts=0.0,
        jitter=0.0,
    )
