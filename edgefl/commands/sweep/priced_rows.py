"""The rows of a sweep: each combination's costs, priced or stored already, and with ``--train`` what its run gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from edgefl import units
from edgefl.cells.cells import share_of
from edgefl.commands.sweep.answer import CellHead, CellRow, Sensitivity
from edgefl.commands.sweep.stored_rows import SweepRows
from edgefl.commands.sweep.sweep_grid import SweepGrid, columns_of_cells, refusing
from edgefl.drawing.text_tables import percent
from edgefl.errors import RunError, text_of
from edgefl.records.record import UNSET, Maybe
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario

if TYPE_CHECKING:
    from edgefl.commands.sweep.cell_answers import Answers

OWN = ("method", "schedule")
"""Columns that every row has, so that an axis of them needs none of its own."""


class PricedFleet(NamedTuple):
    """The rows of a sweep, and whether their order survives wrong numbers.

    ``is_whole``: the rows are all, and not a shard's alone.
    """

    rows: list[CellRow]
    predictions: int
    order: Sensitivity | Maybe = UNSET
    is_whole: bool = True


def price_fleet(
    grid: SweepGrid,
    refused: dict[str, str],
    store: SweepRows | None,
    part: tuple[int, int] | None,
    train: bool,
    sensitivity: str | None,
    jobs: int,
    address: str | None,
    on_progress: OnProgress,
) -> PricedFleet:
    """The rows of a grid, or of a shard ``part`` of it until all shards have ended; ``store`` gets each at once.

    ``refused`` gets why cells can't be run.  Raises ScenarioError if no cell can be, and RunError for runs that failed
    side by side.  What prices and runs is imported here, since a sweep of devices alone doesn't need it.
    """
    from edgefl.commands.sweep.cell_answers import Answers, Workloads

    cells, workloads = share_of(grid.cells, part), Workloads(on_progress, keeping=sensitivity is not None)
    with closing(Answers(cells, refused, store, train, jobs, address, workloads, on_progress)) as answers:
        rows = _priced_rows(grid, cells, refused, answers, store, train, on_progress)
    if store and part is not None:
        whole = store.merge_shards([label for label, _ in grid.cells], trained=train)
        if whole is None:
            left = "the table of all rows: the same command without --shard, when all shards have ended"
            on_progress("prepare", {"what": f"shard {part[0]}/{part[1]} has ended; {left}"})
            return PricedFleet(rows, len(answers.works), is_whole=False)
        rows = whole
        refused.clear()
        refused |= {row.label: row.refused for row in rows if row.refused}
    if store:
        store.write_csv(rows)
    if sensitivity is None:
        return PricedFleet(rows, len(answers.works))
    from edgefl.commands.sweep.sensitivity import order_of

    runnable = [cell for cell in grid.cells if cell[0] not in refused]
    return PricedFleet(rows, len(answers.works), order_of(runnable, workloads, sensitivity, store, on_progress))


def refused_rows(grid: SweepGrid, refused: Mapping[str, str]) -> PricedFleet:
    """The rows of cells that can't be run."""
    sets = columns_of_cells(grid, OWN)
    cells = [(label, variant) for label, variant in grid.cells if label in refused]
    return PricedFleet([_refused_row(label, variant, sets, refused[label]) for label, variant in cells], 0)


def _priced_rows(
    grid: SweepGrid,
    cells: Sequence[tuple[str, Scenario]],
    refused: dict[str, str],
    answers: Answers,
    store: SweepRows | None,
    train: bool,
    on_progress: OnProgress,
) -> list[CellRow]:
    sets = columns_of_cells(grid, OWN)
    rows, failures = list[CellRow](), dict[str, Exception]()
    for index, (label, variant) in enumerate(cells):
        if not answers.beside:
            on_progress("combination", {"label": label, "index": index, "of": len(cells)})
        head = _head(label, variant, sets)
        row = store.known.get(label) if store and label not in refused else None
        with refusing(label, refused, grid):
            if row is None and label not in refused:
                row = CellRow(**vars(head), **vars(answers.cell_costs(label, variant)))
                if store:
                    store.add(row)
        if row is None:
            rows.append(_refused_row(label, variant, sets, refused[label]))
            if store:
                store.add(rows[-1])
            continue
        on_progress("found", {"what": f"{label}: {_row_words(row)}"})
        if train and store and not row.trained:
            try:
                row = replace(row, **answers.cell_run(label, variant)._asdict())
                store.add(row)
            except Exception as error:
                if not answers.beside:
                    raise
                failures[label] = error  # the other cells go on
        rows.append(row)
    if failures:
        told = "; ".join(f"{label}: {text_of(error)}" for label, error in failures.items())
        failure = RunError(f"{len(failures)} of {len(cells)} failed: {told}; go on with: the same command again")
        failure.exit_code = max(getattr(error, "exit_code", 1) for error in failures.values())
        raise failure
    return rows


def _row_words(row: CellRow) -> str:
    """The row in short, for the progress: ``38 % eligible, peak 986 KiB, round 48.9 ms``."""
    words = [
        f"{percent(row.eligible_share_at_hardest_stage)} eligible",
        f"peak {units.show_bytes(row.peak_memory_bytes)}",
    ]
    return ", ".join(
        [*words, *([] if row.round_seconds is None else [f"round {units.show_seconds(row.round_seconds)}"])]
    )


def _refused_row(label: str, variant: Scenario, sets: Mapping[str, Mapping[str, object]], why: str) -> CellRow:
    return CellRow(**vars(_head(label, variant, sets)), refused=why)


def _head(label: str, variant: Scenario, sets: Mapping[str, Mapping[str, object]]) -> CellHead:
    """What a cell sets."""
    return CellHead(label=label, sets=sets[label], method=variant.method_name, schedule=variant.schedule_name)
