"""Microbenchmarks: what this machine reaches with each class of operator, from short training steps of single layers.

A probe is a training step of a few layers of one class: forward, backward, or an optimizer's update.  The meter counts
its operators as it does those of a work, and ``fitted_rates.rates_of`` finds the rates with which the formula of
``edgefl.cost.step_seconds`` makes its seconds.  Probes don't depend on a scenario or on a network of the library.
``calibrate_here`` measures CPU seconds on one thread, as works are trained, so that other processes on the same cores
have little influence.  ``throughput.sustained`` measures wall seconds on all threads.  All probes take turns, so that
an operand is used again only after all others: operands that are still in a cache would make every rate too high.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.arrays import Floats
from edgefl.cost.client_cost import operator_table
from edgefl.devices import Device
from edgefl.machine import host
from edgefl.machine.fitted_rates import TimedStep, rates_of
from edgefl.work import NO_METER, Meter, NoMeter
from edgefl.work.torch_device import threads

Step = Callable[[Meter | NoMeter], None]
Clock = Callable[[Callable[[], object]], float]

NAME = "this-machine"
SECONDS = 3.5
"""Approximate CPU seconds of a calibration.  A choice, not measured: longer ones repeat larger probes."""
LEAST_SCALE, CUDA_SCALE = 1 / 16, 64.0
"""Batches are at least and, on a GPU, at most multiplied by this: there a batch for a CPU fits the cache, and an H100
reads 3 TB/s from its memory at 64 times a CPU's batches, but 2 at 16 times."""
SCALED_BYTES, FIXED_BYTES = 450e6, 200e6
"""Memory of all probes that grows with their scale, and that of their weights and of what kernels take.

With torch 2.13 a round at a scale of 1 takes 720 MB beyond the process's own, and 300 at 1/16."""
WORTH = 1e11
"""A round of all probes at a scale of 1 takes about as long as so many FLOPs of dense layers.

On an EPYC processor it took as long as 0.8e11; it sets how large probes are, so that three rounds fill their time."""

REUSED_BYTES = 31 << 20
"""Memory that is written and freed before a step, so that the step has pages which the process had before, as in
training; blocks of 32 MiB and more are new at each allocation with glibc."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ProbeBench:
    """The device of probes, what their batches are multiplied with, and the dtype of autocast (None: float32)."""

    scale: float = 1.0
    device: torch.device = CPU
    dtype: torch.dtype | None = None

    def scale_size(self, size: int) -> int:
        """A batch, or the size of a table."""
        return max(1, int(size * self.scale))

    def make_operand(self, *shape: int) -> Tensor:
        """An operand of this shape, filled with 0.5.

        Zeros may share one page of memory, and random numbers take longer to draw.
        """
        return torch.full(shape, 0.5, device=self.device)


@dataclass(frozen=True)
class Layers:
    """Layers of a probe: what makes them, the shape of their input, and whether it is data, without a gradient.

    The first number of the shape is a batch, which the scale of a ``ProbeBench`` multiplies.
    """

    make: Callable[[ProbeBench], nn.Module]
    shape: tuple[int, ...]
    data: bool = False


@dataclass(frozen=True)
class Probe:
    """A step that is measured, and its operators ``[n, 4]`` as in ``ComputeCost.operators``."""

    name: str
    step: Step
    operators: Floats


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


class _Lookup(nn.Module):
    """Rows of a table that are far from each other."""

    def __init__(self, rows: int, width: int, tokens: int):
        super().__init__()
        self.table, self._tokens = nn.Parameter(torch.empty(rows, width)), tokens

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(torch.arange(self._tokens, device=x.device) * 97 % len(self.table), self.table)


def _dense(*widths: int) -> Callable[[ProbeBench], nn.Module]:
    return lambda _: nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def _convolutions(*layers: tuple[int, int, int, int, int]) -> Callable[[ProbeBench], nn.Module]:
    """Convolutions of (input channels, output channels, kernel, stride, groups); patches aren't padded."""

    def make(_: ProbeBench) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(i, o, k, s, 0 if k == s else k // 2, groups=g, bias=False) for i, o, k, s, g in layers)
        )

    return make


