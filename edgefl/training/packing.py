"""Workers on GPUs: how many fit by predicted peak memory, and the memory fraction that each is given.

Nothing here calls CUDA: a device is its name and its bytes, so that every rule is tested on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgefl.units import show_bytes

CONTEXT_BYTES = 900 * 2**20
"""Memory of a GPU that a process takes before any tensor: CUDA's context and the libraries' kernels.

An estimate, measured on none: the upper end of what the profiles of NVIDIA's cards give (``profiles/devices``,
``runtime_overhead_bytes``).
"""
RESERVE = 0.02
"""Share of a GPU's memory that no worker gets: a choice, measured on no GPU, for what else runs there."""
SEGMENT_BYTES, FRAGMENTED = 40 * 2**20, 0.1
"""What torch's allocator may reserve beyond the tensors' peak: two segments of 20 MiB, the largest that small tensors
share, and a share of the peak for gaps between blocks.  The limit holds for reserved memory (torch's notes on CUDA
semantics, "Memory management").  The share is a choice, measured on no GPU."""


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory in bytes: all of it, and what is free before any worker begins."""

    device: str
    total: int
    free: int

    @property
    def usable(self) -> int:
        """Bytes that workers may share, their contexts included."""
        return min(self.free, self.total - int(RESERVE * self.total) - 1)


@dataclass(frozen=True)
class DeviceShare:
    """A worker's device, the bytes that its allocator may reserve there, and these as a share of the device's memory.

    A worker on a CPU has no limit: ``bytes`` decide only which works it gets.
    """

    device: str
    bytes: int
    fraction: float

    def holds(self, peak: int) -> bool:
        """Whether a work with this predicted peak runs here."""
        return limit_of(peak) <= self.bytes


def limit_of(peak: int) -> int:
    """Bytes that the allocator must be allowed to reserve for a work with this predicted peak, scratch included."""
    return peak + int(FRAGMENTED * peak) + SEGMENT_BYTES


def pack(memories: Sequence[DeviceMemory], workers: int, peaks: Iterable[int]) -> tuple[DeviceShare, ...]:
    """Places for at most ``workers`` workers, in the order of the devices; none if the largest work fits nowhere.

    One place holds the largest peak, the others the largest one that lets most workers run.  What then is left of a
    device is shared by its workers.  The number of places never falls with more memory, more workers asked for, or
    smaller peaks.
    """
    sizes = sorted(set(peaks), reverse=True) or [0]
    best: list[tuple[int, ...]] = []
    for size in sizes:
        for first, memory in enumerate(memories):
            if limit_of(sizes[0]) + CONTEXT_BYTES > memory.usable:
                continue
            counts = _counts(memories, workers, first, limit_of(sizes[0]), limit_of(size))
            if not best or sum(map(len, counts)) > sum(map(len, best)):
                best = counts
    return (
        tuple(
            place for memory, limits in zip(memories, best, strict=True) for place in _share_remainder(memory, limits)
        )
        if best
        else ()
    )


def _counts(memories: Sequence[DeviceMemory], workers: int, first: int, most: int, each: int) -> list[tuple[int, ...]]:
    """The limits of each device's workers: one of ``most`` bytes on device ``first``, the others of ``each``.

    Workers go one by one to the device with the most memory left, so that GPUs are loaded alike.
    """
    limits: list[list[int]] = [[] for _ in memories]
    left = [memory.usable for memory in memories]
    chosen, size = first, most
    while True:
        limits[chosen].append(size)
        left[chosen] -= size + CONTEXT_BYTES
        chosen, size = max(range(len(left)), key=lambda index: (left[index], -index)), each
        if sum(map(len, limits)) == workers or left[chosen] < each + CONTEXT_BYTES:
            return [tuple(its) for its in limits]


def _share_remainder(memory: DeviceMemory, limits: tuple[int, ...]) -> list[DeviceShare]:
    """The places of a device's workers, with equal parts of what is left."""
    if not limits:
        return []
    more = (memory.usable - sum(limits) - CONTEXT_BYTES * len(limits)) // len(limits)
    return [DeviceShare(memory.device, limit + more, (limit + more) / memory.total) for limit in limits]


def fits_nowhere(what: str, peak: int, memories: Sequence[DeviceMemory]) -> str:
    """One line on a work that is larger than every device, and what to do."""
    most = max(memories, key=lambda memory: memory.usable)
    need = show_bytes(limit_of(peak) + CONTEXT_BYTES)
    return (
        f"{what} needs {show_bytes(peak)} of GPU memory as predicted, {need} with the allocator's gaps and CUDA's "
        f"context, but the largest device, {most.device}, has {show_bytes(max(most.usable, 0))} free: a smaller "
        "training.batch, training.checkpointing: true, training.precision: bfloat16, or executor.device: cpu"
    )


def choose_share(places: Sequence[DeviceShare], busy: Sequence[int], peak: int | None) -> int | None:
    """The place for a work: of those that hold it the one with the fewest works, and of these the smallest.

    ``busy`` are the works that each has.  A work of unknown peak (None) goes to the largest place.  Returns None if no
    place holds the work.
    """
    if peak is None:
        return max(range(len(places)), key=lambda index: (places[index].bytes, -index))
    able = [index for index, place in enumerate(places) if place.holds(peak)]
    return min(able, key=lambda index: (busy[index], places[index].bytes, index), default=None)
