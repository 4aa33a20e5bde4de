"""``edgefl sweep --page``: what a page has in which budgets and choices of a fleet are moved by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from edgefl.commands.sweep.cell_answers import Workloads
from edgefl.commands.sweep.page.asked import PageRequest
from edgefl.commands.sweep.page.priced_cell import BudgetRange, SliderCellAnswer, priced_cell
from edgefl.commands.sweep.page.shared_rows import Needed, are_many, with_shared_rows
from edgefl.commands.sweep.sweep_grid import answers_of
from edgefl.drawing.sliders.page_columns import PageColumns
from edgefl.drawing.sliders.page_data import FleetSliders, PackedColumn, Place, SliderCell, SliderFleet
from edgefl.drawing.sliders.words import budget_of
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import Scenario


def page_of_fleet(
    asked: PageRequest, refused: dict[str, str], jobs: int, on_progress: OnProgress = silent
) -> FleetSliders:
    """Price the fleet's clients under every combination of choices.

    The page compares budgets itself, so that it needs no edgefl.  Its verdicts are those of the sweep's rows.
    ``refused`` gets why cells can't be run.  Raises ScenarioError if none can.
    """
    columns, works = dict[Place, PackedColumn](), set[str]()
    fleets, spans = list[SliderFleet](), dict[str, BudgetRange]()
    cells, needed = list[SliderCell](), list[Needed]()
    _shared_workloads.cache_clear()  # an earlier call was told its columns
    outcomes = answers_of(asked.grid, _price_cell, refused, jobs, on_progress)
    for head, outcome in zip(asked.cells(), outcomes, strict=True):
        if outcome is None:
            cells.append(SliderCell(**vars(head), refused=refused[head.label]))
            continue
        columns |= outcome.columns
        works |= outcome.works
        answer = outcome.answer
        if answer.fleet not in fleets:
            fleets.append(answer.fleet)
        needed += answer.needed
        for name, span in answer.spans.items():
            spans[name] = span.with_(spans.get(name, span))
        cells.append(SliderCell(**vars(head), priced=replace(answer.cell, fleet=fleets.index(answer.fleet))))
    if any(are_many(fleet.clients) for fleet in fleets):
        fleets, cells, columns = with_shared_rows(fleets, cells, needed, columns)
    about = asked.head()
    changes = [sum(at != axis.own for at, axis in zip(cell.at, about.axes, strict=True)) for cell in cells]
    return FleetSliders(
        **vars(about),
        cells=cells,
        start=min((i for i, cell in enumerate(cells) if cell.priced), key=changes.__getitem__),
        budgets=[budget_of(name, span.least, span.most) for name, span in spans.items()],
        fleets=fleets,
        columns=dict(sorted(columns.items())),
        predictions=len(works),
    )


# --- in a worker -----------------------------------------------------------------------------------------------------


class _Priced(NamedTuple):
    """A cell, the columns that this process hasn't given yet, and the cost keys of the works that it priced."""

    answer: SliderCellAnswer
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
