"""What the cells of a sweep cost and what their runs give, computed in this process or by workers side by side."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from edgefl.cells.cells import Nodes, run_cells
from edgefl.cells.workers import Cell, Outcome
from edgefl.commands.run.command import run
from edgefl.commands.sweep.answer import CellCosts, TrainedCell
from edgefl.commands.sweep.cell_row import row_of
from edgefl.commands.sweep.stored_rows import RUNS, SweepRows
from edgefl.cost.predict import Predictor
from edgefl.devices import Fleet
from edgefl.errors import DivergedError, EdgeflError, RunError
from edgefl.planning.workload import Workload, workload_of
from edgefl.records.record import UNSET, or_nan
from edgefl.results.facts import facts_of
from edgefl.runs import is_run, read_run
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.setup.compose import compose, has_same_results, predictor_of
from edgefl.work import digest


class Answers:
    """What cells cost and what their runs give, computed one by one when it is asked for, or by workers side by side.

    ``beside`` is whether there are workers: more than one, or at an ``address``.
    """

    def __init__(
        self,
        cells: Sequence[tuple[str, Scenario]],
        refused: Mapping[str, str],
        store: SweepRows | None,
        train: bool,
        jobs: int,
        address: str | None,
        workloads: Workloads,
        on_progress: OnProgress,
    ):
        self._store, self._workloads, self._on_progress = store, workloads, on_progress
        wanted = []
        for label, scenario in cells:
            known = store.known.get(label) if store else None
            if label not in refused and (known is None or (train and not known.trained)):
                folder = store.folder / RUNS / label if store and train else None
                wanted.append(Cell(label, (label, scenario, folder, known is None), folder))
        self.beside = bool(wanted) if address is not None else jobs > 1 and len(wanted) > 1
        nodes = None
        if address is not None:
            scenarios = [cell.argument[1] for cell in wanted]
            nodes = Nodes(address, scenarios, [store.folder] if store and train else [], train)
        self._outcomes = run_cells(_compute_answer, wanted, jobs, on_progress, nodes) if self.beside else None
        self._latest: Outcome | None = None
        self._of_workers: set[str] = set()

    @property
    def works(self) -> Set[str]:
        """The cost keys of the works that were priced, here and by workers."""
        return self._of_workers | self._workloads.works

    def cell_costs(self, label: str, scenario: Scenario) -> CellCosts:
        """The costs of a cell's row; raises what refuses it."""
        if self._outcomes is None:
            return row_of(self._workloads.workload_for(scenario))
        answer = self._answer_for(label)
        assert answer.priced is not None
        return answer.priced

    def cell_run(self, label: str, scenario: Scenario) -> CellRun:
        """The fields that a cell's run adds; raises what ended it."""
        assert self._store is not None
        if self._outcomes is None:
            return run_cell(label, scenario, self._store.folder / RUNS / label, self._on_progress)
        answer = self._answer_for(label)
        if answer.error is not None:
            raise answer.error
        assert answer.trained is not None
        return answer.trained

    def _answer_for(self, label: str) -> SweepCellAnswer:
        """The answer for a cell; cells are asked for in their order."""
        assert self._outcomes is not None
        while self._latest is None or self._latest.label != label:
            self._latest = next(self._outcomes)
        if self._latest.error is not None:
            raise self._latest.error
        answer: SweepCellAnswer = self._latest.answer
        self._of_workers |= answer.works
        return answer

    def close(self) -> None:
        """End the workers."""
        if isinstance(self._outcomes, Generator):
            self._outcomes.close()


class CellRun(NamedTuple):
    """What a cell's run adds to its row."""

    metrics: Mapping[str, Mapping[str, float | None]]
    trained: TrainedCell


class SweepCellAnswer(NamedTuple):
    """A cell's costs, unless they are known, its run or the error that ended it, and the cost keys of works that the
    worker priced since its last answer."""

    works: frozenset[str]
    priced: CellCosts | None = None
    trained: CellRun | None = None
    error: EdgeflError | None = None


def _compute_answer(argument: tuple[str, Scenario, Path | None, bool], on_progress: OnProgress) -> SweepCellAnswer:
    """The answer for a cell; in a worker process."""
    label, scenario, folder, unpriced = argument
    workloads = _shared_workloads()
    priced = row_of(workloads.workload_for(scenario)) if unpriced else None
    works = workloads.untold()
    if folder is None:
        return SweepCellAnswer(works, priced)
    try:
        return SweepCellAnswer(works, priced, run_cell(label, scenario, folder, on_progress))
    except EdgeflError as error:
        return SweepCellAnswer(works, priced, error=error)


