"""What torch's CUDA caching allocator reserves, replayed from allocations and frees without a GPU.

The budget of a GPU's process is for what is reserved: segments, in which blocks lie with gaps.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` with its default settings, on one stream: requests are
rounded up to 512 bytes; the smallest free block that is large enough is taken, else a segment is reserved; what is left
of a block is split off, of a large one if it is more than 1 MiB; a freed block joins its free neighbours; where no
segment can be reserved, all that are free are given back first.  Kernels' workspaces aren't among the events.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from edgefl.work import CUDA_ROUNDING
from edgefl.work.meter.allocator_peak import MemoryEvent

MIB = 2**20
SMALL, LEAST_LARGE = MIB, 10 * MIB
"""Requests up to ``SMALL`` share segments of 2 MiB; those below ``LEAST_LARGE`` share segments of 20 MiB.

They are c10's ``kSmallSize`` and ``kMinLargeAlloc``.
"""


def segment_bytes(request: int) -> int:
    """Bytes of the segment that is reserved for a rounded request: larger ones are rounded up to 2 MiB."""
    if request <= SMALL:
        return 2 * MIB
    return 20 * MIB if request < LEAST_LARGE else -(-request // (2 * MIB)) * 2 * MIB


@dataclass(order=True)
class AllocatorBlock:
    """A part of a segment, ordered as the allocator's free blocks are: by size, then by address.

    c10 compares their streams first; here is one stream.
    """

    size: int
    address: int
    small: bool = field(compare=False)
    free: bool = field(default=False, compare=False)
    before: AllocatorBlock | None = field(default=None, compare=False, repr=False)
    after: AllocatorBlock | None = field(default=None, compare=False, repr=False)


class CachingAllocator:
    """``reserved`` and ``allocated`` are bytes now; ``peak`` is the most that was reserved.

    ``limit`` are the most bytes that it may reserve; beyond it a request raises MemoryError, as torch would do.
    """

    def __init__(self, limit: float = inf) -> None:
        self.reserved = self.allocated = self.peak = 0
        self._limit, self._end = limit, 0
        self._free: dict[bool, list[AllocatorBlock]] = {True: [], False: []}
        self._used: dict[int, AllocatorBlock] = {}

    def add(self, events: Iterable[MemoryEvent]) -> None:
        """Replay events, in order."""
        for address, size in events:
            if size > 0:
                self._used[address] = self._take_block(-(-size // CUDA_ROUNDING) * CUDA_ROUNDING)
                self.allocated += self._used[address].size
            else:
                block = self._used.pop(address)
                self.allocated -= block.size
                self._release(block)

    def _take_block(self, request: int) -> AllocatorBlock:
        small = request <= SMALL
        free = self._free[small]
        place = bisect_left(free, request, key=lambda block: block.size)
        block = free.pop(place) if place < len(free) else self._segment(request, small)
        block.free = False
        left = block.size - request
        if left >= CUDA_ROUNDING if small else left > SMALL:
            rest = AllocatorBlock(left, block.address + request, small, True, block, block.after)
            if block.after:
                block.after.before = rest
            block.size, block.after = request, rest
            insort(free, rest)
        return block

    def _segment(self, request: int, small: bool) -> AllocatorBlock:
        size = segment_bytes(request)
        if self.reserved + size > self._limit:
            self._give_back()
        if self.reserved + size > self._limit:
            raise MemoryError(f"{size} bytes more than {self.reserved} are over the limit of {self._limit}")
        block = AllocatorBlock(size, self._end, small)
        self._end += size
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        return block

    def _give_back(self) -> None:
        """Give segments back that hold nothing."""
        for free in self._free.values():
            whole = [block for block in free if block.before is None and block.after is None]
            self.reserved -= sum(block.size for block in whole)
            free[:] = [block for block in free if block.before is not None or block.after is not None]

    def _release(self, block: AllocatorBlock) -> None:
        free = self._free[block.small]
        block.free = True
        if (before := block.before) and before.free:
            free.pop(bisect_left(free, before))
            before.size, before.after = before.size + block.size, block.after
            if block.after:
                block.after.before = before
            block = before
        if (after := block.after) and after.free:
            free.pop(bisect_left(free, after))
            block.size, block.after = block.size + after.size, after.after
            if after.after:
                after.after.before = block
        insort(free, block)


def least_limit(events: Sequence[MemoryEvent]) -> int:
    """The least limit, in steps of 2 MiB, under which these events find memory: what a process needs of a GPU for them.

    Under it segments that are free are given back and reserved again, which takes time.
    """
    free = CachingAllocator()
    free.add(events)
    step = segment_bytes(1)
    enough, short = free.peak // step, 0
    while enough - short > 1:
        middle = (enough + short) // 2
        try:
            CachingAllocator(middle * step).add(events)
            enough = middle
        except MemoryError:
            short = middle
    return enough * step
