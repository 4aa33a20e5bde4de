"""The comparison of tensors that all tests use: it names the tensor that differs, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = "Tensor | Mapping[str, Tensors] | Sequence[Tensors]"


def assert_equal_tensors(found: Tensors, expected: Tensors, *, rtol: float = 0, atol: float = 0) -> None:
    """Two tensors, or mappings or sequences of them at any depth: the same names, shapes, dtypes, devices and values.

    Without a tolerance the values are equal to the bit: 0 and -0 differ. NaN equals nothing. Tensors on the meta
    device have no values to compare. Raises AssertionError with a line for each tensor that differs.
    """
    left, right = dict(_named(found, "")), dict(_named(expected, ""))
    lines = [f"{name} is missing" for name in right if name not in left]
    lines += [f"{name} is not expected" for name in left if name not in right]
    for name in left.keys() & right.keys():
        if why := _difference(left[name], right[name], rtol, atol):
            lines.append(f"{name}: {why}")
    if lines:
        raise AssertionError("\n".join(sorted(lines)))


def _named(tensors: Tensors, name: str) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with the path of names and places that leads to it."""
    if isinstance(tensors, Tensor):
        yield name or "the tensor", tensors
    elif isinstance(tensors, Mapping):
        for key, value in tensors.items():
            yield from _named(value, f"{name}/{key}" if name else key)
    else:
        for place, value in enumerate(tensors):
            yield from _named(value, f"{name}[{place}]")


def _difference(found: Tensor, expected: Tensor, rtol: float, atol: float) -> str:
    """In which way they differ; "" if they don't."""
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} where {list(expected.shape)} is expected"
    for one, other in ((found.dtype, expected.dtype), (found.device, expected.device)):
        if one != other:
            return f"{one} where {other} is expected"
    if found.is_meta:
        return ""
    found, expected = found.detach(), expected.detach()
    if rtol or atol:
        wrong = ~torch.isclose(found, expected, rtol=rtol, atol=atol)
    else:
        wrong = (found != expected) | (found.signbit() != expected.signbit())
    if not wrong.any():
        return ""
    apart = (found.double() - expected.double()).abs().masked_fill(~wrong, -1)
    place = int(apart.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(place), apart.shape)]
    values = f"{found.flatten()[place].item()} where {expected.flatten()[place].item()} is expected"
    largest = apart.flatten()[place].item()
    return f"{int(wrong.sum())} of {wrong.numel()} values differ, by {largest:.6g} at most: at {where} {values}"
