"""Figure of ``edgefl analyse``: a panel for each table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from edgefl.commands.analyse.answer import Analysis, CompletionRecord, MatchingRow, OfPart, Shapley, ValuedMetric
from edgefl.drawing.charts.chart import Chart, ChartAxis, Number, Panel, Series
from edgefl.drawing.charts.palette import of_kind, of_run
from edgefl.drawing.text_tables import TITLES

R = TypeVar("R", bound=OfPart)


def analysis_chart(result: Analysis) -> Chart:
    """Bars for Shapley values and matching, lines over blocks for the others."""
    panels: list[Panel] = []
    if result.shapley:
        panels.append(_values(result.shapley))
    if result.gradients:
        rows = result.gradients.rows
        panels += _over_parts("gradient norm", rows, lambda row: row.norm, lambda row: str(row.kind), log=True)
        first = {(row.kind, row.tower, row.part): row for row in reversed(result.gradients.stages)}
        panels += _over_parts(
            "gradient over the last block's, at a block's first stage", [*reversed(first.values())],
            lambda row: row.relative, lambda row: str(row.kind), log=True,
        )  # fmt: skip
    if result.drift:
        within, between = result.drift.within, result.drift.between
        panels += _over_parts("consistency", within, lambda row: row.consistency, lambda row: str(row.kind), least=0)
        panels += _over_parts("cosine", between, lambda row: row.cosine, lambda row: " and ".join(row.kinds), least=-1)
    if result.matching:
        panels.append(_matching_panel(result.matching))
    if result.gaps:
        bars = [Series(row.set, [row.modality], [row.gap], of_kind(i)) for i, row in enumerate(result.gaps.rows)]
        panels.append(Panel("gap to the pairs", "bars", ChartAxis(""), ChartAxis(""), bars))
    table = [
        [panel.title, series.name, str(x).replace("\n", " "), y]
        for panel in panels
        for series in panel.series
        for x, y in zip(series.x, series.y, strict=True)
    ]
    return Chart(
        "analysis", f"{result.scenario}, {result.method}", "A panel for each table of the analysis.", panels,
        ["panel", "series", "place", "value"], table, size=(4.8, 3.2),
    )  # fmt: skip


def metric_words(row: ValuedMetric) -> str:
    """The metric of a row with its kind."""
    kinds = row.kind if len(row.kinds) == 1 else " = ".join(row.kinds)
    return f"{kinds} {TITLES.get(row.metric, row.metric)}"


def complete_pattern(row: MatchingRow) -> str:
    """The pattern of samples that have all modalities; empty for a kind of one modality."""
    return str(row.kind) if "-" in row.kind else ""


def _values(result: Shapley) -> Panel:
    places = [metric_words(row).replace(" ", "\n") for row in result.rows]
    series = []
    for index, player in enumerate(result.players):
        worth = [row.players[player] for row in result.rows]
        values = [each.shapley for each in worth]
        low: list[Number] = []
        high: list[Number] = []
        if all(each.shapley_std is not None for each in worth):
            low = [each.shapley - (each.shapley_std or 0.0) for each in worth]
            high = [each.shapley + (each.shapley_std or 0.0) for each in worth]
        series.append(Series(player, places, values, of_kind(index), low, high))
    title = f"Shapley value of each client kind ({result.split} split)"
    return Panel(title, "bars", ChartAxis(""), ChartAxis(""), series, across=[(0.0, "")], legend=True)


def _over_parts(
    title: str,
    rows: Sequence[R],
    value: Callable[[R], Number],
    label: Callable[[R], str],
    *,
    log: bool = False,
    least: float | None = None,
) -> list[Panel]:
    """A panel for each tower with values in two parts or more; with ``least`` the y axis runs from there to 1."""
    labels = list(dict.fromkeys(map(label, rows)))
    axis = ChartAxis("", log=log) if least is None else ChartAxis("", bottom=least - 0.05, top=1.05)
    panels = []
    for tower in dict.fromkeys(row.tower for row in rows):
        mine = [row for row in rows if row.tower == tower]
        shown = {row.part for row in mine if (y := value(row)) is not None and (y > 0 or not log)}
        if len(shown) < 2:
            continue
        series = []
        for index, name in enumerate(labels):
            points = [(row.part or tower, y) for row in mine if label(row) == name and (y := value(row)) is not None]
            if points:
                x, values = zip(*points, strict=True)
                series.append(Series(name, x, values, of_kind(index), symbols=[index] * len(x)))
        parts = list(dict.fromkeys(row.part or tower for row in mine))
        panels.append(Panel(f"{title}, {tower}", "lines", ChartAxis("", names=parts), axis, series, legend=True))
    return panels


def _matching_panel(result: CompletionRecord) -> Panel:
    rows = [row for row in result.rows if row.pattern != complete_pattern(row)]
    series = []
    for index, method in enumerate(dict.fromkeys(row.inference for row in rows)):
        mine = [row for row in rows if row.inference == method]
        places = [f"{row.kind}\n{row.pattern} alone" for row in mine]
        series.append(Series(method, places, [row.accuracy for row in mine], of_run(index)))
    return Panel("accuracy by inference method", "bars", ChartAxis(""), ChartAxis(""), series, legend=True)
