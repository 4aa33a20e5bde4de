"""Microbenchmarks: the rates of this machine, from a few seconds of operators that training consists of.

The operators are those of one transformer block, forward and backward, at three widths; they don't depend on a
scenario.  ``calibrate_here`` measures CPU seconds on one thread, as works are trained, so that other processes on the
same cores have little influence.  ``throughput.sustained`` measures wall seconds on all threads.  As in training, an
operator uses an operand again only after several other operators: operands that are still in a cache would make every
rate too high.
"""

from __future__ import annotations

import math
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
from edgefl.machine import host
from edgefl.work import Meter
from edgefl.work.torch_device import threads

NAME = "this-machine"
SECONDS = 3.5
"""Approximate CPU seconds of a calibration."""
WIDTHS = (64, 192, 384)
HEAD, TOKENS, ROWS = 32, 64, 1024
TURNS = 8
"""Sets of operands that each operator cycles through, at most."""
CACHES = 4
"""The sets together are this many times as large as the processor's last cache, so that no operand is still in it."""
FLOATS_OF_A_TURN = 39 * ROWS
"""Numbers in one set of operands of all operators per unit of width, without the weights (8 width^2)."""

CPU = torch.device("cpu")

aten = torch.ops.aten


@dataclass(frozen=True)
class Bench:
    """Dtype and device of operands, and the number of sets of operands (``turns``) that an operator cycles through."""

    turns: int = TURNS
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    def filled(self, *shape: int) -> Tensor:
        """An operand of this shape, filled with 0.5.

        Zeros may share one page of memory, and random numbers take longer to draw.
        """
        return torch.full(shape, 0.5, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Act:
    """A benchmarked operator: FLOPs and bytes of one call, and a call for each set of operands.

    ``times`` is how often a transformer block contains the operator.
    """

    times: int
    flops: float
    bytes: float
    calls: list[Callable[[], Any]]


def set_bytes(widths: Sequence[int]) -> int:
    """Bytes of one set of operands of all operators, in float32."""
    return 4 * sum(FLOATS_OF_A_TURN * width + 8 * width**2 for width in widths)


def turns_beyond(cache: float, widths: Sequence[int] = WIDTHS) -> int:
    """Sets of operands that together are ``CACHES`` times as large as a ``cache`` (bytes), at most ``TURNS``."""
    return math.ceil(min(TURNS, CACHES * cache / set_bytes(widths)))


def _act(bench: Bench, times: int, flops: float, touched: float, make: Callable[[], Callable[[], Any]]) -> Act:
    return Act(times, flops, touched, [make() for _ in range(bench.turns)])


def products(width: int, bench: Bench) -> Iterator[Act]:
    """The compute-bound operators of a block: matrix products and attention, forward and backward.

    A layer ``width -> 4 width`` with its two gradients, three times, stands for the 12 width^2 weights of a block.
    """
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
    attention_flops, on_cpu = 4.0 * groups * heads * TOKENS**2 * HEAD, bench.device.type == "cpu"

    def operands() -> list[Tensor]:
        return [filled(groups, heads, TOKENS, HEAD) for _ in range(3)]

    def attend() -> Callable[[], Any]:
        q, k, v = operands()
        if on_cpu:  # call the kernel directly
            return lambda: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return lambda: F.scaled_dot_product_attention(q, k, v)

    def attend_back() -> Callable[[], Any]:
        q, k, v = operands()
        if on_cpu:
            out, norms = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
            backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
            return lambda: backward(out, q, k, v, out, norms, 0.0, False)
        with torch.enable_grad():
            leaves = [x.requires_grad_() for x in (q, k, v)]
            output = F.scaled_dot_product_attention(q, k, v)
        return lambda: torch.autograd.grad(output, leaves, torch.ones_like(output), retain_graph=True)

    yield _act(bench, 1, attention_flops, 16.0 * ROWS * width, attend)
    yield _act(bench, 1, 2.5 * attention_flops, 32.0 * ROWS * width, attend_back)


def movements(width: int, bench: Bench) -> Iterator[Act]:
    """The memory-bound operators of a block: norms, GELU, residuals, gradients of biases, rearranging of heads."""
    activation_bytes, filled = 4.0 * ROWS * width, bench.filled

    def on_rows(operator: Callable[..., Any], operands: int, columns: int) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            tensors = [filled(ROWS, columns) for _ in range(operands)]
            return lambda: operator(*tensors)

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

    yield _act(bench, 2, 0, 2 * activation_bytes, norm)
    yield _act(bench, 2, 0, 3 * activation_bytes, norm_back)
    yield _act(bench, 1, 0, 8 * activation_bytes, on_rows(F.gelu, 1, 4 * width))
    yield _act(bench, 1, 0, 12 * activation_bytes, on_rows(aten.gelu_backward, 2, 4 * width))
    yield _act(bench, 4, 0, 3 * activation_bytes, on_rows(torch.add, 2, width))
    yield _act(bench, 4, 0, 2 * activation_bytes, on_rows(lambda x: x.sum(0), 1, 2 * width))
    yield _act(bench, 2, 0, 6 * activation_bytes, rearrange)


class Stopwatch:
    """Measures calls with a CPU clock.  The last ``keep`` results stay in memory, as activations do in training."""

    def __init__(self, now: Callable[[], float], keep: int = TURNS):
        self.now = now
        self._kept: deque[Any] = deque(maxlen=keep)

    def forget(self) -> None:
        """Release the stored results."""
        self._kept.clear()

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Run the calls one after another and return the seconds of each."""
        seconds = []
        for call in calls:
            started = self.now()
            self._kept.append(call())
            seconds.append(self.now() - started)
        return seconds


class CudaStopwatch(Stopwatch):
    """Measures calls on a GPU with CUDA events, since kernels run asynchronously: the mean over all calls."""

    def __init__(self, keep: int = TURNS):
        super().__init__(time.perf_counter, keep)

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Run the calls and return their mean seconds, repeated for each call."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in calls:
            self._kept.append(call())
        end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 / len(calls)] * len(calls)


def rounds(acts: list[Act], budget: float, watch: Stopwatch, least: int = 1) -> NDArray[np.float64]:
    """Run all operators repeatedly for ``budget`` seconds, at least ``least`` times.

    Returns the seconds of each call: ``[rounds, acts, turns]``.
    """
    seconds: list[list[list[float]]] = []
    began = watch.now()
    while len(seconds) < least or watch.now() - began < budget:
        seconds.append([watch.each(act.calls) for act in acts])
    return np.array(seconds)


def drop(acts: list[Act], watch: Stopwatch) -> None:
    """Release the operands and the results, so that the next measurement has their memory."""
    for act in acts:
        act.calls.clear()
    watch.forget()
    host.release_memory()


def step_overheads(budget: float, watch: Stopwatch, device: torch.device) -> NDArray[np.float64]:
    """Overhead of an operator (Python, autograd and dispatch), from training steps of a tiny model.

    Returns the mean seconds per operator of each step: ``[steps]``.
    """
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
        seconds: list[float] = []
        began = watch.now()
        while len(seconds) < 5 or watch.now() - began < budget:
            seconds += watch.each([step])
    return np.array(seconds) / operators


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Run the body with ``count`` threads of torch and without gradients; restore the thread count afterwards."""
    with threads(count), torch.no_grad():
        yield


def rate(acts: list[Act], seconds: NDArray[np.float64], quantity: str) -> Any:
    """A block's ``quantity`` (flops or bytes) per second.  ``seconds`` is ``[..., acts]``, the result ``[...]``."""
    times = np.array([act.times for act in acts], dtype=np.float64)
    amounts = np.array([getattr(act, quantity) for act in acts])
    return (times * amounts).sum() / (seconds * times).sum(axis=-1)


def calibrate_here(seconds: float = SECONDS) -> Device:
    """This machine as a device, with its CPU on one thread, measured in about ``seconds`` of CPU time.

    ``flops_per_second`` is the FLOPs of a block over the seconds of its products; ``peak_flops_per_second`` is the rate
    of the fastest single product.  ``memory_bytes_per_second`` is the bytes that the other operators read and write
    over their seconds.  Power isn't measured; the watts are 0.
    """
    overhead_bytes = psutil.Process().memory_info().rss
    bench, watch = Bench(turns_beyond(host.last_cache_bytes())), Stopwatch(time.process_time)
    with threads_of(1):
        computing = [act for width in WIDTHS for act in products(width, bench)]
        moving = [act for width in WIDTHS for act in movements(width, bench)]
        # the fastest repetition of each set of operands
        best = rounds([*computing, *moving], 0.8 * seconds, watch).min(axis=0).mean(axis=1)
        drop([*computing, *moving], watch)
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
