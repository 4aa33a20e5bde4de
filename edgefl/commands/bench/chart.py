"""Figures of a bench: scores over what small devices have, ranks, costs to a target, what is kept, and totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from math import exp, inf, log
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
    score_text,
    told_variants,
)
from edgefl.devices.budgets import budget_named
from edgefl.drawing.charts.chart import Chart, ChartAxis, Number, Panel, Series
from edgefl.drawing.charts.palette import INK, of_run
from edgefl.drawing.text_tables import unit_of
from edgefl.errors import visible
from edgefl.records.record import UNSET
from edgefl.results.equal_costs import AXES

WIDTH = 9.2
"""Inches of all panels together: the front page's picture."""
MARKS = 56
"""Places for marks along an axis; each variant has its own, so that no mark hides another."""
MOST_TIMES = 100.0
"""Costs are compared up to so many times the lowest; what costs more is as good as never there."""


def charts_of_bench(result: BenchAnswer) -> list[Chart]:
    """The figures of a bench, the answer first; those of which it has no numbers are left out."""
    totals, fleets = spend_chart(result), staircase(result) or scores(result)
    first = [totals, fleets] if len(result.fleets) == 1 else [fleets]
    charts = [
        *first,
        all_steps(result),
        ranks(result),
        profile_of_costs(result),
        retention_chart(result),
        *([] if len(first) > 1 else [totals]),
    ]
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
        index = _names(result).index(name)
        steps = _level(fleets, name, ends)
        series += _lines(steps, name, index, ends)
        if steps:
            labels.append(_label(steps, name, index, ends, wide))
    panel = Panel(
        "", "lines", ChartAxis(f"{noun} of small devices", unit, wide, ends[1], ends[0]), _scores_axis(result, fleets),
        [*series, *labels], _across(result), marked=False, labelled=True,
    )  # fmt: skip
    left_out = len(_names(result)) - len(names)
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
        for index, name in enumerate(_names(result)):
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


def _names(result: BenchAnswer) -> list[str]:
    """The variants that can be run."""
    return [variant.variant for variant in result.variants if variant.refused is UNSET]


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
    name, shade = _names(result)[index], of_run(index)
    if not steps:
        return []
    places = _places(index, len(_names(result)), ends, wide)
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
    series = [_bars(result, name, index, "mean") for index, name in enumerate(_names(result))]
    return Chart(
        "scores", metric_words(result), f"The mean score of each variant on each fleet{spread}.",
        [Panel("", "bars", ChartAxis(""), ChartAxis(metric_words(result), bottom=0.0), series, _across(result))],
        ["fleet", "variant", result.metric, "half_width", "best"], rows, size=(WIDTH, 3.1),
    )  # fmt: skip


def _bars(result: BenchAnswer, name: str, index: int, field: str, *, but: BenchFleet | None = None) -> Series:
    """A bar for each fleet ``but`` one: the mean with its interval, or another field of a variant's rows."""
    found = [(fleet, row) for fleet in result.fleets for row in fleet.rows if row.variant == name and fleet is not but]
    values = [None if getattr(row, field) is UNSET else getattr(row, field) for _, row in found]
    places = [interval(result, fleet) for fleet, _ in found]
    spread = [row.half_width if field == "mean" else None for _, row in found]
    low, high = ([None if value is None or off is None else value + sign * off
                  for value, off in zip(values, spread, strict=True)] for sign in (-1, 1))  # fmt: skip
    return Series(name, places, values, of_run(index), low, high)


def ranks(result: BenchAnswer) -> Chart | None:
    """Mean ranks over the fleets, with their intervals over the seeds."""
    if result.ranks is None:
        return None
    of = result.ranks.ranks
    widths = {name: width for name in of if (width := result.ranks.half_widths[name]) is not None}
    series = [Series("mean rank", list(of.values()), list(of), INK, symbols=[0] * len(of), form="points")]
    if widths:
        series.insert(0, Series("95 % interval over the seeds", [2 * width for width in widths.values()], list(widths),
                                "#55aadd", base=[of[name] - width for name, width in widths.items()]))  # fmt: skip
    return Chart(
        "ranks", f"Ranks over {result.ranks.fleets} fleets",
        "The mean rank of each variant over the fleets, 1 is best. Fleets share their seeds' runs, so the interval is "
        "over the seeds.",
        [Panel("", "spans", ChartAxis("mean rank"), ChartAxis("", names=list(of)), series)],
        ["variant", "mean_rank", "half_width"], [[name, of[name], widths.get(name)] for name in of],
        size=(3.2 + 0.07 * max(map(len, map(visible, of))), 0.9 + 0.22 * len(of)),
    )  # fmt: skip


