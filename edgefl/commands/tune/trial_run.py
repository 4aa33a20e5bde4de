"""A run of a trial: played from rung to rung in its folder, here or in a worker process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from edgefl.cells.run_scenario import Executors, run_until
from edgefl.errors import DivergedError
from edgefl.records.record import UNSET, Maybe, Record, part_of
from edgefl.records.rounds import EarlyStop, Metrics, Round, metric_value
from edgefl.runs import is_run, read_run
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario


class Advance(NamedTuple):
    """A run of a trial, the round that it is to reach, and the metric."""

    folder: Path
    label: str
    scenario: Scenario
    until: int
    metric: str


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


def in_worker(argument: Advance, on_progress: OnProgress) -> Reached:
    """``advance_run`` in a worker process."""
    with ExitStack() as stack:
        return advance_run(argument, Executors(stack), on_progress)


def advance_run(argument: Advance, executors: Executors, on_progress: OnProgress) -> Reached:
    """Play a run up to a round, unless it was played already, and read what it scored there."""
    folder, label, scenario, until, metric = argument
    began = time.monotonic()

    def on_event(event: str, facts: Mapping[str, Any]) -> None:
        on_progress(event, {**facts, "rounds": until} if event == "start" else facts)

    played = _played_rounds(folder)
    if not played or not (played[-1].round >= until or played[-1].stopped or played[-1].diverged is True):
        try:
            run_until(folder, label, scenario, until, executors, on_event)
        except DivergedError:
            pass  # its last round says so
        played = _played_rounds(folder)
    seconds = time.monotonic() - began
    rounds = [each for each in played if each.round <= until]
    last = rounds[-1]
    if last.diverged is True:
        return Reached(None, last.round, f"the model diverged in round {last.round}", seconds)
    metrics = next(each.metrics for each in reversed(rounds) if each.metrics)
    return Reached(metric_value(metrics, metric), last.round, None, seconds)


def _played_rounds(folder: Path) -> list[ScoredRound]:
    return list(read_run(folder).read(ScoredRound)) if is_run(folder) else []
