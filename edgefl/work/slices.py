"""Slices: the part of a server's tensor that a narrower model has, as plain data.

A ``Cut`` has for each dimension the ranges ``(start, stop)`` that remain, in order.  A dimension has several ranges if
its parts are cut separately (query, key and value).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Cut = tuple[tuple[tuple[int, int], ...], ...]


def cut_between(
    full: Sequence[int], narrow: Sequence[int], parts: Mapping[int, tuple[Sequence[int], Sequence[int]]] = {}
) -> Cut | None:
    """The cut that keeps the leading ``narrow`` of a ``full`` shape; None if the shapes are equal.

    ``parts`` maps a dimension to the full and narrow sizes of its parts, each of which keeps its leading elements.
    Raises ValueError if ``narrow`` doesn't fit into ``full``.
    """
    if len(full) != len(narrow) or any(n > f for f, n in zip(full, narrow, strict=True)):
        raise ValueError(f"no slice of {tuple(full)} has the shape {tuple(narrow)}")
    if tuple(full) == tuple(narrow):
        return None
    cut = []
    for dimension, (whole, left) in enumerate(zip(full, narrow, strict=True)):
        sizes, lengths = parts.get(dimension, ((whole,), (left,)))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        cut.append(tuple((start, start + length) for start, length in zip(starts, lengths, strict=True)))
    return tuple(cut)


def shape_of(cut: Cut) -> tuple[int, ...]:
    """The shape that remains after a cut."""
    return tuple(sum(stop - start for start, stop in ranges) for ranges in cut)


def fits(cut: Cut | None, full: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the cut of a tensor of shape ``full`` has the shape ``shape``."""
    if cut is None:
        return tuple(full) == tuple(shape)
    inside = len(cut) == len(full) and all(r[-1][1] <= size for r, size in zip(cut, full, strict=True))
    return inside and shape_of(cut) == tuple(shape)


def take(tensor: Tensor, cut: Cut | None) -> Tensor:
    """The part of a tensor that a cut keeps; the tensor itself if the cut is None."""
    for dimension, ranges in enumerate(cut or ()):
        pieces = [tensor.narrow(dimension, start, stop - start) for start, stop in ranges]
        tensor = torch.cat(pieces, dimension) if len(pieces) > 1 else pieces[0]
    return tensor if cut is None else tensor.contiguous()


def write_slice(tensor: Tensor, cut: Cut | None, value: Tensor) -> None:
    """Write ``value``, of the cut's shape, into the part of the tensor that the cut keeps."""
    _put(tensor, cut if cut is not None else tuple(((0, size),) for size in tensor.shape), value, 0)


def add(tensor: Tensor, cut: Cut | None, value: Tensor) -> None:
    """Add ``value``, of the cut's shape, to the part of the tensor that the cut keeps."""
    write_slice(tensor, cut, take(tensor, cut) + value)


def _put(tensor: Tensor, cut: Cut, value: Tensor, dimension: int) -> None:
    if dimension == len(cut):
        tensor.copy_(value)
        return
    offset = 0
    for start, stop in cut[dimension]:
        length = stop - start
        _put(tensor.narrow(dimension, start, length), cut, value.narrow(dimension, offset, length), dimension + 1)
        offset += length


def covers(outer: Cut | None, inner: Cut | None) -> bool:
    """Whether ``outer`` keeps every element that ``inner`` keeps."""
    if outer is None or inner is None:
        return outer is None
    return all(
        len(a) == len(b) and all(x[0] <= y[0] and y[1] <= x[1] for x, y in zip(a, b, strict=True))
        for a, b in zip(outer, inner, strict=True)
    )


def within(outer: Cut | None, inner: Cut | None) -> Cut | None:
    """The cut of ``outer``'s part that keeps the elements of ``inner``, which must be covered."""
    if outer is None or inner is None or outer == inner:
        return inner if outer is None else None
    cut = []
    for outer_ranges, inner_ranges in zip(outer, inner, strict=True):
        offset, ranges = 0, []
        for (start, stop), (first, last) in zip(outer_ranges, inner_ranges, strict=True):
            ranges.append((offset + first - start, offset + last - start))
            offset += stop - start
        cut.append(tuple(ranges))
    return tuple(cut)
