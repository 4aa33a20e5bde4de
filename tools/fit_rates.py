"""Fit the efficiencies of processors to the published seconds of training steps.

    python tools/fit_rates.py           # writes profiles/processors/fitted.yaml and held_out.csv
    python tools/fit_rates.py --check   # exit code 1 if they aren't what would be written
    python tools/fit_rates.py --choose  # the widths of the priors, by cross-validation within the fitted half

The seconds are those of ``edgefl.cost.step_seconds``.  The logarithm of each number (a share of the peak or of the
bandwidth by class of operators, seconds of a kernel, ...) is a sum down a chain: all processors of a kind, then the
class, then the class with a runtime, then the device with that runtime.  Each summand is drawn towards zero by a normal
prior, that of the kind towards ``START``; so a device with many rows has numbers of its own, and one without has those
of its class.  At every link ``speed`` moves all shares together, since one or two rows tell no more of a device.

The loss of a row is soft_l1 of log(predicted / measured) / NOISE, weighted by 1 / sqrt(n) where n rows of seconds have
its device and source: a table of 71 rows counts as eight.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from edgefl.commands.devices.published import Held, held
from edgefl.devices.measurements import measurements
from edgefl.devices.processors import OPERATOR_NAMES, ProcessorKind

Floats = NDArray[np.float64]
Node = tuple[str, ...]

GROUPS: Mapping[ProcessorKind, tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]] = {
    "cpu": (
        {
            "product": ("product", "attention"),
            "convolution": ("convolution",),
            "convolution 1x1": ("convolution 1x1",),
            "grouped convolution": ("grouped convolution",),
        },
        {
            "depthwise convolution": ("depthwise convolution",),
            "pointwise": ("pointwise", "attention", "normalisation", "embedding", "optimizer"),
        },
    ),
    "gpu": (
        {
            "product": ("product", "attention"),
            "convolution": ("convolution",),
            "convolution 1x1": ("convolution 1x1",),
            "grouped convolution": ("grouped convolution", "depthwise convolution"),
        },
        {
            "convolution": (
                "product", "convolution", "convolution 1x1", "grouped convolution", "depthwise convolution", "attention",
            ),
            "pointwise": ("normalisation", "pointwise", "embedding", "optimizer"),
        },
    ),
}  # fmt: skip
"""Classes of operators that share a number, since rows can't tell them apart: of arithmetic, and of memory."""

START: Mapping[ProcessorKind, Mapping[str, float]] = {
    "cpu": {
        "product": 0.5, "convolution": 0.4, "convolution 1x1": 0.3, "grouped convolution": 0.05,
        "memory of depthwise convolution": 0.05, "memory of pointwise": 0.4, "launch": 1.0, "loading": 6e-8,
    },
    "gpu": {
        "product": 0.5, "convolution": 0.5, "convolution 1x1": 0.5, "grouped convolution": 0.2,
        "memory of convolution": 0.6, "memory of pointwise": 0.6, "tf32": 0.6, "float16": 0.6, "bfloat16": 0.6,
        "kernel": 5e-6, "launch": 1.0, "loading": 8e-9,
    },
}  # fmt: skip
"""Where the numbers of a kind are drawn to: shares that kernels in their best shape reach, halved."""

WIDTH_OF_START = 0.7
NOISE = 0.1


@dataclass(frozen=True)
class Widths:
    """Standard deviations of the logarithms at the links below the kind, and of ``speed`` beside the numbers."""

    of_class: float
    runtime: float
    device: float
    speed: float


WIDTHS = Widths(0.3, 0.3, 0.15, 0.3)


def runtime_of(one: Held) -> str:
    """Name, version and whether operators were compiled: ``pytorch 1.13``."""
    software = one.row.software
    version = "" if software.version is None else " {}.{}".format(*software.version)
    return software.name + version + (" compiled" if software.compiled else "")


def values_loaded(one: Held) -> int:
    """Values of a batch, for a row that includes loading."""
    return one.row.batch * prod(one.row.input) if "data loading" in one.row.includes else 0


def chain(one: Held) -> tuple[Node, ...]:
    """The links whose summands make the numbers of a row, from the kind down."""
    hardware = one.device
    assert hardware.processor_class is not None
    kind, of_class, runtime = hardware.processor.kind, hardware.processor_class, runtime_of(one)
    return (kind,), (kind, of_class), (kind, of_class, runtime), (kind, of_class, runtime, hardware.name)


