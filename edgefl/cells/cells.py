"""Running the cells of a grid: in this process, side by side in worker processes, or on the nodes of a Ray cluster."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from edgefl.cells.processes import ProcessCells
from edgefl.cells.workers import AnyWorker, Cell, Outcome, Work, WorkerEnded, WorkerHost, outcome_of
from edgefl.errors import RunError
from edgefl.runs.progress import OnProgress, silent

if TYPE_CHECKING:
    from edgefl.scenario import Scenario

TRIES = 2
"""How often a cell is begun whose worker process ends unexpectedly.

Once more helps if the system's killer took it for the memory of others; a cell that needs too much itself ends again.
"""

Item = TypeVar("Item")


class Nodes(NamedTuple):
    """The nodes that cells run on: the cluster's address, the cells' scenarios, and the folders that they write to.

    ``trains`` is false if cells are only priced.
    """

    address: str
    scenarios: Sequence[Scenario]
    folders: Sequence[Path]
    trains: bool = True


def run_cells(
    work: Work, cells: Sequence[Cell], jobs: int, on_progress: OnProgress, nodes: Nodes | None = None
) -> Iterator[Outcome]:
    """Do the work of each cell and yield the outcomes in the order of ``cells``; an error ends its own cell only.

    With more than one job that many worker processes start, and a cell whose worker ends is begun once more.
    With ``nodes`` each job is an actor on them instead.  Raises RunError if they can't be used.
    ``on_progress`` then gets ``cell`` events, one display for all: ``label``, ``status`` (the round under way, or
    "done" or "failed"), ``done`` and ``of`` cells, the ``share`` of all work, and ``running`` with the status by label.
    Workers end when the iterator is closed.
    """
    jobs = min(jobs, len(cells))
    if nodes is not None and cells:
        from edgefl.cells.on_ray import Actors  # the extra takes long to import

        yield from _Workers(cells, jobs, on_progress, Actors(work, nodes, on_progress)).outcomes()
        return
    if jobs > 1:
        yield from _Workers(cells, jobs, on_progress, ProcessCells(work)).outcomes()
        return
    for cell in cells:
        yield outcome_of(work, cell, on_progress)


@contextmanager
def kept_workers(work: Work, jobs: int, on_progress: OnProgress) -> Iterator[Callable[[Sequence[Cell]], list[Outcome]]]:
    """Yield what does ``run_cells`` for one list of cells after the other and returns each list's outcomes.

    Worker processes stay alive from one list to the next, until the context ends.  With one job there are none.
    """
    place, workers = ProcessCells(work), list[Any]()

    def run(cells: Sequence[Cell]) -> list[Outcome]:
        if jobs == 1:
            outcomes = []
            for index, cell in enumerate(cells):
                on_progress("combination", {"label": cell.label, "index": index, "of": len(cells)})
                outcomes.append(outcome_of(work, cell, on_progress))
            return outcomes
        return list(_Workers(cells, jobs, on_progress, place, workers, keeps=True).outcomes())

    try:
        yield run
    finally:
        place.close(workers)


class RequestedCells:
    """Cells that worker processes run as they are asked for, and whose outcomes are taken by label.

    Workers start when cells wait, and end with ``close``.
    """

    def __init__(self, work: Work, jobs: int):
        self._cells = list[Cell]()
        self._workers = _Workers(self._cells, jobs, silent, ProcessCells(work))
        self._waiting, self._tries = deque[int](), list[int]()
        self._places: dict[str, int] = {}
        self._ended: dict[int, Outcome] = {}

    def __contains__(self, label: str) -> bool:
        return label in self._places

    @property
    def idle(self) -> int:
        """How many more cells would begin at once."""
        return self._workers.jobs - (len(self._places) - len(self._ended))

    def begin(self, cell: Cell) -> None:
        """Let a worker run this cell, as soon as one has nothing else to do."""
        index = self._places[cell.label] = len(self._cells)
        self._cells.append(cell)
        self._tries.append(0)
        self._waiting.append(index)
        self._workers._feed(self._waiting, self._tries)

    def take(self, label: str) -> Outcome:
        """The outcome of a cell that was begun; waits for it."""
        index = self._places[label]
        if index in self._waiting:  # it is wanted first
            self._waiting.remove(index)
            self._waiting.appendleft(index)
        while index not in self._ended:
            self._workers._feed(self._waiting, self._tries)
            for worker in self._workers.place.ready(self._workers.workers):
                if (ended := self._workers._take_message(worker, self._waiting, self._tries)) is not None:
                    self._ended[ended[0]] = ended[1]
            self._workers._feed(self._waiting, self._tries)
        return self._ended[index]

    def close(self) -> None:
        """End the workers."""
        self._workers.place.close(self._workers.workers)


def check_jobs(jobs: int, address: str | None = None) -> None:
    """Raise RunError unless this can be a number of jobs, and something listens at the address if there is one."""
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise RunError(f"jobs must be 1 or more, not {jobs!r:.40}")
    if address is not None:
        from edgefl.cells.on_ray import check_address

        check_address(jobs, address)


def shard_of(text: str) -> tuple[int, int]:
    """``(k, m)`` of a shard written as K/M.  Raises RunError unless 1 <= K <= M."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text) if isinstance(text, str) else None
    if found is None:
        raise RunError(f"shard {text!r:.60}: write it as K/M, such as 3/50")
    k, m = int(found[1]), int(found[2])
    if not 1 <= k <= m:
        raise RunError(f"shard {text}: K must be from 1 to M" + (f", here {m}" if m else ", and M 1 or more"))
    return k, m


