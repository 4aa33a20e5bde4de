"""Worker processes that run cells side by side on this machine."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from edgefl import registry, start_method, terminal
from edgefl.cells.workers import Cell, Outcome, Work, WorkerEnded, sendable_outcome, serve_cell, tell_warnings

PATIENCE = 10.0
"""Seconds that a worker without a cell has to end by itself, after which it is killed.

A choice, not measured: it has nothing to lose but the time of Python's exit.
"""


@dataclass(eq=False)
class _Process:
    """A worker process and the pipe to it."""

    process: BaseProcess
    pipe: Connection
    index: int | None = None
    begun: bool = True

    def give(self, cell: Cell, *, again: bool) -> None:
        with suppress(OSError):  # a worker that has ended is noticed when it is heard
            self.pipe.send(cell)

    def take(self) -> tuple[Any, ...]:
        try:
            message: tuple[Any, ...] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            self.pipe.close()
            raise WorkerEnded(_how_ended(self.process.exitcode)) from None
        return message


class ProcessCells:
    """Worker processes.  They aren't daemons, since the executor of a cell may have workers of its own."""

    def __init__(self, work: Work):
        self._work = work

    def first(self, number: int) -> list[_Process]:
        """None: each is started when a cell waits."""
        return []

    def start_worker(self) -> _Process:
        """Start a worker process."""
        context = start_method.context(self._work.__module__)
        here, there = context.Pipe()
        arguments = (there, self._work, sys.path, registry.for_workers())
        process = context.Process(target=_serve, args=arguments)
        with start_method.start_faults():
            process.start()
        there.close()  # so that the pipe ends with the worker
        return _Process(process, here)

    def ready(self, workers: Sequence[_Process]) -> list[_Process]:
        """Those whose pipe has a message or has ended; waits for the first."""
        by_pipe: dict[object, _Process] = {worker.pipe: worker for worker in workers}
        return [by_pipe[pipe] for pipe in wait([worker.pipe for worker in workers])]

    def close(self, workers: Sequence[_Process]) -> None:
        """End an idle worker by itself, and one that runs a cell at once."""
        for worker in workers:
            worker.pipe.close()
            if worker.index is not None:
                worker.process.kill()
        for worker in workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _how_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its worker process was ended by signal {signal.Signals(-code).name}"
    return f"its worker process ended unexpectedly, with exit code {code}"


def _serve(pipe: Connection, work: Work, path: list[str], registered: registry.ForWorkers) -> None:
    """Run the cells that come through the pipe until it ends."""
    start_method.end_with_parent()
    terminal.guard()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent process ends the workers
    sys.path[:] = path
    refusal: Exception | None = None
    try:
        registry.adopt(registered)
    except Exception as error:  # each cell says so
        refusal = error
    with warnings.catch_warnings():
        tell_warnings(pipe.send)
        while True:
            try:
                cell = pipe.recv()
            except (EOFError, OSError):
                return
            pipe.send(
                (
                    "outcome",
                    sendable_outcome(Outcome(cell.label, error=refusal))
                    if refusal
                    else serve_cell(work, cell, pipe.send),
                )
            )
