"""A worker process that several tests share; it opens other data when a task needs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from edgefl import registry, start_method
from edgefl.data import DataOptions
from edgefl.training import Assignment, worker
from edgefl.training.assignment import deserialise
from edgefl.training.packing import DeviceMemory
from edgefl.work.update import Update

Data = tuple[str, int, int, str | None, str, float]
"""Data that a worker opens: options (JSON), seed, tokens, cache, device and held-out share, as ``Processes`` has."""


class Resident:
    """One shared worker.  Called with the arguments of ``Processes``, it gives an executor that keeps the worker."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(1, start_method.context(worker.__name__))
        self.pool.submit(ready)  # imports begin before the first task

    def __call__(
        self,
        options: DataOptions,
        seed: int,
        tokens: int,
        cache: Path | None,
        workers: int,
        device: str | Sequence[str],
        timeout: float | None = None,
        held_out: float = 0.0,
        memories: Sequence[DeviceMemory] | None = None,
    ) -> ResidentExecutor:
        """An executor with the interface of ``Processes``, but one worker and no time limit."""
        assert memories is None
        (name,) = (device,) if isinstance(device, str) else device
        return ResidentExecutor(
            self.pool, (options.model_dump_json(), seed, tokens, str(cache) if cache else None, name, held_out)
        )

    def close(self) -> None:
        """Shut the worker down."""
        self.pool.shutdown(wait=True, cancel_futures=True)


class ResidentExecutor:
    """An executor that sends tasks to the shared worker."""

    window, packs = 3, False

    def __init__(self, pool: ProcessPoolExecutor, data: Data):
        self.pool, self.data = pool, data

    def submit(self, task: Assignment) -> Future[Update]:
        """Queue a task; returns the future of its report."""
        report: Future[Update] = Future()

        def finished(inner: Future[tuple[str, bytes]]) -> None:
            try:
                head, body = inner.result()
                tensors = deserialise(body)
                report.set_result(Update.from_data(json.loads(head), task.work, task.client, tensors))
            except Exception as error:
                report.set_exception(error)

        self.pool.submit(work, self.data, sys.path, *task.encode()).add_done_callback(finished)
        return report

    def warm(self) -> None:
        """Do nothing: the worker starts with ``Resident``."""

    def close(self) -> None:
        """Do nothing: the worker serves other tests."""

    def __enter__(self) -> ResidentExecutor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# in the worker --------------------------------------------------------------------------------------------------------

_opened: Data | None = None


def ready() -> None:
    """Do nothing; starts the worker and its imports."""


def work(data: Data, path: list[str], head: str, body: bytes) -> tuple[str, bytes]:
    """Run an encoded task on ``data``, like a worker of ``Processes``."""
    global _opened
    if data != _opened:
        worker.start(*data[:4], path, data[5], registry.for_workers(), data[4])
        _opened = data
    return worker.run_assignment(head, body)
