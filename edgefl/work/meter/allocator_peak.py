"""The peak of torch's allocator while a work runs: a witness that shares nothing with the meter.

On a CPU it is the running sum of the profiler's memory events: whatever torch's CPU allocator hands out and takes back,
tensors and kernels' scratch alike.  On CUDA it is the caching allocator's own peak.  Memory that a library takes from
the system itself (MKL's and oneDNN's buffers) is in neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._profiler import ProfilerConfig, ProfilerState, RecordScope, _EventType, _ExperimentalConfig

_autograd: Any = torch.autograd  # the profiler's functions have no public names that leave operators out

# The profiler writes to stderr when it starts and stops ("USDT: ..."), and where torch has CUDA but the machine no GPU.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

CUDA_ROUNDING = 512
"""PyTorch's CUDA caching allocator rounds every block up to a multiple of 512 bytes (``kMinBlockSize`` of c10)."""

_RUNNING = "a profiler of torch is running in this process; stop it to measure memory (executor.measure, --measure)"


def is_profiling() -> bool:
    """Whether a profiler of torch is running in this process: its events can't be told from those of another."""
    return bool(_autograd._profiler_enabled())


_MARK = 1_000_003
"""Bytes of an allocation that serves as a mark: a prime, which no operator allocates."""


class MemoryEvent(NamedTuple):
    """An allocation, or the freeing of one."""

    address: int
    size: int  # bytes, negative for what was freed


class MemoryEvents:
    """The memory events of the CPU allocator in this thread, from ``start`` to ``stop``, without those of operators."""

    def start(self) -> None:
        """Begin to record.  Raises RuntimeError if another profiler is running."""
        if is_profiling():
            raise RuntimeError(_RUNNING)
        config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
        _autograd._prepare_profiler(config, {_autograd.ProfilerActivity.CPU})
        # without the scope of functions no operator is recorded, which would take most of the time
        _autograd._enable_profiler(config, {_autograd.ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})

    def mark(self) -> None:
        """Divide what was recorded so far from what comes."""
        torch.empty(_MARK, dtype=torch.uint8)

    def stop(self) -> list[list[MemoryEvent]]:
        """End, and return the events in order, divided at the marks."""
        result = _autograd._disable_profiler()
        events = sorted(_allocations(result.experimental_event_tree()), key=lambda event: event.start_time_ns)
        return _divide_events([MemoryEvent(event.extra_fields.ptr, event.extra_fields.alloc_size) for event in events])


def _allocations(nodes: Iterable[Any]) -> Iterator[Any]:
    """The memory events of a recording, in order; those in a function that names itself are below its node."""
    for node in nodes:
        if node.tag == _EventType.Allocation:
            yield node
        else:
            yield from _allocations(node.children)


def _divide_events(events: list[MemoryEvent]) -> list[list[MemoryEvent]]:
    parts: list[list[MemoryEvent]] = [[]]
    for event in events:
        if event.size == _MARK:
            parts.append([])
        elif event.size != -_MARK:
            parts[-1].append(event)
    return parts


class Balance:
    """Bytes that are allocated and not yet freed, ``live``, and the most that there were at a time, ``peak``.

    The freeing of a block that was allocated before is left out.  The profiler reports it only if an earlier recording
    saw the allocation, and it happens whenever Python collects garbage.
    """

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._blocks: dict[int, int] = {}

    def add(self, events: Iterable[MemoryEvent]) -> None:
        """Add events, in order."""
        for address, size in events:
            if size > 0:
                self._blocks[address] = size
                self.live += size
                self.peak = max(self.peak, self.live)
            else:
                self.live -= self._blocks.pop(address, 0)


class AllocatorPeak:
    """Context in which the peak of torch's allocator is measured: ``bytes`` afterwards, without what others hold.

    ``resident`` are tensors on the device that exist already and belong to the work.  On a CPU only this thread's
    allocations count, and ``lap`` should be called now and then, between steps, so that events don't pile up.
    Raises RuntimeError if another profiler is running.
    """

    def __init__(self, device: torch.device, resident: Iterable[Tensor] = ()):
        self.device = device
        self.bytes = 0
        rounding = CUDA_ROUNDING if device.type == "cuda" else 1
        self._resident = sum(-(-size // rounding) * rounding for size in _sizes(resident))
        self._others = 0
        self._balance = Balance()
        self._events = MemoryEvents()

    def __enter__(self) -> AllocatorPeak:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._others = torch.cuda.memory_allocated(self.device) - self._resident
        else:
            self._events.start()
        return self

    def lap(self) -> None:
        """Add up the events so far, on a CPU, and forget them."""
        if self.device.type != "cuda":
            self._add_up()
            self._events.start()

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.bytes = torch.cuda.max_memory_allocated(self.device) - self._others
        else:
            self._add_up()
            self.bytes = self._resident + self._balance.peak

    def _add_up(self) -> None:
        (events,) = self._events.stop()
        self._balance.add(events)


def _sizes(tensors: Iterable[Tensor]) -> Iterator[int]:
    """Bytes that these tensors take of each storage, which may hold others too, as the buffer of a payload does."""
    storages: dict[int, tuple[int, dict[tuple[int, int], int]]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        _, parts = storages.setdefault(storage._cdata, (storage.nbytes(), {}))
        parts[int(tensor.storage_offset()), tensor.nbytes] = tensor.nbytes
    for size, parts in storages.values():
        yield min(size, sum(parts.values()))
