"""The report of a run or of a comparison, or one figure, as one HTML file: figures drawn by plotly, a table under each.

``page.html`` is the template; here is what it shows.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl.html import templates
from edgefl.records import Record, part_of
from edgefl.records.run import Environment
from edgefl.report.bench import Section, answer, heading, sections, told_runs
from edgefl.report.charts import MOST_FLIGHTS, Chart, Records, charts_of, charts_of_comparison, groups_of, records_of
from edgefl.report.charts.bench import charts_of_bench
from edgefl.report.charts.curves import REACH
from edgefl.report.console import NOTHING, shown
from edgefl.report.page.matrix import Groups, Matrix, matrix_of
from edgefl.report.page.told import asked, besides, notices
from edgefl.report.page.traces import MARKS, Plot, Trace, traces
from edgefl.report.page.verdict import verdict_of
from edgefl.runs.durable import write_output

if TYPE_CHECKING:
    from edgefl.records.bench import Bench
    from edgefl.runs import Run

REPORT_FORMS = ("html",)
MOST_ROWS = 150
"""Rows of a table in the page; records and ``edgefl figures`` have the others."""
MOST_BYTES = 6_000_000
"""A larger page is made again with fewer flights and rows."""

SIGNS = dict(zip(MARKS, "●■◆▲▼✖✚★", strict=True))
PARTS = (
    ("fleet", "The fleet", ("fleet",)),
    ("who", "Who takes part", ("eligible", "excluded")),
    ("learned", "What was learned", ("metric-", "served")),
    ("costs", "What it costs", ("memory", "costs")),
    ("time", "Time", ("timeline", "stragglers")),
)
"""Sections of a run's figures, and the names of their charts or what these begin with."""


@part_of(Environment)
class Written(Record):
    """Which version wrote a run."""

    edgefl: str


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
class Table:
    """The numbers of a figure as text; a column says whether it has numbers only."""

    title: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    more: str
    open: bool


@dataclass(frozen=True)
class Figure:
    """A chart as it stands in the page; a panel is its title, its words for screen readers, and its plot's number."""

    id: str
    chart: Chart
    panels: Sequence[tuple[str, str, int]]
    keys: Sequence[Key]
    small: bool
    table: Table


@dataclass(frozen=True)
class Group:
    """A section of figures.  Of those that show the same for other metrics or kinds, one is chosen from a list."""

    id: str
    title: str
    shown: Sequence[Figure]
    chosen: Sequence[tuple[str, Figure]]

    @property
    def options(self) -> list[tuple[str, str]]:
        """The list's values and words."""
        return [(name, figure.chart.choice) for name, figure in self.chosen]


@dataclass(frozen=True)
class Told:
    """What stands above the figures: the verdict, its matrix, and what was asked."""

    kind: str
    path: Path
    notices: Sequence[str]
    verdict: Sequence[str]
    matrix: Matrix | None
    besides: Sequence[str]
    asked: Sequence[tuple[str, str]]
    scenario: str


