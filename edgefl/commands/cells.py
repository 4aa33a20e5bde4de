"""Running the cells of a grid, in this process or side by side in worker processes.

``run_cells`` is all that commands know of it, so that other machines may run cells without a change of a command.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import re
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

from edgefl import registry
from edgefl.commands.progress import OnProgress
from edgefl.errors import EdgeflError, RunError

TRIES = 2
"""How often a cell is begun whose worker process ends unexpectedly."""
PATIENCE = 10.0
"""Seconds that a worker without a cell has to end by itself."""

Item = TypeVar("Item")
Work = Callable[[Any, OnProgress], Any]
"""What is done for a cell: a function of a module, called with the cell's argument and a callback for progress."""


class Cell(NamedTuple):
    """A cell's label, and the argument for the work; with several jobs it is pickled."""

    label: str
    argument: Any


class Outcome(NamedTuple):
    """What a cell's work returned, or the error that it raised."""

    label: str
    answer: Any = None
    error: Exception | None = None


def run_cells(work: Work, cells: Sequence[Cell], jobs: int, on_progress: OnProgress) -> Iterator[Outcome]:
    """Do the work of each cell and yield the outcomes in the order of ``cells``; an error ends its own cell only.

    With more than one job that many worker processes are spawned, and a cell whose worker ends is begun once more.
    ``on_progress`` then gets ``cell`` events, one display for all: ``label``, ``status`` (the round under way, or
    "done" or "failed"), ``done`` and ``of`` cells, the ``share`` of all work, and ``running`` with the status by label.
    Workers end when the iterator is closed.
    """
    jobs = min(jobs, len(cells))
    if jobs > 1:
        yield from _Workers(work, cells, jobs, on_progress).outcomes()
        return
    for cell in cells:
        yield _outcome(work, cell, on_progress)


def check_jobs(jobs: int) -> None:
    """Raise RunError unless this can be a number of worker processes."""
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise RunError(f"jobs must be 1 or more, not {jobs!r:.40}")


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


def _outcome(work: Work, cell: Cell, on_progress: OnProgress) -> Outcome:
    try:
        with registry.named_faults():
            return Outcome(cell.label, work(cell.argument, on_progress))
    except Exception as error:
        return Outcome(cell.label, error=error)


# --- worker processes ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Worker:
    """A worker process, the pipe to it, and the index of the cell that it runs."""

    process: BaseProcess
    pipe: Connection
    index: int | None = None


