"""Codecs: encode the tensors of a payload for transfer, and decode them.

A codec is registered by name.  It encodes float tensors of more than one element; all other tensors of a payload
(integers, scalars, buffers) travel unchanged.  Names, shapes and dtypes of the wire tensors follow from the tensor's
own, so that bytes are known without data.  edgefl's own codecs narrow a tensor's dtype, send its largest changes only,
or both:

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

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from math import ceil, prod
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import BaseModel, Field, field_validator
from torch import Tensor

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.registry.answers import describe_answer
from edgefl.registry.part_fields import Fields, build_part
from edgefl.units import Share

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

# parameter names have no colon, so these names are never those of parameters
VALUES, INDICES, SCALE = ":values", ":indices", ":scale"
# float32's largest number over 127, rounded down: with a larger scale the decoded 127 * scale would be infinite
_LARGEST_SCALE = 2.6793e36

Shape = tuple[int, ...]
Specs = Mapping[str, tuple[Shape, str]]
"""Shape and dtype of each wire tensor of a tensor, by what is added to its name."""


class RegisteredCodec(ABC):
    """A registered codec: how one float tensor of more than one element travels.

    ``Payload.codec`` names it, with its arguments.  Wire tensors are named by what is added to the tensor's name, such
    as ``:values``.  ``base`` is the value that both ends know: for an upload what was sent down, None for a download
    and for tensors that weren't sent down.
    """

    class Options(Fields):
        """Fields next to the name, which stands under ``dtype``: none."""

        dtype: str = ""

    options: Any
    """The ``Options`` of this codec."""

    def __init__(self, options: Any):
        self.options = options

    @property
    def needs_base(self) -> bool:
        """Whether it can encode nothing but changes of what was sent down: uploads of parameters."""
        return False

    def applies(self, dtype: str) -> bool:
        """Whether a tensor of this dtype is encoded; else it travels unchanged."""
        return True

    @abstractmethod
    def wire(self, shape: Shape, dtype: str) -> Specs:
        """Shapes and dtypes of the wire tensors that ``encode`` makes of a tensor; known without its values."""

    @abstractmethod
    def encode(self, value: Tensor, base: Tensor | None) -> Mapping[str, Tensor]:
        """The wire tensors of a tensor on the CPU."""

    @abstractmethod
    def decode(self, wire: Mapping[str, Tensor], shape: Shape, dtype: torch.dtype, base: Tensor | None) -> Tensor:
        """The tensor, from its wire tensors and the same ``base``."""


class CompressedCodec(RegisteredCodec):
    """A narrower dtype, the largest changes only, or both."""

    class Options(Fields):
        """An encoded payload: its dtype, and how much of an update is sent."""

        dtype: Literal["float32", "float16", "bfloat16", "int8"] = Field(
            "float32", description="dtype of the values that are sent; float32: unchanged"
        )
        top_k: Share | None = Field(
            None, description="share of each tensor's elements that is sent, those with the largest changes; null: all"
        )

        @field_validator("top_k")
        @classmethod
        def _positive(cls, value: float | None) -> float | None:
            if value == 0:
                raise ValueError("must be more than 0%: an empty upload can't change the model")
            return value

    dtype: ClassVar[str] = "float32"

    @property
    def top_k(self) -> float | None:
        """Share of a tensor's elements that travel; None for all."""
        return cast(float | None, self.options.top_k)

    @property
    def needs_base(self) -> bool:
        """Whether only the largest changes are sent."""
        return self.top_k is not None

    def narrows(self, dtype: str) -> bool:
        """Whether a tensor of this dtype travels in a narrower one."""
        return self.dtype != "float32" and _BYTES[self.dtype] < _BYTES.get(dtype, 0)

    def applies(self, dtype: str) -> bool:
        """Whether it travels in a narrower dtype, or in part."""
        return self.top_k is not None or self.narrows(dtype)

    def sent_elements(self, elements: int) -> int:
        """Number of elements that travel, out of ``elements``."""
        # as a decimal fraction: 7 % of 100 is 7, but the binary 0.07 is slightly more
        return elements if self.top_k is None else ceil(Fraction(repr(self.top_k)) * elements)

    def wire(self, shape: Shape, dtype: str) -> Specs:
        """The values, in full precision under the tensor's own name; indices (int32) and a scale where there are."""
        travels = self.dtype if self.narrows(dtype) else dtype
        if self.top_k is None and travels != "int8":
            return {"": (shape, travels)}
        count = (self.sent_elements(prod(shape)),)
        tensors: dict[str, tuple[Shape, str]] = {VALUES: (shape if self.top_k is None else count, travels)}
        if self.top_k is not None:
            tensors[INDICES] = (count, "int32")
        if travels == "int8":
            tensors[SCALE] = ((), "float32")
        return tensors

    def encode(self, value: Tensor, base: Tensor | None) -> Mapping[str, Tensor]:
        """The narrowed change to ``base``, or the value where there is none."""
        narrow, entries, indices = self.narrows(_name(value.dtype)), value, None
        if base is not None:
            change = value - base.to(value.dtype)
            entries = change if narrow else value
            if self.top_k is not None:
                indices = _largest(change.reshape(-1), self.sent_elements(change.numel()))
                entries = entries.reshape(-1)[indices]
        if not narrow:
            wire = {VALUES: entries}
        elif self.dtype == "int8":
            values, scale = _quantise(entries)
            wire = {VALUES: values, SCALE: scale}
        else:
            wire = {VALUES if indices is not None else "": _cast(entries, getattr(torch, self.dtype))}
        if indices is not None:
            wire[INDICES] = indices.to(torch.int32)
        return wire

    def decode(self, wire: Mapping[str, Tensor], shape: Shape, dtype: torch.dtype, base: Tensor | None) -> Tensor:
        """The values, added to ``base`` where they are changes."""
        values = wire[""] if "" in wire else wire[VALUES]
        # sums are computed in float32 at least
        exact = torch.promote_types(dtype, torch.float32)
        narrow, values = values.dtype != dtype, values.to(exact)
        if SCALE in wire:
            values = values * wire[SCALE]
        if INDICES in wire:
            assert base is not None
            indices = wire[INDICES].long()
            flat = base.to(exact).reshape(-1).clone()
            flat[indices] = flat[indices] + values if narrow else values
            values = flat
        elif base is not None:
            values = base.to(exact).reshape(-1) + values.reshape(-1)
        return _cast(values.reshape(shape), dtype)


