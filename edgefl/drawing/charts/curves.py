"""Figures of learning: each metric over rounds, virtual time, bytes and joules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isnan
from statistics import fmean

from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import of_kind, of_run
from edgefl.drawing.charts.records import Curves
from edgefl.drawing.text_tables import title_of, unit_of
from edgefl.records.metrics import shown_metrics
from edgefl.results.equal_costs import AXES
from edgefl.results.spread import SeedSpread, spread_words, with_confidence

CLOCKS = (
    ("rounds", "round", ChartAxis("round")),
    *((unit, {"bytes": "traffic_bytes"}.get(axis, axis), ChartAxis(noun, unit))
      for axis, noun in AXES.items() for unit in [unit_of(axis)]),
)  # fmt: skip
"""Each x axis: its name in ``Curves.clocks``, in tables, and the axis."""

MAIN = ("balanced_accuracy", "soft_score", "accuracy", "r@10", "r@1", "perplexity")
"""Of the metrics that a kind has, the first of these tells most."""

SPLITS = ("validation", "test")
"""The splits in the order of their marks: a circle and a square."""

APART = "Lines: validation. Squares: the last evaluation, on the test split, which isn't to be compared with them."

REACH = {False: "deviation", True: "half_width"}
"""What the column of a spread is called, without and with enough seeds for a confidence interval."""


def evaluated_metrics(runs: Iterable[Curves]) -> list[tuple[str, str]]:
    """``(kind, metric)`` that these runs evaluated, of the metrics that tables show."""
    found: dict[str, dict[str, None]] = {kind: {} for run in runs for kind in run.kinds}
    for run in runs:
        for record in run.rounds:
            for kind in found.keys() & record.metrics.keys():
                values = record.metrics[kind]
                found[kind] |= dict.fromkeys(name for name, value in values.items() if value is not None)
    return [(kind, name) for kind, names in found.items() for name in shown_metrics(names)]


def main_metrics(runs: Iterable[Curves]) -> dict[str, str]:
    """The metric of each kind that tells most, ``{kind: metric}``."""
    pairs = evaluated_metrics(runs)
    kinds = dict.fromkeys(kind for kind, _ in pairs)
    return {
        kind: next(name for name in (*MAIN, *(name for of, name in pairs if of == kind)) if (kind, name) in pairs)
        for kind in kinds
    }


def overview(groups: Mapping[str, Sequence[Curves]]) -> Chart | None:
    """The main metrics over rounds and virtual time, as ``curves.png`` has them; None if nothing was evaluated.

    One group is one run: its kinds are lines.  Several groups are a comparison: each kind has panels of its own.
    """
    everyone = [run for runs in groups.values() for run in runs]
    chosen = main_metrics(everyone)
    if not chosen:
        return None
    panels: list[Panel] = []
    if len(everyone) == 1:
        charts = [(title_of(name), _of_kinds(everyone[0], name, [k for k, m in chosen.items() if m == name]))
                  for name in dict.fromkeys(chosen.values())]  # fmt: skip
    else:
        charts = [(f"{kind}: {title_of(name)}", _of_groups(groups, kind, name)) for kind, name in chosen.items()]
    for title, chart in charts:
        panels += [replace(panel, y=replace(panel.y, title=title)) for panel in chart.panels[:2]]
    below = " ".join(filter(None, [charts[0][1].spread, *(APART for _, chart in charts[:1] if chart.notes)]))
    return Chart("curves", "What was learned", "", panels, [], [], spread=below)


def metrics(records: Curves) -> list[Chart]:
    """For each metric a figure with a line for each kind; empty if nothing was evaluated."""
    pairs = evaluated_metrics([records])
    return [
        _of_kinds(records, name, [kind for kind, metric in pairs if metric == name])
        for name in dict.fromkeys(metric for _, metric in pairs)
    ]


def compared_metrics(groups: Mapping[str, Sequence[Curves]]) -> list[Chart]:
    """For each kind and metric a figure with a line for each group of runs that differ in their seeds only."""
    pairs = evaluated_metrics([run for runs in groups.values() for run in runs])
    return [_of_groups(groups, kind, name) for kind, name in pairs]


def _of_kinds(records: Curves, name: str, kinds: Sequence[str]) -> Chart:
    lines = {kind: _Line(kind, name, [records], of_kind(records.kinds.index(kind))) for kind in kinds}
    return _chart(name, title_of(name), lines, [records])


def _of_groups(groups: Mapping[str, Sequence[Curves]], kind: str, name: str) -> Chart:
    lines = {label: _Line(kind, name, runs, of_run(i)) for i, (label, runs) in enumerate(groups.items())}
    everyone = [run for runs in groups.values() for run in runs]
    return _chart(f"{kind}-{name}", f"{kind}: {title_of(name)}", lines, everyone)


@dataclass(frozen=True)
class _Line:
    """A metric of a kind over the rounds of runs that differ in their seeds only."""

    kind: str
    metric: str
    runs: Sequence[Curves]
    colour: str


@dataclass(frozen=True)
class _Point:
    """An evaluated round: where it is on each axis, and the score over the seeds that reached it."""

    clocks: Mapping[str, float]
    score: SeedSpread
    split: str


def _series(label: str, line: _Line, points: Sequence[_Point], clock: str, *, confidence: bool) -> Iterator[Series]:
    """The evaluations during the run as a line, and final ones on another split apart from it."""
    for split in dict.fromkeys(point.split for point in points):
        mine = [point for point in points if point.split == split]
        centres = [point.score.mean for point in mine]
        reaches = [point.score.reach(confidence=confidence) for point in mine]
        known = any(reach is not None for reach in reaches)
        low, high = (
            [None if mean is None or reach is None else mean + sign * reach
             for mean, reach in zip(centres, reaches, strict=True)]
            for sign in (-1, 1)
        )  # fmt: skip
        yield Series(
            label, [point.clocks[clock] for point in mine], centres, line.colour, low if known else (),
            high if known else (), symbols=[SPLITS.index(split)] * len(mine),
            form=None if split == line.runs[0].settings.evaluation.split else "points",
        )  # fmt: skip


def _chart(slug: str, title: str, lines: Mapping[str, _Line], runs: Sequence[Curves]) -> Chart:
    points = {label: _points(line) for label, line in lines.items()}
    seeds = max(len(line.runs) for line in lines.values())
    confidence = with_confidence([SeedSpread((0.0,) * len(line.runs)) for line in lines.values()])
    (metric,) = {line.metric for line in lines.values()}
    kinds = list(dict.fromkeys(line.kind for line in lines.values()))
    splits = [split for split in SPLITS if any(point.split == split for of in points.values() for point in of)]
    chance: dict[float, dict[str, None]] = {}
    for kind, split, run in product(kinds, splits, runs):
        if (level := run.chance.get(split, {}).get(kind, {}).get(metric)) is not None:
            names = [kind] * (len(kinds) > 1) + [split] * (len(splits) > 1)
            chance.setdefault(level, {}).update(dict.fromkeys(names))
    across = [(level, f"chance ({', '.join(of)})" if len(chance) > 1 else "chance") for level, of in chance.items()]
    heights = [each for found in points.values() for point in found for each in point.score.known_values]
    is_share = bool(heights) and min(heights) >= 0.0 and max(heights) <= 1.0
    up = ChartAxis(title_of(metric), bottom=0.0 if is_share else None)
    panels = []
    for clock, _, axis in CLOCKS:
        values = [point.clocks[clock] for found in points.values() for point in found]
        if not any(values) or any(map(isnan, values)):  # nobody knows the energy of real devices
            continue
        series = [
            each
            for label, found in points.items()
            for each in _series(label, lines[label], found, clock, confidence=confidence)
        ]
        panels.append(Panel("", "lines", axis, up, series, across,
                            symbols=[split if split in splits else "" for split in SPLITS]))  # fmt: skip
    apart = ["Circles are on the validation split, squares on the test split: they aren't to be compared."]
    spread = f"Means over the seeds; bands and error bars: {spread_words(confidence=confidence)}." if seeds > 1 else ""
    rows = [
        [label, *(point.clocks[clock] for clock, _, _ in CLOCKS), point.score.mean,
         point.score.reach(confidence=confidence), len(point.score.values), point.split]
        for label, found in points.items()
        for point in found
    ]  # fmt: skip
    heading = f"{title[:1].upper()}{title[1:]}"
    return Chart(
        f"metric-{slug}".replace("@", "-at-"), heading,
        f"{heading} over rounds, virtual time, and the traffic and energy of all clients until then.",
        panels, ["line", *(name for _, name, _ in CLOCKS), metric, f"{metric}_{REACH[confidence]}", "seeds", "split"],
        rows, group="What was learned", choice=title, notes=apart[: len(splits) - 1], spread=spread,
    )  # fmt: skip


def _points(line: _Line) -> list[_Point]:
    """Each evaluated round and split: the score over the seeds that have one."""
    found: dict[tuple[int, str], list[tuple[dict[str, float], float]]] = {}
    for run in line.runs:
        clocks = run.clocks()
        for i, r in enumerate(run.rounds):
            value = r.metrics.get(line.kind, {}).get(line.metric)
            if value is not None:
                here = {name: float(values[i]) for name, values in clocks.items()}
                found.setdefault((r.round, r.split), []).append((here, value))
    return [
        _Point(
            {clock: fmean(each[0][clock] for each in entries) for clock, _, _ in CLOCKS},
            SeedSpread(tuple(value for _, value in entries)),
            split,
        )
        for (_, split), entries in sorted(found.items())
    ]
