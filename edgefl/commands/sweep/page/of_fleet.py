"""``edgefl explore``: a page in which budgets and choices are moved by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from edgefl.commands.sweep.cell_answers import Workloads
from edgefl.commands.sweep.page.asked import prepare_request, write_page
from edgefl.commands.sweep.page.presets import PresetCandidate, presets_of
from edgefl.commands.sweep.page.priced_cell import BudgetRange, ExploreCellAnswer, priced_cell
from edgefl.commands.sweep.page.shared_rows import Needed, are_many, with_shared_rows
from edgefl.drawing.sliders import page_of
from edgefl.drawing.sliders.page_columns import PageColumns
from edgefl.drawing.sliders.page_data import Explored, ExploredCell, ExploredFleet, PackedColumn, Place
from edgefl.drawing.sliders.words import budget_of
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import Scenario
from edgefl.setup.compose import Given
from edgefl.setup.progress import public_command


@public_command
def explore(
    scenario: Given,
    axes: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> Explored:
    """Price a scenario's clients under every combination of choices, and write a page in which budgets are moved.

    The page compares budgets itself, so that it needs no edgefl.  Its verdicts are those of ``edgefl.sweep``.
    Nothing is trained.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        axes: Fields with the values to choose from, ``"training.batch=8,16,32"``, beside what the scenario compares; by
            default schedules, batch sizes, and with an adapter ranks and precision, as long as there are few cells.
        overrides: Changes of single fields, ``"training.lr=1e-3"``.
        out: The page, a file that ends in .html; by default none is written.
        jobs: How many combinations are priced side by side, each in a process; by default one for each core, as far as
            there is memory.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: what the page has.

    Raises:
        ScenarioError: The scenario or a value is invalid, or there are too many combinations; or none can be run.
        RunError: The page can't be written, or would be too large.
    """
    asked = prepare_request(scenario, axes, overrides, out, jobs, on_progress)
    columns, works = dict[Place, PackedColumn](), set[str]()
    fleets, spans = list[ExploredFleet](), dict[str, BudgetRange]()
    cells, candidates, needed = list[ExploredCell](), list[PresetCandidate](), list[Needed]()
    _shared_workloads.cache_clear()  # an earlier call was told its columns
    for head, outcome in zip(asked.cells(), asked.outcomes(_price_cell), strict=True):
        if isinstance(outcome, str):
            cells.append(ExploredCell(**vars(head), refused=outcome))
            continue
        columns |= outcome.columns
        works |= outcome.works
        answer = outcome.answer
        if answer.fleet not in fleets:
            fleets.append(answer.fleet)
        needed += answer.needed
        for name, span in answer.spans.items():
            spans[name] = span.with_(spans.get(name, span))
        candidates.append(PresetCandidate(len(cells), head.at, answer.eligible, answer.fleet.clients, answer.seconds))
        cells.append(ExploredCell(**vars(head), priced=replace(answer.cell, fleet=fleets.index(answer.fleet))))
    if any(are_many(fleet.clients) for fleet in fleets):
        fleets, cells, columns = with_shared_rows(fleets, cells, needed, columns)
    presets = presets_of(candidates, asked.axes)
    result = Explored(
        **vars(asked.head()),
        cells=cells,
        start=presets[0].cell,
        budgets=[budget_of(name, span.least, span.most) for name, span in spans.items()],
        fleets=fleets,
        presets=presets,
        columns=dict(sorted(columns.items())),
        predictions=len(works),
    )
    if out is not None:
        most = max(fleet.clients for fleet in fleets)
        write_page(page_of(result), Path(out), asked.cell_count_text(f"{most:,} clients"))
        on_progress("done", {"folder": str(out)})
    return result


# --- in a worker -----------------------------------------------------------------------------------------------------


class _Priced(NamedTuple):
    """A cell, the columns that this process hasn't given yet, and the cost keys of the works that it priced."""

    answer: ExploreCellAnswer
    columns: Mapping[Place, PackedColumn]
    works: frozenset[str]


@cache
def _shared_workloads() -> tuple[Workloads, PageColumns]:
    """The workloads and the columns of all cells of this process."""
    return Workloads(silent, keeping=False), PageColumns()


def _price_cell(scenario: Scenario, on_progress: OnProgress) -> _Priced:
    """The cell of a scenario; in a worker process, or in this one."""
    workloads, columns = _shared_workloads()
    answer = priced_cell(scenario, workloads.workload_for(scenario), columns)
    return _Priced(answer, columns.untold(), workloads.untold())
