"""The runs of a suite, trained in their folders by the workers that also play trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from edgefl.cells.cells import kept_workers
from edgefl.cells.run_scenario import Executors, run_undrawn
from edgefl.cells.workers import Cell
from edgefl.commands.bench.priced_fleets import FleetCells
from edgefl.commands.tune.batches import Run
from edgefl.commands.tune.trial_run import Advance, advance_run
from edgefl.errors import DivergedError, text_of
from edgefl.runs import is_run, read_run
from edgefl.runs.folders import check_finished
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario


class RunToTrain(NamedTuple):
    """A run that is to be trained."""

    folder: Path
    label: str
    scenario: Scenario


@contextmanager
def player(jobs: int, on_progress: OnProgress) -> Iterator[Run]:
    """What plays trials and runs until the end: one after the other in this process, or ``jobs`` of them in others."""
    with ExitStack() as held:
        executors = Executors(held)

        def here(argument: Advance | RunToTrain, on_event: OnProgress) -> Any:
            return _play_cell(argument, executors, on_event)

        yield held.enter_context(kept_workers(here if jobs == 1 else _in_worker, jobs, on_progress))


def train_runs(fleets: Sequence[FleetCells], folder: Path, run: Run, on_progress: OnProgress) -> dict[str, str]:
    """Train each run that some cell needs and that isn't finished; returns why some failed, by folder.

    Raises RunError for a finished run whose files were changed.
    """
    cells: dict[str, Cell] = {}
    for fleet in fleets:
        for each in (cell for of_variant in fleet.cells.values() for cell in of_variant):
            if each.eligible_share and each.run not in cells and not _has_finished_run(folder / each.run):
                label = f"{each.variant}, {fleet.name}, seed {each.seed}"
                cells[each.run] = Cell(label, RunToTrain(folder / each.run, label, each.scenario), folder / each.run)
    on_progress("prepare", {"what": f"{len(cells)} runs"})
    failed: dict[str, str] = {}
    for name, outcome in zip(cells, run(list(cells.values())) if cells else (), strict=True):
        if outcome.error is not None and not isinstance(outcome.error, DivergedError):
            failed[name] = f"{outcome.label}: {text_of(outcome.error)}"
    return failed


def _has_finished_run(folder: Path) -> bool:
    if not is_run(folder) or not read_run(folder).is_finished:
        return False
    check_finished(folder)
    return True


def _in_worker(argument: Advance | RunToTrain, on_progress: OnProgress) -> Any:
    """``_play_cell`` in a worker process."""
    with ExitStack() as stack:
        return _play_cell(argument, Executors(stack), on_progress)


def _play_cell(argument: Advance | RunToTrain, executors: Executors, on_progress: OnProgress) -> Any:
    """Play a trial's rounds, or a whole run."""
    if isinstance(argument, Advance):
        return advance_run(argument, executors, on_progress)
    run_undrawn(argument.folder, argument.label, argument.scenario, executors, on_progress)
    return None
