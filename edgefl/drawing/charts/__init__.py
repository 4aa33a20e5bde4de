"""Figures of runs: what they show, and drawing them with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgefl.drawing.charts.chart import Chart
from edgefl.drawing.charts.compared import groups_of, side_by_side
from edgefl.drawing.charts.costs import costs, memory
from edgefl.drawing.charts.curves import compared_metrics, metrics, overview
from edgefl.drawing.charts.fleet import eligible, excluded_data_chart, fleet
from edgefl.drawing.charts.flights import MOST_FLIGHTS, stragglers, who_did_what
from edgefl.drawing.charts.records import Curves, Records, records_of
from edgefl.drawing.charts.served import served_clients_chart
from edgefl.runs import Run, is_comparison
from edgefl.runs.changed import raise_run_errors

__all__ = [
    "Chart",
    "MOST_FLIGHTS",
    "Records",
    "charts_of",
    "charts_of_comparison",
    "draw_curves",
    "groups_of",
    "records_of",
]


@raise_run_errors
def charts_of(run: Run, records: Records, most_flights: int = MOST_FLIGHTS) -> list[Chart]:
    """The figures of one run, finished or not; those of which it has no numbers are left out.

    Raises RunError for records that hold another kind of value than edgefl writes.
    """
    if not records.rounds:
        return []
    charts = [eligible(records), fleet(records), memory(records), costs(records), *metrics(records),
              who_did_what(records, most_flights), stragglers(records), excluded_data_chart(records),
              served_clients_chart(records)]  # fmt: skip
    return [chart for chart in charts if chart is not None]


def draw_curves(run: Run) -> Path | None:
    """Draw ``curves.png`` in the folder of a run or of a comparison: the main metrics over rounds and virtual time.

    Returns the file; None, and draws nothing, if nothing was evaluated.  Raises RunError if the file can't be written.
    """
    from edgefl.drawing.charts.picture import draw

    if is_comparison(run.path):
        light = [Curves.of_rounds(each, label) for label, each in run.runs.items()]
    else:
        light = [Curves.of_rounds(run, run.name)]
    chart = overview(groups_of(run, light) if len(light) > 1 else {each.label: [each] for each in light})
    if chart is None:
        return None
    path = run.path / "curves.png"
    draw(chart, path, dpi=110, title=run.name, measured=False)
    return path


def charts_of_comparison(groups: Mapping[str, Sequence[Records]]) -> list[Chart]:
    """The figures of a comparison: its runs side by side, and their metrics over rounds, time, bytes and joules.

    ``groups`` are its runs that have played a round (``groups_of``).
    """
    return [*side_by_side(groups), *compared_metrics(groups)] if groups else []
