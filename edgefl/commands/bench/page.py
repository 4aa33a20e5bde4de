"""The page of ``edgefl bench``."""

from __future__ import annotations

from pathlib import Path

from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.bench.chart import charts_of_bench
from edgefl.commands.bench.table import BenchSection, answer, heading, sections, told_runs
from edgefl.drawing.page.charts_shown import ChartTable, PageCharts
from edgefl.drawing.page.page import MOST_ROWS, Benched, page_text
from edgefl.runs.durable import write_output


def write_bench_page(result: BenchAnswer, path: Path) -> None:
    """Write the answer of a bench, its staircase first.  Raises RunError if the file can't be written."""
    figures = PageCharts(MOST_ROWS, ": bench.csv has all.")
    first, *others = charts_of_bench(result)
    bench = Benched(
        figures.figure(first, "answer"), [*answer(result), told_runs(result)],
        figures.group("more", "Ranks, costs and totals", others), [_of_section(each) for each in sections(result)],
    )  # fmt: skip
    write_output(path, page_text(heading(result), figures, bench=bench))


def _of_section(section: BenchSection) -> ChartTable:
    """A table of the console as one of the page."""
    columns = section.table.columns
    cells = [[str(cell) for cell in column.cells] for column in columns]
    titles = [(str(column.header).replace("\n", " "), column.justify == "right") for column in columns]
    return ChartTable(section.title, titles, list(zip(*cells, strict=True)), section.note, open=True)
