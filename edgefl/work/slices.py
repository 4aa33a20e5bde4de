"""Slices: the part of a server's tensor that a narrower model has, as plain data.

A ``Cut`` has for each dimension the ranges ``(start, stop)`` that stay, in order; several where a dimension is made of
parts that are cut each (query, key and value).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Cut = tuple[tuple[tuple[int, int], ...], ...]


def cut_between(
    full: Sequence[int], narrow: Sequence[int], parts: Mapping[int, tuple[Sequence[int], Sequence[int]]] = {}
) -> Cut | None:
    """The cut that leaves the leading ``narrow`` of a ``full`` shape; None where nothing is cut away.

    ``parts`` says of a dimension the sizes of the parts that it is made of, full and narrow: the leading of each stays.
    Raises ValueError for shapes that no cut is between.
    """
    if len(full) != len(narrow) or any(n > f for f, n in zip(full, narrow, strict=True)):
        raise ValueError(f"no slice of {tuple(full)} is {tuple(narrow)}")
    if tuple(full) == tuple(narrow):
        return None
    found = []
    for dimension, (whole, left) in enumerate(zip(full, narrow, strict=True)):
        sizes, lengths = parts.get(dimension, ((whole,), (left,)))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        found.append(tuple((start, start + length) for start, length in zip(starts, lengths, strict=True)))
    return tuple(found)


def shape_of(cut: Cut) -> tuple[int, ...]:
    """The shape that a cut leaves."""
    return tuple(sum(stop - start for start, stop in ranges) for ranges in cut)


def fits(cut: Cut | None, full: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether this cut of a tensor of shape ``full`` has this shape."""
    if cut is None:
        return tuple(full) == tuple(shape)
    inside = len(cut) == len(full) and all(r[-1][1] <= size for r, size in zip(cut, full, strict=True))
    return inside and shape_of(cut) == tuple(shape)


def take(tensor: Tensor, cut: Cut | None) -> Tensor:
    """What the cut leaves of a tensor: itself where nothing is cut away."""
    for dimension, ranges in enumerate(cut or ()):
        kept = [tensor.narrow(dimension, start, stop - start) for start, stop in ranges]
        tensor = torch.cat(kept, dimension) if len(kept) > 1 else kept[0]
    return tensor if cut is None else tensor.contiguous()


def put(tensor: Tensor, cut: Cut | None, value: Tensor) -> None:
    """Write a value, shaped as the cut leaves it, into its place in a tensor."""
    _put(tensor, cut if cut is not None else tuple(((0, size),) for size in tensor.shape), value, 0)


def _put(tensor: Tensor, cut: Cut, value: Tensor, dimension: int) -> None:
    if dimension == len(cut):
        tensor.copy_(value)
        return
    at = 0
    for start, stop in cut[dimension]:
        length = stop - start
        _put(tensor.narrow(dimension, start, length), cut, value.narrow(dimension, at, length), dimension + 1)
        at += length


def covers(outer: Cut | None, inner: Cut | None) -> bool:
    """Whether all that ``inner`` leaves is also left by ``outer``."""
    if outer is None or inner is None:
        return outer is None
    return all(
        len(a) == len(b) and all(x[0] <= y[0] and y[1] <= x[1] for x, y in zip(a, b, strict=True))
        for a, b in zip(outer, inner, strict=True)
    )


def within(outer: Cut | None, inner: Cut | None) -> Cut | None:
    """The cut that leaves of what ``outer`` left what ``inner`` leaves of the whole."""
    if outer is None or inner is None or outer == inner:
        return inner if outer is None else None
    found = []
    for mine, wanted in zip(outer, inner, strict=True):
        at, ranges = 0, []
        for (start, stop), (first, last) in zip(mine, wanted, strict=True):
            ranges.append((at + first - start, at + last - start))
            at += stop - start
        found.append(tuple(ranges))
    return tuple(found)
