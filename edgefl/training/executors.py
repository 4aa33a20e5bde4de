"""Executors run tasks and return futures.  Results don't depend on the executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from edgefl.data import DataOptions, Federation, open_federation
from edgefl.errors import EdgeflError, TrainingError
from edgefl.training.options import ExecutorOptions
from edgefl.training.task import Node, Report, Task
from edgefl.work.torch_device import device_of


class Executor(Protocol):
    """The protocol of executors; also a context manager that closes the executor."""

    def submit(self, task: Task) -> Future[Report]:
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

    def __init__(self, federation: Federation, device: str = "auto"):
        self._node = Node(federation, device_of(device))

    def submit(self, task: Task) -> Future[Report]:
        """Run the task and return a completed future with its report or its EdgeflError."""
        future: Future[Report] = Future()
        try:
            future.set_result(self._node.run(task))
        except EdgeflError as error:
            future.set_exception(error)
        return future


class _Queued(Future[Report]):
    """Future of a task that is queued or runs in a worker.  It can be cancelled while it is queued."""

    def __init__(self, inner: Future[tuple[str, bytes]]):
        super().__init__()
        self._inner = inner
        inner.add_done_callback(self._finished)

    def cancel(self) -> bool:
        return self._inner.cancel()

    def _finished(self, inner: Future[tuple[str, bytes]]) -> None:
        if inner.cancelled():
            super().cancel()
            return
        try:
            self.set_result(Report.decode(*inner.result()))
        except BrokenProcessPool as error:
            self.set_exception(_worker_error(error))
        except Exception as error:
            self.set_exception(error)


class Processes(_Closing):
    """Runs tasks in worker processes, which open the data themselves.

    Works and tensors are sent as JSON and safetensors.  Workers are spawned, so a script that uses this executor needs
    ``if __name__ == "__main__"``.  Raises TrainingError if ``device`` isn't available.
    """

    def __init__(self, options: DataOptions, seed: int, tokens: int, cache: Path | None, workers: int, device: str):
        device_of(device)  # raises here, not in a worker, if the device isn't available
        self._pool = ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(options.model_dump_json(), seed, tokens, str(cache) if cache else None, device, sys.path),
        )
        self._workers = workers

    def warm(self) -> None:
        """Start the workers in the background, so that their imports overlap with other work of this process."""
        for _ in range(self._workers):
            self._pool.submit(_do_nothing)

    def submit(self, task: Task) -> Future[Report]:
        """Queue the task for a worker and return the future of its report.

        The future raises TrainingError if a worker ended unexpectedly.
        """
        try:
            return _Queued(self._pool.submit(_run_task, *task.encode()))
        except BrokenProcessPool as error:
            failed: Future[Report] = Future()
            failed.set_exception(_worker_error(error))
            return failed

    def close(self) -> None:
        """Cancel queued tasks, wait for running ones, and end the workers."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _worker_error(error: BaseException) -> TrainingError:
    wrapped = TrainingError(
        f"a worker process ended unexpectedly ({error}); it may have run out of memory: try fewer executor.workers. "
        "Finished rounds are saved: continue with edgefl run --resume"
    )
    wrapped.__cause__ = error
    return wrapped


def make_executor(
    options: ExecutorOptions, federation: Federation, data: DataOptions, seed: int, tokens: int, cache: Path | None
) -> Inline | Processes:
    """The executor that a scenario's ``executor`` section describes.

    ``tokens`` is the length of texts; ``cache`` is the folder of prepared data.  Raises TrainingError if the device
    isn't available.
    """
    if options.name == "inline":
        return Inline(federation, options.device)
    return Processes(data, seed, tokens, cache, options.workers, options.device)


# in a worker ----------------------------------------------------------------------------------------------------

_node: Node | None = None


def _start(data: str, seed: int, tokens: int, cache: str | None, device: str, path: list[str]) -> None:
    global _node
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent process ends the workers
    sys.path[:] = path
    federation = open_federation(
        DataOptions.model_validate_json(data), seed=seed, tokens=tokens, cache=Path(cache) if cache else None
    )
    _node = Node(federation, device_of(device))


def _end_with_parent() -> None:
    """End this worker when its parent ends: a killed parent can't shut it down, and it would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do_nothing() -> None:
    return None


def _run_task(head: str, body: bytes) -> tuple[str, bytes]:
    assert _node is not None
    return _node.run(Task.decode(head, body)).encode()
