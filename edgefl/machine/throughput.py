"""What a machine sustains while it trains: rates by dtype in wall time on all threads, their spread, and throttling."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgefl.machine.microbenchmarks import (
    ROWS,
    TURNS,
    WIDTHS,
    Act,
    Bench,
    CudaStopwatch,
    Stopwatch,
    movements,
    products,
    rate,
    rounds,
    step_overheads,
    threads_of,
)

Floats = NDArray[np.float64]

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SPARE = 0.5
"""Share of the free memory that operands may take."""
LEAST_ROUNDS = 3
SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Of the square product that looks for the peak: the largest that takes ``PEAK_SECONDS`` at most."""
PEAK_SECONDS = 0.25
SLOWED = 0.95
"""A machine whose rate falls to less of what it was has throttled."""
FLOATS_OF_A_TURN = 39 * ROWS
"""Of one set of operands of all operators, times the width; weights, 8 width^2, apart."""


@dataclass(frozen=True)
class Spread:
    """A quantity that was measured ``times`` times: its median, the lowest and the highest."""

    value: float
    low: float
    high: float
    times: int


@dataclass(frozen=True)
class Throttling:
    """A rate over a long run: that of its start, that of its end, and after how many seconds it fell between them."""

    early: float
    late: float
    after_seconds: float | None

    @property
    def share(self) -> float:
        """What is left of the rate."""
        return self.late / self.early


@dataclass(frozen=True)
class Sustained:
    """Rates in base units; ``halves`` are float16 and bfloat16, None where autocast doesn't train in them."""

    flops_per_second: Spread
    peak_flops_per_second: Spread
    memory_bytes_per_second: Spread
    seconds_per_operator: Spread
    jitter: Spread
    halves: dict[str, Spread | None]
    widths: tuple[int, ...]
    turns: int


def spread(values: Floats | list[float]) -> Spread:
    """Of at least one value."""
    return Spread(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values))


def sustained(
    seconds: float, threads: int, device: torch.device, free_bytes: float, on_message: Callable[[str], object]
) -> Sustained:
    """Measure for about ``seconds`` of wall time; operands take at most half of ``free_bytes``.

    A repetition is all operators over all sets of operands.  Jitter is the sigma of the log of the seconds that one
    set of operands takes, a training step as it were.
    """
    widths, turns = fitting(free_bytes)
    watch = stopwatch(device, turns)
    with threads_of(threads):
        on_message("float32: a transformer block's operators")
        bench, computing, moving = _block(widths, turns, device, watch, 0.55 * seconds)
        found = rounds([*computing, *moving], 0.55 * seconds, watch, LEAST_ROUNDS)
        for act in (*computing, *moving):  # the operands make room for the next
            act.calls.clear()
        watch.forget()
        on_message("peak: one large product")
        peak = _peak(bench, watch, free_bytes)
        on_message("seconds per operator: steps of a model that has next to nothing to do")
        overheads = step_overheads(0.05 * seconds, watch, device)
        halves = {name: _half(name, widths, turns, device, 0.15 * seconds, on_message) for name in HALVES}
    means = found.mean(axis=2)
    rates = rate(computing, means[:, : len(computing)], "flops")
    single = max(a.flops / s for a, s in zip(computing, found.min(axis=(0, 2)), strict=False))
    best = max(peak.high, float(single), float(rates.max()))
    return Sustained(
        spread(rates),
        Spread(best, min(peak.value, best), best, peak.times),
        spread(rate(moving, means[:, len(computing) :], "bytes")),
        spread(overheads),
        _jitter([*computing, *moving], found),
        halves,
        widths,
        bench.turns,
    )


def stopwatch(device: torch.device, keep: int) -> Stopwatch:
    """A clock for what runs on this device, in wall time."""
    return CudaStopwatch(keep) if device.type == "cuda" else Stopwatch(time.perf_counter, keep)


def fitting(free_bytes: float) -> tuple[tuple[int, ...], int]:
    """(widths, sets of operands) that a machine with so much free memory holds: fewer sets first, then fewer widths."""
    for widths in (WIDTHS, WIDTHS[:-1], WIDTHS[:-2]):
        # results that live on are the widest gradients at most
        one = 4 * (sum(FLOATS_OF_A_TURN * w + 8 * w * w for w in widths) + 4 * ROWS * widths[-1])
        for turns in (TURNS, 4, 2, 1):
            if one * turns <= SPARE * free_bytes:
                return widths, turns
    return WIDTHS[:1], 1