@cache
def _shared_workloads() -> Workloads:
    """The workloads of all cells of a worker process, which share predictions."""
    return Workloads(silent, keeping=False)


MOST_HELD = 32
"""Workloads that are held for cells with other budgets, the latest first: one of the quickstart takes .4 MB."""
MOST_CLIENTS = 100_000
"""Clients of these together, because a cell may have a million."""


class Workloads:
    """The workloads of cells; with ``keeping``, each is predicted once and cached."""

    def __init__(self, on_progress: OnProgress, *, keeping: bool):
        self._on_progress, self._keeping = on_progress, keeping
        self._predictors: dict[str, Predictor] = {}
        self._known: dict[int, Workload] = {}
        self._held: dict[str, Workload] = {}
        self._told: set[str] = set()

    @property
    def works(self) -> Set[str]:
        """The cost keys of the works that were priced."""
        return {key for predictor in self._predictors.values() for key in predictor.keys}

    def untold(self) -> frozenset[str]:
        """Those that this function hasn't returned yet."""
        works = frozenset(self.works - self._told)
        self._told |= works
        return works

    def workload_for(self, scenario: Scenario) -> Workload:
        """The workload of this scenario object."""
        if id(scenario) in self._known:
            return self._known[id(scenario)]
        # what works cost doesn't depend on budgets
        resolved = scenario.to_data()
        fleet = {name: value for name, value in resolved["fleet"].items() if name != "budgets"}
        key = digest({**resolved, "fleet": fleet, "compare": None})
        if (workload := self._held.pop(key, None)) is not None:
            clients = len(workload.setup.clients.client_kind)
            setup = replace(workload.setup, fleet=Fleet.draw(scenario.fleet, clients, scenario.seed))
            workload = replace(workload, setup=setup)
        else:
            predictor = self._predictors.setdefault(scenario.executor.device_type, predictor_of(scenario))
            setup = compose(scenario, messages(self._on_progress), trains=False)
            workload = workload_of(setup, predictor)
        self._held[key] = workload
        while len(self._held) > 1 and (len(self._held) > MOST_HELD or self._clients_held() > MOST_CLIENTS):
            del self._held[next(iter(self._held))]
        # not by default: a thousand cells of a million clients would exceed the memory.  The sweep's list of cells
        # holds the scenarios, so that an id isn't given again
        if self._keeping:
            self._known[id(scenario)] = workload
        return workload

    def _clients_held(self) -> int:
        return sum(len(workload.setup.clients.client_kind) for workload in self._held.values())


def run_cell(label: str, scenario: Scenario, folder: Path, on_progress: OnProgress) -> CellRun:
    """Run a cell in ``folder``, or resume the run of an earlier sweep, and return the fields that its row gets.

    A run that diverged has no metrics of an earlier round, since these are on another split than those of other cells,
    and ``trained.diverged`` says where it stopped.  Raises RunError if
    the folder holds another scenario's run, and what else ``edgefl.run`` raises.
    """

    def on_event(event: str, facts: Mapping[str, object]) -> None:
        if event not in ("combination", "done"):  # a run is only part of the sweep
            on_progress(event, facts)

    diverged: str | None = None
    if (resumed := is_run(folder)) and not has_same_results(read_run(folder).scenario, scenario.to_data()):
        raise RunError(f"{folder} holds the run of another scenario; choose another --out")
    try:
        if resumed:
            done = run(resume=folder, on_progress=on_event)
        else:
            done = run(scenario, out=folder, on_progress=on_event)
    except DivergedError as error:  # the other cells go on
        done, diverged = read_run(folder), str(error)
    facts = facts_of(done, label)
    totals = facts.totals
    return CellRun(
        {kind: dict(values) for kind, values in facts.metrics_on(scenario.evaluation.final).items()},
        TrainedCell(
            rounds=facts.rounds,
            outcomes=facts.outcomes,
            virtual_seconds=facts.virtual_seconds,
            updates=totals.finished,
            carried_download_bytes=totals.carried_download_bytes,
            carried_upload_bytes=totals.carried_upload_bytes,
            energy_joules=or_nan(totals.energy_joules),
            clients_that_took_part=facts.everyone.took_part,
            metrics_round=facts.metrics_round,
            metrics_split=facts.metrics_split,
            diverged=diverged or UNSET,
        ),
    )
