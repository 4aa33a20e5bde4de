"""Codecs: encode the tensors of a payload for transfer, and decode them.

A float tensor of more than one element travels in a narrower dtype, as its largest changes only, or both.  All other
tensors of a payload (integers, scalars, buffers) travel unchanged.  Names, shapes and dtypes of the wire tensors
follow from the tensor's own, so that bytes are known without data.

``float16``, ``bfloat16``  round to nearest.  Finite values beyond the dtype's range become its largest finite value
with their sign; infinities and NaN stay, so that a diverged model is still recognised.

``int8``  ``x ~ scale q`` with integer q in -127..127 and ``scale = max|x| / 127`` in float32.  Each tensor has one
scale (4 bytes), as matrices, embeddings and top-k values have no common axis.  The error is at most scale / 2.  A
tensor with an infinity or a NaN arrives as all NaN.

Uploads are updates: where both ends know the value that was sent down (``base``), the difference to it is narrowed.
Its range is smaller than that of the weights, and so is the error.  ``top_k`` keeps the ceil(share n) largest
differences by magnitude, ties by lower index, and 0 for the others.  In full precision the values at these indices
travel instead of their differences, which would round once more, so that 100 % gives the plain tensor to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

import torch
from torch import Tensor

from edgefl.errors import MethodError

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

# parameter names have no colon, so these names are never those of parameters
VALUES, INDICES, SCALE = ":values", ":indices", ":scale"
# the largest scale with 127 * scale finite in float32
_LARGEST_SCALE = 2.6793e36


@dataclass(frozen=True)
class Codec:
    """How the tensors of a payload travel, as plain data.

    ``dtype`` is float16, bfloat16, int8, or float32 for no change; tensors that are already as narrow keep theirs.
    ``top_k`` is the share of an update's elements that travel, None for all; indices are int32.
    ``exact`` are the names of tensors that travel unchanged.
    """

    dtype: str = "float32"
    top_k: float | None = None
    exact: tuple[str, ...] = ()

    def narrows(self, dtype: str) -> bool:
        """Whether a tensor of this dtype travels in a narrower one."""
        return self.dtype != "float32" and _BYTES[self.dtype] < _BYTES.get(dtype, 0)

    def applies(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether a tensor is encoded; otherwise it travels unchanged."""
        if dtype not in _BYTES or dtype == "int8" or prod(shape) <= 1 or name in self.exact:
            return False
        return self.top_k is not None or self.narrows(dtype)

    def kept(self, elements: int) -> int:
        """Number of elements that travel, out of ``elements``."""
        # as a decimal fraction: 7 % of 100 is 7, but the binary 0.07 is slightly more
        return elements if self.top_k is None else ceil(Fraction(repr(self.top_k)) * elements)

    def wire(self, name: str, shape: tuple[int, ...], dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and dtypes of the wire tensors of this tensor, by the names that ``encode`` gives."""
        if not self.applies(name, shape, dtype):
            return {name: (shape, dtype)}
        travels = self.dtype if self.narrows(dtype) else dtype
        if self.top_k is None and travels != "int8":
            return {name: (shape, travels)}
        count = (self.kept(prod(shape)),)
        tensors = {name + VALUES: (shape if self.top_k is None else count, travels)}
        if self.top_k is not None:
            tensors[name + INDICES] = (count, "int32")
        if travels == "int8":
            tensors[name + SCALE] = ((), "float32")
        return tensors

    def encode(self, name: str, value: Tensor, base: Tensor | None = None) -> dict[str, Tensor]:
        """The wire tensors of this tensor, by name; ``base`` is the value that the receiver already has.

        Raises MethodError for ``top_k`` without a ``base``.
        """
        dtype = _name(value.dtype)
        if not self.applies(name, tuple(value.shape), dtype):
            return {name: value}
        if self.top_k is not None and base is None:
            raise MethodError(f"can't send only the largest changes of {name!r}: the receiver has no value of it")
        narrow, entries, indices = self.narrows(dtype), value, None
        if base is not None:
            change = value - base.to(value.dtype)
            entries = change if narrow else value
            if self.top_k is not None:
                indices = _largest(change.reshape(-1), self.kept(change.numel()))
                entries = entries.reshape(-1)[indices]
        if not narrow:
            wire = {name + VALUES: entries}
        elif self.dtype == "int8":
            values, scale = _quantised(entries)
            wire = {name + VALUES: values, name + SCALE: scale}
        else:
            wire = {name + VALUES if indices is not None else name: _cast(entries, getattr(torch, self.dtype))}
        if indices is not None:
            wire[name + INDICES] = indices.to(torch.int32)
        return wire

    def decode(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, wire: Mapping[str, Tensor], base: Tensor | None
    ) -> Tensor:
        """The tensor decoded from its wire tensors and the same ``base``; returned as it is if it isn't encoded."""
        values = wire[name] if name in wire else wire[name + VALUES]
        if name in wire and values.dtype == dtype:
            return values
        # sums are computed in float32 at least
        exact = torch.promote_types(dtype, torch.float32)
        narrow, values = values.dtype != dtype, values.to(exact)
        if name + SCALE in wire:
            values = values * wire[name + SCALE]
        if name + INDICES in wire:
            assert base is not None
            indices = wire[name + INDICES].long()
            flat = base.to(exact).reshape(-1).clone()
            flat[indices] = flat[indices] + values if narrow else values
            values = flat
        elif base is not None:
            values = base.to(exact).reshape(-1) + values.reshape(-1)
        return _cast(values.reshape(shape), dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to nearest; finite values beyond the dtype's range become its largest finite value."""
    largest = torch.finfo(dtype).max
    if torch.finfo(values.dtype).max <= largest or all(extreme.abs() <= largest for extreme in values.aminmax()):
        return values.to(dtype)
    return torch.where(values.isinf(), values, values.clamp(-largest, largest)).to(dtype)


def _quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Integers -127..127 and the scale, a scalar tensor; the scale is NaN if not all values are finite."""
    values = values.float()
    low, high = values.aminmax()  # NaN if any value is NaN
    scale = torch.maximum(low.abs(), high.abs()) / 127
    if not scale.isfinite():
        return torch.zeros_like(values, dtype=torch.int8), torch.full_like(scale, torch.nan)
    scale = scale.clamp(max=_LARGEST_SCALE)
    if not scale:  # all values are zero, or so small that the scale is
        return torch.zeros_like(values, dtype=torch.int8), scale
    return (values / scale).round_().clamp_(-127, 127).to(torch.int8), scale


def _largest(change: Tensor, count: int) -> Tensor:
    """Ascending indices of the ``count`` largest entries by magnitude; ties go to the lower index.

    ``topk`` guarantees no order among ties, so only its smallest value is used, not its indices.
    """
    if count == change.numel():
        return torch.arange(count)
    size = change.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    least = size.topk(count, sorted=False).values.min()
    above = size > least
    tied = (size == least).nonzero()[: count - int(above.sum())]
    above[tied] = True
    return above.nonzero().squeeze(1)
