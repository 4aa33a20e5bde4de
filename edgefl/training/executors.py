"""Executors run tasks and return futures.  Results don't depend on the executor."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from edgefl.data import DataOptions, Federation, packed
from edgefl.errors import EdgeflError, OutOfHostMemory
from edgefl.training.node import Node, free_memory
from edgefl.training.options import ExecutorOptions
from edgefl.training.processes import ProcessExecutor
from edgefl.training.task import TrainingTask
from edgefl.work.torch_device import device_of, keep_freed_memory
from edgefl.work.update import Update


class Executor(Protocol):
    """The protocol of executors; also a context manager that closes the executor."""

    @property
    def window(self) -> int | None:
        """Tasks that it should have at a time: 0 if ``submit`` runs a task itself, None if it can't say."""
        ...

    def submit(self, task: TrainingTask) -> Future[Update]:
        """Start or queue a task.  The future holds its report, or the error that the task raised."""
        ...

    def close(self) -> None:
        """Stop the executor.  Tasks that haven't begun are cancelled."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class _Closing:
    def close(self) -> None:
        """Do nothing: this executor has no resources to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Inline(_Closing):
    """Runs each task in this process, before ``submit`` returns.

    Raises TrainingError if ``device`` isn't available.
    """

    window = 0

    def __init__(self, federation: Federation, device: str = "auto"):
        keep_freed_memory()
        self._node = Node(federation, device_of(device))

    def submit(self, task: TrainingTask) -> Future[Update]:
        """Run the task and return a completed future with its report or its EdgeflError.

        A task for which the memory of this machine doesn't suffice runs once more, after everything that can be freed
        is freed.
        """
        future: Future[Update] = Future()
        try:
            try:
                future.set_result(self._node.run(task))
            except OutOfHostMemory as error:
                warnings.warn(f"{error}; it runs once more", RuntimeWarning, stacklevel=2)
                free_memory()
                future.set_result(self._node.run(task))
        except EdgeflError as error:
            future.set_exception(error)
        return future


def make_executor(
    options: ExecutorOptions, federation: Federation, data: DataOptions, seed: int, tokens: int, cache: Path | None
) -> Executor:
    """The executor that a scenario's ``executor`` section describes.

    ``tokens`` is the length of texts; ``cache`` is the folder of prepared data.  Raises TrainingError if the device
    isn't available, or the Ray cluster can't do what is asked for.
    """
    if options.name == "inline":
        return Inline(federation, options.devices[0])
    held_out = federation.held_out_share
    if options.name == "ray":
        from edgefl.training.on_ray.executor import OnRay  # the extra takes long to import

        cargo = packed(federation, data) if options.ship_data else None
        return OnRay(options, data, seed, tokens, cache, held_out, cargo)
    return ProcessExecutor(data, seed, tokens, cache, options.workers, options.devices, options.timeout, held_out)
