"""The runs of a suite, trained in their folders by the workers that also play trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from edgefl.cells.run_scenario import Executors, run_undrawn
from edgefl.cells.workers import Cell
from edgefl.commands.bench.priced_fleets import FleetCells
from edgefl.commands.tune.trial_run import Run
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

    def play(self, executors: Executors, on_progress: OnProgress) -> None:
        """Play the run in its folder, or go on with it, from the first round to the last."""
        run_undrawn(self.folder, self.label, self.scenario, executors, on_progress)


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
