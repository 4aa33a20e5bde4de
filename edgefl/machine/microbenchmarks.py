"""Calibration: the rates of the machine at hand, from a few seconds of what training consists of.

Nothing of a scenario enters: the operators are those of one transformer block, forward and backward, at three widths.
``calibrate_here`` takes CPU seconds of this process on one thread, as training runs here, so that other processes on
the same cores enter little; ``sustained`` takes wall seconds on all threads.  An operand is met again only some
operators later, as in training: one that still lies in a cache from the last repetition would flatter every rate.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
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

CPU = torch.device("cpu")

aten = torch.ops.aten


@dataclass(frozen=True)
class Bench:
    """What operands are made of, where they lie, and how many sets of them an operator goes through."""

    turns: int = TURNS
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    def filled(self, *shape: int) -> Tensor:
        """An operand: not zeros, whose pages may be one and the same; not random, which takes longer to draw."""
        return torch.full(shape, 0.5, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Act:
    """An operator over ``turns`` sets of operands; ``times`` is how often a block has it."""

    times: int
    flops: float
    bytes: float
    calls: list[Callable[[], Any]]


def _act(bench: Bench, times: int, flops: float, touched: float, make: Callable[[], Callable[[], Any]]) -> Act:
    return Act(times, flops, touched, [make() for _ in range(bench.turns)])


def products(width: int, bench: Bench) -> Iterator[Act]:
    """The operators with FLOPs: a layer ``width -> 4 width`` and its two gradients thrice (a block's 12 width^2), and
    attention."""
    wide, filled = 4 * width, bench.filled
    flops = 2.0 * ROWS * width * wide
    touched = 4.0 * (ROWS * width + width * wide + ROWS * wide)

    def forward() -> Callable[[], Any]:
        bias, x, w = filled(wide), filled(ROWS, width), filled(wide, width)
        return lambda: torch.addmm(bias, x, w.t())

    def to_input() -> Callable[[], Any]:
        g, w = filled(ROWS, wide), filled(wide, width)
        return lambda: g.mm(w)

    def to_weight() -> Callable[[], Any]:
        g, x = filled(ROWS, wide), filled(ROWS, width)
        return lambda: g.t().mm(x)

    for make in (forward, to_input, to_weight):
        yield _act(bench, 3, flops, touched, make)
    groups, heads = ROWS // TOKENS, width // HEAD
    attended, on_cpu = 4.0 * groups * heads * TOKENS**2 * HEAD, bench.device.type == "cpu"

    def given() -> list[Tensor]:
        return [filled(groups, heads, TOKENS, HEAD) for _ in range(3)]

    def attend() -> Callable[[], Any]:
        q, k, v = given()
        if on_cpu:  # the kernel itself
            return lambda: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return lambda: F.scaled_dot_product_attention(q, k, v)

    def attend_back() -> Callable[[], Any]:
        q, k, v = given()
        if on_cpu:
            out, norms = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
            undo = aten._scaled_dot_product_flash_attention_for_cpu_backward
            return lambda: undo(out, q, k, v, out, norms, 0.0, False)
        with torch.enable_grad():
            leaves = [x.requires_grad_() for x in (q, k, v)]
            seen = F.scaled_dot_product_attention(q, k, v)
        return lambda: torch.autograd.grad(seen, leaves, torch.ones_like(seen), retain_graph=True)

    yield _act(bench, 1, attended, 16.0 * ROWS * width, attend)
    yield _act(bench, 1, 2.5 * attended, 32.0 * ROWS * width, attend_back)


def movements(width: int, bench: Bench) -> Iterator[Act]:
    """The operators without: norms, GELU, residuals, gradients of biases, the heads' rearranging."""
    one, filled = 4.0 * ROWS * width, bench.filled

    def over(act: Callable[..., Any], operands: int, columns: int) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            given = [filled(ROWS, columns) for _ in range(operands)]
            return lambda: act(*given)

        return make

    def norm() -> Callable[[], Any]:
        x, w, b = filled(ROWS, width), filled(width), filled(width)
        return lambda: torch.native_layer_norm(x, [width], w, b, 1e-6)

    def norm_back() -> Callable[[], Any]:
        x, w, b = filled(ROWS, width), filled(width), filled(width)
        out, mean, rstd = torch.native_layer_norm(x, [width], w, b, 1e-6)
        return lambda: aten.native_layer_norm_backward(out, x, [width], mean, rstd, w, b, [True] * 3)

    def rearrange() -> Callable[[], Any]:
        x = filled(ROWS // TOKENS, TOKENS, 3 * width // HEAD, HEAD)
        return lambda: x.transpose(1, 2).contiguous()

    yield _act(bench, 2, 0, 2 * one, norm)
    yield _act(bench, 2, 0, 3 * one, norm_back)
    yield _act(bench, 1, 0, 8 * one, over(F.gelu, 1, 4 * width))
    yield _act(bench, 1, 0, 12 * one, over(aten.gelu_backward, 2, 4 * width))
    yield _act(bench, 4, 0, 3 * one, over(torch.add, 2, width))
    yield _act(bench, 4, 0, 2 * one, over(lambda x: x.sum(0), 1, 2 * width))
    yield _act(bench, 2, 0, 6 * one, rearrange)


class Stopwatch:
    """Seconds of calls by a clock of the CPU's; results live on for a while, as activations do."""

    def __init__(self, now: Callable[[], float], keep: int = TURNS):
        self.now = now
        self._kept: deque[Any] = deque(maxlen=keep)

    def forget(self) -> None:
        """Let the results go."""
        self._kept.clear()

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Seconds of each call, one after another."""
        found = []
        for call in calls:
            started = self.now()
            self._kept.append(call())
            found.append(self.now() - started)
        return found


class CudaStopwatch(Stopwatch):
    """Seconds on a GPU, where kernels run by themselves: of all calls by its own events, shared out evenly."""

    def __init__(self, keep: int = TURNS):
        super().__init__(time.perf_counter, keep)

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """The mean seconds of these calls, once for each."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in calls:
            self._kept.append(call())
        end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 / len(calls)] * len(calls)


def rounds(acts: list[Act], budget: float, watch: Stopwatch, least: int = 1) -> NDArray[np.float64]:
    """Run all operators, again and again, for ``budget`` seconds (``least`` times at least).

    Returns seconds ``[rounds, acts, turns]``.
    """
    found: list[list[list[float]]] = []
    began = watch.now()
    while len(found) < least or watch.now() - began < budget:
        found.append([watch.each(act.calls) for act in acts])
    return np.array(found)


def step_overheads(budget: float, watch: Stopwatch, device: torch.device) -> NDArray[np.float64]:
    """Seconds of an operator that has next to nothing to do, in each of many training steps: Python, autograd and
    dispatch; ``[steps]``."""
    layers = (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(6))
    model, x = nn.Sequential(*layers).to(device), torch.full((2, 8), 0.5, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.enable_grad():
        step()
        meter = Meter()
        with meter.step(0, ""):
            step()
        operators = sum(meter.steps[0, ""].operators.values())
        found: list[float] = []
        began = watch.now()
        while len(found) < 5 or watch.now() - began < budget:
            found += watch.each([step])
    return np.array(found) / operators


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Torch on so many threads, without gradients; afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


def rate(acts: list[Act], seconds: NDArray[np.float64], quantity: str) -> Any:
    """A block's ``quantity`` (flops or bytes) over the seconds of its operators; seconds are ``[..., acts]``."""
    times = np.array([act.times for act in acts], dtype=np.float64)
    amounts = np.array([getattr(act, quantity) for act in acts])
    return (times * amounts).sum() / (seconds * times).sum(axis=-1)


def calibrate_here(seconds: float = SECONDS) -> Device:
    """The machine at hand as a device, its CPU on one thread, measured in about ``seconds`` of CPU time.

    ``flops_per_second`` is all FLOPs of a block over the seconds of its products, ``peak_flops_per_second`` the best
    single product, ``memory_bytes_per_second`` the bytes that its other operators touch over theirs.  Power isn't
    measured: its watts are 0.
    """
    overhead_bytes = psutil.Process().memory_info().rss
    bench, watch = Bench(), Stopwatch(time.process_time)
    with threads_of(1):
        computing = [act for width in WIDTHS for act in products(width, bench)]
        moving = [act for width in WIDTHS for act in movements(width, bench)]
        # each set of operands at its fastest
        best = rounds([*computing, *moving], 0.8 * seconds, watch).min(axis=0).mean(axis=1)
        overhead = float(step_overheads(0.1 * seconds, watch, bench.device).min())
    of_products, of_movements = best[: len(computing)], best[len(computing) :]
    memory = psutil.virtual_memory()
    return Device(
        name=NAME,
        title=f"{platform.machine()}, one of {os.cpu_count()} CPUs, calibrated",
        ram_bytes=memory.total,
        usable_memory_bytes=memory.available,
        flops_per_second=float(rate(computing, of_products, "flops")),
        peak_flops_per_second=max(a.flops / float(s) for a, s in zip(computing, of_products, strict=True)),
        memory_bytes_per_second=float(rate(moving, of_movements, "bytes")),
        seconds_per_operator=overhead,
        runtime_overhead_bytes=overhead_bytes,
        compute_watts=0.0,
        idle_watts=0.0,
        jitter=0.0,
    )
