"""Fit the efficiencies of processors to the published seconds of training steps.

    python tools/fit_rates.py           # writes profiles/processors/fitted.json and held_out.csv
    python tools/fit_rates.py --check   # exit code 1 if they aren't what would be written
    python tools/fit_rates.py --choose  # the widths of the priors, by fits that lack a row's source

The seconds are those of ``edgefl.cost.step_seconds``.  The logarithm of each number (a share of the peak or of the
bandwidth by class of operators, seconds of a kernel, ...) is a sum down a chain: all processors of a type, then the
class, then the class with a runtime, then the device with that runtime.  Each summand is drawn towards zero by a prior,
that of the type towards ``START``.  The priors are soft_l1, too: normal near zero, but not against a class that is
unlike all others.  So a device with many rows has numbers of its own, and one without has those of its class.  At
every link ``speed`` moves all shares together, since one or two rows tell no more of a device.  Rows of one source
are off together because its scripts and hosts are alike, so that its seconds have a factor, drawn towards 1.  It is of
the fit alone: what is written and what is predicted of rows that a fit lacks is without it.

The loss of a row is soft_l1 of log(predicted / measured) / NOISE, weighted by 1 / sqrt(n) where n rows of seconds have
its device and source: a table of 71 rows counts as eight.

Which classes of operators share a number, and most widths of the priors, were chosen by cross-validation within the
fitted half of 209 rows, leaving out a fifth of the models of each device, and one device.  ``--choose`` leaves out a
source of all rows, by which the width of sources and those of classes and runtimes of CPUs were chosen.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from edgefl.arrays import Booleans, Floats
from edgefl.devices.processors import OPERATOR_NAMES, ProcessorType
from edgefl.devices.written_facts import library_folder
from tools.published_steps.agreement import factor_around
from tools.published_steps.measurements import measurements
from tools.published_steps.predicting import KEY, MeasuredQuantity, key_of, measured_quantities, source_of

TYPES: tuple[ProcessorType, ...] = ("cpu", "gpu")
Node = tuple[str, ...]
Residuals = tuple[Floats, Floats, Floats, Floats]

GROUPS: Mapping[ProcessorType, tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]] = {
    "cpu": (
        {
            "product": ("product", "attention"),
            "convolution": ("convolution",),
            "convolution 1x1": ("convolution 1x1",),
            "depthwise convolution": ("grouped convolution", "depthwise convolution"),
        },
        {
            "pointwise": ("pointwise", "normalisation", "attention", "convolution 1x1", "grouped convolution",
                          "depthwise convolution", "embedding", "optimizer"),
        },
    ),
    "gpu": (
        {
            "product": ("product", "attention", "convolution", "convolution 1x1"),
            "grouped convolution": ("grouped convolution", "depthwise convolution"),
        },
        {
            "pointwise": ("pointwise", "normalisation", "embedding", "optimizer",
                          "product", "attention", "convolution", "convolution 1x1"),
            "grouped convolution": ("grouped convolution", "depthwise convolution"),
        },
    ),
}  # fmt: skip
"""Classes of operators that share a number, since rows can't tell them apart: of arithmetic, and of memory."""

START: Mapping[ProcessorType, Mapping[str, float]] = {
    "cpu": {
        "product": 0.5, "convolution": 0.4, "convolution 1x1": 0.3,
        "depthwise convolution": 0.01, "memory of pointwise": 0.4, "launch": 1.0, "loading": 6e-8, "sample": 1e-4,
    },
    "gpu": {
        "product": 0.5, "grouped convolution": 0.2, "memory of pointwise": 0.6, "memory of grouped convolution": 0.4,
        "tf32": 0.6, "float16": 0.6, "bfloat16": 0.6, "kernel": 5e-6, "launch": 1.0, "loading": 8e-9, "sample": 3e-5,
    },
}  # fmt: skip
"""Where the numbers of a type are drawn to: shares that kernels in their best shape reach, halved."""
START_OF_CLASS: Mapping[str, Mapping[str, float]] = {"x86-cpu": {"convolution 1x1": 0.6, "depthwise convolution": 0.07}}
"""Where a class starts elsewhere.  On x86 oneDNN has kernels that PyTorch lacks on Arm: of 76 GFLOP/s of a core in
products, 1x1 convolutions reach 51 and depthwise ones of 3 x 3 and 7 x 7 reach 5.6 (torch 2.13, measured here)."""

