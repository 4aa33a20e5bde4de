"""Figures of a bench: scores over what small devices have or by condition, and within totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import exp, log
from typing import NamedTuple

from edgefl.commands.bench.answer import BenchAnswer, BenchFleet, BenchRow
from edgefl.commands.bench.table import (
    best_of,
    best_places,
    by_share,
    finding,
    free_fleet,
    interval,
    metric_words,
    runnable,
    score_text,
    told_variants,
)
from edgefl.devices.budgets import budget_named
from edgefl.drawing.charts.chart import Chart, ChartAxis, Number, Panel, Series
from edgefl.drawing.charts.palette import of_run
from edgefl.drawing.text_tables import unit_of
from edgefl.records.record import UNSET
from edgefl.results.equal_costs import AXES

WIDTH = 9.2
"""Inches of all panels together: the front page's picture."""
MARKS = 56
"""Places for marks along an axis; each variant has its own, so that no mark hides another."""


def charts_of_bench(result: BenchAnswer) -> list[Chart]:
    """The figures of a bench, the answer first; those of which it has no numbers are left out."""
    totals, fleets = spend_chart(result), staircase(result) or scores(result)
    first = [totals, fleets] if len(result.fleets) == 1 else [fleets]
    charts = [*first, all_steps(result), *([] if len(first) > 1 else [totals])]
    return [chart for chart in charts if chart is not None]


class _Step(NamedTuple):
    """Where a line is level: neighbouring fleets with the same row."""

    low: float
    high: float
    row: BenchRow
    fleets: Sequence[BenchFleet]


def staircase(result: BenchAnswer) -> Chart | None:
    """The score of few variants over what small devices have, where most devices are small; the title is the finding.

    The variants are those that are shown to be best somewhere, those that lead a tie if none is, and the suite's first.
    None without a budget, or where nothing depends on it.
    """
    if result.budget is UNSET or not _bounds(result.fleets):
        return None
    words, fleets = next(iter(by_share(result)))
    names = told_variants(result, fleets)
    changes = _bounds([fleet for fleet in fleets if any(row.mean is not None for row in _of(fleet, names))])
    ends, wide = _ends(changes or _bounds(fleets))
    noun, unit = budget_named(result.budget).noun, budget_named(result.budget).quantity.word
    series, labels = [], []
    for name in names:
        index = runnable(result).index(name)
        steps = _level(fleets, name, ends)
        series += _lines(steps, name, index, ends)
        if steps:
            labels.append(_label(steps, name, index, ends, wide))
    panel = Panel(
        "", "lines", ChartAxis(f"{noun} of small devices", unit, wide, ends[1], ends[0]), _scores_axis(result, fleets),
        [*series, *labels], _across(result), marked=False, labelled=True,
    )  # fmt: skip
    left_out = len(runnable(result)) - len(names)
    others = f" {left_out} more variants are in the figure of all." if left_out else ""
    return Chart(
        "staircase", finding(result, fleets),
        f"The mean of each variant's {metric_words(result)} where {words}; {best_places(result, fleets)}. A line "
        f"begins where the first client of its variant can train, and is thick where it is shown to be best.{others}",
        [panel], _columns(result, unit),
        [row for row in _rows(fleets) if row[3] in names], across=1, size=(4.4, 3.1), headed=True,
    )  # fmt: skip


def all_steps(result: BenchAnswer) -> Chart | None:
    """The score of each variant over what small devices have; a panel for each share of small devices.

    None without a budget, or where nothing depends on it.
    """
    if result.budget is UNSET or not (bounds := _bounds(result.fleets)):
        return None
    ends, wide = _ends(bounds)
    noun, unit = budget_named(result.budget).noun, budget_named(result.budget).quantity.word
    y, panels, rows = _scores_axis(result, result.fleets), [], []
    for words, fleets in by_share(result):
        series = []
        for index, name in enumerate(runnable(result)):
            steps = _level(fleets, name, ends)
            series += [*_lines(steps, name, index, ends), *_marks(result, steps, index, ends, wide)]
        title = f"{words[:1].upper()}{words[1:]}" if len(result.fleets) > len(fleets) else ""
        panels.append(
            Panel(title, "lines", ChartAxis(f"{noun} of small devices", unit, wide, ends[1], ends[0]), y, series,
                  _across(result), marked=False)
        )  # fmt: skip
        rows += _rows(fleets)
    spread = " Whiskers are the 95 % interval over the seeds." if len(result.seeds) > 1 else ""
    return Chart(
        "staircase-of-all", f"All variants: {metric_words(result)} by {noun} of small devices",
        f"The mean score of each variant; it begins where its first client can train.{spread} A line is thick where "
        "its variant is shown to be best; where none is, these seeds don't tell.",
        panels, _columns(result, unit), rows, across=len(panels), size=(_width(panels), 3.1), aligned=True,
    )  # fmt: skip


def _bounds(fleets: Sequence[BenchFleet]) -> list[float]:
    """The amounts at which something changes."""
    return sorted({end for fleet in fleets for end in (fleet.low, fleet.high) if end})


