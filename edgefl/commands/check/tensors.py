"""Comparison of named tensors, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, precision and bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """Names that only one of the two has, or whose tensors differ, sorted."""
    return sorted(name for name in a.keys() | b.keys() if name not in a or name not in b or not same(a[name], b[name]))


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in storage of their own."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