NOISE = 0.1
LOSS = "sum over rows of soft_l1(log(predicted seconds / measured seconds) / 0.1) / sqrt(rows of its device and source)"
TITLE = "Efficiencies of processors, fitted to published seconds of training steps; written by tools/fit_rates.py"


@dataclass(frozen=True)
class Widths:
    """Widths of the priors of logarithms at each link, and of ``speed``; ``times`` multiplies those of fixed times.

    Seconds of kernels, launches and loading depend on the computer beside the processor, too.  ``source`` is the
    width of the factor of a source; CPUs have none, since most of their classes have rows of one source.
    """

    type: float
    of_class: float
    runtime: float
    device: float
    speed: float
    times: float
    source: float


WIDTHS: Mapping[ProcessorType, Widths] = {
    "cpu": Widths(1.4, 0.6, 0.4, 0.05, 0.05, 0.5, 1e-3),
    "gpu": Widths(0.7, 0.1, 0.4, 0.2, 0.4, 2.0, 0.3),
}
CANDIDATES: Mapping[str, tuple[float, ...]] = {
    "type": (0.35, 0.7, 1.4), "of_class": (0.1, 0.15, 0.3, 0.6), "runtime": (0.1, 0.2, 0.4),
    "device": (0.05, 0.1, 0.2), "speed": (0.05, 0.1, 0.2, 0.4), "times": (0.5, 1.0, 2.0, 4.0),
    "source": (1e-3, 0.15, 0.3, 0.6),
}  # fmt: skip
"""What --choose tries for each."""


def chain(one: MeasuredQuantity) -> tuple[Node, ...]:
    """The links whose summands make the numbers of a row, from the type down, and that of its source."""
    hardware = one.device
    assert hardware.processor_class is not None
    type, of_class, runtime = hardware.processor.type, hardware.processor_class, one.row.software.key
    source = (type, "", "", "", source_of(one.row))
    return (type,), (type, of_class), (type, of_class, runtime), (type, of_class, runtime, hardware.name), source


