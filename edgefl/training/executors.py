"""Executors: submit a task, get a future.  Which one runs it changes no result."""

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
    """Runs tasks."""

    def submit(self, task: Task) -> Future[Report]:
        """Start a task, or queue it; its report comes through the future."""
        ...

    def close(self) -> None:
        """Stop; what has not begun is dropped."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class _Closing:
    def close(self) -> None:
        """Nothing to stop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Inline(_Closing):
    """Runs a task at once, in this process."""

    def __init__(self, federation: Federation, device: str = "auto"):
        self._node = Node(federation, device_of(device))

    def submit(self, task: Task) -> Future[Report]:
        """Run it before returning."""
        future: Future[Report] = Future()
        try:
            future.set_result(self._node.run(task))
        except EdgeflError as error:
            future.set_exception(error)
        return future


class _Queued(Future[Report]):
    """The report of a task that waits or runs in a worker; only one that still waits can be cancelled."""

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
            self.set_exception(_broken(error))
        except Exception as error:
            self.set_exception(error)


class Processes(_Closing):
    """Runs tasks in worker processes, which open the data themselves.

    Works and tensors travel as JSON and safetensors.  Workers are spawned: a script that uses this executor needs the
    usual ``if __name__ == "__main__"``.
    """

    def __init__(self, options: DataOptions, seed: int, tokens: int, cache: Path | None, workers: int, device: str):
        device_of(device)  # a wrong device is said here, not by a worker
        self._pool = ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(options.model_dump_json(), seed, tokens, str(cache) if cache else None, device, sys.path),
        )
        self._workers = workers

    def warm(self) -> None:
        """Start the workers now, so that they import while this process does something else."""
        for _ in range(self._workers):
            self._pool.submit(_ready)

    def submit(self, task: Task) -> Future[Report]:
        """Queue it for a worker."""
        try:
            return _Queued(self._pool.submit(_work, *task.encode()))
        except BrokenProcessPool as error:
            refused: Future[Report] = Future()
            refused.set_exception(_broken(error))
            return refused

    def close(self) -> None:
        """Drop what is queued and end the workers."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _broken(error: BaseException) -> TrainingError:
    broken = TrainingError(
        f"a worker process ended unexpectedly ({error}); it may have run out of memory: try fewer executor.workers. "
        "Nothing that finished is lost: continue with edgefl run --resume"
    )
    broken.__cause__ = error
    return broken


def make_executor(
    options: ExecutorOptions, federation: Federation, data: DataOptions, seed: int, tokens: int, cache: Path | None
) -> Inline | Processes:
    """The executor of a scenario."""
    if options.name == "inline":
        return Inline(federation, options.device)
    return Processes(data, seed, tokens, cache, options.workers, options.device)


# in a worker ----------------------------------------------------------------------------------------------------

_node: Node | None = None


def _start(data: str, seed: int, tokens: int, cache: str | None, device: str, path: list[str]) -> None:
    global _node
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    sys.path[:] = path
    federation = open_federation(
        DataOptions.model_validate_json(data), seed=seed, tokens=tokens, cache=Path(cache) if cache else None
    )
    _node = Node(federation, device_of(device))


def _end_with_parent() -> None:
    """A parent that was killed says nothing, and a worker that waits for its next task would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _ready() -> None:
    return None


def _work(head: str, body: bytes) -> tuple[str, bytes]:
    assert _node is not None
    return _node.run(Task.decode(head, body)).encode()