@dataclass(frozen=True)
class Member:
    """A run of a comparison."""

    id: str
    label: str
    notices: Sequence[str]
    besides: Sequence[str]
    groups: Sequence[Group]

    @property
    def option(self) -> tuple[str, str]:
        """The list's value and words."""
        return self.id, self.label

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Where its sections are, and their titles."""
        return [(group.id, group.title) for group in self.groups]


@dataclass(frozen=True)
class Benched:
    """The page of a bench: the figure that answers it, the answer in words, other figures, and tables."""

    answer: Figure
    words: Sequence[str]
    more: Group
    tables: Sequence[Table]


def write_page(run: Run, path: Path) -> None:
    """Write the report of a run or of a comparison, finished or not.  Raises RunError if the file can't be written."""
    from edgefl.runs import is_comparison

    several = is_comparison(run.path)
    members = run.runs if several else {"": run}
    records = {label: records_of(member, label) for label, member in members.items()}
    groups = groups_of(run, [each for each in records.values() if each.rounds])
    told = _told(run, members, records, groups, several)
    most = max(60, min(MOST_FLIGHTS, 1500 // max(len(members), 1)))
    rows = max(15, min(MOST_ROWS, 1500 // max(len(members), 1)))
    while True:
        figures = _Figures(rows, ": edgefl figures writes all as CSV.")
        if several:
            compared = (
                figures.group("compared", "The runs side by side", charts_of_comparison(groups)) if groups else None
            )
            each = [
                Member(f"run-{i}", label, notices(records[label], member.path), besides(records[label]),
                       figures.of_run(charts_of(member, records[label], most), f"run-{i}"))
                for i, (label, member) in enumerate(members.items(), 1)
            ]  # fmt: skip
            page = _page(run.name, figures, told=told, compared=compared, members=each)
        else:
            page = _page(run.name, figures, told=told, run=figures.of_run(charts_of(run, records[""], most), "run"))
        if len(page) <= MOST_BYTES or (most, rows) == (10, 3):
            break
        most, rows = max(10, most // 2), max(3, rows // 2)
    write_output(path, page)


def write_figure(chart: Chart, path: Path) -> None:
    """Write a page of one figure with its table.  Raises RunError if the file can't be written."""
    figures = _Figures(MOST_ROWS)
    write_output(path, _page(chart.title, figures, alone=figures.figure(chart, "figure")))


def write_bench_page(result: Bench, path: Path) -> None:
    """Write the answer of a bench, its staircase first.  Raises RunError if the file can't be written."""
    figures = _Figures(MOST_ROWS, ": bench.csv has all.")
    first, *others = charts_of_bench(result)
    bench = Benched(
        figures.figure(first, "answer"), [*answer(result), told_runs(result)],
        figures.group("more", "Ranks, costs and totals", others), [_of_section(each) for each in sections(result)],
    )  # fmt: skip
    write_output(path, _page(heading(result), figures, bench=bench))


def _of_section(section: Section) -> Table:
    """A table of the console as one of the page."""
    columns = section.table.columns
    cells = [[str(cell) for cell in column.cells] for column in columns]
    titles = [(str(column.header).replace("\n", " "), column.justify == "right") for column in columns]
    return Table(section.title, titles, list(zip(*cells, strict=True)), section.note, open=True)


def _page(
    title: str, figures: _Figures, *, told: Told | None = None, compared: Group | None = None,
    members: Sequence[Member] = (), run: Sequence[Group] = (), alone: Figure | None = None,
    bench: Benched | None = None,
) -> bytes:  # fmt: skip
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    here = Path(__file__).parent
    sections = [("verdict", "Verdict"), *((group.id, group.title) for group in (*filter(None, [compared]), *run))]
    sections += [("single", "Each run")] if members else []
    data = json.dumps(figures.plots, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    css, js = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # the package's own texts, and JSON in which no tag can begin
    plotly, plots, css, js = (Markup(text) for text in (get_plotlyjs(), data, css, js))
    page = templates(here).get_template("page.html").render(
        title=title, told=told, sections=sections, compared=compared, members=members, run=run, alone=alone,
        bench=bench, plotly=plotly, plots=plots, css=css, js=js,
    )  # fmt: skip
    return page.encode()


def _told(
    run: Run, members: Mapping[str, Run], records: Mapping[str, Records], groups: Groups, several: bool
) -> Told:  # fmt: skip
    from edgefl.runs import comparison

    lines = [] if several else notices(records[""], run.path)
    waiting = [label for label in comparison(run.path) if label not in members] if several else []
    unfinished = [label for label, member in members.items() if several and not member.finished]
    if waiting or unfinished:
        of = len(waiting) + len(members)
        lines.append(f"This comparison isn't finished: {of - len(waiting) - len(unfinished)} of {of} runs are. "
                     f"Continue it with: edgefl run --resume {run.path}")  # fmt: skip
    matrix = matrix_of(groups) if groups else None
    version = next((each.edgefl for member in members.values() if (each := member.read_file(Written))), "")
    return Told(
        f"comparison of {len(members)} runs" if several else "run", run.path, lines,
        verdict_of(groups, matrix) if matrix else [], matrix, [] if several else besides(records[""]),
        asked(run, version, list(members) if several else []),
        (run.path / "scenario.yaml").read_text(encoding="utf-8", errors="replace"),
    )  # fmt: skip


class _Figures:
    """Makes the figures of a page; ``plots`` collects what its script draws."""

    def __init__(self, most_rows: int, rest: str = ""):
        self.plots: list[Plot] = []
        self.most_rows, self.rest = most_rows, rest
        self._ids: set[str] = set()

    def of_run(self, charts: Sequence[Chart], prefix: str) -> list[Group]:
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

    def group(self, name: str, title: str, charts: Iterable[Chart]) -> Group:
        """A section of these figures."""
        alone, chosen = [], []
        for chart in charts:
            own = self._id(f"{name}-{chart.name}")
            if chart.group:
                chosen.append((own, self.figure(chart, f"{own}-figure")))
            else:
                alone.append(self.figure(chart, own))
        return Group(name, title, alone, chosen)

    def _id(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted)
        name, number = base, 2
        while name in self._ids:
            name, number = f"{base}-{number}", number + 1
        self._ids.add(name)
        return name

    def figure(self, chart: Chart, name: str) -> Figure:
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
        small = alone and len(panels) > 2
        return Figure(name, chart, panels, [] if alone else list(keys.values()), small, self._table(chart))

    def _table(self, chart: Chart) -> Table:
        # those of runs side by side are what is looked for first: all their rows are shown
        first = chart.name.startswith("runs-")
        rows = chart.rows if first else chart.rows[: self.most_rows]
        spreads = [i for i, name in enumerate(chart.columns) if i and _is_spread(name, chart.columns[i - 1])]
        shown = [i for i in range(len(chart.columns)) if i not in spreads]
        shows = [_shows(column) for column in chart.columns]

        def cell(row: Sequence[Any], i: int) -> str:
            spread = row[i + 1] if i + 1 in spreads else None
            return shows[i](row[i]) + (f" ± {shows[i](float(f'{spread:.2g}'))}" if spread else "")

        cells = [[cell(row, i) for i in shown] for row in rows]
        left = len(chart.rows) - len(rows)
        more = f"{left:,} more rows{self.rest}" if left else ""
        numbers = [all(isinstance(row[i], int | float | None) for row in rows) for i in shown]
        columns = [(_heading(chart.columns[i]), number) for i, number in zip(shown, numbers, strict=True)]
        return Table(chart.title, columns, cells, more, first)


def _is_spread(name: str, before: str) -> bool:
    """Whether a column has the spread of the means in the one before it."""
    return name in [f"{before}_{reach}" for reach in REACH.values()]


def _key(trace: Trace) -> Key:
    name = trace["name"]
    return Key(html.unescape(name), name, trace["marker"]["color"], _sign(trace), of_mark=trace["x"] == [None])


def _sign(trace: Trace) -> str:
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
    with_unit = shown(name) if last in ("bytes", "seconds", "joules", "flops", "share") or "_share_" in name else None

    def show(cell: Any) -> str:
        if cell is None:
            return NOTHING
        if not isinstance(cell, float | int) or isinstance(cell, bool):
            return str(cell)
        if with_unit is not None:
            return with_unit(cell)
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}"

    return show