@dataclass
class _Workers:
    """Worker processes that take one cell after the other.

    They aren't daemons, since the executor of a cell may have workers of its own.
    """

    work: Work
    cells: Sequence[Cell]
    jobs: int
    on_progress: OnProgress
    workers: list[_Worker] = field(default_factory=list)
    shares: dict[int, float] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    over: int = 0

    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes in the order of the cells."""
        waiting, ended = deque(range(len(self.cells))), dict[int, Outcome]()
        tries = [0] * len(self.cells)
        try:
            for index in range(len(self.cells)):
                while index not in ended:
                    self._feed(waiting, tries)
                    for worker in self._ready():
                        outcome = self._heard(worker, waiting, tries)
                        if outcome is not None:
                            position, ended[position] = outcome[0], outcome[1]
                yield ended[index]
        finally:
            self._end()

    def _feed(self, waiting: deque[int], tries: list[int]) -> None:
        """Give each idle worker a cell, and start workers as long as cells wait."""
        while waiting:
            worker = next((each for each in self.workers if each.index is None), None)
            if worker is None:
                if len(self.workers) >= self.jobs:
                    return
                worker = self._started()
            index = waiting.popleft()
            tries[index] += 1
            worker.index = index
            with suppress(OSError):  # a worker that has ended is noticed when it is heard
                worker.pipe.send(self.cells[index])

    def _started(self) -> _Worker:
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        arguments = (there, self.work, sys.path, registry.for_workers())
        process = spawn.Process(target=_serve, args=arguments)
        process.start()
        there.close()  # so that the pipe ends with the worker
        worker = _Worker(process, here)
        self.workers.append(worker)
        return worker

    def _ready(self) -> list[_Worker]:
        by_pipe = {id(worker.pipe): worker for worker in self.workers}
        return [by_pipe[id(pipe)] for pipe in wait([worker.pipe for worker in self.workers])]

    def _heard(self, worker: _Worker, waiting: deque[int], tries: list[int]) -> tuple[int, Outcome] | None:
        """Take a worker's message; returns the cell's index and outcome if that is what it is."""
        index = worker.index
        try:
            what, *facts = worker.pipe.recv()
        except (EOFError, OSError):
            self._dead(worker)
            if index is None:
                return None
            cell, code = self.cells[index], worker.process.exitcode
            if tries[index] < TRIES:
                warnings.warn(f"{cell.label}: {_how_ended(code)}; it is begun once more", RuntimeWarning, stacklevel=2)
                waiting.appendleft(index)
                return None
            failure = RunError(f"{_how_ended(code)}, {TRIES} times")
            failure.exit_code = 1
            return self._ended(index, Outcome(cell.label, error=failure))
        assert index is not None
        if what == "warning":
            warnings.warn(facts[0], RuntimeWarning, stacklevel=2)
        elif what == "event":
            self._event(index, *facts)
        else:
            worker.index = None
            return self._ended(index, facts[0])
        return None

    def _event(self, index: int, event: str, facts: Mapping[str, Any]) -> None:
        label = self.cells[index].label
        if event == "start":
            self.shares[index] = facts["round"] / facts["rounds"] if facts["rounds"] else 0.0
            self._tell(label, f"{facts['rounds']} rounds", started=True)
        elif event == "record":
            self.shares[index] = facts["round"] / facts["rounds"]
            self._tell(label, f"round {facts['round']}/{facts['rounds']}")

    def _ended(self, index: int, outcome: Outcome) -> tuple[int, Outcome]:
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

    def _dead(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.process.join(PATIENCE)
        worker.pipe.close()

    def _end(self) -> None:
        """End all workers: an idle one by itself, one that runs a cell at once; its run can be resumed."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.index is not None:
                worker.process.kill()
        for worker in self.workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers.clear()


def _how_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its worker process was ended by signal {signal.Signals(-code).name}"
    return f"its worker process ended unexpectedly, with exit code {code}"


def _serve(pipe: Connection, work: Work, path: list[str], registered: registry.ForWorkers) -> None:
    """Run the cells that come through the pipe until it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent process ends the workers
    sys.path[:] = path
    rounds = 0

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        nonlocal rounds
        if event == "start":
            rounds = facts["rounds"]
            pipe.send(("event", event, {"round": facts["round"], "rounds": rounds}))
        elif event == "record":
            pipe.send(("event", event, {"round": facts["round"], "rounds": rounds}))

    def on_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        pipe.send(("warning", str(message)))

    refusal: Exception | None = None
    try:
        registry.adopt(registered)
    except Exception as error:  # each cell says so
        refusal = error
    with warnings.catch_warnings():
        warnings.showwarning = on_warning
        while True:
            try:
                cell = pipe.recv()
            except (EOFError, OSError):
                return
            outcome = _outcome(work, cell, on_progress) if refusal is None else Outcome(cell.label, error=refusal)
            pipe.send(("outcome", outcome if _travels(outcome) else _told(outcome)))


def _travels(outcome: Outcome) -> bool:
    """Whether an outcome survives the pipe; copying an exception makes it anew from its arguments, as the pipe does."""
    if outcome.error is None:
        return True
    if not isinstance(outcome.error, EdgeflError):
        return False  # its class may be one that the parent can't import
    try:
        return str(copy.copy(outcome.error)) == str(outcome.error)
    except Exception:  # whatever its class does
        return False


def _told(outcome: Outcome) -> Outcome:
    failure = RunError(registry.said(outcome.error) if outcome.error is not None else "its result can't be sent")
    failure.exit_code = getattr(outcome.error, "exit_code", 1)
    return Outcome(outcome.label, error=failure)


def _end_with_parent() -> None:
    """End this worker when its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