@dataclass(frozen=True)
class Table:
    """Rows of one kind of processors, ready for the formula.

    Of operators `[n]`: their row, seconds of their FLOPs at the peak and of their bytes at the bandwidth, times, and
    the numbers that divide these (-1: none).  Of rows: launches' seconds, kernels, values loaded, the number of a
    reduced precision (-1: none).
    """

    kind: ProcessorKind
    rows: tuple[Held, ...]
    row: NDArray[np.intp]
    arithmetic: Floats
    memory: Floats
    times: Floats
    share: NDArray[np.intp]
    share_of_memory: NDArray[np.intp]
    launches: Floats
    loaded: Floats
    reduced: NDArray[np.intp]

    @classmethod
    def of(cls, kind: ProcessorKind, rows: Sequence[Held]) -> Table:
        """The rows of this kind with a cost."""
        names = list(START[kind])
        mine = tuple(one for one in rows if one.device.processor.kind == kind and one.cost is not None)
        arithmetic, memory = (
            np.array([next((names.index(prefix + g) for g, members in groups.items() if name in members), -1)
                      for name in OPERATOR_NAMES])
            for groups, prefix in zip(GROUPS[kind], ("", "memory of "), strict=True)
        )  # fmt: skip
        parts: list[tuple[Floats, ...]] = []
        reduced = []
        for index, one in enumerate(mine):
            hardware, precision = one.device, one.row.precision
            peak = getattr(hardware, f"peak_{precision}_flops_per_second", None)
            reduced.append(names.index(precision) if peak is not None and precision in names else -1)
            peak = hardware.peak_flops_per_second if peak is None or precision not in names else peak
            flops, moved, times, of_class = one.cost.operators.T
            group = of_class.astype(np.intp)
            parts.append((np.full(len(flops), index), flops / peak, moved / hardware.memory_bytes_per_second, times,
                          arithmetic[group], memory[group]))  # fmt: skip
        row, flops, moved, times, share, of_memory = (np.concatenate(part) for part in zip(*parts, strict=True))
        host = np.array([one.device.seconds_per_operator for one in mine])
        loaded = [values_loaded(one) for one in mine]
        return cls(
            kind, mine, row.astype(np.intp), flops, moved, times, share.astype(np.intp), of_memory.astype(np.intp),
            np.bincount(row.astype(np.intp), times, len(mine)) * host, np.array(loaded, float), np.array(reduced),
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        """The numbers of this kind."""
        return list(START[self.kind])

    @cached_property
    def measured(self) -> Floats:
        """Logarithms of the measured seconds."""
        return np.log([one.measured for one in self.rows])

    def log_seconds(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Logarithms of seconds `[rows]` and their derivatives `[rows, numbers]`, at logarithms of numbers `[rows, numbers]`."""
        n, names = len(self.rows), self.names
        at, operators = numbers[self.row], np.arange(len(self.row))

        def divided(seconds: Floats, by: NDArray[np.intp]) -> Floats:
            return np.where(by >= 0, seconds * np.exp(-at[operators, by]), 0.0)

        arithmetic = divided(self.arithmetic, self.share)
        precision = self.reduced[self.row]
        arithmetic = np.where(precision >= 0, divided(arithmetic, precision), arithmetic)
        memory = divided(self.memory, self.share_of_memory)
        if self.kind == "gpu":
            computes = arithmetic >= memory
            arithmetic, memory = np.where(computes, arithmetic, 0.0), np.where(computes, 0.0, memory)
        arithmetic, memory = arithmetic * self.times, memory * self.times
        slope = np.zeros((n, len(names)))
        for seconds, by in ((arithmetic, self.share), (arithmetic, precision), (memory, self.share_of_memory)):
            used = by >= 0
            np.subtract.at(slope, (self.row[used], by[used]), seconds[used])
        busy = np.bincount(self.row, arithmetic + memory, n)

        def fixed(name: str, amount: Floats) -> tuple[Floats, Floats]:
            column = names.index(name)
            seconds, only = amount * np.exp(numbers[:, column]), np.zeros_like(slope)
            only[:, column] = seconds
            return seconds, only

        def larger(one: Floats, own: Floats, other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
            more = other[0] > one
            return np.where(more, other[0], one), np.where(more[:, None], other[1], own)

        launches, loading = fixed("launch", self.launches), fixed("loading", self.loaded)
        if self.kind == "cpu":
            total = busy + launches[0] + loading[0]
            slope = slope + launches[1] + loading[1]
        else:
            kernels = fixed("kernel", np.bincount(self.row, self.times, n))
            total, slope = larger(busy + kernels[0], slope + kernels[1], launches)
            total, slope = larger(total, slope, loading)
        return np.log(total), slope / total[:, None]


@dataclass(frozen=True)
class Fit:
    """What a fit gives: summands by link, `[numbers]` and ``speed``."""

    kind: ProcessorKind
    summands: Mapping[Node, Floats]

    def numbers(self, links: Iterable[Node]) -> Floats:
        """Logarithms of the numbers at the end of a chain; links that had no rows have no summand."""
        zero = np.zeros(len(START[self.kind]) + 1)
        total = sum((self.summands.get(link, zero) for link in links), zero)
        return start(self.kind) + total[:-1] + total[-1] * shares(self.kind)

    def predicted(self, table: Table, of: NDArray[np.bool_]) -> Floats:
        """Predicted seconds of these rows."""
        numbers = np.array([self.numbers(chain(one)) for one in table.rows])
        return np.exp(table.log_seconds(numbers)[0][of])


def start(kind: ProcessorKind) -> Floats:
    """Logarithms of the numbers that a kind is drawn to."""
    return np.log(list(START[kind].values()))


def shares(kind: ProcessorKind) -> Floats:
    """1 for the numbers that are shares of a peak or a bandwidth, which ``speed`` moves."""
    return np.array([float(name in GROUPS[kind][0] or name.startswith("memory of")) for name in START[kind]])


def weights(rows: Sequence[Held]) -> Floats:
    """The weight of each row's loss."""
    keys = [(one.row.device, one.row.source.url or one.row.source.title) for one in rows]
    count = Counter(keys)
    return np.array([count[key] ** -0.5 for key in keys])


def fit(table: Table, of: NDArray[np.bool_], widths: Widths = WIDTHS) -> Fit:
    """Fit the numbers to the rows ``of`` (`[rows]`)."""
    count = len(table.names)
    speed = shares(table.kind)
    chains = [chain(one) for one, used in zip(table.rows, of, strict=True) if used]
    nodes = {node: index for index, node in enumerate(dict.fromkeys(node for links in chains for node in links))}
    links = np.array([[nodes[node] for node in of_row] for of_row in chains])
    own = (WIDTH_OF_START, widths.of_class, widths.runtime, widths.device)
    width = np.array([[own[len(node) - 1 if len(node) < 4 else 3]] * count + [widths.speed] for node in nodes])
    width[0, -1] = 1e-3  # START moves as a whole by its numbers
    weight, measured = np.sqrt(weights([one for one, used in zip(table.rows, of, strict=True) if used])), table.measured[of]
    which = np.flatnonzero(of)
    part = subset(table, of)
    del which

    def both(flat: Floats) -> tuple[Floats, Floats]:
        summands = flat.reshape(len(nodes), count + 1)
        total = summands[links].sum(axis=1)
        seconds, slope = part.log_seconds(start(table.kind) + total[:, :-1] + total[:, -1:] * speed)
        slope = np.hstack([slope, slope @ speed[:, None]])
        off = (seconds - measured) / NOISE
        loss = 2 * (np.sqrt(1 + off**2) - 1)
        residual = np.sign(off) * np.sqrt(loss)
        # d residual / d off = off / sqrt(1 + off^2) / |residual|, 1 at 0
        steep = np.where(np.abs(off) < 1e-6, 1.0, off / np.sqrt(1 + off**2) / np.where(residual == 0, 1.0, residual))
        wide = np.zeros((len(off), len(nodes), count + 1))
        for depth in range(links.shape[1]):
            wide[np.arange(len(off)), links[:, depth]] = (weight * steep / NOISE)[:, None] * slope
        return np.concatenate([weight * residual, flat / width.ravel()]), np.vstack(
            [wide.reshape(len(off), -1), np.diag(1 / width.ravel())]
        )

    found = marquardt(both, np.zeros(width.size))
    return Fit(table.kind, dict(zip(nodes, found.reshape(len(nodes), count + 1), strict=True)))


def marquardt(of: Callable[[Floats], tuple[Floats, Floats]], x: Floats) -> Floats:
    """The least squares of residuals `[m]` with derivatives `[m, n]`, by the method of Levenberg and Marquardt."""
    damping, (residual, slope) = 1e-3, of(x)
    loss = float(residual @ residual)
    for _ in range(200):
        square, gradient = slope.T @ slope, slope.T @ residual
        step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -gradient)
        tried = of(x + step)
        less = loss - float(tried[0] @ tried[0])
        if less > 0:
            x, (residual, slope), loss, damping = x + step, tried, loss - less, damping / 5
        if 0 <= less < 1e-7 * loss or damping > 1e8:
            return x
        if less <= 0:
            damping *= 4
    return x


def subset(table: Table, of: NDArray[np.bool_]) -> Table:
    """The table of these rows alone."""
    number = np.cumsum(of) - 1
    operators = of[table.row]
    return replace(
        table, rows=tuple(one for one, used in zip(table.rows, of, strict=True) if used),
        row=number[table.row[operators]], arithmetic=table.arithmetic[operators], memory=table.memory[operators],
        times=table.times[operators], share=table.share[operators], share_of_memory=table.share_of_memory[operators],
        launches=table.launches[of], loaded=table.loaded[of], reduced=table.reduced[of],
    )  # fmt: skip
