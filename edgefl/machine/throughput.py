"""Sustained training rates of this machine: by dtype, in wall time on all threads, with their spread and throttling."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from edgefl.arrays import Floats
from edgefl.devices import Hardware
from edgefl.devices.processors import ProcessorType
from edgefl.machine import host
from edgefl.machine.fitted_rates import nearest, rates_of
from edgefl.machine.microbenchmarks import (
    LEAST_SCALE,
    PRODUCTS,
    Clock,
    Probe,
    ProbeBench,
    by_clock,
    by_events,
    by_launches,
    probes,
    products,
    rounds,
    scale_for,
    threads_of,
    timed_steps,
)
from edgefl.operator_classes import OperatorClass
from edgefl.work import NO_METER

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SPARE = 0.5
"""Share of the free memory that the operands of the peak's product may use; the rest is for others."""
LEAST_ROUNDS = 3
"""Of all probes, so that one disturbed repetition doesn't move the median."""
SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of the square matrix product that measures the peak rate: the faster the processor, the larger is the product
that reaches it."""
PEAK_SECONDS = 0.25
"""The peak is measured at increasing sizes while the next one, of eight times the work, should take at most this long.

A choice, not measured: with more, slow processors would spend a calibration's time on it.
"""
SLOWED = 0.95
"""A machine has throttled if its rate falls below this share of its initial rate.

A choice, not measured: nearer to 1, noise would count as throttling.
"""


@dataclass(frozen=True)
class MeasuredSpread:
    """Median, lowest and highest value of a quantity that was measured ``times`` times."""

    value: float
    low: float
    high: float
    times: int


@dataclass(frozen=True)
class Throttling:
    """Rate at the start and at the end of a long run, and the seconds after which it fell (None if it didn't)."""

    early: float
    late: float
    after_seconds: float | None

    @property
    def share(self) -> float:
        """Rate at the end as a share of the rate at the start."""
        return self.late / self.early


@dataclass(frozen=True)
class Sustained:
    """What was measured, in base units.

    ``rates`` has the rates by class of operator.  ``halves`` are FLOP/s in float16 and bfloat16, None if autocast can't
    train in them.  ``scale`` is that of the probes' batches.
    """

    rates: Hardware
    flops_per_second: MeasuredSpread
    peak_flops_per_second: MeasuredSpread
    memory_bytes_per_second: MeasuredSpread
    seconds_per_operator: MeasuredSpread
    jitter: MeasuredSpread
    halves: dict[str, MeasuredSpread | None]
    scale: float


def median_spread(values: Floats | list[float]) -> MeasuredSpread:
    """The spread of the values.  There must be at least one."""
    return MeasuredSpread(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values))


def measure_sustained(
    seconds: float, threads: int, device: torch.device, free_bytes: float, on_message: Callable[[str], object]
) -> Sustained:
    """Measure for about ``seconds`` of wall time; probes use about half of ``free_bytes``.

    The rates are fitted to the median seconds of each probe.  Their range is that of the repetitions: a repetition in
    which the probes of products take a tenth longer than usual has a rate of products that is a tenth lower.
    """
    clock = clock_of(device)
    type: ProcessorType = "gpu" if device.type == "cuda" else "cpu"
    with threads_of(threads):
        on_message("peak: one large product")
        peak = _peak(device, clock, free_bytes)
        on_message("float32: steps of single layers")
        scale = scale_for(0.55 * seconds, free_bytes, clock, device)
        measured = probes(ProbeBench(scale, device))
        taken = rounds(measured, 0.55 * seconds, clock, LEAST_ROUNDS)
        if type == "gpu":
            with torch.enable_grad():
                taken[:, -1] = [by_launches(partial(measured[-1].step, NO_METER)) for _ in taken]
        median = np.median(taken, axis=0)
        *steps, small = timed_steps(measured, median)
        rates = rates_of(type, steps, small, peak.high or np.inf)
        pointwise = [index for index, probe in enumerate(measured) if _is_pointwise(probe)]
        del measured  # before the halves allocate theirs
        host.release_memory()
        halves = {name: _half(name, rates, scale, device, free_bytes, 0.15 * seconds, on_message) for name in HALVES}
    speeds = median / taken
    of_products = _spread_by_speeds(rates.flops_per_second, speeds[:, : len(PRODUCTS)])
    best = max(peak.high, of_products.high)
    return Sustained(
        rates,
        of_products,
        MeasuredSpread(best, min(peak.value, best), best, peak.times),
        _spread_by_speeds(rates.memory_bytes_per_second, speeds[:, pointwise]),
        median_spread(taken[:, -1] * (rates.seconds_per_operator / median[-1])),
        _jitter(taken),
        halves,
        scale,
    )


def _is_pointwise(probe: Probe) -> bool:
    return bool((probe.operators[:, 3] == OperatorClass.POINTWISE).all())


def _spread_by_speeds(value: float, speeds: Floats) -> MeasuredSpread:
    """The value with the range that it has by the speeds of some probes, as shares of the median: ``[rounds, n]``."""
    each = speeds.mean(axis=1)
    return MeasuredSpread(value, value * min(1.0, float(each.min())), value * max(1.0, float(each.max())), len(each))


