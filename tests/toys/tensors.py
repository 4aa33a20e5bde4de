"""Comparison of tensors for all tests; it names the tensors that differ, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = "Tensor | Mapping[str, Tensors] | Sequence[Tensors]"


def assert_equal_tensors(found: Tensors, expected: Tensors, *, rtol: float = 0, atol: float = 0) -> None:
    """Assert that tensors, or nested mappings and sequences of them, are equal: names, shapes, dtypes, devices, values.

    Without a tolerance values must be bit-equal: 0 and -0 differ. NaN differs from every value. Tensors on the meta
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
    """Yield each tensor with its path of names and indices."""
    if isinstance(tensors, Tensor):
        yield name or "the tensor", tensors
    elif isinstance(tensors, Mapping):
        for key, value in tensors.items():
            yield from _named(value, f"{name}/{key}" if name else key)
    else:
        for index, value in enumerate(tensors):
            yield from _named(value, f"{name}[{index}]")


def _difference(found: Tensor, expected: Tensor, rtol: float, atol: float) -> str:
    """How two tensors differ, in words; "" if they are equal."""
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} where {list(expected.shape)} is expected"
    for actual, wanted in ((found.dtype, expected.dtype), (found.device, expected.device)):
        if actual != wanted:
            return f"{actual} where {wanted} is expected"
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
    index = int(apart.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(index), apart.shape)]
    values = f"{found.flatten()[index].item()} where {expected.flatten()[index].item()} is expected"
    largest = apart.flatten()[index].item()
    return f"{int(wrong.sum())} of {wrong.numel()} values differ, by {largest:.6g} at most: at {where} {values}"
