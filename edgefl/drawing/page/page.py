"""The report of a run or of a comparison, or one figure, as one HTML file: figures drawn by plotly, a table under each.

``page.html`` is the template; here is what it shows, ``figures.py`` makes the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.drawing.charts import MOST_FLIGHTS, Chart, Records, charts_of, charts_of_comparison, groups_of, records_of
from edgefl.drawing.page.charts_shown import ChartGroup, ChartTable, PageChart, PageCharts
from edgefl.drawing.page.matrix import Groups, Matrix, matrix_of
from edgefl.drawing.page.verdict import besides, notices, verdict_of
from edgefl.drawing.sliders.of_run import sliders_of_run
from edgefl.drawing.sliders.slider_page import HERE as VIEW
from edgefl.drawing.sliders.slider_page import View, css_of_view, view_of
from edgefl.html import HERE as SHELL
from edgefl.html import data, read_texts, templates
from edgefl.runs.durable import write_output

if TYPE_CHECKING:
    from edgefl.runs import Run

MOST_ROWS = 150
"""Rows of a table in the page; records and ``edgefl export`` have the others.  A choice: more make the page larger."""
MOST_BYTES = 6_000_000
"""A larger page is made again with fewer flights and rows, so that it can be sent by mail and opens at once.

A choice, not measured.
"""


@dataclass(frozen=True)
class Told:
    """What stands above the figures: the verdict, its matrix, and the scenario."""

    kind: str
    path: Path
    notices: Sequence[str]
    verdict: Sequence[str]
    matrix: Matrix | None
    besides: Sequence[str]
    scenario: str


@dataclass(frozen=True)
class PageRun:
    """A run of a comparison."""

    id: str
    label: str
    notices: Sequence[str]
    besides: Sequence[str]
    groups: Sequence[ChartGroup]

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

    answer: PageChart
    words: Sequence[str]
    more: ChartGroup
    tables: Sequence[ChartTable]


def write_page(run: Run, path: Path) -> None:
    """Write the report of a run or of a comparison, finished or not.  Raises RunError if the file can't be written."""
    from edgefl.runs import is_comparison

    several = is_comparison(run.path)
    members = run.runs if several else {"": run}
    records = {label: records_of(member, label) for label, member in members.items()}
    groups = groups_of(run, [each for each in records.values() if each.rounds])
    told = _summarise_run(run, members, records, groups, several)
    most = max(60, min(MOST_FLIGHTS, 1500 // max(len(members), 1)))
    rows = max(15, min(MOST_ROWS, 1500 // max(len(members), 1)))
    explored = sliders_of_run(run, records)
    view = None if explored is None else view_of(explored)

    def charts(one: Run, of: Records) -> list[Chart]:
        return [chart for chart in charts_of(one, of, most) if view is None or chart.name != "fleet"]

    while True:
        figures = PageCharts(rows, ": edgefl export --to figures writes all as CSV.")
        if several:
            compared = (
                figures.group("compared", "The runs side by side", charts_of_comparison(groups)) if groups else None
            )
            each = [
                PageRun(f"run-{i}", label, notices(records[label], member.path), besides(records[label]),
                       figures.of_run(charts(member, records[label]), f"run-{i}"))
                for i, (label, member) in enumerate(members.items(), 1)
            ]  # fmt: skip
            page = page_text(run.name, figures, told=told, compared=compared, members=each, explored=view)
        else:
            page = page_text(
                run.name, figures, told=told, run=figures.of_run(charts(run, records[""]), "run"), explored=view
            )
        if len(page) <= MOST_BYTES or (most, rows) == (10, 3):
            break
        most, rows = max(10, most // 2), max(3, rows // 2)
    write_output(path, page)


def write_figure(chart: Chart, path: Path) -> None:
    """Write a page of one figure with its table.  Raises RunError if the file can't be written."""
    figures = PageCharts(MOST_ROWS)
    write_output(path, page_text(chart.title, figures, alone=figures.figure(chart, "figure")))


def page_text(
    title: str, figures: PageCharts, *, told: Told | None = None, compared: ChartGroup | None = None,
    members: Sequence[PageRun] = (), run: Sequence[ChartGroup] = (), alone: PageChart | None = None,
    bench: Benched | None = None, explored: View | None = None,
) -> bytes:  # fmt: skip
    """A page with what is given, as bytes of HTML."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    here = Path(__file__).parent
    sections = [
        ("verdict", "Verdict"),
        *([("fleet", "The fleet")] if explored else []),
        *((group.id, group.title) for group in (*filter(None, [compared]), *run)),
    ]
    sections += [("single", "Each run")] if members else []
    css = read_texts(SHELL / "shell.css", here / "page.css") + (css_of_view() if explored else "")
    js = read_texts(SHELL / "theme.js", here / "page.js")
    page = templates(here, VIEW).get_template("page.html").render(
        title=title, told=told, sections=sections, compared=compared, members=members, run=run, alone=alone,
        bench=bench, explored=explored, plotly=Markup(get_plotlyjs()), plots=data(figures.plots), css=css, js=js,
    )  # fmt: skip
    return page.encode()


def _summarise_run(
    run: Run, members: Mapping[str, Run], records: Mapping[str, Records], groups: Groups, several: bool
) -> Told:  # fmt: skip
    from edgefl.runs import comparison

    lines = [] if several else notices(records[""], run.path)
    waiting = [label for label in comparison(run.path) if label not in members] if several else []
    unfinished = [label for label, member in members.items() if several and not member.is_finished]
    if waiting or unfinished:
        of = len(waiting) + len(members)
        lines.append(f"This comparison isn't finished: {of - len(waiting) - len(unfinished)} of {of} runs are. "
                     f"Continue it with: edgefl run --resume {run.path}")  # fmt: skip
    matrix = matrix_of(groups) if groups else None
    return Told(
        f"comparison of {len(members)} runs" if several else "run", run.path, lines,
        verdict_of(groups, matrix) if matrix else [], matrix, [] if several else besides(records[""]),
        (run.path / "scenario.yaml").read_text(encoding="utf-8", errors="replace"),
    )  # fmt: skip
