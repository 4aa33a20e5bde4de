"""Memory that a process shares with its workers, so that tensors don't travel through pipes.

A ``Slot`` is an anonymous file in memory (memfd) of this process.  A worker opens it by the path of its descriptor.
Its memory is free when no process refers to it any more, however the processes end.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from itertools import count

import torch
from torch import Tensor

from edgefl.runs.kept import StoredTensors, TensorLayout, parts_of
from edgefl.work.packed import lend

_NUMBERS = count()
MOST_PARTS = 512
"""Parts that are written in one call: Linux takes at most 1,024.  64 are as fast, one each takes three times as
long."""
MOST_LENT = 12
"""Slots that come back when no report refers to them: each is an open file, of which a process may have a thousand.

A choice: an executor has more where it hands more assignments on, one for each."""
MOST_ROOMS = 256
"""Slots of its parent that a worker keeps mapped: as many as the parent has for 64 workers, four each.  With more
some are mapped again, which takes as long as writing into them."""


class Slot:
    """A place for the tensors of one sender.  ``number`` is its alone, while another may have its path later.

    One that is ``reused`` keeps its memory, and processes keep it mapped, from one report to the next.
    """

    def __init__(self, reused: bool = False) -> None:
        self.reused = reused
        descriptor = os.memfd_create("edgefl")
        self.descriptor, self.path, self.number = descriptor, f"/proc/{os.getpid()}/fd/{descriptor}", next(_NUMBERS)
        weakref.finalize(self, os.close, descriptor)
        self._map: Tensor | None = None

    def write(self, tensors: Mapping[str, Tensor]) -> StoredTensors:
        """Put tensors at the slot's beginning; returns where they are, as a worker reads them.  Raises OSError."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        return StoredTensors(self.path, 0, _write_parts(self.descriptor, tensors), tuple(tensors))

    def write_text(self, text: str) -> None:
        """Put a text into the slot.  Raises OSError."""
        with open(self.descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)

    def read_tensors(self, layout: TensorLayout) -> dict[str, Tensor]:
        """The tensors that a worker put there, through a memory map that lasts as long as they do.

        It needs no open file, of which a process may have a thousand or so.
        """
        if not layout.size:
            return {name: torch.empty(shape, dtype=dtype) for name, (_, dtype, shape) in layout.places.items()}
        storage = torch.UntypedStorage.from_file(self.path, False, layout.size)
        return {
            name: torch.empty(0, dtype=dtype).set_(storage, begin // dtype.itemsize, shape)  # type: ignore[call-overload]
            for name, (begin, dtype, shape) in layout.places.items()
        }

    def bytes(self, size: int) -> Tensor:
        """The first ``size`` bytes of the slot, through a memory map like that of ``read_tensors``."""
        return _map_bytes(self.path, size, shared=False)

    def lend_bytes(self, size: int, back: Callable[[Slot], None]) -> Tensor:
        """The same through the slot's own memory map; ``back`` gets the slot when no tensor refers to it any more."""
        if self._map is None or len(self._map) != size:
            self._map = _map_bytes(self.path, size, shared=True)
        return lend(self._map, lambda: back(self))


class Slots:
    """Slots for reports.  So many keep their memory for the next report: to allocate and map it takes as long as to
    write into it."""

    def __init__(self, most: int = MOST_LENT) -> None:
        self._most = most
        self._free: deque[Slot] = deque()
        self._reused: weakref.WeakSet[Slot] = weakref.WeakSet()

    def take(self, *, reused: bool) -> Slot:
        """A slot that nothing refers to; with ``reused`` one that keeps its memory, if there may be another."""
        if reused and self._free:
            return self._free.pop()
        slot = Slot(reused and len(self._reused) < self._most)
        if slot.reused:
            self._reused.add(slot)
        return slot

    def bytes(self, slot: Slot, size: int) -> Tensor:
        """The first ``size`` bytes of a slot, which is free again when no tensor refers to them any more."""
        if slot.reused and size:
            return slot.lend_bytes(size, self.back)
        self.back(slot)
        return slot.bytes(size)

    def back(self, slot: Slot) -> None:
        """Take a slot back in which nobody reads or writes any more."""
        if slot.reused:
            self._free.append(slot)


def room(number: int | None, path: str, size: int) -> Tensor:
    """``size`` bytes in the slot of another process, which sees what is written there.  Raises OSError.

    They stay mapped for the slot's next report, unless ``number`` is None.
    """
    return _new_room(path, size) if number is None else _room(number, path, size)


def _new_room(path: str, size: int) -> Tensor:
    descriptor = os.open(path, os.O_RDWR)
    try:
        # a slot never shrinks: a worker may have mapped more of it, for the report of another assignment
        if size > os.fstat(descriptor).st_size:  # without memory there is an error here, not a signal at a write
            os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
    return _map_bytes(path, size, shared=True)


@lru_cache(MOST_ROOMS)
def _room(number: int, path: str, size: int) -> Tensor:
    return _new_room(path, size)


def _map_bytes(path: str, size: int, *, shared: bool) -> Tensor:
    if not size:
        return torch.zeros(0, dtype=torch.uint8)
    storage = torch.UntypedStorage.from_file(path, shared, size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))  # type: ignore[call-overload, no-any-return]


def write_to_slot(path: str, tensors: Mapping[str, Tensor]) -> TensorLayout:
    """Put tensors into the slot of another process; returns their layout.  Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        return _write_parts(descriptor, tensors)
    finally:
        os.close(descriptor)


def _write_parts(descriptor: int, tensors: Mapping[str, Tensor]) -> TensorLayout:
    parts = [part for tensor in tensors.values() for part in parts_of(tensor) if len(part)]
    for begin in range(0, len(parts), MOST_PARTS):
        left: list[memoryview | bytes] = parts[begin : begin + MOST_PARTS]
        while left:
            written = os.writev(descriptor, left)
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:  # one call may write less
                left[0] = memoryview(left[0])[written:]
    return TensorLayout.from_tensors(tensors)


@cache
def has_shared_memory() -> bool:
    """Whether this system has such memory, and lets a process open another's by path (Linux with /proc)."""
    try:
        slot = Slot()
        write_to_slot(slot.path, {})
    except (AttributeError, OSError):
        return False
    return True
