"""Tensors of a payload that lie one after the other in memory, so that they are copied, checked and added at once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite, prod

import torch
from torch import Tensor

from edgefl.models.model import DTYPES
from edgefl.work.description import Payload

ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes, as those that torch allocates do, so that kernels treat both alike.

``add_change`` takes as long at an offset of 4 bytes, but a view as int64 or float64 needs at least 8.
"""
CHUNK = 1 << 17
"""Elements that are treated at a time: their difference, 512 KiB in float32, stays in the processor's cache.

With 1 MiB of L2 for a core, 8 million elements take 6 ms, as with up to 2^20 at a time; with 2^13 they take 14 ms, and
at once 25 ms.  The sums of single elements don't depend on it.
"""
Parts = dict[torch.dtype, list[Tensor]]
"""Tensors ``[n]`` of each dtype, that lie one after the other in a buffer."""
MOST_FREE = 2
"""Buffers that wait to be used again: one is filled while another is sent.  Each holds a whole payload."""


@dataclass(frozen=True, eq=False)
class PayloadLayout:
    """Where the tensors of a payload lie in a buffer: those of one dtype lie together, in the payload's order."""

    payload: Payload

    @cached_property
    def _layout(self) -> tuple[dict[torch.dtype, tuple[int, int]], dict[str, tuple[torch.dtype, int]], int]:
        parts, offsets, end = {}, {}, 0
        for dtype in dict.fromkeys(DTYPES[item.dtype] for item in self.payload.items):
            begin, step = end, ALIGNMENT // dtype.itemsize
            for item in self.payload.items:
                if DTYPES[item.dtype] is dtype:
                    offsets[item.name] = dtype, (end - begin) // dtype.itemsize
                    end += -(-prod(item.shape) // step) * ALIGNMENT
            parts[dtype] = begin, end
        return parts, offsets, end

    @property
    def parts(self) -> dict[torch.dtype, tuple[int, int]]:
        """Where the tensors of each dtype begin and end, in bytes."""
        return self._layout[0]

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self._layout[2]

    def view_buffer(self, buffer: Tensor) -> Packed:
        """The tensors that lie in a buffer ``[size]`` of bytes."""
        whole = {dtype: buffer[begin:end].view(dtype) for dtype, (begin, end) in self.parts.items()}
        return Packed(buffer, whole, self)

    def views(self, whole: Mapping[torch.dtype, Tensor]) -> dict[str, Tensor]:
        """The tensors by name, which lie in ``whole``."""
        tensors = {}
        for item in self.payload.items:
            dtype, at = self._layout[1][item.name]
            tensors[item.name] = whole[dtype][at : at + prod(item.shape)].view(item.shape)
        return tensors

    @cached_property
    def _pieces(self) -> dict[torch.dtype, list[str | int]]:
        """What lies one after the other in the part of each dtype: tensors by name, and gaps by their elements."""
        pieces: dict[torch.dtype, list[str | int]] = {dtype: [] for dtype in self.parts}
        for item in self.payload.items:
            dtype, size = DTYPES[item.dtype], prod(item.shape)
            pieces[dtype] += [item.name, -size % (ALIGNMENT // dtype.itemsize)]
        return pieces

    def flat_parts(self, tensors: Mapping[str, Tensor]) -> Parts | None:
        """These tensors as ``[n]`` with the gaps between them, in which they can be copied at once, by dtype.

        None if one has another dtype, isn't contiguous, or isn't on the CPU.
        """
        found: Parts = {}
        for dtype, pieces in self._pieces.items():
            gaps = torch.zeros(ALIGNMENT // dtype.itemsize, dtype=dtype)
            found[dtype] = parts = []
            for piece in pieces:
                whole = gaps[:piece] if isinstance(piece, int) else tensors[piece].detach()
                if whole.dtype != dtype or whole.device.type != "cpu" or not whole.is_contiguous():
                    return None
                if whole.numel():
                    parts.append(whole.view(-1))
        return found

    def copy(self, tensors: Mapping[str, Tensor], buffer: Tensor | None = None, parts: Parts | None = None) -> Packed:
        """These tensors, of any device and dtype, in this buffer ``[size]`` of the CPU, or in a new one.

        ``parts`` are they as ``flat_parts`` returned them, if that is known.
        """
        new = self.view_buffer(torch.empty(self.size, dtype=torch.uint8) if buffer is None else buffer)
        if parts is None:
            parts = self.flat_parts(tensors)
        for dtype, pieces in self._pieces.items():
            if not len(new.whole[dtype]):
                continue
            if parts is not None:
                torch.cat(parts[dtype], out=new.whole[dtype])
            else:
                new.whole[dtype].zero_()
                names = [piece for piece in pieces if isinstance(piece, str)]
                torch._foreach_copy_([new[name] for name in names], [tensors[name].detach() for name in names])
        return new


class Packed(Mapping[str, Tensor]):
    """Tensors of a payload by name, which lie in one ``buffer``: ``whole`` has all of one dtype, as ``places`` say.

    The gaps between them are zeros.
    """

    def __init__(self, buffer: Tensor, whole: Mapping[torch.dtype, Tensor], places: PayloadLayout):
        self.buffer, self.whole, self.places = buffer, whole, places

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.places.views(self.whole)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def lend(memory: Tensor, back: Callable[[], None]) -> Tensor:
    """A tensor in the same memory, bytes of the CPU; ``back`` is called when nothing refers to it any more."""
    # every view of the tensor keeps the memoryview alive, but not the tensor itself
    view = memoryview(memory.numpy())  # type: ignore[arg-type]
    weakref.finalize(view, back)
    return torch.frombuffer(view, dtype=torch.uint8)


class Buffers:
    """Memory for payloads that is used again, which saves the time to allocate it; the last ``MOST_FREE`` are kept."""

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque(maxlen=MOST_FREE)

    def take(self, size: int) -> Tensor:
        """A buffer of so many bytes, of any values."""
        memory = next((free for free in self._free if len(free) == size), None)
        if memory is None:
            memory = torch.empty(size, dtype=torch.uint8)
        else:
            self._free = deque((free for free in self._free if free is not memory), maxlen=MOST_FREE)
        return lend(memory, partial(self._back, memory)) if size else memory

    def _back(self, memory: Tensor) -> None:
        self._free.append(memory)


def payload_layout(payload: Payload) -> PayloadLayout:
    """Where the tensors of a payload without a codec lie together."""
    places = payload.places
    assert places is not None
    return places


def buffer_bytes(payloads: Iterable[Payload]) -> int | None:
    """Bytes of a buffer for the tensors of these payloads; None if a codec encodes some."""
    found = [payload.places for payload in payloads]
    return None if None in found else sum(places.size for places in found if places is not None)


def split_buffer(buffer: Tensor, payloads: Iterable[Payload]) -> Iterator[tuple[Payload, Tensor]]:
    """The part of a buffer of ``buffer_bytes(payloads)`` bytes for each payload."""
    end = 0
    for payload in payloads:
        begin, end = end, end + payload_layout(payload).size
        yield payload, buffer[begin:end]


def is_finite(payloads: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Whether a client's payloads have neither NaN nor infinity, tables included."""
    return all(_has_finite_values(n.whole.values() if isinstance(n, Packed) else n.values()) for n in payloads.values())


def _has_finite_values(tensors: Iterable[Tensor]) -> bool:
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    sums: dict[torch.dtype, list[Tensor]] = {}
    for tensor in floating:
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
        sums.setdefault(total.dtype, []).append(total)
    # a sum that is finite has finite terms; one that isn't may be of finite terms
    if all(isfinite(torch.stack(totals).abs().max()) for totals in sums.values()):
        return True
    return all(bool(tensor.isfinite().all()) for tensor in floating)


def add_change(mean: Tensor, value: Tensor, base: Tensor, alpha: float) -> None:
    """``mean += alpha (value - base)``, for tensors ``[n]`` of one dtype."""
    for begin in range(0, len(mean), CHUNK):
        part = slice(begin, begin + CHUNK)
        mean[part].add_(value[part] - base[part], alpha=alpha)
