"""Works that worker processes price side by side, for commands that price many; prices are those of one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from edgefl import start_method
from edgefl.cells.cells import RequestedCells
from edgefl.cells.workers import Cell
from edgefl.cost.predict import Predictor
from edgefl.cost.traced_ahead import PriceRequest
from edgefl.machine.host import free_bytes
from edgefl.planning.planner import Planner
from edgefl.runs.progress import OnProgress
from edgefl.setup.compose import predictor_for
from edgefl.work import StepTrace

ALONE = 4
"""So many works are priced by the command's own process: workers' server imports torch first (1.3 s, a work 0.5 s)."""

JOB_BYTES = 2**30
"""Memory for which a worker is planned by default: 220 MiB with torch, and the modules of a model without their values.

A choice, not measured: with less, a machine of many cores and little memory swaps.
"""


def most_jobs() -> int:
    """The jobs that a command has by default: one for each core, as far as there is memory for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, free_bytes() // JOB_BYTES))


class Pricing:
    """Worker processes that price works (``edgefl.cost.Ahead``); they start with the first work."""

    def __init__(self, jobs: int):
        self._asked = RequestedCells(_trace_work, jobs)

    @property
    def idle(self) -> int:
        """How many more works would begin at once."""
        return self._asked.idle

    def pays(self, predicted: int) -> bool:
        """Whether workers are worth their start after so many works that this process has predicted.

        A little before, their server begins to import what they need.
        """
        if predicted >= ALONE // 2:
            start_method.begin(__name__)
        return predicted >= ALONE

    def begin(self, wanted: PriceRequest) -> None:
        """Let a worker price a work, unless one has or does."""
        if wanted.key not in self._asked:
            self._asked.begin(Cell(wanted.key, wanted))

    def take(self, key: str) -> StepTrace | None:
        """The trace of a work; None if it wasn't begun, or failed: then its error comes where it is priced again."""
        if key not in self._asked:
            return None
        answer: StepTrace | None = self._asked.take(key).answer
        return answer

    def close(self) -> None:
        """End the workers."""
        self._asked.close()


@contextmanager
def beside(predictors: Sequence[Predictor], jobs: int | None) -> Iterator[Pricing | None]:
    """Let worker processes price works for these predictors, by default ``most_jobs``; None with one job."""
    jobs = most_jobs() if jobs is None else jobs
    if jobs == 1:
        yield None
        return
    pricing = Pricing(jobs)
    for predictor in predictors:
        predictor.ahead = pricing
    try:
        yield pricing
    finally:
        for predictor in predictors:
            predictor.ahead = None
        pricing.close()


@contextmanager
def parallel_pricing(
    wanted: Callable[[Planner], Iterator[PriceRequest]], planners: Sequence[Planner], jobs: int | None
) -> Iterator[None]:
    """Let worker processes price what is ``wanted`` of these planners, if more than ``ALONE`` works aren't known."""
    with beside([planner.predictor for planner in planners], jobs) as pricing:
        if pricing is not None:
            unknown = {
                work.key: work
                for planner in planners
                for work in wanted(planner)
                if not planner.predictor.knows(work.work, work.key)
            }
            if len(unknown) > ALONE:
                for work in unknown.values():
                    pricing.begin(work)
        yield


@cache
def _predictor(device: str) -> Predictor:
    return predictor_for(device)


def _trace_work(wanted: PriceRequest, on_progress: OnProgress) -> StepTrace:
    """The trace of a work; in a worker process."""
    return _predictor(wanted.device).trace(wanted.work, wanted.shapes, wanted.key)