def share_of(items: Sequence[Item], shard: tuple[int, int] | None) -> list[Item]:
    """The items of a shard, every M-th from the K-th on; all of them without a shard."""
    return list(items) if shard is None else list(items[shard[0] - 1 :: shard[1]])


# --- workers ---------------------------------------------------------------------------------------------------------


@dataclass
class _Workers(Generic[AnyWorker]):
    """Workers that take one cell after the other; they end with the last one, unless ``keeps``."""

    cells: Sequence[Cell]
    jobs: int
    on_progress: OnProgress
    place: WorkerHost[AnyWorker]
    workers: list[AnyWorker] = field(default_factory=list)
    keeps: bool = False
    shares: dict[int, float] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    over: int = 0

    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes in the order of the cells."""
        waiting, ended = deque(range(len(self.cells))), dict[int, Outcome]()
        tries = [0] * len(self.cells)
        try:
            self.workers += self.place.first(self.jobs)
            for index in range(len(self.cells)):
                while index not in ended:
                    self._feed(waiting, tries)
                    for worker in self.place.ready(self.workers):
                        outcome = self._take_message(worker, waiting, tries)
                        if outcome is not None:
                            position, ended[position] = outcome[0], outcome[1]
                yield ended[index]
        finally:
            if not self.keeps:
                self.place.close(self.workers)

    def _feed(self, waiting: deque[int], tries: list[int]) -> None:
        """Give each idle worker a cell, and start workers as long as cells wait."""
        while waiting:
            worker = next((each for each in self.workers if each.index is None and each.begun), None)
            if worker is None:
                if len(self.workers) >= self.jobs:
                    return
                self.workers.append(self.place.start_worker())
                continue
            index = waiting.popleft()
            tries[index] += 1
            worker.index = index
            worker.give(self.cells[index], again=tries[index] > 1)

    def _take_message(self, worker: AnyWorker, waiting: deque[int], tries: list[int]) -> tuple[int, Outcome] | None:
        """Take a worker's message; returns the cell's index and outcome if that is what it is."""
        index = worker.index
        try:
            what, *facts = worker.take()
        except WorkerEnded as how:
            self.workers.remove(worker)
            if index is None:
                if not worker.begun:
                    self._one_less(str(how))
                return None
            cell = self.cells[index]
            if tries[index] < TRIES:
                warnings.warn(f"{cell.label}: {how}; it is begun once more", RuntimeWarning, stacklevel=2)
                waiting.appendleft(index)
                return None
            failure = RunError(f"{how}, {TRIES} times")
            failure.exit_code = 1
            return self._end_cell(index, Outcome(cell.label, error=failure))
        if what == "begun":
            return None
        assert index is not None
        if what == "warning":
            warnings.warn(facts[0], RuntimeWarning, stacklevel=2)
        elif what == "event":
            self._event(index, *facts)
        else:
            worker.index = None
            return self._end_cell(index, facts[0])
        return None

    def _event(self, index: int, event: str, facts: Mapping[str, int]) -> None:
        label = self.cells[index].label
        if event == "start":
            self.shares[index] = facts["round"] / facts["rounds"] if facts["rounds"] else 0.0
            self._tell(label, f"{facts['rounds']} rounds", started=True)
        elif event == "record":
            self.shares[index] = facts["round"] / facts["rounds"]
            self._tell(label, f"round {facts['round']}/{facts['rounds']}")

    def _end_cell(self, index: int, outcome: Outcome) -> tuple[int, Outcome]:
        self.shares[index] = 1.0
        self.over += 1
        self._tell(outcome.label, "failed" if outcome.error else "done")
        return index, outcome

    def _tell(self, label: str, status: str, *, started: bool = False) -> None:
        over = status in ("done", "failed")
        self.running = {name: now for name, now in self.running.items() if name != label}
        if not over:
            self.running[label] = status
        self.on_progress(
            "cell",
            {
                "label": label,
                "status": status,
                "started": started,
                "done": self.over if over else None,
                "of": len(self.cells),
                "share": sum(self.shares.values()) / len(self.cells),
                "running": dict(self.running),
            },
        )

    def _one_less(self, why: str) -> None:
        """Go on without a worker that can't take another's place.  Raises RunError if it was the last one."""
        self.jobs -= 1
        if not self.jobs:
            raise RunError(f"no worker is left: {why}")
        warnings.warn(f"one job less from now on, {self.jobs}: {why}", RuntimeWarning, stacklevel=2)