class Float32(CompressedCodec):
    """The tensor's own dtype."""


class Float16(CompressedCodec):
    """16 bits with 11 of precision: rounded to nearest, and at most 65504."""

    dtype = "float16"


class BFloat16(CompressedCodec):
    """16 bits with the range of float32 and 8 of precision."""

    dtype = "bfloat16"


class Int8(CompressedCodec):
    """Whole numbers -127..127 with one scale for each tensor."""

    dtype = "int8"


@dataclass(frozen=True)
class Codec:
    """How the tensors of a payload travel, as plain data: the name of a registered codec and its arguments.

    ``exact`` are the names of tensors that travel unchanged.
    """

    name: str = "float32"
    args: Mapping[str, object] = field(default_factory=dict, hash=False)
    exact: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, options: BaseModel) -> Codec:
        """The codec that a scenario's options name under ``dtype``."""
        fields = options.model_dump(mode="json", exclude_none=True)
        return cls(fields.pop("dtype"), fields)

    @cached_property
    def part(self) -> RegisteredCodec:
        """The registered codec with these arguments, made once, because every tensor asks for it.

        Raises UnknownName and PluginError.
        """
        part: RegisteredCodec = build_part("codec", {**self.args, "dtype": self.name}, key="dtype")
        return part

    def applies(self, name: str, shape: Shape, dtype: str) -> bool:
        """Whether a tensor is encoded; otherwise it travels unchanged."""
        if dtype not in _BYTES or dtype == "int8" or prod(shape) <= 1 or name in self.exact:
            return False
        return self.part.applies(dtype)

    def wire(self, name: str, shape: Shape, dtype: str) -> dict[str, tuple[Shape, str]]:
        """Shapes and dtypes of the wire tensors of this tensor, by the names that ``encode`` gives."""
        if not self.applies(name, shape, dtype):
            return {name: (shape, dtype)}
        specs: object = self.part.wire(shape, dtype)
        if not isinstance(specs, Mapping):
            raise MethodError(
                f"{registry.describe_part('codec', self.name)}: wire() returned {describe_answer(specs)}, not a "
                "mapping of names to shapes and dtypes"
            )
        return {name + added: spec for added, spec in specs.items()}

    def encode(self, name: str, value: Tensor, base: Tensor | None = None) -> dict[str, Tensor]:
        """The wire tensors of this tensor, by name; ``base`` is the value that the receiver already has.

        Raises MethodError for a codec that needs a ``base`` without one, and for other tensors than it said.
        """
        shape, dtype = tuple(value.shape), _name(value.dtype)
        if not self.applies(name, shape, dtype):
            return {name: value}
        part = self.part
        if part.needs_base and base is None:
            raise MethodError(f"can't send only the largest changes of {name!r}: the receiver has no value of it")
        wire = part.encode(value, base)
        said = {added: (tuple(of), travels) for added, (of, travels) in part.wire(shape, dtype).items()}
        made = {added: (tuple(tensor.shape), _name(tensor.dtype)) for added, tensor in wire.items()}
        if made != said:
            raise MethodError(
                f"{registry.describe_part('codec', self.name)} encodes {name!r} as {_format_specs(made)}, where its "
                f"wire() says {_format_specs(said)}"
            )
        return {name + added: tensor for added, tensor in wire.items()}

    def decode(
        self, name: str, shape: Shape, dtype: torch.dtype, wire: Mapping[str, Tensor], base: Tensor | None
    ) -> Tensor:
        """The tensor decoded from its wire tensors and the same ``base``; returned as it is if it isn't encoded."""
        if name in wire and wire[name].dtype == dtype:
            return wire[name]
        part = self.part
        own = {added: wire[name + added] for added in part.wire(shape, _name(dtype))}
        found = part.decode(own, shape, dtype, base)
        if tuple(found.shape) != shape or found.dtype != dtype:
            raise MethodError(
                f"{registry.describe_part('codec', self.name)} decodes {name!r} as {_name(found.dtype)} "
                f"{list(found.shape)}, not {_name(dtype)} {list(shape)}"
            )
        return found


def _format_specs(specs: Specs) -> str:
    return ", ".join(f"{added or 'itself'}: {dtype} {list(shape)}" for added, (shape, dtype) in sorted(specs.items()))


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to nearest; finite values beyond the dtype's range become its largest finite value."""
    largest = torch.finfo(dtype).max
    if torch.finfo(values.dtype).max <= largest or all(extreme.abs() <= largest for extreme in values.aminmax()):
        return values.to(dtype)
    return torch.where(values.isinf(), values, values.clamp(-largest, largest)).to(dtype)


def _quantise(values: Tensor) -> tuple[Tensor, Tensor]:
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
