"""Worker processes that run tasks, and what happens when the host fails them.

Results don't depend on the host: a task that a worker couldn't finish, because the memory of this machine ran out or
because it hung, runs again in new workers, of which there are fewer each time, and in the end alone.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from edgefl import registry
from edgefl.data import DataOptions
from edgefl.errors import OutOfHostMemory, TrainingError
from edgefl.runs.kept import Layout, Stored
from edgefl.training.shared import MOST_LENT, Slot, Slots, available
from edgefl.training.task import Report, Task
from edgefl.training.worker import MOST_WORKS, Answer, do_nothing, in_one_piece, run_task, start
from edgefl.work import Work
from edgefl.work.packed import space
from edgefl.work.torch_device import device_of

PATIENCE = 10.0
"""Seconds that workers have to end by themselves when the executor is closed: their results aren't needed."""
QUEUED_PER_WORKER = 3
"""Tasks for each worker that are handed to the pool, those that run included; the others wait as they are."""
LARGE, LARGE_PER_WORKER = 16 << 20, 2
"""Bytes of an update beyond which only so many are handed on, as each has memory for its report."""
LOOKS_PER_TIMEOUT = 20
"""How often per timeout the watch looks whether tasks still end."""


_FIELDS = tuple(field for field in fields(Work) if field.name != "scalars")


class _Cancellable(Future[Report]):
    """Future of a task, which can be cancelled while the task is queued."""

    entry: _Entry | None = None

    def cancel(self) -> bool:
        inner = self.entry.inner if self.entry is not None else None
        return inner.cancel() if inner is not None else super().cancel()

    def follow(self) -> None:
        """Become cancelled, as the task in the pool was."""
        super().cancel()


@dataclass(eq=False)
class _Entry:
    """A task that hasn't ended, the future of its report, its future in the pool, and whether its memory ran out.

    ``shared`` are the slots of its inputs, of its report, and of what describes inputs and work, if they don't travel
    through a pipe.
    """

    task: Task
    future: _Cancellable
    inner: Future[Answer] | None = None
    out_of_memory: bool = False
    shared: tuple[Slot, Slot, Slot, Slot] | None = None

    @property
    def name(self) -> str:
        node = "the server" if self.task.client is None else f"client {self.task.client}"
        return f"the work of kind {self.task.work.kind!r} of {node}"