def _ends(bounds: Sequence[float]) -> tuple[tuple[float, float], bool]:
    """The ends of an axis with these amounts, and whether it is logarithmic."""
    wide = bounds[-1] > 8 * bounds[0]
    margin = 0.15 * (bounds[-1] - bounds[0]) or 0.25 * bounds[0]
    ends = (bounds[0] / 1.5, bounds[-1] * 1.5) if wide else (max(bounds[0] - margin, 0.0), bounds[-1] + margin)
    return ends, wide


def _across(result: BenchAnswer) -> list[tuple[float, str]]:
    """The levels across a chart of scores: chance, and the means of the references."""
    levels = [("chance", result.chance), *((each.reference, each.mean) for each in result.references)]
    return [(level, name) for name, level in levels if level is not None]


def _scores_axis(result: BenchAnswer, fleets: Sequence[BenchFleet]) -> ChartAxis:
    heights = [height for height, _ in _across(result)]
    for row in (row for fleet in fleets for row in fleet.rows):
        if row.mean is not None:
            heights += [row.mean - (row.half_width or 0.0), row.mean + (row.half_width or 0.0)]
    room = 0.06 * (max(heights, default=1.0) - min(heights, default=0.0))
    return ChartAxis(metric_words(result), "", False, max(heights, default=1.0) + room,
                     min(heights, default=0.0) - room)  # fmt: skip


def _columns(result: BenchAnswer, unit: str) -> list[str]:
    return ["small_share", f"from_{unit}", f"below_{unit}", "variant", result.metric, "half_width", "best"]


def _rows(fleets: Sequence[BenchFleet]) -> list[list[object]]:
    return [
        [fleet.small_share, fleet.low, fleet.high, row.variant, row.mean, row.half_width, best_of(fleet)]
        for fleet in fleets
        for row in fleet.rows
    ]


def _of(fleet: BenchFleet, names: Sequence[str]) -> list[BenchRow]:
    return [row for row in fleet.rows if row.variant in names]


def _width(panels: Sequence[Panel]) -> float:
    """Inches of a panel; one alone isn't as wide as all the picture."""
    return WIDTH / max(len(panels), 1.5)


def _level(fleets: Sequence[BenchFleet], name: str, ends: tuple[float, float]) -> list[_Step]:
    """The steps of a variant where it has a score; neighbours with equal scores are one."""
    steps: list[_Step] = []
    for fleet in fleets:
        row = next((row for row in fleet.rows if row.variant == name), None)
        if row is None or row.mean is None or fleet.low is UNSET or fleet.high is UNSET:
            continue
        low, high = max(fleet.low, ends[0]), ends[1] if fleet.high is None else fleet.high
        last = steps[-1] if steps else None
        if last is not None and last.high == low and last.row.scores == row.scores:
            steps[-1] = last._replace(high=high, fleets=[*last.fleets, fleet])
        else:
            steps.append(_Step(low, high, row, [fleet]))
    return steps


def _lines(steps: Sequence[_Step], name: str, index: int, ends: tuple[float, float]) -> list[Series]:
    """A variant's line, and over it a thick one where it is best."""
    shade = of_run(index)
    x, y = step_corners([(step.low, step.high, step.row.mean) for step in steps])
    best = _best_pieces(steps, name, ends)
    lines = [Series(name, x, y, shade, symbols=[index] * len(x))]
    if best:
        lines.append(Series(name, *step_corners(best), shade, heavy=True))
    return lines


def _best_pieces(steps: Sequence[_Step], name: str, ends: tuple[float, float]) -> list[tuple[float, float, Number]]:
    """The pieces of a line on which its variant is shown to be best."""
    return [
        (max(fleet.low, ends[0]), ends[1] if fleet.high is None else fleet.high, step.row.mean)
        for step in steps
        for fleet in step.fleets
        if fleet.winner == name and fleet.low is not UNSET and fleet.high is not UNSET
    ]


def _label(steps: Sequence[_Step], name: str, index: int, ends: tuple[float, float], wide: bool) -> Series:
    """A variant's name, at the highest place where its line begins to be best, or where it ends."""
    best = _best_pieces(steps, name, ends)
    height = max((piece[2] or 0.0 for piece in best), default=steps[-1].row.mean or 0.0)
    place = next((low for low, _, mean in best if mean == height), steps[-1].low)
    into = log if wide else float
    share = (into(place) - into(ends[0])) / (into(ends[1]) - into(ends[0]))
    return Series(name, [place], [height], of_run(index), symbols=[0], form="points", written=True, notes=[name],
                  leftward=share > 0.35)  # fmt: skip


def _marks(
    result: BenchAnswer, steps: Sequence[_Step], index: int, ends: tuple[float, float], wide: bool
) -> list[Series]:
    """A mark with its interval on each step of a variant."""
    name, shade = runnable(result)[index], of_run(index)
    if not steps:
        return []
    places = _places(index, len(runnable(result)), ends, wide)
    spread = [step.row.half_width for step in steps]
    means = [step.row.mean or 0.0 for step in steps]
    of_steps = [(interval(result, step.fleets[0]), interval(result, step.fleets[-1])) for step in steps]
    return [
        Series(
            name, [_mark(step.low, step.high, places) for step in steps], means, shade,
            [None if off is None else mean - off for mean, off in zip(means, spread, strict=True)],
            [None if off is None else mean + off for mean, off in zip(means, spread, strict=True)],
            symbols=[index] * len(steps), form="points",
            notes=[f"{name}: {score_text(step.row)}, {first}{'' if first == last else f' to {last}'}"
                   for step, (first, last) in zip(steps, of_steps, strict=True)],
        ),
    ]  # fmt: skip


