"""Charts as figures of a page: what its script draws, a legend, and a table of the same numbers."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgefl.drawing.charts import Chart
from edgefl.drawing.charts.curves import REACH
from edgefl.drawing.page.traces import MARKS, Plot, Properties, traces
from edgefl.drawing.text_tables import NOTHING, field_formatter, with_spread

SIGNS = dict(zip(MARKS, "●■◆▲▼✖✚★", strict=True))
PARTS = (
    ("fleet", "The fleet", ("fleet",)),
    ("who", "Who takes part", ("eligible", "excluded")),
    ("learned", "What was learned", ("metric-", "served")),
    ("costs", "What it costs", ("memory", "costs")),
    ("time", "Time", ("timeline", "stragglers")),
)
"""Sections of a run's figures, and the names of their charts or what these begin with."""


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a button that hides a series, or what a mark stands for."""

    name: str
    trace: str
    """The name as plotly has it, in which tags are escaped"""
    colour: str
    sign: str
    of_mark: bool


@dataclass(frozen=True)
class ChartTable:
    """The numbers of a figure as text; a column says whether it has numbers only."""

    title: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    more: str
    open: bool


@dataclass(frozen=True)
class PageChart:
    """A chart as it stands in the page; a panel is its title, its words for screen readers, and its plot's number."""

    id: str
    chart: Chart
    panels: Sequence[tuple[str, str, int]]
    keys: Sequence[Key]
    width: Literal["", "small", "flat"]
    """Class of its panels: small ones stand side by side on a phone too, those with bars that lie don't."""
    table: ChartTable


@dataclass(frozen=True)
class ChartGroup:
    """A section of figures.  Of those that show the same for other metrics or kinds, one is chosen from a list."""

    id: str
    title: str
    shown: Sequence[PageChart]
    chosen: Sequence[tuple[str, PageChart]]

    @property
    def options(self) -> list[tuple[str, str]]:
        """The list's values and words."""
        return [(name, figure.chart.choice) for name, figure in self.chosen]


class PageCharts:
    """Makes the figures of a page; ``plots`` collects what its script draws."""

    def __init__(self, most_rows: int, rest: str = ""):
        self.plots: list[Plot] = []
        self.most_rows, self.rest = most_rows, rest
        self._ids: set[str] = set()

    def of_run(self, charts: Sequence[Chart], prefix: str) -> list[ChartGroup]:
        """The sections of a run's figures; none if no round is recorded."""
        groups = []
        for key, title, names in PARTS:
            mine = [
                chart for name in names for chart in charts
                if chart.name == name or (name.endswith("-") and chart.name.startswith(name))
            ]  # fmt: skip
            if mine:
                groups.append(self.group(f"{prefix}-{key}", title, mine))
        return groups

    def group(self, name: str, title: str, charts: Iterable[Chart]) -> ChartGroup:
        """A section of these figures."""
        alone, chosen = [], []
        for chart in charts:
            own = self._id(f"{name}-{chart.name}")
            if chart.group:
                chosen.append((own, self.figure(chart, f"{own}-figure")))
            else:
                alone.append(self.figure(chart, own))
        return ChartGroup(name, title, alone, chosen)

    def _id(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted)
        name, number = base, 2
        while name in self._ids:
            name, number = f"{base}-{number}", number + 1
        self._ids.add(name)
        return name

    def figure(self, chart: Chart, name: str) -> PageChart:
        """A chart as a figure with its table; what its script draws is added to ``plots``."""
        panels: list[tuple[str, str, int]] = []
        keys: dict[str, Key] = {}
        alone = True
        for panel in chart.panels:
            plot = traces(panel)
            alone &= not plot["layout"].pop("showlegend")
            self.plots.append(plot)
            for trace in plot["data"]:
                if "name" in trace:
                    keys.setdefault(trace["name"], _key(trace))
            label = f"{chart.title}{f': {panel.title}' if panel.title else ''}. {chart.caption}"
            panels.append((panel.title, label, len(self.plots) - 1))
        flat = any(panel.is_horizontal for panel in chart.panels)
        width: Literal["", "small", "flat"] = "flat" if flat else "small" if alone and len(panels) > 2 else ""
        return PageChart(name, chart, panels, [] if alone else list(keys.values()), width, self._table(chart))

    def _table(self, chart: Chart) -> ChartTable:
        # those of runs side by side are what is looked for first: all their rows are shown
        first = chart.name.startswith("runs-")
        rows = chart.rows if first else chart.rows[: self.most_rows]
        spreads = [i for i, name in enumerate(chart.columns) if i and _is_spread(name, chart.columns[i - 1])]
        shown = [i for i in range(len(chart.columns)) if i not in spreads]
        shows = [_shows(column) for column in chart.columns]

        def cell(row: Sequence[Any], i: int) -> str:
            spread = row[i + 1] if i + 1 in spreads else None
            return with_spread(shows[i](row[i]), row[i], spread) if spread else shows[i](row[i])

        cells = [[cell(row, i) for i in shown] for row in rows]
        left = len(chart.rows) - len(rows)
        more = f"{left:,} more rows{self.rest}" if left else ""
        numbers = [all(isinstance(row[i], int | float | None) for row in rows) for i in shown]
        columns = [(_heading(chart.columns[i]), number) for i, number in zip(shown, numbers, strict=True)]
        return ChartTable(chart.title, columns, cells, more, first)


def _is_spread(name: str, before: str) -> bool:
    """Whether a column has the spread of the means in the one before it."""
    return name in [f"{before}_{reach}" for reach in REACH.values()]


def _key(trace: Properties) -> Key:
    name = trace["name"]
    return Key(html.unescape(name), name, trace["marker"]["color"], _sign(trace), of_mark=trace["x"] == [None])


def _sign(trace: Properties) -> str:
    """The character that looks like a series' mark; a circle where its points have different marks."""
    symbol = trace["marker"].get("symbol", "square" if trace["type"] == "bar" else "circle")
    if symbol == "line-ew-open":
        return "┼"
    if isinstance(symbol, list):
        symbol = symbol[0] if len(set(symbol)) == 1 else "circle-open" if symbol[0].endswith("-open") else "circle"
    return "○" if symbol == "circle-open" else SIGNS.get(symbol.removesuffix("-open"), "●")


def _heading(column: str) -> str:
    """A column's title: without its unit, which the cells have."""
    words, _, unit = column.rpartition("_")
    if unit == "seconds" and words in ("virtual", "predicted", "simulated"):
        words += " time"
    units = ("bytes", "seconds", "joules", "flops", "share")
    title = (words if unit in units and words else column).replace("_", " ").replace(".", ": ")
    return title.replace("r@", "R@").replace("flops", "FLOPs")


def _shows(column: str) -> Callable[[Any], str]:
    """How the cells of a column are shown: with their unit, if the column's name ends with one."""
    name, last = column, column.rpartition("_")[2]
    with_unit = (
        field_formatter(name) if last in ("bytes", "seconds", "joules", "flops", "share") or "_share_" in name else None
    )

    def show(cell: Any) -> str:
        if cell is None or cell != cell:
            return NOTHING
        if not isinstance(cell, float | int) or isinstance(cell, bool):
            return str(cell)
        if with_unit is not None:
            return with_unit(cell)
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}"

    return show