class Processes:
    """Runs tasks in worker processes, which open the data themselves; a context manager that closes itself.

    Works and tensors are sent as JSON and safetensors.  Workers are spawned, so a script that uses this executor needs
    ``if __name__ == "__main__"``.  Raises TrainingError if ``device`` isn't available.

    If a worker dies, runs out of memory, or no task ends within ``timeout`` seconds while some run, the unfinished
    tasks run again with half as many workers, then one after the other.  A task that fails alone too gets a
    TrainingError, which names it.
    """

    def __init__(
        self,
        options: DataOptions,
        seed: int,
        tokens: int,
        cache: Path | None,
        workers: int,
        device: str,
        timeout: float | None = None,
        held_out: float = 0.0,
    ):
        device_of(device)  # raises here, not in a worker, if the device isn't available
        self._arguments = (
            options.model_dump_json(), seed, tokens, str(cache) if cache else None, device, sys.path, held_out,
            registry.for_workers(),
        )  # fmt: skip
        self._workers, self._timeout = workers, timeout
        self._lock = threading.RLock()
        self._inputs: dict[int, tuple[Mapping[str, Tensor], Slot, Slot]] = {}
        self._works: dict[tuple[int, ...], tuple[Work, Slot]] = {}
        self.window = QUEUED_PER_WORKER * workers
        self._slots = Slots(max(MOST_LENT, self.window + workers))
        self._entries: list[_Entry] = []
        self._waiting: deque[_Entry] = deque()
        self._closing, self._tried_alone = False, False
        self._ended = time.monotonic()
        self._pool = self._new_pool()
        self._over = threading.Event()
        if timeout is not None:
            threading.Thread(target=self._watch, args=(timeout,), daemon=True).start()

    def warm(self) -> None:
        """Start the workers in the background, so that their imports overlap with other work of this process."""
        for _ in range(self._workers):
            self._pool.submit(do_nothing)

    def submit(self, task: Task) -> Future[Report]:
        """Queue the task for a worker and return the future of its report.

        The future raises TrainingError if the task fails, or if this machine can't run it even alone.
        """
        future = _Cancellable()
        entry = future.entry = _Entry(task, future)
        with self._lock:
            if not self._entries:
                self._ended = time.monotonic()
            self._entries.append(entry)
            self._waiting.append(entry)
            self._feed()
        return future

    def close(self) -> None:
        """Cancel queued tasks and end the workers; those still busy after ``PATIENCE`` seconds are killed."""
        with self._lock:
            self._closing = True
            self._over.set()
        processes = _processes_of(self._pool)
        self._pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + PATIENCE
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        self._end(processes)
        self._pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # tasks and workers ----------------------------------------------------------------------------------------------

    def _new_pool(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, spawn, initializer=start, initargs=self._arguments)

    def _feed(self) -> None:
        """Hand waiting tasks to the pool, as many as keep the workers busy: a task for the pool is a copy of its
        tensors.  Called under the lock."""
        while self._waiting:
            large = (space(self._waiting[0].task.work.up) or 0) > LARGE
            most = (LARGE_PER_WORKER if large else QUEUED_PER_WORKER) * self._workers
            if len(self._entries) - len(self._waiting) >= most:
                return
            entry = self._waiting.popleft()
            if entry.future.cancelled():
                self._remove(entry)
            else:
                self._queue(entry)

    def _queue(self, entry: _Entry) -> None:
        """Hand a task to the pool; called under the lock."""
        pool = self._pool
        try:
            entry.inner = pool.submit(run_task, *self._sent(entry))
        except BrokenProcessPool:
            self._recover(pool, _how_ended(pool))
            return
        except RuntimeError as error:
            self._recover(pool, str(error))
            return
        entry.inner.add_done_callback(lambda inner: self._done(entry, inner, pool))

    def _sent(self, entry: _Entry) -> tuple[Any, ...]:
        """What a worker gets of a task: inputs lie in a slot, which tasks with the same inputs share."""
        task = entry.task
        if not available():
            return task.encode()
        # what a client kept lies in a file, or else travels with the inputs
        given = task.inputs if task.kept is None or isinstance(task.kept, Stored) else task.tensors()
        try:
            if id(given) not in self._inputs:
                used = {other.shared[0] for other in self._entries if other.shared}
                self._inputs = {key: known for key, known in self._inputs.items() if known[1] in used}
                slot = Slot()
                self._inputs[id(given)] = given, slot, _text_slot(json.dumps(slot.write(given).to_json()))
            # rounds have works with other scalars, and the same objects otherwise
            parts = tuple(id(getattr(task.work, field.name)) for field in _FIELDS)
            if parts not in self._works:
                if len(self._works) >= MOST_WORKS:
                    self._works = {}
                self._works[parts] = task.work, _text_slot(task.work.encode())
        except OSError as error:
            raise OutOfHostMemory(f"the memory of this machine doesn't hold the inputs of {entry.name}") from error
        (_, inputs, where), (_, work) = self._inputs[id(given)], self._works[parts]
        slot = self._slots.take(reused=in_one_piece(task) is not None)
        entry.shared = inputs, slot, where, work
        facts = {**task.facts(), "scalars": dict(task.work.scalars)}
        return (
            (work.number, work.path),
            facts,
            (where.number, where.path),
            (slot.number if slot.reused else None, slot.path),
        )

    def _done(self, entry: _Entry, inner: Future[Answer], pool: ProcessPoolExecutor) -> None:
        """Pass a task's report on, or its error; recover where the host failed it."""
        if inner.cancelled():
            if inner is entry.inner:
                self._remove(entry)
                self._give_back(entry)
                entry.future.follow()
                self._next()
            return
        error = inner.exception()
        if isinstance(error, BrokenProcessPool | OutOfHostMemory) and not self._closing:
            with self._lock:
                if pool is not self._pool:
                    return  # another task's failure came first, and this one is queued again
                reason = _how_ended(pool)
                if isinstance(error, OutOfHostMemory):
                    entry.out_of_memory, reason = True, str(error)
                    self._end_workers(pool)
                self._recover(pool, reason)
            return
        self._remove(entry)
        with suppress(InvalidStateError):
            if error is not None:
                self._give_back(entry)
                entry.future.set_exception(error)
            else:
                entry.future.set_result(_report(entry, self._slots, *inner.result()))
        entry.future.entry = entry.inner = entry.shared = (
            None  # tensors of the task and of its report, which refer to each other
        )
        self._next()

    def _give_back(self, entry: _Entry) -> None:
        """Free the slot of a task that no worker runs and that has no report."""
        if entry.shared is not None:
            self._slots.back(entry.shared[1])

    def _next(self) -> None:
        with self._lock:
            if not self._closing:
                self._feed()

    def _remove(self, entry: _Entry) -> None:
        with self._lock:
            self._ended = time.monotonic()
            if entry in self._entries:
                self._entries.remove(entry)

    def _recover(self, pool: ProcessPoolExecutor, reason: str) -> None:
        """Run all unfinished tasks again in a new pool with fewer workers; called under the lock."""
        if self._pool is not pool or self._closing:
            return  # another task's failure has done it
        unfinished = list(self._entries)
        if self._workers == 1 and self._tried_alone:
            self._give_up(reason)
            return
        self._tried_alone = self._workers == 1
        self._workers = max(1, self._workers // 2)
        how = "one after the other" if self._workers == 1 else f"with {self._workers} workers"
        self._pool = self._new_pool()
        self._ended = time.monotonic()
        pool.shutdown(wait=False, cancel_futures=True)
        _warn(f"{reason}; {len(unfinished)} unfinished tasks run again {how}")
        for entry in unfinished:
            entry.inner = None
        self._waiting = deque(unfinished)
        self._feed()

    def _give_up(self, reason: str) -> None:
        """Fail all unfinished tasks; a single worker runs them in order, so that the first is the one that failed."""
        unfinished, self._entries, self._waiting = self._entries, [], deque()
        for entry in unfinished:
            failed = next((other for other in unfinished if other.out_of_memory), unfinished[0])
            with suppress(InvalidStateError):
                entry.future.set_exception(
                    TrainingError(
                        f"{failed.name} fails on this machine even alone: {reason}. Finished rounds are saved: "
                        "continue with edgefl run --resume, here when more memory is free, or on another machine"
                    )
                )

    # workers that hang ----------------------------------------------------------------------------------------------

    def _watch(self, timeout: float) -> None:
        """End the workers if no task has ended for ``timeout`` seconds."""
        while not self._over.wait(timeout / LOOKS_PER_TIMEOUT):
            with self._lock:
                hangs = bool(self._entries) and time.monotonic() - self._ended > timeout
                if hangs:
                    pool = self._pool
                    self._end_workers(pool)
                    self._recover(pool, f"no task ended within {timeout:g} s (executor.timeout)")

    def _end_workers(self, pool: ProcessPoolExecutor) -> None:
        self._end(_processes_of(pool))

    @staticmethod
    def _end(processes: Iterable[BaseProcess]) -> None:
        for process in processes:
            with suppress(OSError, ValueError):
                process.kill()


def _report(entry: _Entry, slots: Slots, head: str, body: bytes | list[Any] | None) -> Report:
    """The report of a worker's answer, whose slot is one of ``slots``."""
    if isinstance(body, bytes):
        return Report.decode(head, body)
    assert entry.shared is not None
    if body is None:
        work = entry.task.work
        return Report.in_buffer(json.loads(head), work, slots.bytes(entry.shared[1], space(work.up) or 0))
    return Report.of(json.loads(head), entry.shared[1].read(Layout.read(body)))


def _text_slot(text: str) -> Slot:
    slot = Slot()
    slot.write_text(text)
    return slot


def _processes_of(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    """The workers of a pool, which has no public name for them."""
    return list((getattr(pool, "_processes", None) or {}).values())


def _how_ended(pool: ProcessPoolExecutor) -> str:
    """What is known of a worker that ended by itself: the signal or the exit code."""
    # the pool ends the others with SIGTERM
    codes = {process.exitcode for process in _processes_of(pool)} - {None, 0, -signal.SIGTERM}
    code = min((code for code in codes if code is not None), default=None)
    if code is None or code in (-signal.SIGKILL, -signal.SIGBUS):
        return "a worker process ended unexpectedly, perhaps because memory ran out"
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"a worker process ended unexpectedly, {how}"


def _warn(text: str) -> None:
    # a filter may turn warnings into errors, which must not reach the pool's own thread
    with suppress(Warning):
        warnings.warn(text, RuntimeWarning, stacklevel=3)
