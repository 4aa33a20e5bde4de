"""A run of a trial, played from rung to rung in its folder, and what plays runs: this process or workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from edgefl.cells.cells import kept_workers
from edgefl.cells.run_scenario import Executors, run_until
from edgefl.cells.workers import Cell, Outcome
from edgefl.errors import DivergedError
from edgefl.records.metrics import Metrics, metric_value
from edgefl.records.record import UNSET, Maybe, Record, part_of
from edgefl.records.rounds import EarlyStop, Round
from edgefl.runs import is_run, read_run
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario

Run = Callable[[Sequence[Cell]], Sequence[Outcome]]
"""Plays a list of cells, whose arguments are ``Playable``."""


class Playable(Protocol):
    """A run or trial that a worker plays in a cell, in its own folder."""

    def play(self, executors: Executors, on_progress: OnProgress) -> Any:
        """Play it, and return what the cell answers."""


class Reached(NamedTuple):
    """The metric at the round that was to be reached, None if the model diverged; rounds played; wall time."""

    score: float | None
    rounds: int
    diverged: str | None
    seconds: float


@part_of(Round)
class ScoredRound(Record):
    """What is read of a round."""

    round: int
    metrics: Metrics
    stopped: EarlyStop | Maybe | None = UNSET
    diverged: bool


class Advance(NamedTuple):
    """A run of a trial, the round that it is to reach, and the metric."""

    folder: Path
    label: str
    scenario: Scenario
    until: int
    metric: str

    def play(self, executors: Executors, on_progress: OnProgress) -> Reached:
        """Play the run up to the round, unless it was played already, and read what it scored there."""
        began = time.monotonic()

        def on_event(event: str, facts: Mapping[str, Any]) -> None:
            on_progress(event, {**facts, "rounds": self.until} if event == "start" else facts)

        played = _played_rounds(self.folder)
        if not played or not (played[-1].round >= self.until or played[-1].stopped or played[-1].diverged is True):
            try:
                run_until(self.folder, self.label, self.scenario, self.until, executors, on_event)
            except DivergedError:
                pass  # its last round says so
            played = _played_rounds(self.folder)
        seconds = time.monotonic() - began
        rounds = [each for each in played if each.round <= self.until]
        last = rounds[-1]
        if last.diverged is True:
            return Reached(None, last.round, f"the model diverged in round {last.round}", seconds)
        metrics = next(each.metrics for each in reversed(rounds) if each.metrics)
        return Reached(metric_value(metrics, self.metric), last.round, None, seconds)


def _played_rounds(folder: Path) -> list[ScoredRound]:
    return list(read_run(folder).read(ScoredRound)) if is_run(folder) else []


@contextmanager
def player(jobs: int, on_progress: OnProgress) -> Iterator[Run]:
    """What plays cells until the end: one after the other in this process, or ``jobs`` of them in others."""
    with ExitStack() as held:
        executors = Executors(held)

        def here(argument: Playable, on_event: OnProgress) -> Any:
            return argument.play(executors, on_event)

        yield held.enter_context(kept_workers(here if jobs == 1 else _in_worker, jobs, on_progress))


def _in_worker(argument: Playable, on_progress: OnProgress) -> Any:
    with ExitStack() as held:
        return argument.play(Executors(held), on_progress)