def _places(index: int, variants: int, ends: tuple[float, float], wide: bool) -> list[float]:
    """The places along the x axis at which a variant may have marks: no other has any there."""
    into, back = (log, exp) if wide else (float, float)
    begin, end = map(into, ends)
    return [back(begin + (slot + 0.5) * (end - begin) / MARKS) for slot in range(index, MARKS, variants)]


def _mark(low: float, high: float, places: Sequence[float]) -> float:
    """Where the mark of a step stands: at the place nearest to the step's middle; in the middle if none is on it."""
    middle = (low + high) / 2
    nearest = min(places, key=lambda place: abs(place - middle), default=middle)
    return nearest if low < nearest < high else middle


def step_corners(steps: Iterable[tuple[float, float, Number]]) -> tuple[list[Number], list[Number]]:
    """The corners of level pieces ``(from, to, height)``; None between two that don't touch."""
    x: list[Number] = []
    y: list[Number] = []
    for low, high, height in steps:
        if x and x[-1] != low:
            x.append(None)
            y.append(None)
        x += [low, high]
        y += [height, height]
    return x, y


def _with_marks(
    name: str, pieces: Sequence[tuple[float, float, Number]], index: int, places: Sequence[float]
) -> list[Series]:
    """A stepped line, and its marks at these places."""
    x, y = step_corners(pieces)
    heights = [next((height for low, high, height in pieces if low <= place < high), None) for place in places]
    known = [(place, height) for place, height in zip(places, heights, strict=True) if height is not None]
    return [
        Series(name, x, y, of_run(index), symbols=[index] * len(x)),
        Series(name, [place for place, _ in known], [height for _, height in known], of_run(index),
               symbols=[index] * len(known), form="points"),
    ]  # fmt: skip


def scores(result: BenchAnswer) -> Chart:
    """The score of each variant on each fleet as bars."""
    rows = [[fleet.fleet, row.variant, row.mean, row.half_width, best_of(fleet)]
            for fleet in result.fleets for row in fleet.rows]  # fmt: skip
    spread = "; error bars are the 95 % interval over the seeds" if len(result.seeds) > 1 else ""
    series = [_bars(result, name, index) for index, name in enumerate(runnable(result))]
    return Chart(
        "scores", metric_words(result), f"The mean score of each variant on each fleet{spread}.",
        [Panel("", "bars", ChartAxis(""), ChartAxis(metric_words(result), bottom=0.0), series, _across(result))],
        ["fleet", "variant", result.metric, "half_width", "best"], rows, size=(WIDTH, 3.1),
    )  # fmt: skip


def _bars(result: BenchAnswer, name: str, index: int) -> Series:
    """A bar for each fleet: the mean of a variant with its interval."""
    found = [(fleet, row) for fleet in result.fleets for row in fleet.rows if row.variant == name]
    places = [interval(result, fleet) for fleet, _ in found]
    low, high = ([None if row.mean is None or row.half_width is None else row.mean + sign * row.half_width
                  for _, row in found] for sign in (-1, 1))  # fmt: skip
    return Series(name, places, [row.mean for _, row in found], of_run(index), low, high)


def spend_chart(result: BenchAnswer) -> Chart | None:
    """The score that each variant reaches within a total of time, bytes and energy."""
    panels, rows = [], []
    for axis, each in groupby(result.spent, key=lambda spent: spent.axis):
        totals = list(each)
        wide = totals[-1].total > 8 * totals[0].total > 0
        ends = [*(total.total for total in totals[1:]), totals[-1].total * (1.5 if wide else 1.1)]
        series = []
        for index, name in enumerate(runnable(result)):
            pieces = [(total.total, end, total.means.get(name)) for total, end in zip(totals, ends, strict=True)]
            places = _places(index, len(runnable(result)), (totals[0].total, ends[-1]), wide)
            series += _with_marks(name, pieces, index, [_mark(low, high, places) for low, high, _ in pieces])
        panels.append(Panel("", "lines", ChartAxis(AXES[axis], unit_of(axis), log=wide),
                            ChartAxis(metric_words(result, totals[0].split)), series, marked=False))  # fmt: skip
        rows += [[AXES[axis], total.total, name, mean] for total in totals for name, mean in total.means.items()]
    if not panels:
        return None
    return Chart(
        "within-totals", f"{metric_words(result, result.spent[0].split)} within totals",
        f"The mean of each variant's last evaluation within a total; {free_fleet(result)}.",
        panels, ["of", "total", "variant", result.metric], rows, across=len(panels),
        size=(_width(panels), 2.8),
    )  # fmt: skip
