"""Sustained training rates of this machine: by dtype, in wall time on all threads, with their spread and throttling."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgefl.machine import host
from edgefl.machine.microbenchmarks import (
    ROWS,
    WIDTHS,
    Act,
    Bench,
    CudaStopwatch,
    Stopwatch,
    drop,
    movements,
    products,
    rate,
    rounds,
    set_bytes,
    step_overheads,
    threads_of,
    turns_beyond,
)

Floats = NDArray[np.float64]

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SPARE = 0.5
"""Share of the free memory that operands may use."""
LEAST_ROUNDS = 3
SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of the square matrix product that measures the peak rate."""
PEAK_SECONDS = 0.25
"""The peak is measured at increasing sizes while the next one is expected to take at most this long."""
SLOWED = 0.95
"""A machine has throttled if its rate falls below this share of its initial rate."""


@dataclass(frozen=True)
class Spread:
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
    """Measured rates in base units.

    ``halves`` are FLOP/s in float16 and bfloat16, None if autocast can't train in them.  ``widths`` and ``turns``
    say which operands were used.
    """

    flops_per_second: Spread
    peak_flops_per_second: Spread
    memory_bytes_per_second: Spread
    seconds_per_operator: Spread
    jitter: Spread
    halves: dict[str, Spread | None]
    widths: tuple[int, ...]
    turns: int


def spread(values: Floats | list[float]) -> Spread:
    """The spread of the values.  There must be at least one."""
    return Spread(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values))


def sustained(
    seconds: float, threads: int, device: torch.device, free_bytes: float, on_message: Callable[[str], object]
) -> Sustained:
    """Measure for about ``seconds`` of wall time; operands use at most half of ``free_bytes``.

    Each repetition runs all operators on all sets of operands.  Jitter is the standard deviation of the log of the
    seconds of one set of operands, which corresponds to a training step.
    """
    widths, turns = fitting(free_bytes, _cache_of(device))
    watch = stopwatch(device, turns)
    with threads_of(threads):
        on_message("float32: a transformer block's operators")
        bench, computing, moving = _block(widths, turns, device, watch, 0.55 * seconds)
        measured = rounds([*computing, *moving], 0.55 * seconds, watch, LEAST_ROUNDS)
        drop([*computing, *moving], watch)
        on_message("peak: one large product")
        peak = _peak(bench, watch, free_bytes)
        on_message("seconds per operator: training steps of a tiny model")
        overheads = step_overheads(0.05 * seconds, watch, device)
        halves = {name: _half(name, widths, turns, device, 0.15 * seconds, on_message) for name in HALVES}
    means = measured.mean(axis=2)
    rates = rate(computing, means[:, : len(computing)], "flops")
    single = max(a.flops / s for a, s in zip(computing, measured.min(axis=(0, 2)), strict=False))
    best = max(peak.high, float(single), float(rates.max()))
    return Sustained(
        spread(rates),
        Spread(best, min(peak.value, best), best, peak.times),
        spread(rate(moving, means[:, len(computing) :], "bytes")),
        spread(overheads),
        _jitter([*computing, *moving], measured),
        halves,
        widths,
        bench.turns,
    )


def stopwatch(device: torch.device, keep: int) -> Stopwatch:
    """A wall-time stopwatch for this device that keeps the last ``keep`` results in memory."""
    return CudaStopwatch(keep) if device.type == "cuda" else Stopwatch(time.perf_counter, keep)


def fitting(free_bytes: float, cache: float = math.inf) -> tuple[tuple[int, ...], int]:
    """(widths, sets of operands) that are beyond a cache of so many bytes and fit ``SPARE`` of the free memory.

    The number of sets is reduced first, then the number of widths.
    """
    for widths in (WIDTHS, WIDTHS[:-1], WIDTHS[:-2]):
        enough = turns_beyond(cache, widths)
        # results kept in memory are at most as large as the widest gradients
        needed = set_bytes(widths) + 16 * ROWS * widths[-1]
        for turns in (enough, *(fewer for fewer in (4, 2, 1) if fewer < enough)):
            if needed * turns <= SPARE * free_bytes:
                return widths, turns
    return WIDTHS[:1], 1


def _cache_of(device: torch.device) -> float:
    return host.last_cache_bytes() if device.type == "cpu" else math.inf


