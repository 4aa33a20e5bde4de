"""The report of a run or of a comparison as one HTML file: words, figures drawn by plotly, and a table under each."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl.records import Record, part_of
from edgefl.records.run import Environment
from edgefl.report.charts import MOST_FLIGHTS, Chart, Records, charts_of, charts_of_comparison, records_of
from edgefl.report.page.told import asked, headline, notices
from edgefl.report.page.traces import MARKS, traces
from edgefl.report.sweep_figure import shown
from edgefl.runs.durable import replace_file

if TYPE_CHECKING:
    from edgefl.runs import Run

REPORT_FORMS = ("html",)
MOST_ROWS = 150
"""Rows of a table in the page; records and ``edgefl figures`` have the others."""
MOST_BYTES = 6_000_000
"""A larger page is made again with fewer flights and rows."""

SIGNS = dict(zip(MARKS, "●■◆▲▼✖✚★", strict=True))
UNITS = ("bytes", "seconds", "joules", "flops", "share")
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
"""What the page may load: nothing that isn't in it."""


def write_page(run: Run, path: Path) -> None:
    """Write the report of a run or of a comparison, finished or not.  Raises RunError if the file can't be written."""
    from edgefl.runs import is_comparison

    several = is_comparison(run.path)
    members = run.runs if several else {"": run}
    records = {label: records_of(member, label) for label, member in members.items()}
    most = max(60, min(MOST_FLIGHTS, 1500 // max(len(members), 1)))
    rows = max(15, min(MOST_ROWS, 1500 // max(len(members), 1)))
    while True:
        page = _Page(rows).whole(run, members, records, several, most).encode()
        if len(page) <= MOST_BYTES or (most, rows) == (10, 3):
            break
        most, rows = max(10, most // 2), max(3, rows // 2)
    replace_file(path, page)


@part_of(Environment)
class Written(Record):
    """Which version wrote a run."""

    edgefl: str


class _Page:
    """The parts of a page; ``plots`` collects what its script draws."""

    def __init__(self, most_rows: int):
        self.plots: list[dict[str, Any]] = []
        self.most_rows = most_rows
        self._ids: set[str] = set()

    def whole(
        self, run: Run, members: Mapping[str, Run], records: Mapping[str, Records], several: bool, most: int
    ) -> str:
        name = run.name
        body = [self._told(run, members, records, several)]
        if several:
            body.append(_section("compared", "The runs side by side", self._charts(
                charts_of_comparison(run, list(records.values())), "compared")))  # fmt: skip
            body.append(self._runs(members, records, most))
        else:
            body.append(self._figures(run, records[""], "run", most))
        here = Path(__file__).parent
        data = json.dumps(self.plots, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        kind = f"comparison of {len(members)} runs" if several else "run"
        return f"""<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{_text(name)} - edgefl report</title>
<style>{(here / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#main">To the report</a>
<header><div><h1>{_text(name)}</h1><p class="soft">{_text(kind)} in {_text(run.path)}</p></div>
<button id="theme" type="button" hidden>Dark page</button></header>
<main id="main">
<noscript><p class="notice">The figures need JavaScript; the tables under them don't.</p></noscript>
{"".join(body)}
</main>
<footer>Made by edgefl report. Every figure's numbers are in the table under it, and in the run's records.</footer>
<script>{_plotly()}</script>
<script type="application/json" id="plots">{data}</script>
<script>{(here / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""

    def _told(self, run: Run, members: Mapping[str, Run], records: Mapping[str, Records], several: bool) -> str:
        from edgefl.runs import comparison

        told = []
        if several:
            waiting = [label for label in comparison(run.path) if label not in members]
            unfinished = [label for label, member in members.items() if not member.finished]
            if waiting or unfinished:
                of = len(waiting) + len(members)
                told.append(f"This comparison isn't finished: {of - len(waiting) - len(unfinished)} of {of} runs are. "
                            f"Continue it with: edgefl run --resume {run.path}")  # fmt: skip
        else:
            told = notices(records[""], run.path)
        version = next((each.edgefl for member in members.values() if (each := member.read_file(Written))), "")
        words = "".join(
            f"<dt>{_text(n)}</dt><dd>{_text(w)}</dd>" for n, w in asked(run, version, list(members) if several else [])
        )
        scenario = _text((run.path / "scenario.yaml").read_text(encoding="utf-8", errors="replace"))
        whole = f'<details><summary>The whole scenario</summary><pre tabindex="0">{scenario}</pre></details>'
        head = "" if several else _cards(headline(records[""]))
        return (
            "".join(f'<p class="notice" role="status">{_text(line)}</p>' for line in told)
            + (_section("headline", "Headline figures", head) if head else "")
            + _section("asked", "What was asked", f'<dl class="asked">{words}</dl>{whole}')
        )

    def _runs(self, members: Mapping[str, Run], records: Mapping[str, Records], most: int) -> str:
        """A list to choose one of the runs, and each run's figures."""
        if not members:
            return ""
        options, parts = [], []
        for index, (label, member) in enumerate(members.items()):
            name = f"run-{index + 1}"
            options.append(f'<option value="{name}">{_text(label)}</option>')
            told = "".join(f'<p class="notice">{_text(line)}</p>' for line in notices(records[label], member.path))
            told += _cards(headline(records[label])) + self._figures(member, records[label], name, most)
            parts.append(_choice(name, "runs", told, hidden=index > 0))
        choice = (
            '<div class="choice"><label for="choose-run">Run</label><select id="choose-run" data-shows="runs">'
            f"{''.join(options)}</select></div>"
        )
        return _section("single", "Each run", choice + "".join(parts))

    def _figures(self, run: Run, records: Records, prefix: str, most: int) -> str:
        charts = charts_of(run, records, most)
        if not charts:
            return _section(f"{prefix}-figures", "Figures", "<p>No round is recorded yet.</p>")
        parts = (
            ("who", "Who takes part", ("eligible", "fleet", "excluded")),
            ("learned", "What was learned", (*(c.name for c in charts if c.name.startswith("metric-")), "served")),
            ("costs", "What it costs", ("memory", "costs")),
            ("time", "Time", ("timeline", "stragglers")),
        )
        by_name = {chart.name: chart for chart in charts}
        return "".join(
            _section(
                f"{prefix}-{key}", title, self._charts([by_name[n] for n in names if n in by_name], f"{prefix}-{key}")
            )
            for key, title, names in parts
            if any(n in by_name for n in names)
        )

    def _charts(self, charts: Iterable[Chart], prefix: str) -> str:
        """Figures; of several that show the same for other metrics or kinds, one that is chosen from a list."""
        made, choices = [], []
        for chart in charts:
            name = self._id(f"{prefix}-{chart.name}")
            if chart.group:
                choices.append((name, chart))
                continue
            made.append(self._figure(chart, name))
        if not choices:
            return "".join(made) or "<p>There is nothing to draw yet.</p>"
        options = "".join(f'<option value="{name}">{_text(chart.choice)}</option>' for name, chart in choices)
        figures = "".join(
            _choice(name, f"{prefix}-metrics", self._figure(chart, f"{name}-figure"), hidden=index > 0)
            for index, (name, chart) in enumerate(choices)
        )
        choose = (
            f'<div class="choice"><label for="choose-{prefix}">Metric</label><select id="choose-{prefix}" '
            f'data-shows="{prefix}-metrics">{options}</select></div>'
        )
        return "".join(made) + (choose if len(choices) > 1 else "") + figures

    def _id(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted)
        name, number = base, 2
        while name in self._ids:
            name, number = f"{base}-{number}", number + 1
        self._ids.add(name)
        return name

    def _figure(self, chart: Chart, name: str) -> str:
        panels: list[str] = []
        keys: dict[str, dict[str, Any]] = {}
        alone = True
        for panel in chart.panels:
            plot = traces(panel)
            alone &= not plot["layout"].pop("showlegend")
            self.plots.append(plot)
            for trace in plot["data"]:
                if "name" in trace:
                    keys.setdefault(trace["name"], trace)
            label = f"{chart.title}{f': {panel.title}' if panel.title else ''}. {chart.caption}"
            panels.append(
                f'<div>{f"<h4>{_text(panel.title)}</h4>" if panel.title else ""}<div class="plot" role="img" '
                f'aria-label="{_text(label)}" data-plot="{len(self.plots) - 1}"></div></div>'
            )
        legend = "" if alone else _legend(keys.values())
        notes = "".join(f"<p>{_text(note)}</p>" for note in chart.notes)
        small = " small" if alone and len(panels) > 2 else ""
        return (
            f'<figure id="{name}" data-figure="{_text(chart.name)}" aria-labelledby="{name}-title">'
            f'<h3 id="{name}-title">{_text(chart.title)}</h3>'
            f"<figcaption><p>{_text(chart.caption)}</p>{notes}</figcaption>"
            f'{legend}<div class="panels{small}">{"".join(panels)}</div>{self._table(chart)}</figure>'
        )

    def _table(self, chart: Chart) -> str:
        rows = chart.rows[: self.most_rows]
        numbers = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(chart.columns))]
        head = "".join(f'<th scope="col"{_numeric(number)}>{_text(_heading(column))}</th>'
                       for column, number in zip(chart.columns, numbers, strict=True))  # fmt: skip
        lines = "".join(
            "<tr>" + "".join(f"<td{_numeric(number)}>{_text(_cell(cell, column))}</td>"
                             for cell, column, number in zip(row, chart.columns, numbers, strict=True)) + "</tr>"
            for row in rows
        )  # fmt: skip
        left = len(chart.rows) - len(rows)
        more = f"<p>{left:,} more rows: edgefl figures writes all as CSV.</p>" if left else ""
        return (
            f"<details{_open(chart)}><summary>Table: {_text(chart.title)}</summary>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(chart.title)}, table">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{more}</details>"
        )


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script


def _text(value: Any) -> str:
    return html.escape(str(value))


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{_text(title)}</h2>{content}</section>'


def _cards(found: Sequence[tuple[str, str, str]]) -> str:
    cards = "".join(
        f"<div><dt>{_text(n)}</dt><dd>{_text(v)}<small>{_text(why)}</small></dd></div>" for n, v, why in found
    )
    return f'<dl class="cards">{cards}</dl>' if cards else ""


def _choice(name: str, group: str, content: str, *, hidden: bool) -> str:
    """One of several parts of which a list shows one."""
    return f'<div id="{name}" data-choice="{group}"{" hidden" if hidden else ""}>{content}</div>'


def _legend(found: Iterable[Mapping[str, Any]]) -> str:
    """A button for each series, which hides it, and its mark in its colour.  Names are escaped already."""
    items = []
    for trace in found:
        colour, name = _text(trace["marker"]["color"]), trace["name"]
        mark = f'<i class="mark" data-colour="{colour}" style="color:{colour}" aria-hidden="true">{_sign(trace)}</i>'
        if trace.get("x") == [None]:  # what a mark stands for
            items.append(f'<li><span class="key">{mark}{name}</span></li>')
        else:
            button = f'<button type="button" aria-pressed="true" data-name="{_text(name)}">{mark}{name}</button>'
            items.append(f"<li>{button}</li>")
    return f'<ul class="legend" aria-label="Series">{"".join(items)}</ul>'


def _sign(trace: Mapping[str, Any]) -> str:
    """The character that looks like a series' mark; a circle where its points have different marks."""
    symbol = trace["marker"].get("symbol", "square" if trace["type"] == "bar" else "circle")
    if symbol == "line-ew-open":
        return "┼"
    if isinstance(symbol, list):
        symbol = symbol[0] if len(set(symbol)) == 1 else "circle-open" if symbol[0].endswith("-open") else "circle"
    return "○" if symbol == "circle-open" else SIGNS.get(symbol.removesuffix("-open"), "●")


def _open(chart: Chart) -> str:
    """Tables of runs side by side are short, and what is looked for first: they are shown."""
    return " open" if chart.name.startswith("runs-") else ""


def _numeric(number: bool) -> str:
    return ' class="number"' if number else ""


def _heading(column: str) -> str:
    """A column's title: without its unit, which the cells have."""
    words, _, unit = column.rpartition("_")
    if unit == "seconds" and words in ("virtual", "predicted", "simulated"):
        words += " time"
    title = (words if unit in UNITS and words else column).replace("_", " ").replace(".", ": ")
    return title.replace("r@", "R@").replace("flops", "FLOPs")


def _cell(cell: Any, column: str) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float | int) and not isinstance(cell, bool):
        name = column.removesuffix("_deviation")
        if name.rpartition("_")[2] in UNITS or "_share_" in name:
            return shown(name)(cell)
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}"
    return str(cell)
