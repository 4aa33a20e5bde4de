"""Figures of learning: each metric over rounds, virtual time, bytes and joules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edgefl.report.charts.chart import Axis, Chart, Number, Panel, Series, colour, deviation, mean
from edgefl.report.charts.records import Curves
from edgefl.report.console import title_of
from edgefl.report.facts import shown_metrics

CLOCKS = (
    ("rounds", "round", Axis("round")),
    ("seconds", "virtual_seconds", Axis("virtual time", "seconds")),
    ("bytes", "traffic_bytes", Axis("traffic of all clients", "bytes")),
    ("joules", "energy_joules", Axis("energy of all clients", "joules")),
)
"""Each x axis: its name in ``Curves.clocks``, in tables, and the axis."""

MAIN = ("balanced_accuracy", "soft_score", "accuracy", "r@10", "r@1", "perplexity")
"""Of the metrics that a kind has, the first of these tells most."""

BAND = "mean of the seeds; the band is the standard deviation"


def evaluated(runs: Iterable[Curves]) -> list[tuple[str, str]]:
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
    pairs = evaluated(runs)
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
    return Chart("curves", "What was learned", "", panels, [], [])


def metrics(records: Curves) -> list[Chart]:
    """For each metric a figure with a line for each kind; empty if nothing was evaluated."""
    pairs = evaluated([records])
    return [
        _of_kinds(records, name, [kind for kind, metric in pairs if metric == name])
        for name in dict.fromkeys(metric for _, metric in pairs)
    ]


def compared_metrics(groups: Mapping[str, Sequence[Curves]]) -> list[Chart]:
    """For each kind and metric a figure with a line for each group of runs that differ in their seeds only."""
    pairs = evaluated([run for runs in groups.values() for run in runs])
    return [_of_groups(groups, kind, name) for kind, name in pairs]


def _of_kinds(records: Curves, name: str, kinds: Sequence[str]) -> Chart:
    lines = {kind: (kind, name, [records]) for kind in kinds}
    return _chart(name, title_of(name), lines, [records], [records.kinds.index(kind) for kind in kinds])


def _of_groups(groups: Mapping[str, Sequence[Curves]], kind: str, name: str) -> Chart:
    lines = {label: (kind, name, runs) for label, runs in groups.items()}
    everyone = [run for runs in groups.values() for run in runs]
    return _chart(f"{kind}-{name}", f"{kind}: {title_of(name)}", lines, everyone, range(len(lines)))


def _chart(
    slug: str, title: str, lines: Mapping[str, tuple[str, str, Sequence[Curves]]], runs: Sequence[Curves],
    colours: Sequence[int],
) -> Chart:  # fmt: skip
    points = {label: _points(*line) for label, line in lines.items()}
    seeds = max(len(line[2]) for line in lines.values())
    (metric,) = {line[1] for line in lines.values()}
    chance: dict[float, list[str]] = {}
    for kind in dict.fromkeys(line[0] for line in lines.values()):
        for level in {level for run in runs if (level := run.chance.get(kind, {}).get(metric)) is not None}:
            chance.setdefault(level, []).append(kind)
    several = len({line[0] for line in lines.values()}) > 1 and len(chance) > 1
    across = [(level, f"chance ({', '.join(kinds)})" if several else "chance") for level, kinds in chance.items()]
    panels = []
    for clock, _, axis in CLOCKS:
        if clock == "joules" and not any(point[1]["joules"] for found in points.values() for point in found):
            continue
        series = [
            Series(
                label, [p[1][clock] for p in found], [p[2] for p in found], colour(colours[i]),
                [None if p[3] is None else p[2] - p[3] for p in found] if seeds > 1 else (),
                [None if p[3] is None else p[2] + p[3] for p in found] if seeds > 1 else (),
                symbols=[int(p[4]) for p in found],
            )
            for i, (label, found) in enumerate(points.items())
        ]  # fmt: skip
        panels.append(Panel("", "lines", axis, Axis(title_of(metric)), series,
                            across))  # fmt: skip
    splits = [(run.settings.evaluation.split, run.settings.evaluation.final) for run in runs]
    notes = []
    if any(p[4] for found in points.values() for p in found):
        notes.append(
            f"The last mark, a square, is on the {splits[0][1]} split, the others on the {splits[0][0]} split."
        )
    if seeds > 1:
        notes.append(f"Lines are the {BAND}.")
    rows = [
        [label, *(p[1][clock] for clock, _, _ in CLOCKS), p[2], p[3], p[5], "final" if p[4] else "evaluation"]
        for label, found in points.items()
        for p in found
    ]
    return Chart(
        f"metric-{slug}".replace("@", "-at-"), f"{title[:1].upper()}{title[1:]}",
        f"{title[:1].upper()}{title[1:]} over rounds, virtual time, and the traffic and energy of all clients until "
        "then.",
        panels, ["line", *(name for _, name, _ in CLOCKS), metric, "deviation", "seeds", "split"], rows,
        group="What was learned", choice=title, notes=notes,
    )  # fmt: skip


def _points(
    kind: str, metric: str, runs: Sequence[Curves]
) -> list[tuple[int, dict[str, float], float, Number, bool, int]]:
    """Of each evaluated round: its number, clocks, mean, deviation, whether it is the final evaluation, and the seeds.

    A round counts where all runs that are as long have a score.
    """
    found: dict[int, list[tuple[dict[str, float], float, bool]]] = {}
    for run in runs:
        clocks = run.clocks()
        ends = run.finished and bool(run.rounds) and bool(run.rounds[-1].metrics)
        ends = ends and run.settings.evaluation.split != run.settings.evaluation.final
        for i, r in enumerate(run.rounds):
            value = r.metrics.get(kind, {}).get(metric)
            if value is not None:
                here = {name: float(values[i]) for name, values in clocks.items()}
                found.setdefault(r.round, []).append((here, value, bool(ends) and r is run.rounds[-1]))
    points = []
    for number, entries in sorted(found.items()):
        clocks_here = {clock: float(mean(e[0][clock] for e in entries) or 0.0) for clock, _, _ in CLOCKS}
        values = [value for _, value, _ in entries]
        centre = mean(values)
        assert centre is not None
        points.append((number, clocks_here, centre, deviation(values), any(e[2] for e in entries), len(entries)))
    return points
