"""Cells and their outcomes, workers that run them, and what a worker does with a cell wherever it is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from edgefl import registry
from edgefl.errors import EdgeflError, RunError
from edgefl.runs.progress import OnProgress

Work = Callable[[Any, OnProgress], Any]
"""What is done for a cell: a function of a module, called with the cell's argument and a callback for progress."""


class Cell(NamedTuple):
    """A cell's label, the argument for the work, which is pickled if there are workers, and the run's folder if any."""

    label: str
    argument: Any
    folder: Path | None = None


class Outcome(NamedTuple):
    """What a cell's work returned, or the error that it raised."""

    label: str
    answer: Any = None
    error: Exception | None = None


class WorkerEnded(Exception):
    """A worker has ended; the message says how."""


class CellWorker(Protocol):
    """Something that runs cells one after the other; ``index`` is that of its cell, ``begun`` whether it takes one."""

    index: int | None
    begun: bool

    def give(self, cell: Cell, *, again: bool) -> None:
        """Let it run a cell; ``again`` if the cell's first worker was lost."""

    def take(self) -> tuple[Any, ...]:
        """Its next message: ``begun``, ``warning`` with a text, ``event`` with facts, or ``outcome``.  Raises Lost."""


AnyWorker = TypeVar("AnyWorker", bound=CellWorker)


class WorkerHost(Protocol[AnyWorker]):
    """Where workers are."""

    def first(self, number: int) -> list[AnyWorker]:
        """Workers that are started before any cell; others are started when a cell waits."""

    def start_worker(self) -> AnyWorker:
        """One more worker."""

    def ready(self, workers: Sequence[AnyWorker]) -> list[AnyWorker]:
        """Those that have a message; waits for the first."""

    def close(self, workers: Sequence[AnyWorker]) -> None:
        """End all workers; the run of a cell under way can be resumed."""


# --- in a worker -----------------------------------------------------------------------------------------------------

Send = Callable[[tuple[Any, ...]], None]


def outcome_of(work: Work, cell: Cell, on_progress: OnProgress) -> Outcome:
    """What the cell's work returns, or the error that it raises."""
    try:
        with registry.named_faults():
            return Outcome(cell.label, work(cell.argument, on_progress))
    except Exception as error:
        return Outcome(cell.label, error=error)


def tell_warnings(send: Send) -> None:
    """Send warnings of this process as messages."""

    def on_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        send(("warning", str(message)))

    warnings.showwarning = on_warning


def serve_cell(work: Work, cell: Cell, send: Send) -> Outcome:
    """Run a cell in a worker, and send its events; the outcome that it returns can be sent."""
    rounds = 0

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        nonlocal rounds
        if event == "start":
            rounds = facts["rounds"]
        if event in ("start", "record"):
            send(("event", event, {"round": facts["round"], "rounds": rounds}))

    return sendable_outcome(outcome_of(work, cell, on_progress))


def sendable_outcome(outcome: Outcome) -> Outcome:
    """The outcome, or where it can't be sent one that says the same in words."""
    if _is_sendable(outcome):
        return outcome
    failure = RunError(registry.error_text(outcome.error) if outcome.error is not None else "its result can't be sent")
    failure.exit_code = getattr(outcome.error, "exit_code", 1)
    return Outcome(outcome.label, error=failure)


def _is_sendable(outcome: Outcome) -> bool:
    """Whether an outcome survives the pipe; copying an exception makes it anew from its arguments, as the pipe does."""
    if outcome.error is None:
        return True
    if not isinstance(outcome.error, EdgeflError):
        return False  # its class may be one that the parent can't import
    try:
        return str(copy.copy(outcome.error)) == str(outcome.error)
    except Exception:  # whatever its class does
        return False
