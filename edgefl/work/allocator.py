"""The peak of torch's allocator while a work runs: a witness that shares nothing with the meter.

On a CPU it is the running sum of the profiler's memory events: whatever torch's CPU allocator hands out and takes back,
tensors and kernels' scratch alike.  On CUDA it is the caching allocator's own peak.  Memory that a library takes from
the system itself (MKL's and oneDNN's buffers) is in neither.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig

_autograd: Any = torch.autograd  # the profiler's functions have no public names that leave operators out

CUDA_ROUNDING = 512
"""PyTorch's CUDA caching allocator rounds every block up to a multiple of 512 bytes."""

_RUNNING = "a profiler of torch is running in this process; stop it to measure memory (executor.measure, --measure)"


def profiling() -> bool:
    """Whether a profiler of torch is running in this process: its events can't be told from those of another."""
    return bool(_autograd._profiler_enabled())


_SENTINEL = 13
"""Bytes of the first and of the last allocation of a recording, by which a recording that lost events is known."""


_MARK = (17, 19, 23)
"""Bytes of the allocations that form a mark, one after the other; no operator makes just these."""


class MemoryEvents:
    """The memory events of the CPU allocator in this thread, from ``start`` to ``stop``, without those of operators.

    ``whole`` is false after a recording in which the profiler lost events, as it rarely does on a busy machine.
    """

    whole = True

    def start(self) -> None:
        """Begin to record.  Raises RuntimeError if another profiler is running."""
        if profiling():
            raise RuntimeError(_RUNNING)
        config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
        with _without_usdt_lines():
            _autograd._prepare_profiler(config, {_autograd.ProfilerActivity.CPU})
            # without the scope of functions no operator is recorded, which would take most of the time
            _autograd._enable_profiler(config, {_autograd.ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})
        torch.empty(_SENTINEL, dtype=torch.uint8)

    def mark(self) -> None:
        """Divide what was recorded so far from what comes."""
        for size in _MARK:
            torch.empty(size, dtype=torch.uint8)

    def stop(self) -> list[list[int]]:
        """End, and return the bytes of the events in order, negative for what was freed, divided at the marks."""
        torch.empty(_SENTINEL, dtype=torch.uint8)
        with _without_usdt_lines():
            result = _autograd._disable_profiler()
        # by time alone: where the clock gave several events one time, they stay in the order of recording
        events: Any = sorted((e for e in result.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
        sizes = [event.nbytes() for event in events]
        sentinel = [_SENTINEL, -_SENTINEL]
        self.whole = len(sizes) > 3 and sizes[:2] == sizes[-2:] == sentinel
        return _divided(sizes[2:-2])


def _divided(sizes: list[int]) -> list[list[int]]:
    mark = [size for each in _MARK for size in (each, -each)]
    parts: list[list[int]] = [[]]
    at = 0
    while at < len(sizes):
        if sizes[at] == mark[0] and sizes[at : at + len(mark)] == mark:
            parts.append([])
            at += len(mark)
        else:
            parts[-1].append(sizes[at])
            at += 1
    return parts


class AllocatorPeak:
    """Context in which the peak of torch's allocator is measured: ``bytes`` afterwards, without what others hold.

    ``bytes`` is None if the profiler lost events.

    ``resident`` are tensors on the device that exist already and belong to the work.  On a CPU only this thread's
    allocations count, and ``lap`` should be called now and then, between steps, so that events don't pile up.
    Raises RuntimeError if another profiler is running.
    """

    def __init__(self, device: torch.device, resident: Iterable[Tensor] = ()):
        self.device = device
        self.bytes: int | None = 0
        rounding = CUDA_ROUNDING if device.type == "cuda" else 1
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in resident}
        self._resident = sum(-(-size // rounding) * rounding for size in storages.values())
        self._live = self._others = 0
        self._events = MemoryEvents()

    def __enter__(self) -> AllocatorPeak:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._others = torch.cuda.memory_allocated(self.device) - self._resident
        else:
            self._live = self.bytes = self._resident
            self._events.start()
        return self

    def lap(self) -> None:
        """Add up the events so far."""
        if self.device.type != "cuda":
            self._add_up()
            self._events.start()

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.bytes = torch.cuda.max_memory_allocated(self.device) - self._others
        else:
            self._add_up()
            if self.bytes == self._resident:  # every work allocates something: the events were lost
                self.bytes = None

    def _add_up(self) -> None:
        (sizes,) = self._events.stop()
        if not self._events.whole:
            self.bytes = None
        if self.bytes is not None:
            for size in sizes:
                self._live += size
                self.bytes = max(self.bytes, self._live)


@contextmanager
def _without_usdt_lines() -> Iterator[None]:
    """Suppress the lines "USDT: ..." that some builds of torch write to stderr when a profiler starts and stops.

    Other output to stderr is written after the body.
    """
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with tempfile.TemporaryFile() as captured:
            os.dup2(captured.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(original, 2)
            captured.seek(0)
            os.write(2, b"".join(line for line in captured if not line.startswith(b"USDT:")))
    finally:
        os.close(original)