def times_lowest(result: BenchAnswer, axis: str) -> tuple[dict[str, list[float]], int]:
    """Each variant's costs to the target, divided by the lowest of the same fleet and seed; infinite where not reached.

    Also how many fleets and seeds there are in which no variant reaches it: these are left out.
    """
    found: dict[str, list[float]] = {name: [] for name in _names(result)}
    nobody = 0
    for _, each in groupby(result.costs or (), key=lambda cost: cost.fleet):
        costs = {cost.variant: getattr(cost, axis) for cost in each}
        for index in range(len(result.seeds)):
            here = {name: values[index] for name, values in costs.items() if values[index] is not None}
            if not here:
                nobody += 1
                continue
            least = min(here.values())
            for name, ratios in found.items():
                cost = here.get(name)
                ratios.append(inf if cost is None else 1.0 if cost == least else cost / least if least else inf)
    return found, nobody


def profile_of_costs(result: BenchAnswer) -> Chart | None:
    """The performance profile of costs to the target (Dolan and More 2002): a panel for each cost."""
    if result.costs is UNSET or result.target is UNSET:
        return None
    panels, rows, nobody = [], [], 0
    for axis, noun in AXES.items():
        found, nobody = times_lowest(result, axis)
        known = [ratio for ratios in found.values() for ratio in ratios if ratio < inf]
        if not known:
            return None
        end = min(max(1.1 * max(known), 1.5), MOST_TIMES)
        series = []
        for index, (name, ratios) in enumerate(found.items()):
            places = [1.0, *sorted({ratio for ratio in ratios if 1.0 < ratio < end}), end]
            heights = [sum(ratio <= place for ratio in ratios) / len(ratios) for place in places[:-1]]
            pieces = [(low, high, height) for (low, high), height in zip(pairwise(places), heights, strict=True)]
            series += _with_marks(name, pieces, index, _places(index, len(found), (1.0, end), wide=True)[1::3])
            rows += [[noun, name, place, height] for place, height in zip(places, heights, strict=False)]
        panels.append(Panel(noun.partition(" of ")[0], "lines", ChartAxis("times the lowest cost", log=True),
                            ChartAxis("share of fleets and seeds", "share", bottom=0.0), series,
                            marked=False))  # fmt: skip
    notes = [f"In {nobody} fleets and seeds no variant reaches it; they don't count."] if nobody else []
    return Chart(
        "costs-to-target", f"Costs until {metric_words(result, result.target_split)} is {result.target:g}",
        "The share of fleets and seeds in which a variant reaches the target at no more than so many times the lowest "
        "cost of any variant. At 1: how often it is the cheapest; at the right end: how often it gets there.",
        panels, ["cost", "variant", "times_lowest", "reached_share"], rows, notes=notes, across=len(panels),
        size=(_width(panels), 2.8),
    )  # fmt: skip


def retention_chart(result: BenchAnswer) -> Chart | None:
    """What each variant keeps of its score under each condition."""
    if not any(row.kept_share is not UNSET for fleet in result.fleets for row in fleet.rows):
        return None
    first, *others = result.fleets
    series = [_bars(result, name, index, "kept_share", but=first) for index, name in enumerate(_names(result))]
    rows = [[fleet.fleet, row.variant, None if row.kept_share is UNSET else row.kept_share]
            for fleet in others for row in fleet.rows]  # fmt: skip
    return Chart(
        "kept", f"What is kept of the score under {first.fleet}",
        f"The mean score under each condition, divided by that of the same variant under {first.fleet}.",
        [Panel("", "bars", ChartAxis(""), ChartAxis("kept", "share", bottom=0.0), series, [(1.0, "")])],
        ["condition", "variant", "kept_share"], rows, size=(WIDTH, 2.8),
    )  # fmt: skip


def spend_chart(result: BenchAnswer) -> Chart | None:
    """The score that each variant reaches within a total of time, bytes and energy."""
    panels, rows = [], []
    for axis, each in groupby(result.spent, key=lambda spent: spent.axis):
        totals = list(each)
        wide = totals[-1].total > 8 * totals[0].total > 0
        ends = [*(total.total for total in totals[1:]), totals[-1].total * (1.5 if wide else 1.1)]
        series = []
        for index, name in enumerate(_names(result)):
            pieces = [(total.total, end, total.means.get(name)) for total, end in zip(totals, ends, strict=True)]
            places = _places(index, len(_names(result)), (totals[0].total, ends[-1]), wide)
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