@dataclass(frozen=True)
class Table:
    """Rows of one type of processors, ready for the formula.

    Of operators `[n]`: their row, seconds of their FLOPs at the peak and of their bytes at the bandwidth, times, and
    the numbers that divide these (-1: none).  Of rows: seconds of launches by the profile, values and samples that a
    loader prepares, the number of a reduced precision (-1: none).
    """

    type: ProcessorType
    rows: tuple[MeasuredQuantity, ...]
    row: NDArray[np.intp]
    arithmetic: Floats
    memory: Floats
    times: Floats
    share: NDArray[np.intp]
    share_of_memory: NDArray[np.intp]
    launches: Floats
    loaded: Floats
    samples: Floats
    reduced: NDArray[np.intp]

    @classmethod
    def of(cls, type: ProcessorType, rows: Sequence[MeasuredQuantity]) -> Table:
        """The rows of this type with a cost."""
        names = list(START[type])
        mine = tuple(one for one in rows if one.device.processor.type == type and one.cost is not None)
        arithmetic, memory = (
            np.array([next((names.index(prefix + g) for g, members in groups.items() if name in members), -1)
                      for name in OPERATOR_NAMES])
            for groups, prefix in zip(GROUPS[type], ("", "memory of "), strict=True)
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
        loaded = np.array([one.values_loaded for one in mine], float)
        samples = np.array([one.samples_loaded for one in mine], float)
        return cls(
            type, mine, row.astype(np.intp), flops, moved, times, share.astype(np.intp), of_memory.astype(np.intp),
            np.bincount(row.astype(np.intp), times, len(mine)) * host, loaded, samples, np.array(reduced),
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        """The numbers of this type."""
        return list(START[self.type])

    @cached_property
    def measured(self) -> Floats:
        """Logarithms of the measured seconds."""
        return np.log([one.measured_value for one in self.rows])

    def log_seconds(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Logarithms of seconds `[rows]`, and their derivatives by ``numbers``, logarithms too, `[rows, numbers]`."""
        n, names = len(self.rows), self.names
        at, operators = numbers[self.row], np.arange(len(self.row))

        def divided(seconds: Floats, by: NDArray[np.intp]) -> Floats:
            return np.where(by >= 0, seconds * np.exp(-at[operators, by]), 0.0)

        arithmetic = divided(self.arithmetic, self.share)
        precision = self.reduced[self.row]
        arithmetic = np.where(precision >= 0, divided(arithmetic, precision), arithmetic)
        memory = divided(self.memory, self.share_of_memory)
        if self.type == "gpu":
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

        launches, loading, of_samples = (
            fixed(name, amount)
            for name, amount in (("launch", self.launches), ("loading", self.loaded), ("sample", self.samples))
        )
        loading = loading[0] + of_samples[0], loading[1] + of_samples[1]
        if self.type == "cpu":
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

    type: ProcessorType
    summands: Mapping[Node, Floats]

    def numbers(self, links: Iterable[Node]) -> Floats:
        """Logarithms of the numbers at the end of a chain; links that had no rows have no summand.

        No share of the peak is above 1, which the factor of a slow source could make of it.
        """
        links, zero = list(links), np.zeros(len(START[self.type]) + 1)
        total = sum((self.summands.get(link, zero) for link in links), zero)
        of_class = links[1][1] if len(links) > 1 else None
        numbers = start(self.type, of_class) + total[:-1] + total[-1] * shares(self.type)
        of_peak = np.array([name in GROUPS[self.type][0] for name in START[self.type]])
        return np.where(of_peak, np.minimum(numbers, 0.0), numbers)

    def predicted(self, table: Table, of: Booleans) -> Floats:
        """Predicted seconds of these rows, without the factors of their sources."""
        numbers = np.array([self.numbers(chain(one)[:-1]) for one in table.rows])
        return np.exp(table.log_seconds(numbers)[0][of])


def start(type: ProcessorType, of_class: str | None = None) -> Floats:
    """Logarithms of the numbers that a type is drawn to, with those of a class in their place."""
    return np.log(list({**START[type], **START_OF_CLASS.get(of_class or "", {})}.values()))


def shares(type: ProcessorType) -> Floats:
    """1 for the numbers that are shares of a peak or a bandwidth, which ``speed`` moves."""
    return np.array([float(name in GROUPS[type][0] or name.startswith("memory of")) for name in START[type]])


def weights(rows: Sequence[MeasuredQuantity]) -> Floats:
    """The weight of each row's loss."""
    keys = [(one.row.device, source_of(one.row)) for one in rows]
    count = Counter(keys)
    return np.array([count[key] ** -0.5 for key in keys])


def fit(table: Table, of: Booleans, widths: Widths | None = None) -> Fit:
    """Fit the numbers to the rows ``of`` (`[rows]`)."""
    widths = WIDTHS[table.type] if widths is None else widths
    count = len(table.names)
    speed = shares(table.type)
    chains = [chain(one) for one, used in zip(table.rows, of, strict=True) if used]
    nodes = {node: index for index, node in enumerate(dict.fromkeys(node for links in chains for node in links))}
    links = np.array([[nodes[node] for node in of_row] for of_row in chains])
    own = (widths.type, widths.of_class, widths.runtime, widths.device)
    each = np.append(np.where(speed > 0, 1.0, widths.times), 0.0)
    sources = np.array([len(node) > len(own) for node in nodes])
    width = np.array([own[min(len(node), len(own)) - 1] * each for node in nodes])
    width[:, -1] = np.where(sources, widths.source, widths.speed)
    width[sources, :-1] = 1e-3  # a source has a factor alone
    width[0, -1] = 1e-3  # START moves as a whole by its numbers
    part = subset(table, of)
    weight, measured = np.sqrt(weights(part.rows)), table.measured[of]
    starts = np.array([start(table.type, of_row[1][1]) for of_row in chains])

    def residuals(flat: Floats) -> Residuals:
        summands = flat.reshape(len(nodes), count + 1)
        total = summands[links[:, :-1]].sum(axis=1)
        seconds, slope = part.log_seconds(starts + total[:, :-1] + total[:, -1:] * speed)
        seconds = seconds + summands[links[:, -1], -1]
        slope = np.hstack([slope, slope @ speed[:, None]])
        residual, steep = softened((seconds - measured) / NOISE)
        own, own_steep = softened(flat / width.ravel())
        wide = np.zeros((len(residual), len(nodes), count + 1))
        for depth in range(links.shape[1] - 1):
            wide[np.arange(len(residual)), links[:, depth]] = (weight * steep / NOISE)[:, None] * slope
        wide[np.arange(len(residual)), links[:, -1], -1] = weight * steep / NOISE
        return weight * residual, wide.reshape(len(residual), -1), own, own_steep / width.ravel()

    found = marquardt(residuals, np.zeros(width.size))
    return Fit(table.type, dict(zip(nodes, found.reshape(len(nodes), count + 1), strict=True)))


def softened(off: Floats) -> tuple[Floats, Floats]:
    """What has soft_l1 of ``off`` as its square, 2 (sqrt(1 + off^2) - 1), and its derivative."""
    root = np.sqrt(1 + off**2)
    softer = np.sign(off) * np.sqrt(2 * (root - 1))
    small = np.abs(off) < 1e-6
    return softer, np.where(small, 1.0, off / root / np.where(small, 1.0, softer))


def marquardt(of: Callable[[Floats], Residuals], x: Floats) -> Floats:
    """The least squares of residuals by the method of Levenberg and Marquardt.

    ``of`` gives those of rows `[m]` with their derivatives `[m, n]`, and those of priors with theirs, which have one
    number each `[n]`.  So a step needs the solution of m equations, not of n.
    """
    damping, (residual, slope, own, own_slope) = 1e-3, of(x)
    loss = float(residual @ residual + own @ own)
    for _ in range(300):
        diagonal = own_slope**2 + damping * (own_slope**2 + (slope**2).sum(axis=0))
        gradient = slope.T @ residual + own_slope * own
        scaled = slope / diagonal
        inner = np.eye(len(residual)) + scaled @ slope.T
        step = scaled.T @ np.linalg.solve(inner, scaled @ gradient) - gradient / diagonal
        tried = of(x + step)
        less = loss - float(tried[0] @ tried[0] + tried[2] @ tried[2])
        if less > 0:
            x, (residual, slope, own, own_slope), loss, damping = x + step, tried, loss - less, damping / 5
        if 0 <= less < 1e-7 * loss or damping > 1e8:
            return x
        if less <= 0:
            damping *= 4
    return x


def subset(table: Table, of: Booleans) -> Table:
    """The table of these rows alone."""
    number = np.cumsum(of) - 1
    operators = of[table.row]
    return replace(
        table, rows=tuple(one for one, used in zip(table.rows, of, strict=True) if used),
        row=number[table.row[operators]], arithmetic=table.arithmetic[operators], memory=table.memory[operators],
        times=table.times[operators], share=table.share[operators], share_of_memory=table.share_of_memory[operators],
        launches=table.launches[of], loaded=table.loaded[of], samples=table.samples[of], reduced=table.reduced[of],
    )  # fmt: skip


UNSEEN: Mapping[str, Callable[[MeasuredQuantity], str]] = {
    "model": lambda one: one.row.half,
    "device": lambda one: one.row.device,
    "source": lambda one: source_of(one.row),
    "class": lambda one: str(one.device.processor_class),
}
"""What a fit that predicts a row hasn't seen: rows with the same key are left out together."""


def unseen(table: Table, key: Callable[[MeasuredQuantity], str], widths: Widths | None = None) -> Floats:
    """Seconds of each row by a fit without all rows of its key."""
    keys, seconds = np.array([key(one) for one in table.rows]), np.zeros(len(table.rows))
    for left_out in sorted(set(keys)):
        of = keys == left_out
        seconds[of] = fit(table, ~of, widths).predicted(table, of)
    return seconds


def crossed(table: Table, widths: Widths) -> float:
    """The mean of |log(predicted / measured)| by fits without the row's source, each device and source counted once."""
    weight = weights(table.rows) ** 2
    off = np.abs(np.log(unseen(table, UNSEEN["source"], widths)) - table.measured)
    return float(weight @ off / weight.sum())


def choose(table: Table) -> None:
    """Print the widths of least ``crossed`` error: one after the other is tried, twice around."""
    best = WIDTHS[table.type]
    least = crossed(table, best)
    for name, values in 2 * list(CANDIDATES.items()):
        for value in values:
            tried = replace(best, **{name: value})
            if tried != best and (error := crossed(table, tried)) < least:
                best, least = tried, error
    print(f"{table.type}: {least:.4f} {best}")


def rounded(number: float) -> float:
    """Three significant digits."""
    return float(f"{number:.3g}")


def efficiency(numbers: Floats, type: ProcessorType) -> dict[str, object]:
    """An ``Efficiency`` as it is written."""
    value = {name: rounded(exp(number)) for name, number in zip(START[type], numbers, strict=True)}
    arithmetic, memory = (
        {name: value[prefix + group] for group, members in groups.items() for name in members}
        for groups, prefix in zip(GROUPS[type], ("", "memory of "), strict=True)
    )
    one: dict[str, object] = {"arithmetic": arithmetic, "memory": memory}
    if type == "gpu":
        most = int(1000 / value["product"]) / 1000  # no product is above its peak
        one["reduced"] = {name: min(value[name], most) for name in ("tf32", "float16", "bfloat16")}
    return one | {name: value[name] for name in ("kernel", "launch", "loading", "sample") if name in value}


def entries(table: Table) -> list[dict[str, object]]:
    """What is written of a type: itself, its classes, these with a runtime, and devices with a runtime."""
    shipped = fit(table, np.ones(len(table.rows), bool))
    chains = [chain(one)[:-1] for one in table.rows]
    found: list[dict[str, object]] = []
    for node in sorted({node for links in chains for node in links}, key=lambda node: (len(node), node)):
        mine = [index for index, links in enumerate(chains) if links[len(node) - 1] == node]
        links = chains[mine[0]][: len(node)]
        found.append({
            "of": node[{1: 0, 2: 1, 3: 1, 4: 3}[len(node)]], "runtime": node[2] if len(node) > 2 else None,
            "rows": len(mine), "devices": len({table.rows[index].row.device for index in mine}),
            "efficiency": efficiency(shipped.numbers(links), table.type),
        })  # fmt: skip
    return found


def intervals(table: Table, predicted: Mapping[str, Floats]) -> list[dict[str, object]]:
    """The intervals of a type, from the seconds that fits without a row's device and without its source predict.

    Of a source with one device no row is seen without that device.
    """
    of_source: dict[str, set[str]] = {}
    for one in table.rows:
        of_source.setdefault(source_of(one.row), set()).add(one.row.device)
    several = np.array([len(of_source[source_of(one.row)]) > 1 for one in table.rows])
    loads = np.array([one.samples_loaded > 0 for one in table.rows])
    found: list[dict[str, object]] = []
    for loading in (None,) if table.type == "cpu" else (False, True):
        for by, seen in (("device", True), ("source", False)):
            of = (loads == loading if loading is not None else np.ones_like(loads)) & (several if seen else True)
            rows = [one for one, used in zip(table.rows, of, strict=True) if used]
            off = np.abs(np.log(predicted[by]) - table.measured)[of]
            pairs = [(one.row.device, source_of(one.row)) for one in rows]
            factor = rounded(factor_around(off, pairs))
            found.append({"of": table.type, "loading": loading, "seen": seen, "factor": factor, "rows": len(rows),
                          "pairs": len({*pairs})})  # fmt: skip
    return found


def written(tables: Sequence[Table]) -> dict[str, str]:
    """The texts of the files by name."""
    rows = [one for table in tables for one in table.rows]
    predicted = [{by: unseen(table, key) for by, key in UNSEEN.items()} for table in tables]
    content = {
        "title": TITLE, "loss": LOSS, "date": max(one.row.source.date for one in rows).isoformat(),
        "intervals": [each for of, seconds in zip(tables, predicted, strict=True) for each in intervals(of, seconds)],
        "entries": [entry for table in tables for entry in entries(table)],
    }  # fmt: skip
    seconds = np.hstack([np.stack(list(of_table.values())) for of_table in predicted]).T
    lines = [[*key_of(one.row), *(f"{each:.4g}" for each in of)] for one, of in zip(rows, seconds, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [[*KEY, *(f"unseen_{by}" for by in UNSEEN)], *dict.fromkeys(map(tuple, lines))]
    )
    return {
        "fitted.json": json.dumps(content, indent=1) + "\n",
        "held_out.csv": text.getvalue(),
    }


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    parser.add_argument("--choose", action="store_true", help="print the widths of priors by cross-validation")
    arguments, same = parser.parse_args(), True
    check = arguments.check
    rows = [one for one in measured_quantities(measurements()) if one.quantity == "seconds" and one.cost is not None]
    tables = [Table.of(type, rows) for type in TYPES]
    if arguments.choose:
        for table in tables:
            choose(table)
        return 0
    for name, text in written(tables).items():
        path = library_folder() / "processors" / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            same = False
            print(f"{name} is out of date: python tools/fit_rates.py")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