def _depthwise(channels: int, kernel: int, stride: int = 1) -> Callable[[ProbeBench], nn.Module]:
    return _convolutions((channels, channels, kernel, stride, channels))


def _pointwise(function: Callable[[Tensor], Tensor], times: int = 2) -> Callable[[ProbeBench], nn.Module]:
    return lambda _: nn.Sequential(*(_Function(function) for _ in range(times)))


def _fused_attention(causal: bool) -> Callable[[ProbeBench], nn.Module]:
    def attend(qkv: Tensor) -> Tensor:
        query, key, value = qkv.unbind(1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return lambda _: _Function(attend)


def _unfused_attention(qkv: Tensor) -> Tensor:
    query, key, value = qkv.unbind(1)
    return (query @ key.transpose(-1, -2)).softmax(-1) @ value


def _loss(x: Tensor) -> Tensor:
    return F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long, device=x.device))


_MAPS = (4, 64, 56, 56)
_TOKENS = (4, 197, 768)
"""Four samples of a ResNet-18's first stage, and of a ViT-B/16's blocks."""

PRODUCTS = {
    "layers of 384": Layers(_dense(384, 1536, 384), (512, 384)),
    "layers of 768": Layers(_dense(768, 768, 768), (384, 768)),
    "layers of 192": Layers(_dense(192, 768, 192), (1024, 192)),
    "layers of 64": Layers(_dense(64, 256, 64), (4096, 64)),
    "few rows": Layers(_dense(2048, 1000), (16, 2048)),
    "vocabulary": Layers(_dense(256, 8192), (128, 256)),
}
OTHERS = {
    "convolutions of 64": Layers(_convolutions((64, 64, 3, 1, 1)), _MAPS),
    "convolutions of 128": Layers(_convolutions((128, 128, 3, 1, 1)), (4, 128, 28, 28)),
    "convolutions of 512": Layers(_convolutions((512, 512, 3, 1, 1)), (4, 512, 7, 7)),
    "strided convolution": Layers(_convolutions((128, 256, 3, 2, 1)), (4, 128, 28, 28)),
    "first 7x7": Layers(_convolutions((3, 64, 7, 2, 1)), (4, 3, 224, 224), data=True),
    "first 3x3": Layers(_convolutions((3, 32, 3, 2, 1)), (8, 3, 224, 224), data=True),
    "patches": Layers(_convolutions((3, 192, 16, 16, 1)), (8, 3, 224, 224), data=True),
    "1x1 64": Layers(_convolutions((64, 256, 1, 1, 1), (256, 64, 1, 1, 1)), (2, 64, 56, 56)),
    "1x1 16": Layers(_convolutions((16, 96, 1, 1, 1), (96, 24, 1, 1, 1)), (4, 16, 56, 56)),
    "1x1 256": Layers(_convolutions((256, 1024, 1, 1, 1), (1024, 256, 1, 1, 1)), (2, 256, 14, 14)),
    "1x1 96, large batch": Layers(_convolutions((96, 576, 1, 1, 1), (576, 96, 1, 1, 1)), (16, 96, 14, 14)),
    "groups of 4": Layers(_convolutions((128, 128, 3, 1, 32)), (4, 128, 28, 28)),
    "groups of 8, strided": Layers(_convolutions((256, 256, 3, 2, 32)), (4, 256, 28, 28)),
    "groups of 16": Layers(_convolutions((256, 256, 3, 1, 16)), (4, 256, 14, 14)),
    "depthwise 3x3 32": Layers(_depthwise(32, 3), (4, 32, 112, 112)),
    "depthwise 3x3 144": Layers(_depthwise(144, 3), (4, 144, 56, 56)),
    "depthwise 3x3 384": Layers(_depthwise(384, 3), (4, 384, 14, 14)),
    "depthwise 3x3 960": Layers(_depthwise(960, 3), (8, 960, 7, 7)),
    "depthwise 3x3, strided": Layers(_depthwise(96, 3, 2), (4, 96, 56, 56)),
    "depthwise 5x5 120": Layers(_depthwise(120, 5), (4, 120, 28, 28)),
    "depthwise 5x5 480": Layers(_depthwise(480, 5), (4, 480, 14, 14)),
    "depthwise 5x5, strided": Layers(_depthwise(72, 5, 2), (4, 72, 56, 56)),
    "depthwise 7x7 64": Layers(_depthwise(64, 7), (4, 64, 56, 56)),
    "depthwise 7x7 256": Layers(_depthwise(256, 7), (4, 256, 14, 14)),
    "attention": Layers(_fused_attention(causal=False), (4, 3, 6, 197, 64)),
    "causal attention": Layers(_fused_attention(causal=True), (2, 3, 12, 256, 64)),
    "unfused attention": Layers(lambda _: _Function(_unfused_attention), (4, 3, 12, 128, 64)),
    "attention in windows": Layers(lambda _: _Function(_unfused_attention), (64, 3, 3, 49, 32)),
    "batch norm": Layers(lambda _: nn.Sequential(nn.BatchNorm2d(64), nn.BatchNorm2d(64)), _MAPS),
    "batch norm, small": Layers(lambda _: nn.Sequential(nn.BatchNorm2d(512), nn.BatchNorm2d(512)), (8, 512, 14, 14)),
    "layer norm": Layers(lambda _: nn.Sequential(nn.LayerNorm(192), nn.LayerNorm(192)), (16, 197, 192)),
    "layer norm, wide": Layers(lambda _: nn.Sequential(nn.LayerNorm(768), nn.LayerNorm(768)), (4, 197, 768)),
    "ReLU in place": Layers(_pointwise(lambda x: (x + x).relu_()), _MAPS),
    "GELU": Layers(_pointwise(F.gelu), _TOKENS),
    "SiLU": Layers(_pointwise(F.silu), _MAPS),
    "GELU of tanh": Layers(_pointwise(lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x.pow(3)))), 1), _TOKENS),
    "residual": Layers(_pointwise(torch.square, 3), _TOKENS),
    "scaled maps": Layers(_pointwise(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), 1), _MAPS),
    "dropout": Layers(_pointwise(lambda x: F.dropout(x, 0.1), 1), _TOKENS),
    "softmax": Layers(_pointwise(lambda x: x.softmax(-1), 1), (4, 12, 128, 128)),
    "heads": Layers(_pointwise(lambda x: x.transpose(1, 2).contiguous(), 3), (4, 197, 12, 64)),
    "maximum pooling": Layers(lambda _: nn.MaxPool2d(3, 2, 1), (2, 64, 112, 112)),
    "mean pooling": Layers(lambda _: nn.AdaptiveAvgPool2d(1), (8, 512, 14, 14)),
    "loss": Layers(lambda _: _Function(_loss), (256, 8192)),
    "large table": Layers(lambda bench: _Lookup(bench.scale_size(16384), 512, 512), (1,)),
    "table": Layers(lambda bench: _Lookup(bench.scale_size(8192), 256, bench.scale_size(2048)), (1,)),
}
SMALL = "small layers"
"""The probe whose seconds are those of its operators' fixed times."""
_UPDATED, _TABLE = ((384, 384), (384,), (768, 384), (768,)), 9_000_000
"""Weights that optimizers update; AdamW updates a table, too, whose results have new memory at every allocation."""


