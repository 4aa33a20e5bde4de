"""What ``edgefl explore`` is asked for: a scenario, its combinations of choices, and a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

from edgefl import __version__
from edgefl.cells.cells import check_jobs, run_cells
from edgefl.cells.pricing import most_jobs
from edgefl.cells.workers import Cell
from edgefl.commands.sweep.command import refusing, value_at
from edgefl.commands.sweep.page.choices import MOST_CELLS, propose_axes
from edgefl.drawing.figures import check_figure
from edgefl.drawing.page import REPORT_FORMS
from edgefl.drawing.sliders.page_data import Choice, ExploredAxis, ExploredHead, ExploredScenario
from edgefl.errors import RunError
from edgefl.records.record import UNSET
from edgefl.runs.durable import replace_file
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.scenario.grid import Grid, grid_of
from edgefl.setup.compose import Given, at_most, scenario_of
from edgefl.yaml_lines import flow

MOST_BYTES = 32_000_000
"""Bytes of a page. A choice, not measured: a million clients take 2.6 MB, and a browser reads all before it draws."""

Answer = TypeVar("Answer")


class ExploreRequest(NamedTuple):
    """The combinations that are asked for."""

    given: str
    overrides: Sequence[str]
    whole: Scenario
    grid: Grid
    axes: list[ExploredAxis]
    jobs: int
    on_progress: OnProgress

    def head(self) -> ExploredScenario:
        """The fields of an answer that say what was asked for."""
        return ExploredScenario(
            scenario=self.whole.name,
            at_most=at_most(each for label, each in self.grid.cells if label not in self.grid.refused) or UNSET,
            given=self.given,
            overrides=list(self.overrides),
            compares=bool(self.whole.compare),
            edgefl=__version__,
            axes=self.axes,
        )

    def cells(self) -> list[ExploredHead]:
        """Label and choices of each cell."""
        choices = product(*(range(len(axis.choices)) for axis in self.axes))
        return [ExploredHead(label=label, at=list(at)) for (label, _), at in zip(self.grid.cells, choices, strict=True)]

    def cell_count_text(self, rows: str) -> str:
        """How many cells of so many ``rows`` there are."""
        cells = len(self.grid.cells)
        return f"{cells:,} cell{'s' if cells > 1 else ''} of {rows}"

    def outcomes(self, work: Callable[[Scenario, OnProgress], Answer]) -> Iterator[Answer | str]:
        """For each cell what ``work`` returns for its scenario, or why it is refused.

        Raises ScenarioError if all are, and errors that have another cause than a cell's scenario.
        """
        refused, cells = dict(self.grid.refused), self.grid.cells
        wanted = [Cell(label, scenario) for label, scenario in cells if label not in refused]
        beside = min(self.jobs, len(wanted)) > 1
        with closing(run_cells(work, wanted, self.jobs, self.on_progress)) as answers:  # type: ignore[type-var]
            for index, (label, _) in enumerate(cells):
                if label not in refused:
                    if not beside:
                        self.on_progress("combination", {"label": label, "index": index, "of": len(cells)})
                    with refusing(label, refused, self.grid):
                        outcome = next(answers)
                        if outcome.error is not None:
                            raise outcome.error
                        answer: Answer = outcome.answer
                yield refused[label] if label in refused else answer  # noqa: SIM401 - there may be none yet


def prepare_request(
    scenario: Given,
    axes: Sequence[str],
    overrides: Sequence[str],
    out: str | os.PathLike[str] | None,
    jobs: int | None,
    on_progress: OnProgress,
) -> ExploreRequest:
    """What is asked for.  Raises as ``explore`` does."""
    if jobs is not None:
        check_jobs(jobs)
    if out is not None:
        check_figure(out, REPORT_FORMS)
    whole = scenario_of(scenario, overrides)
    given = scenario if isinstance(scenario, str) else os.fspath(scenario) if isinstance(scenario, os.PathLike) else ""
    messages(on_progress)(f"preparing {whole.name}")
    grid = grid_of(whole, axes or propose_axes(whole), most=MOST_CELLS)
    told = _axes(whole, grid)
    return ExploreRequest(given or whole.name, overrides, whole, grid, told, jobs or most_jobs(), on_progress)


def _axes(whole: Scenario, grid: Grid) -> list[ExploredAxis]:
    plain, axes = {k: v for k, v in whole.to_data().items() if k != "compare"}, list[ExploredAxis]()
    step = len(grid.cells)
    for path, key, values, words in zip(grid.paths, grid.keys, grid.values, grid.words, strict=True):
        step //= len(values)
        resolved = [value_at(grid.cells[i * step][1].to_data(), key) for i in range(len(values))]
        own = value_at(plain, key)
        choices = [Choice(label=word, text=flow(value)) for word, value in zip(words, values, strict=True)]
        axes.append(ExploredAxis(path=path, choices=choices, own=resolved.index(own) if own in resolved else None))
    return axes


def write_page(page: str, path: Path, what: str) -> None:
    """Write a page whole or not at all.  Raises RunError if it is too large or can't be written."""
    content = page.encode()
    if len(content) > MOST_BYTES:
        raise RunError(
            f"the page would have {len(content) / 1e6:,.0f} MB for {what}; {MOST_BYTES / 1e6:,.0f} MB are the most: "
            "leave values out of --vary"
        )
    replace_file(path, content)