def _block(
    widths: tuple[int, ...], turns: int, device: torch.device, watch: Stopwatch, budget: float
) -> tuple[Bench, list[Act], list[Act]]:
    """The operands' maker, a block's products and its other operators.

    There are as many sets of operands (at most ``turns``) as ``LEAST_ROUNDS`` repetitions can run within the budget.
    """

    def make(bench: Bench) -> tuple[Bench, list[Act], list[Act]]:
        computing = [act for width in widths for act in products(width, bench)]
        return bench, computing, [act for width in widths for act in movements(width, bench)]

    single = make(Bench(1, device=device))
    # of two repetitions the second is timed: in the first, threads start and pages are mapped
    seconds = float(rounds([*single[1], *single[2]], 0.0, watch, 2)[1].sum())
    sets = max(1, min(turns, int(budget / (LEAST_ROUNDS * seconds))))
    return single if sets == 1 else make(Bench(sets, device=device))


def _jitter(acts: list[Act], seconds: Floats) -> Spread:
    """Jitter over all steps; its range comes from the first and the second half of the run."""
    times = np.array([act.times for act in acts], dtype=np.float64)
    steps = np.log((seconds * times[:, None]).sum(axis=1).ravel())
    sigmas = [float(part.std(ddof=1)) for part in (steps, *np.array_split(steps, 2)) if len(part) > 1]
    return Spread(sigmas[0], min(sigmas), max(sigmas), len(steps))


def _peak(bench: Bench, watch: Stopwatch, free_bytes: float) -> Spread:
    """FLOP/s of a large square product, measured five times, at the fastest size that fits memory and time."""
    best: list[float] = []
    for size in SIZES:
        if 12 * size * size > SPARE * free_bytes:
            break
        x = bench.filled(size, size)
        calls = [partial(torch.mm, x, x)]
        watch.each(calls)
        seconds = [watch.each(calls)[0] for _ in range(5)]
        rates = [2.0 * size**3 / s for s in seconds]
        if not best or max(rates) > max(best):
            best = rates
        if 8 * min(seconds) > PEAK_SECONDS:
            break
    return spread(best) if best else Spread(0.0, 0.0, 0.0, 0)


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
    widths: tuple[int, ...],
    turns: int,
    device: torch.device,
    budget: float,
    on_message: Callable[[str], object],
) -> Spread | None:
    """FLOP/s of the products in a half precision, or None if it can't be used for training.

    Larger widths are left out if they wouldn't fit the budget.
    """
    on_message(f"{name}: the products")
    if not autocast_trains(name, device):
        return None
    bench, watch = Bench(1, HALVES[name], device), stopwatch(device, turns)
    try:
        used_widths: list[int] = []
        used_seconds = 0.0
        for width in widths:
            probe = rounds(list(products(width, bench)), 0.0, watch, 2)[1].sum()
            if used_widths and (used_seconds + probe) * LEAST_ROUNDS > budget:
                break
            used_widths.append(width)
            used_seconds += float(probe)
            if 9 * probe * LEAST_ROUNDS > budget:  # products of the next width take four to nine times as long
                break
        sets = turns if used_seconds * turns * LEAST_ROUNDS <= budget else 1
        bench = Bench(sets, HALVES[name], device)
        acts = [act for width in used_widths for act in products(width, bench)]
        return spread(rate(acts, rounds(acts, budget, watch, LEAST_ROUNDS).mean(axis=2), "flops"))
    except (RuntimeError, NotImplementedError):  # this build has no kernel for the dtype
        return None


def sustained_run(seconds: float, threads: int, device: torch.device, free_bytes: float) -> tuple[Floats, Floats]:
    """Run at full load for ``seconds``.

    Returns (seconds since the start, FLOP/s) of every repetition: ``[repetitions]`` each.
    """
    widths, turns = fitting(free_bytes, _cache_of(device))
    bench, watch = Bench(turns, device=device), stopwatch(device, turns)
    with threads_of(threads):
        acts = [act for width in widths for act in products(width, bench)]
        measured = rounds(acts, seconds, watch, LEAST_ROUNDS)
    at = np.cumsum(measured.sum(axis=(1, 2)))
    return at, np.asarray(rate(acts, measured.mean(axis=2), "flops"))


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
