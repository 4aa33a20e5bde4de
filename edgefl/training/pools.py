"""Worker processes on GPUs: one process for each place, and each assignment to a place that holds it."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from edgefl import start_method
from edgefl.training.packing import DeviceMemory, DeviceShare, choose_share, fits_nowhere, pack

PATIENCE = 10.0
"""Seconds that workers have to end: a choice.  One that is killed is in a work whose report nobody awaits."""


class Packing:
    """The places of workers on these devices, for the works that are known so far.

    ``memories`` are asked for at the first use if they aren't given.
    """

    def __init__(self, devices: Sequence[str], memories: Sequence[DeviceMemory] | None = None):
        self.devices, self._memories = tuple(devices), memories
        self._peaks: set[int] = set()
        self._told = False

    @property
    def memories(self) -> Sequence[DeviceMemory]:
        """The devices' memory."""
        if self._memories is None:
            self._memories = memories_of(self.devices)
        return self._memories

    def places(self, workers: int, peaks: Iterable[int] = ()) -> tuple[DeviceShare, ...]:
        """Places for at most so many workers that hold the works known and those of these ``peaks``.

        Empty if one of ``peaks`` fits nowhere; it then isn't remembered.  Warns once of fewer places than workers.
        """
        peaks = self._peaks | set(peaks)
        if places := pack(self.memories, workers, peaks):
            self._peaks = peaks
            if len(places) < workers and not self._told:
                self._told = True
                warn(f"{len(places)} of {workers} workers (executor.workers) fit the memory of {self._device_names()}")
        return places

    def _device_names(self) -> str:
        return ", ".join(self.devices)

    def refusal(self, what: str, peak: int) -> str:
        """One line on a work that fits nowhere."""
        return fits_nowhere(what, peak, self.memories)


class Pools:
    """Pools of one worker each, one for each place; as much of ``ProcessPoolExecutor`` as ``Processes`` uses.

    ``begin`` makes the pool of a place.
    """

    def __init__(self, places: Sequence[DeviceShare], begin: Callable[[DeviceShare], ProcessPoolExecutor]):
        self.places = tuple(places)
        self._pools = [begin(place) for place in places]
        self._busy = [0 for _ in places]
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., Any], *arguments: Any, peak: int | None = 0) -> Future[Any]:
        """Queue a call at a place that holds ``peak`` (``packing.routed``), which must exist."""
        index = choose_share(self.places, self._busy, peak)
        assert index is not None
        future = self._pools[index].submit(function, *arguments)
        with self._lock:
            self._busy[index] += 1
        future.add_done_callback(lambda _: self._release(index))
        return future

    def holds(self, peak: int | None) -> bool:
        """Whether a place holds a work with this predicted peak."""
        return bool(self.places) and choose_share(self.places, self._busy, peak) is not None

    def _release(self, index: int) -> None:
        with self._lock:
            self._busy[index] -= 1

    def warm(self, function: Callable[..., Any]) -> None:
        """Start all workers by a call each."""
        for pool in self._pools:
            pool.submit(function)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut all pools down."""
        for pool in self._pools:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    @property
    def _processes(self) -> dict[int, BaseProcess]:
        """The workers by process id, as a pool of several has them."""
        return {
            number: process
            for pool in self._pools
            for number, process in (getattr(pool, "_processes", None) or {}).items()
        }


def memories_of(devices: Sequence[str]) -> list[DeviceMemory]:
    """The memory of these GPUs, asked for in a process of its own: the question alone takes a CUDA context.

    The free bytes are those beside that context, which ends before a worker begins.
    """
    with ProcessPoolExecutor(1, start_method.context(__name__, gpu=True)) as pool:
        return pool.submit(_memories, list(devices)).result()


def _memories(devices: list[str]) -> list[DeviceMemory]:
    found = []
    for name in devices:
        free, total = torch.cuda.mem_get_info(torch.device(name))
        found.append(DeviceMemory(name, total, free))
    return found


def processes_of(pool: ProcessPoolExecutor | Pools) -> list[BaseProcess]:
    """The workers of a pool, which has no public name for them (tried with Python 3.11; test_executors.py sees it)."""
    return list((getattr(pool, "_processes", None) or {}).values())


def end(processes: Iterable[BaseProcess]) -> None:
    """Kill these workers."""
    for process in processes:
        with suppress(OSError, ValueError):
            process.kill()


def stop(pool: ProcessPoolExecutor | Pools) -> None:
    """End the workers of a pool, and wait until they have."""
    processes = processes_of(pool)
    end(processes)
    for process in processes:
        process.join(PATIENCE)
    pool.shutdown(wait=False, cancel_futures=True)


def how_ended(pool: ProcessPoolExecutor | Pools) -> str:
    """What is known of a worker that ended by itself: the signal or the exit code."""
    # the pool ends the others with SIGTERM
    codes = {process.exitcode for process in processes_of(pool)} - {None, 0, -signal.SIGTERM}
    code = min((code for code in codes if code is not None), default=None)
    if code is None or code in (-signal.SIGKILL, -signal.SIGBUS):
        return "a worker process ended unexpectedly, perhaps because memory ran out"
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"a worker process ended unexpectedly, {how}"


def warn(text: str) -> None:
    """Warn; a filter may turn warnings into errors, which must not reach a pool's own thread."""
    with suppress(Warning):
        warnings.warn(text, RuntimeWarning, stacklevel=3)