def clock_of(device: torch.device) -> Clock:
    """What measures the seconds of a call on this device: wall time, on a GPU that of its kernels."""
    return by_events if device.type == "cuda" else by_clock(time.perf_counter)


def _jitter(seconds: Floats) -> MeasuredSpread:
    """Jitter over all repetitions, ``[rounds, probes]``; its range comes from the first and the second half."""
    steps = np.log(seconds.sum(axis=1))
    sigmas = [float(part.std(ddof=1)) for part in (steps, *np.array_split(steps, 2)) if len(part) > 1]
    return MeasuredSpread(sigmas[0], min(sigmas), max(sigmas), len(steps))


def _peak(device: torch.device, clock: Clock, free_bytes: float, dtype: torch.dtype = torch.float32) -> MeasuredSpread:
    """FLOP/s of a large square product, measured five times, at the fastest size that fits memory and time."""
    best: list[float] = []
    for size in SIZES:
        if 12 * size * size > SPARE * free_bytes:
            break
        x = ProbeBench(device=device).make_operand(size, size).to(dtype)
        call = partial(torch.mm, x, x)
        call()
        seconds = [clock(call) for _ in range(5)]
        rates = [2.0 * size**3 / s for s in seconds]
        if not best or max(rates) > max(best):
            best = rates
        if 8 * min(seconds) > PEAK_SECONDS:
            break
    return median_spread(best) if best else MeasuredSpread(0.0, 0.0, 0.0, 0)


def autocast_trains(name: str, device: torch.device) -> bool:
    """Whether a layer can run forward and backward under autocast to this dtype on this device."""
    dtype = HALVES[name]
    layer, x = nn.Linear(16, 16).to(device), torch.full((4, 16), 0.5, device=device)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # autocast ignores an unsupported dtype with a warning
            with torch.autocast(device.type, dtype=dtype):
                out = layer(x)
            out.float().sum().backward()
    except (RuntimeError, UserWarning):
        return False
    return bool(out.dtype == dtype)


def _half(
    name: str,
    rates: Hardware,
    scale: float,
    device: torch.device,
    free_bytes: float,
    budget: float,
    on_message: Callable[[str], object],
) -> MeasuredSpread | None:
    """FLOP/s of the products in a half precision, or None if it can't be used for training.

    The rest of the rates are those in float32.  Batches are small if larger ones wouldn't fit the budget.
    """
    on_message(f"{name}: the products")
    if not autocast_trains(name, device):
        return None
    clock = clock_of(device)
    try:
        small = products(ProbeBench(LEAST_SCALE, device, HALVES[name]))
        share = budget / (LEAST_ROUNDS * float(rounds(small, 0.0, clock).sum()))
        measured = products(ProbeBench(min(scale, LEAST_SCALE * share), device, HALVES[name])) if share > 1 else small
        taken = rounds(measured, budget, clock, LEAST_ROUNDS)
        most = _peak(device, clock, free_bytes, HALVES[name]).high or np.inf
    except (RuntimeError, NotImplementedError):  # this build has no kernel for the dtype
        return None
    median = np.median(taken, axis=0)

    def with_rate(rate: Floats) -> Hardware:
        return replace(rates, float16_flops_per_second=float(rate[0]), bfloat16_flops_per_second=float(rate[0]))

    found = nearest(with_rate, [rates.flops_per_second], timed_steps(measured, median), name, most=most)
    return _spread_by_speeds(found.rate(name), median / taken)


def sustained_run(seconds: float, threads: int, device: torch.device, free_bytes: float) -> tuple[Floats, Floats]:
    """Run the products at full load for ``seconds``.

    Returns (seconds since the start, FLOP/s) of every repetition: ``[repetitions]`` each.
    """
    clock = clock_of(device)
    with threads_of(threads):
        acts = products(ProbeBench(scale_for(seconds, free_bytes, clock, device), device))
        measured = rounds(acts, seconds, clock, LEAST_ROUNDS).sum(axis=1)
    flops = sum(float(act.operators[:, 0] @ act.operators[:, 2]) for act in acts)
    return np.cumsum(measured), flops / measured


def throttling(at: Floats, rates: Floats) -> Throttling:
    """Detect throttling from a long run's times ``at`` and ``rates``.

    The rate at the start is the median over the first twentieth of the run, the rate at the end that over the last
    fifth.  If the end is below ``SLOWED`` of the start, the rate fell when its median over a twentieth of the run first
    was below the mean of the two.
    """
    end = at[-1]
    early, late = float(np.median(rates[at <= max(at[0], end / 20)])), float(np.median(rates[at >= 0.8 * end]))
    if late >= SLOWED * early:
        return Throttling(early, late, None)
    middle = (early + late) / 2
    for index, moment in enumerate(at):
        if np.median(rates[(at > moment - end / 20) & (at <= moment)]) < middle:
            return Throttling(early, late, float(at[index]))
    return Throttling(early, late, None)