def _block(
    widths: tuple[int, ...], turns: int, device: torch.device, watch: Stopwatch, budget: float
) -> tuple[Bench, list[Act], list[Act]]:
    """A block's products and its other operators, with as many sets of operands as the budget has time for."""

    def made(bench: Bench) -> tuple[Bench, list[Act], list[Act]]:
        computing = [act for width in widths for act in products(width, bench)]
        return bench, computing, [act for width in widths for act in movements(width, bench)]

    one = made(Bench(1, device=device))
    # the first time threads start and pages are mapped
    taken = float(rounds([*one[1], *one[2]], 0.0, watch, 2)[1].sum())
    sets = max(1, min(turns, int(budget / (LEAST_ROUNDS * taken))))
    return one if sets == 1 else made(Bench(sets, device=device))


def _jitter(acts: list[Act], found: Floats) -> Spread:
    """Sigma over all steps; its range are those of the first and of the second half of the run."""
    times = np.array([act.times for act in acts], dtype=np.float64)
    steps = np.log((found * times[:, None]).sum(axis=1).ravel())
    sigmas = [float(part.std(ddof=1)) for part in (steps, *np.array_split(steps, 2)) if len(part) > 1]
    return Spread(sigmas[0], min(sigmas), max(sigmas), len(steps))


def _peak(bench: Bench, watch: Stopwatch, free_bytes: float) -> Spread:
    """FLOP/s of a large square product, five times; the largest size of which one takes little time and memory."""
    found: list[float] = []
    for size in SIZES:
        if 12 * size * size > SPARE * free_bytes:
            break
        x = bench.filled(size, size)
        calls = [partial(torch.mm, x, x)]
        watch.each(calls)
        taken = [watch.each(calls)[0] for _ in range(5)]
        rates = [2.0 * size**3 / s for s in taken]
        if not found or max(rates) > max(found):
            found = rates
        if 8 * min(taken) > PEAK_SECONDS:
            break
    return spread(found) if found else Spread(0.0, 0.0, 0.0, 0)


def autocast_trains(name: str, device: torch.device) -> bool:
    """Whether a layer goes forward and backward under autocast to this dtype."""
    dtype = HALVES[name]
    layer, x = nn.Linear(16, 16).to(device), torch.full((4, 16), 0.5, device=device)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # a dtype that isn't supported is passed over with a warning
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
    """The rate of products in a half precision; of small ones alone where these already take long."""
    on_message(f"{name}: the products")
    if not autocast_trains(name, device):
        return None
    bench, watch = Bench(1, HALVES[name], device), stopwatch(device, turns)
    try:
        kept: list[int] = []
        taken = 0.0
        for width in widths:
            probe = rounds(list(products(width, bench)), 0.0, watch, 2)[1].sum()
            if kept and (taken + probe) * LEAST_ROUNDS > budget:
                break
            kept.append(width)
            taken += float(probe)
            if 9 * probe * LEAST_ROUNDS > budget:  # the next width's are four to nine times as large
                break
        sets = turns if taken * turns * LEAST_ROUNDS <= budget else 1
        bench = Bench(sets, HALVES[name], device)
        acts = [act for width in kept for act in products(width, bench)]
        return spread(rate(acts, rounds(acts, budget, watch, LEAST_ROUNDS).mean(axis=2), "flops"))
    except (RuntimeError, NotImplementedError):  # a kernel that this build doesn't have for the dtype
        return None


def sustained_run(seconds: float, threads: int, device: torch.device, free_bytes: float) -> tuple[Floats, Floats]:
    """A long run at full load: (seconds since its start, FLOP/s) of every repetition."""
    widths, turns = fitting(free_bytes)
    bench, watch = Bench(turns, device=device), stopwatch(device, turns)
    with threads_of(threads):
        acts = [act for width in widths for act in products(width, bench)]
        found = rounds(acts, seconds, watch, LEAST_ROUNDS)
    at = np.cumsum(found.sum(axis=(1, 2)))
    return at, np.asarray(rate(acts, found.mean(axis=2), "flops"))


def throttling(at: Floats, rates: Floats) -> Throttling:
    """Whether a run slowed down: the medians of its first twentieth and of its last fifth, and, where the rate fell
    below ``SLOWED`` of the start, when a median over a twentieth first came below the middle between the two."""
    end = at[-1]
    early, late = float(np.median(rates[at <= max(at[0], end / 20)])), float(np.median(rates[at >= 0.8 * end]))
    if late >= SLOWED * early:
        return Throttling(early, late, None)
    middle = (early + late) / 2
    for index, now in enumerate(at):
        if np.median(rates[(at > now - end / 20) & (at <= now)]) < middle:
            return Throttling(early, late, float(at[index]))
    return Throttling(early, late, None)
