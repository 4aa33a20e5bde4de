"""The folder of a suite: its runs and trials, the suite as it was run last, and the answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.bench.chart import charts_of_bench
from edgefl.commands.bench.table import BenchSection, answer, bench_csv, heading, sections, told_runs
from edgefl.drawing.page.charts_shown import ChartTable, PageCharts
from edgefl.drawing.page.page import MOST_ROWS, Benched, page_text
from edgefl.errors import RunError
from edgefl.runs.durable import LOCK, lock_folder, replace_file, write_output, writing
from edgefl.runs.folders import free_folder, json_text
from edgefl.scenario.document import write
from edgefl.scenario.suite import Suite

if TYPE_CHECKING:
    from edgefl.console.options import Place

RUNS, TRIALS, SUITE, ANSWER, PAGE = "runs", "tune", "suite.yaml", "bench.json", "bench.html"
"""What is in it."""


@contextmanager
def suite_folder(suite: Suite, out: Place | None) -> Iterator[Path]:
    """The folder ``out``, new or of an earlier call, or else a free one; locked until the end, with the suite's file.

    Raises RunError if it holds anything else.
    """
    with ExitStack() as held:
        if out is None:
            folder = held.enter_context(closing(free_folder(suite.name))).path
        else:
            folder = Path(out)
            _begin(folder, held)
        replace_file(folder / SUITE, write(suite.to_data()).encode())
        yield folder


def _begin(folder: Path, held: ExitStack) -> None:
    """Make the folder, or take it up again, and lock it."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file; a suite needs a new or empty folder")
        others = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        # a call may have been killed before the suite stood there
        if SUITE not in others and (others := [name for name in others if name not in (LOCK, f".partial-{SUITE}")]):
            raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    if (lock := lock_folder(folder)) is not None:
        held.enter_context(closing(lock))
    with writing(folder):
        for left in folder.glob(f".partial-*-{PAGE}"):  # of a killed call
            left.unlink()


def write_answer(result: BenchAnswer, folder: Path) -> None:
    """Write the answer as JSON, as CSV and as a page."""
    replace_file(folder / ANSWER, json_text(result.to_data()))
    replace_file(folder / "bench.csv", bench_csv(result).encode())
    write_bench_page(result, folder / PAGE)


def write_bench_page(result: BenchAnswer, path: Path) -> None:
    """Write the answer of a bench, its staircase first.  Raises RunError if the file can't be written."""
    figures = PageCharts(MOST_ROWS, ": bench.csv has all.")
    first, *others = charts_of_bench(result)
    bench = Benched(
        figures.figure(first, "answer"), [*answer(result), told_runs(result)],
        figures.group("more", "All variants, and totals", others), [_of_section(each) for each in sections(result)],
    )  # fmt: skip
    write_output(path, page_text(heading(result), figures, bench=bench))


def _of_section(section: BenchSection) -> ChartTable:
    """A table of the console as one of the page."""
    columns = section.table.columns
    cells = [[str(cell) for cell in column.cells] for column in columns]
    titles = [(str(column.header).replace("\n", " "), column.justify == "right") for column in columns]
    return ChartTable(section.title, titles, list(zip(*cells, strict=True)), section.note, open=True)


def failure(result: BenchAnswer, folder: Path) -> RunError:
    """The error that says which runs failed, and how to go on."""
    failed = list(result.failed.values())
    told = "; ".join(failed[:3])
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return RunError(
        f"{len(failed)} of {result.trained + len(failed)} runs failed: {told}{more}; the answer without them is "
        f"{folder / ANSWER}; go on with: the same command and -o {folder}"
    )
