"""Worker processes that stay from test to test: one that is asked for other data opens them."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from edgefl.data import DataOptions
from edgefl.training import Report, Task, executors

Data = tuple[str, int, int, str | None, str]
"""What a worker opens: as ``Processes`` is told."""


class Resident:
    """One worker for everybody.  Called as ``Processes`` is, it gives an executor that never closes."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.pool.submit(ready)  # it imports while the first test does something else

    def __call__(
        self, options: DataOptions, seed: int, tokens: int, cache: Path | None, workers: int, device: str
    ) -> Guest:
        """An executor like ``Processes``."""
        return Guest(self.pool, (options.model_dump_json(), seed, tokens, str(cache) if cache else None, device))

    def close(self) -> None:
        """The end of the worker."""
        self.pool.shutdown(wait=True, cancel_futures=True)


class Guest:
    """Uses a resident worker."""

    def __init__(self, pool: ProcessPoolExecutor, data: Data):
        self.pool, self.data = pool, data

    def submit(self, task: Task) -> Future[Report]:
        """Queue it."""
        report: Future[Report] = Future()

        def finished(inner: Future[tuple[str, bytes]]) -> None:
            try:
                report.set_result(Report.decode(*inner.result()))
            except Exception as error:
                report.set_exception(error)

        self.pool.submit(work, self.data, sys.path, *task.encode()).add_done_callback(finished)
        return report

    def warm(self) -> None:
        """The worker is there, or comes with the first task."""

    def close(self) -> None:
        """The worker stays."""

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# in the worker --------------------------------------------------------------------------------------------------------

_opened: Data | None = None


def ready() -> None:
    """Nothing but to be there."""


def work(data: Data, path: list[str], head: str, body: bytes) -> tuple[str, bytes]:
    """Do a task as a worker of ``Processes`` does, on these data."""
    global _opened
    if data != _opened:
        executors._start(*data, path)
        _opened = data
    return executors._run_task(head, body)