def _make_layer_step(layers: Layers, bench: ProbeBench) -> Step:
    module = layers.make(bench).to(bench.device)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(0.01)
    first, *rest = layers.shape
    x = bench.make_operand(bench.scale_size(first), *rest).requires_grad_(not layers.data)
    leaves = [x, *module.parameters()]
    half = nullcontext() if bench.dtype is None else torch.autocast(bench.device.type, dtype=bench.dtype)

    def step(meter: Meter | NoMeter = NO_METER) -> None:
        with half:
            out = module(x)
        meter.enter("backward")
        out.backward(torch.ones_like(out))
        for leaf in leaves:
            leaf.grad = None

    return step


def _make_optimizer_step(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], bench: ProbeBench, table: int = 0
) -> Step:
    shapes: list[tuple[int, ...]] = [*_UPDATED, *[(bench.scale_size(table),)] * (table > 0)]
    parameters = [nn.Parameter(bench.make_operand(*shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = bench.make_operand(*parameter.shape)
    optimizer = make(parameters)
    optimizer.step()  # makes its state

    def step(meter: Meter | NoMeter = NO_METER) -> None:
        meter.enter("optimizer")
        optimizer.step()

    return step


def small_layers(device: torch.device) -> Step:
    """A training step whose operators take their fixed time alone (Python, autograd and dispatch)."""
    layers = (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(6))
    model, x = nn.Sequential(*layers).to(device), torch.full((2, 8), 0.5, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes its state

    def step(meter: Meter | NoMeter = NO_METER) -> None:
        loss = model(x).square().mean()
        meter.enter("backward")
        loss.backward()
        meter.enter("optimizer")
        optimizer.step()
        optimizer.zero_grad()

    return step


def _probe(name: str, step: Step) -> Probe:
    """A probe of this step, which runs once: what is made at a first use isn't timed."""
    meter = Meter()
    with torch.enable_grad(), meter.step(0, ""):
        step(meter)
    return Probe(name, step, operator_table(meter.steps[0, ""].operators))


def products(bench: ProbeBench) -> list[Probe]:
    """The probes of matrix products."""
    return [_probe(name, _make_layer_step(layers, bench)) for name, layers in PRODUCTS.items()]


def probes(bench: ProbeBench) -> list[Probe]:
    """All probes; those of products are first."""
    adamw: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW
    updates = {
        "AdamW": _make_optimizer_step(adamw, bench, _TABLE),
        "AdamW, small": _make_optimizer_step(adamw, bench),
        "fused AdamW": _make_optimizer_step(lambda p: torch.optim.AdamW(p, fused=True), bench),
        "SGD": _make_optimizer_step(lambda p: torch.optim.SGD(p, momentum=0.9), bench),
        "fused SGD": _make_optimizer_step(lambda p: torch.optim.SGD(p, momentum=0.9, fused=True), bench),
    }
    return [
        *products(bench),
        *(_probe(name, _make_layer_step(layers, bench)) for name, layers in OTHERS.items()),
        *(_probe(name, step) for name, step in updates.items()),
        _probe(SMALL, small_layers(bench.device)),
    ]


def scale_for(seconds: float, free_bytes: float, clock: Clock, device: torch.device) -> float:
    """The scale with which probes take about half of ``seconds`` for three rounds, and half of the free memory."""
    dense = _probe("", _make_layer_step(next(iter(PRODUCTS.values())), ProbeBench(device=device)))
    flops = float(dense.operators[:, 0] @ dense.operators[:, 2])
    rate = flops / float(rounds([dense], 0.0, clock, 3).min())
    by_time, by_memory = seconds * rate / (6 * WORTH), (0.5 * free_bytes - FIXED_BYTES) / SCALED_BYTES
    most = CUDA_SCALE if device.type == "cuda" else 1.0
    return max(LEAST_SCALE, min(by_time, by_memory, most))


def by_clock(now: Callable[[], float]) -> Clock:
    """What measures the seconds of a call with a clock such as ``time.process_time``."""

    def seconds(call: Callable[[], object]) -> float:
        began = now()
        call()
        return now() - began

    return seconds


FIRST_WAIT, MOST_WAIT = 1 << 22, 1 << 30
"""Cycles of the kernel that waits: 2 ms at first, four times as many until it covers the launches, 0.5 s at most.

A call whose launches take longer is measured with the host's time in it.
"""


def by_events(call: Callable[[], object]) -> float:
    """The seconds in which a GPU computes a call.

    A kernel that only waits comes first.  Meanwhile the host launches all kernels of the call, which then run one after
    the other; without it the host's time would be measured.
    """
    cycles = FIRST_WAIT
    while True:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(cycles)
        begin.record()
        call()
        end.record()
        launched_before = not begin.query()
        torch.cuda.synchronize()
        if launched_before or cycles >= MOST_WAIT:
            return float(begin.elapsed_time(end)) / 1000
        cycles *= 4


IN_A_ROW = 8
"""Steps whose launches are timed together, so that the wait for the last kernel counts an eighth of it."""


def by_launches(call: Callable[[], object]) -> float:
    """The seconds in which the host launches a call's kernels on a GPU, which computes them in less."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(IN_A_ROW):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / IN_A_ROW


def rounds(measured: Sequence[Probe], budget: float, clock: Clock, least: int = 1) -> Floats:
    """Run all probes in turn for ``budget`` seconds, at least ``least`` times; the seconds: ``[rounds, probes]``.

    On a GPU the budget is wall time, which launches and waiting take a part of.
    """
    seconds: list[list[float]] = []
    on_gpu, began, spent = clock is by_events, time.perf_counter(), 0.0
    with torch.enable_grad():
        while len(seconds) < least or spent < budget:
            seconds.append([])
            for probe in measured:
                if not on_gpu:
                    spent += clock(partial(torch.full, (REUSED_BYTES // 4,), 0.5))
                seconds[-1].append(clock(partial(probe.step, NO_METER)))
            spent = time.perf_counter() - began if on_gpu else spent + sum(seconds[-1])
    return np.array(seconds)


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Run the body with ``count`` threads of torch and without gradients; restore the thread count afterwards."""
    with threads(count), torch.no_grad():
        yield


def timed_steps(measured: Sequence[Probe], seconds: Floats) -> list[TimedStep]:
    """The probes with their seconds, ``[probes]``."""
    return [TimedStep(probe.operators, float(each)) for probe, each in zip(measured, seconds, strict=True)]


def calibrate_here(seconds: float = SECONDS) -> Device:
    """This machine as a device, with its CPU on one thread, measured in about ``seconds`` of CPU time.

    Its rates are those of ``rates_of`` with the median seconds of each probe.  Power isn't measured; the watts are 0.
    """
    overhead_bytes = psutil.Process().memory_info().rss
    clock, began = by_clock(time.process_time), time.process_time()
    with threads_of(1):
        measured = probes(ProbeBench(scale_for(seconds, host.free_bytes(), clock, CPU)))
        left = seconds - (time.process_time() - began)
        *steps, small = timed_steps(measured, np.median(rounds(measured, left, clock), axis=0))
    rates = rates_of("cpu", steps, small)
    del measured  # so that its memory counts as free
    host.release_memory()
    memory = psutil.virtual_memory()
    return Device(
        name=NAME,
        title=f"{platform.machine()}, one of {os.cpu_count()} CPUs, calibrated",
        ram_bytes=memory.total,
        usable_memory_bytes=memory.available,
        flops_per_second=rates.flops_per_second,
        peak_flops_per_second=rates.flops_per_second,
        memory_bytes_per_second=rates.memory_bytes_per_second,
        seconds_per_operator=rates.seconds_per_operator,
        processor=rates.processor,
        runtime_overhead_bytes=overhead_bytes,
        compute_watts=0.0,
        idle_watts=0.0,
        jitter=0.0,
    )
