"""Works that worker processes price side by side, for commands that price many; prices are those of one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from edgefl import start_method
from edgefl.commands.cells.cells import Asked
from edgefl.commands.cells.workers import Cell
from edgefl.commands.compose import predictor_for
from edgefl.commands.progress import OnProgress
from edgefl.cost import Predictor, Wanted
from edgefl.machine.host import free_bytes
from edgefl.work import Trace

ALONE = 4
"""So many works are priced by the command's own process: workers take longer to start."""

JOB_BYTES = 2**30
"""Memory for which a worker is planned by default."""


def most_jobs() -> int:
    """The jobs that a command has by default: one for each core, as far as there is memory for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, free_bytes() // JOB_BYTES))


class Pricing:
    """Worker processes that price works (``edgefl.cost.Ahead``); they start with the first work."""

    def __init__(self, device: str, jobs: int):
        self._device = device
        self._asked = Asked(_priced, jobs)

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

    def begin(self, wanted: Wanted) -> None:
        """Let a worker price a work, unless one has or does."""
        if wanted.key not in self._asked:
            self._asked.begin(Cell(wanted.key, (self._device, wanted)))

    def take(self, key: str) -> Trace | None:
        """The trace of a work; None if it wasn't begun, or failed: then its error comes where it is priced again."""
        if key not in self._asked:
            return None
        answer: Trace | None = self._asked.take(key).answer
        return answer

    def close(self) -> None:
        """End the workers."""
        self._asked.close()


@contextmanager
def beside(predictor: Predictor, jobs: int) -> Iterator[Pricing | None]:
    """Let worker processes price works for this predictor; None with one job."""
    if jobs == 1:
        yield None
        return
    pricing = predictor.ahead = Pricing(predictor.device, jobs)
    try:
        yield pricing
    finally:
        predictor.ahead = None
        pricing.close()


@cache
def _predictor(device: str) -> Predictor:
    return predictor_for(device)


def _priced(argument: tuple[str, Wanted], on_progress: OnProgress) -> Trace:
    """The trace of a work; in a worker process."""
    device, wanted = argument
    return _predictor(device).trace(wanted.work, wanted.shapes, wanted.key)
