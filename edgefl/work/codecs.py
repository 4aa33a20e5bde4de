"""Codecs: how a tensor of a payload travels, and what arrives.

A float tensor of more than one element travels in a narrower dtype, as its largest changes only, or both; whatever
else a payload holds (integers, scalars, buffers) travels as it is.  Names, shapes and dtypes of the wire tensors
follow from the tensor's own, so that bytes are known without data.

``float16``, ``bfloat16``  rounded to nearest; a finite value beyond the largest finite one becomes that one (its sign
kept), infinities and NaN stay: a model that diverged is not made to look sound, one outlier doesn't break it.

``int8``  ``x ~ scale q`` with whole q in -127..127 and ``scale = max|x| / 127`` in float32, one per tensor: the same
rule for a matrix, an embedding and a handful of chosen values, which have no common axis, at 4 bytes a tensor.  The
error is at most scale / 2.  A tensor with an infinity or a NaN arrives as NaN altogether.

Uploads are updates: where both ends know the value that was sent down (``base``), what is narrowed is the difference
to it, whose range, and so the error, is smaller than the weights'.  ``top_k`` keeps the ceil(share n) largest
differences by size, equal sizes by lower index, and 0 for the others; in full precision the values of these places
travel rather than their differences, which would round once more, so that 100 % gives the plain tensor to the bit.
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

# no attribute of a module has a colon in its name: these are nobody's parameters
VALUES, INDICES, SCALE = ":values", ":indices", ":scale"
# the largest scale whose 127-fold is finite in float32
_LARGEST_SCALE = 2.6793e36


@dataclass(frozen=True)
class Codec:
    """How the tensors of a payload travel, as plain data.

    ``dtype`` is float16, bfloat16, int8, or float32 for each as it is; a tensor that is as narrow already stays.
    ``top_k`` is the share of the places of an update that travel, None for all; indices are int32.
    ``exact`` are the names of tensors that travel as they are.
    """

    dtype: str = "float32"
    top_k: float | None = None
    exact: tuple[str, ...] = ()

    def narrows(self, dtype: str) -> bool:
        """Whether a tensor of this dtype travels in a narrower one."""
        return self.dtype != "float32" and _BYTES[self.dtype] < _BYTES.get(dtype, 0)

    def applies(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether a tensor travels otherwise than as it is."""
        if dtype not in _BYTES or dtype == "int8" or prod(shape) <= 1 or name in self.exact:
            return False
        return self.top_k is not None or self.narrows(dtype)

    def kept(self, elements: int) -> int:
        """Places of so many that travel."""
        # by its shortest spelling: 7 % of 100 are 7, which 0.07 as a binary fraction exceeds
        return elements if self.top_k is None else ceil(Fraction(repr(self.top_k)) * elements)

    def wire(self, name: str, shape: tuple[int, ...], dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and dtypes of what travels for this tensor, by the names that ``encode`` gives."""
        if not self.applies(name, shape, dtype):
            return {name: (shape, dtype)}
        travels = self.dtype if self.narrows(dtype) else dtype
        if self.top_k is None and travels != "int8":
            return {name: (shape, travels)}
        count = (self.kept(prod(shape)),)
        found = {name + VALUES: (shape if self.top_k is None else count, travels)}
        if self.top_k is not None:
            found[name + INDICES] = (count, "int32")
        if travels == "int8":
            found[name + SCALE] = ((), "float32")
        return found

    def encode(self, name: str, value: Tensor, base: Tensor | None = None) -> dict[str, Tensor]:
        """What travels for this tensor; ``base`` is what the receiver has of it already.

        Raises MethodError for a share of an update without anything that it updates.
        """
        dtype = _name(value.dtype)
        if not self.applies(name, tuple(value.shape), dtype):
            return {name: value}
        if self.top_k is not None and base is None:
            raise MethodError(f"the largest changes of {name!r} can't travel: the other side has no value of it")
        narrow, sent, places = self.narrows(dtype), value, None
        if base is not None:
            change = value - base.to(value.dtype)
            sent = change if narrow else value
            if self.top_k is not None:
                places = _largest(change.reshape(-1), self.kept(change.numel()))
                sent = sent.reshape(-1)[places]
        if not narrow:
            found = {name + VALUES: sent}
        elif self.dtype == "int8":
            values, scale = _quantised(sent)
            found = {name + VALUES: values, name + SCALE: scale}
        else:
            found = {name + VALUES if places is not None else name: _cast(sent, getattr(torch, self.dtype))}
        if places is not None:
            found[name + INDICES] = places.to(torch.int32)
        return found

    def decode(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, wire: Mapping[str, Tensor], base: Tensor | None
    ) -> Tensor:
        """The tensor that arrives, given what travelled and the same ``base``; what is there as it is stays so."""
        values = wire[name] if name in wire else wire[name + VALUES]
        if name in wire and values.dtype == dtype:
            return values
        # sums are made in float32 at least
        exact = torch.promote_types(dtype, torch.float32)
        narrow, values = values.dtype != dtype, values.to(exact)
        if name + SCALE in wire:
            values = values * wire[name + SCALE]
        if name + INDICES in wire:
            assert base is not None
            places = wire[name + INDICES].long()
            whole = base.to(exact).reshape(-1).clone()
            whole[places] = whole[places] + values if narrow else values
            values = whole
        elif base is not None:
            values = base.to(exact).reshape(-1) + values.reshape(-1)
        return _cast(values.reshape(shape), dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to nearest, and to the largest finite value where rounding would make an infinity of a number."""
    most = torch.finfo(dtype).max
    if torch.finfo(values.dtype).max <= most or all(end.abs() <= most for end in values.aminmax()):
        return values.to(dtype)
    return torch.where(values.isinf(), values, values.clamp(-most, most)).to(dtype)


def _quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers -127..127 and the scale, a scalar; with a scale of NaN where there is no largest value."""
    values = values.float()
    low, high = values.aminmax()  # NaN if one is among them
    scale = torch.maximum(low.abs(), high.abs()) / 127
    if not scale.isfinite():
        return torch.zeros_like(values, dtype=torch.int8), torch.full_like(scale, torch.nan)
    scale = scale.clamp(max=_LARGEST_SCALE)
    if not scale:  # nothing but zeros, or next to it
        return torch.zeros_like(values, dtype=torch.int8), scale
    return (values / scale).round_().clamp_(-127, 127).to(torch.int8), scale


def _largest(change: Tensor, count: int) -> Tensor:
    """Indices, ascending, of the ``count`` largest entries by size; of equal ones those that come first.

    topk itself promises no order among equals: its smallest value decides, not its indices.
    """
    if count == change.numel():
        return torch.arange(count)
    size = change.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    least = size.topk(count, sorted=False).values.min()
    above = size > least
    tied = (size == least).nonzero()[: count - int(above.sum())]
    above[tied] = True
    return above.nonzero().squeeze(1)
