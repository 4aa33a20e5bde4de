"""Calls of operators as text: a name and the layout of the arguments, from which an equal call can be made.

What a kernel allocates for itself (scratch) depends on the operator, on the shapes, strides and dtypes of its tensor
arguments, on which of them share a storage, and on its other arguments.  It doesn't depend on the numbers in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from edgefl.models import quantised

_EXACT = frozenset((0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, float("inf"), -float("inf")))
"""Floats that may select another kernel, such as exponents; all others are described by sign and size alone."""

ALIGNED = 64
"""Kernels may take another way for memory that begins elsewhere than at a multiple of so many bytes."""
LIBRARY = "bitsandbytes."
"""How the names of the operators begin that quantise and dequantise."""
_TYPES = (torch.dtype, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class Call:
    """A call of an operator: its name (``aten.addmm.default``) and its arguments as JSON text.

    The text is ``[storages, args, kwargs]``.  ``storages`` are sizes in bytes.  A tensor is
    ``{"t": [storage, dtype, shape, strides, offset]}``, with the index of its storage and the offset in elements, both
    of what the arguments use of it.
    """

    operator: str
    arguments: str

    @cached_property
    def key(self) -> str:
        """Hash of the operator and its arguments, 20 hexadecimal digits, under which the scratch is kept."""
        return sha256(f"{self.operator} {self.arguments}".encode()).hexdigest()[:20]

    @property
    def argument_bytes(self) -> int:
        """Bytes of all storages of the arguments."""
        return sum(json.loads(self.arguments)[0])

    @property
    def takes_lists(self) -> bool:
        """Whether it is an operator on lists of tensors, which takes one tensor (or one of each list) at a time."""
        return self.operator.startswith(("aten._foreach_", "aten._fused_"))

    def largest_entry(self) -> Call:
        """The call with lists of one tensor each: the entry with the most bytes."""
        _, args, kwargs = json.loads(self.arguments)
        lists = [value for value in (*args, *kwargs.values()) if _is_list_of_tensors(value)]
        entries = range(max(map(len, lists), default=0))
        size = {i: sum(_extent(listed[i]["t"]) for listed in lists if i < len(listed)) for i in entries}
        largest = max(entries, key=lambda i: (size[i], -i), default=0)
        kwargs = {name: _cut(value, largest) for name, value in kwargs.items()}
        return Call(self.operator, _dump_arguments([_cut(value, largest) for value in args], kwargs))

    def dimensions(self) -> list[tuple[int, int]]:
        """The dimensions of the two largest arguments, those first whose entries lie farthest apart: place and size."""
        largest = sorted(_tensors(json.loads(self.arguments)[1]), key=_extent)[:-3:-1]
        apart = [sorted(zip(strides, shape, strict=True), reverse=True) for _, _, shape, strides, _ in largest]
        return sorted(((i, n) for each in apart for i, (_, n) in enumerate(each) if n > 1), key=lambda each: each[0])

    def with_fewer_entries(self, entries: int, size: int) -> list[Call]:
        """The call with ``size`` instead of ``entries`` in a dimension of its tensors, in the ways that may be meant.

        The dimension is the outermost one: of the tensors with several dimensions, of all, of all and of the numbers;
        or it is any one.  A weight, which may have as many channels, stays as it is unless it is the largest tensor.
        """
        names = [argument.name for argument in self.overload()._schema.arguments]
        largest, calls = max(map(_extent, _tensors(json.loads(self.arguments)[1]))), []
        for least, numbers, inner in ((2, False, False), (0, False, False), (0, True, False), (0, False, True)):
            _, args, kwargs = json.loads(self.arguments)
            for name, value in zip(names, args, strict=False):
                for tensor in _tensors(value):
                    if len(tensor[2]) >= least and (name != "weight" or _extent(tensor) == largest):
                        _narrow(tensor, entries, size, inner=inner)
            args = [_renumber(value, entries, size) for value in args] if numbers else args
            calls.append(Call(self.operator, _dump_arguments(args, kwargs)))
        return [call for call in dict.fromkeys(calls) if call != self]

    def output_bytes(self) -> int:
        """Bytes of the storages that the call returns, found without memory.  Raises the operator's errors."""
        operator, args, kwargs = self.make("meta")
        out = [leaf.untyped_storage() for leaf in tree_leaves(operator(*args, **kwargs)) if isinstance(leaf, Tensor)]
        return sum({storage._cdata: storage.nbytes() for storage in out}.values())

    @property
    def product(self) -> tuple[list[Any], list[Any]] | None:
        """The factors ``[m, k]`` and ``[k, n]`` of a product of two matrices, as described; None for other calls, and
        for factors that a kernel copies first, as neither their rows nor their columns lie one after the other."""
        if self.operator not in ("aten.mm.default", "aten.addmm.default"):
            return None
        left, right = (value["t"] for value in json.loads(self.arguments)[1][-2:])
        for _, _, (rows, columns), (down, across), _ in (left, right):
            if not ((across == 1 and down >= columns) or (down == 1 and across >= rows)):
                return None
        return left, right

    def with_fewer_terms(self, most: int) -> Call:
        """The ``product`` with at most so many terms in each sum; rows and columns lie as far apart as before."""
        _, args, kwargs = json.loads(self.arguments)
        left, right = (value["t"] for value in args[-2:])
        left[2][1] = right[2][0] = min(left[2][1], most)
        return Call(self.operator, _dump_arguments(args, kwargs))

    def overload(self) -> Any:
        """The operator (``OpOverload``).  Raises LookupError if this torch doesn't have it."""
        if self.operator.startswith(LIBRARY):
            quantised.library()
        found: Any = torch.ops
        for part in self.operator.split("."):
            if not hasattr(found, part):
                raise LookupError(f"torch {torch.__version__} has no operator {self.operator}")
            found = getattr(found, part)
        return found

    def make(self, device: torch.device | str) -> tuple[Any, list[Any], dict[str, object]]:
        """The operator and its arguments; all tensors hold zeros.

        Raises LookupError for an operator that this torch doesn't have.
        """
        storages, args, kwargs = json.loads(self.arguments)
        memory = [torch.zeros(size, dtype=torch.uint8, device=device).untyped_storage() for size in storages]
        named = {name: _build_argument(value, memory, device) for name, value in kwargs.items()}
        operator, made = self.overload(), _build_argument(args, memory, device)
        if "efficient_attention_backward" in self.operator:  # it reads these on the host: elsewhere the process ends
            for index, argument in enumerate(operator._schema.arguments[: len(made)]):
                if argument.name in ("philox_seed", "philox_offset"):
                    made[index] = made[index].cpu()
        return operator, made, named


# not within ``make``: a function that calls itself there would hold the memory until Python collects garbage
def _build_argument(value: Any, memory: Sequence[Any], device: torch.device | str) -> Any:
    """The argument that is described; tensors lie in the storages ``memory``."""
    if isinstance(value, list):
        return [_build_argument(item, memory, device) for item in value]
    if not isinstance(value, dict):
        return value
    if "t" in value:
        storage, dtype, shape, strides, offset = value["t"]
        tensor = torch.empty(0, dtype=getattr(torch, dtype), device=device)
        return tensor.set_(memory[storage], offset, shape, strides)
    if "d" in value:
        return torch.device(device)
    return float(value["f"]) if "f" in value else getattr(torch, value["s"])


def call_of(operator: Any, args: Any, kwargs: Any) -> Call:
    """The call of a torch operator (``OpOverload``) with these arguments, which may be fake tensors."""
    storages: dict[int, int] = {}
    described = tuple([_describe_argument(value, storages) for value in args])
    return _call(
        operator, described, tuple([(name, _describe_argument(value, storages)) for name, value in kwargs.items()])
    )


@lru_cache(maxsize=8192)
def _call(operator: Any, args: Any, kwargs: Any) -> Call:
    """The call with arguments as ``_describe_argument`` has them: its text takes longer to write than to find here."""
    return Call(
        str(operator), _dump_arguments([_plain(value) for value in args], {n: _plain(value) for n, value in kwargs})
    )


def _describe_argument(value: Any, storages: dict[int, int]) -> Any:
    """The argument as something that can be hashed, equal for equal texts; ``storages`` (their places by identity)
    gets those of new tensors.

    A tensor is a tuple that begins with the index of its storage, all else that isn't an integer or a string one that
    begins with its type.
    """
    if isinstance(value, Tensor):
        index = storages.setdefault(value.untyped_storage()._cdata, len(storages))
        return index, value.dtype, value.shape, value.stride(), value.storage_offset()
    if isinstance(value, list | tuple):
        return (list, *[_describe_argument(item, storages) for item in value])
    if isinstance(value, float):
        return float, value if value in _EXACT else (0.5 if abs(value) < 1 else 3.0) * (-1 if value < 0 else 1)
    if isinstance(value, bool):
        return bool, value
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, torch.device):
        return torch.device, value.type
    if isinstance(value, _TYPES):
        return torch.dtype, value
    return None  # a generator: random numbers take no memory beside the output


def _plain(value: Any) -> Any:
    """A described argument as plain data."""
    if not isinstance(value, tuple):
        return value
    first, *rest = value
    if first is list:
        return [_plain(item) for item in rest]
    if first is torch.device:
        return {"d": rest[0]}
    if first is torch.dtype:
        return {"s": str(rest[0]).removeprefix("torch.")}
    if first is float:
        return rest[0] if abs(rest[0]) < 4 else {"f": str(rest[0])}
    if first is bool:
        return rest[0]
    dtype, shape, strides, offset = rest
    return {"t": [first, str(dtype).removeprefix("torch."), list(shape), list(strides), offset]}


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) and "t" in v for v in value)


def _extent(tensor: list[Any]) -> int:
    """Bytes that a described tensor spans from the start of its storage."""
    _, dtype, shape, strides, offset = tensor
    if 0 in shape:
        return 0
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return int(last + 1) * int(getattr(torch, dtype).itemsize)


def _narrow(tensor: list[Any], old: int, new: int, *, inner: bool) -> None:
    """Change a dimension of size ``old``: the outermost one, one that is repeated, or with ``inner`` any.

    What lies outside of an inner dimension moves together, so that the memory shrinks as well.
    """
    _, _, shape, strides, _ = tensor
    outer = max((stride for n, stride in zip(shape, strides, strict=True) if n > 1), default=0)
    alike = [i for i, n in enumerate(shape) if n == old and (inner or strides[i] in (0, outer))]
    if alike:
        at = max(alike, key=lambda i: strides[i])
        shape[at] = new
        if within := strides[at] * old:
            strides[:] = [s // old * new if s >= within and not s % within else s for s in strides]


def _renumber(value: Any, old: int, new: int) -> Any:
    """A number ``old`` changed to ``new``, also the first of a list."""
    if isinstance(value, list):
        return [_renumber(first, old, new) for first in value[:1]] + value[1:]
    return new if value == old else value


def _cut(value: Any, index: int) -> Any:
    """A list of tensors, or of numbers beside them, cut to its entry ``index``; other values as they are."""
    return value[index : index + 1] if isinstance(value, list) else value


def _tensors(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, dict) and "t" in value:
        yield value["t"]
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _dump_arguments(args: list[Any], kwargs: Mapping[str, object]) -> str:
    """The text of described arguments, with only what they use of storages, from a multiple of ``ALIGNED`` bytes on.

    So equal parts of one large tensor, at whatever offset, are equal calls.
    """
    starts: dict[int, int] = {}
    for storage, dtype, _, _, offset in _tensors([args, kwargs]):
        start = offset * getattr(torch, dtype).itemsize // ALIGNED * ALIGNED
        starts[storage] = min(start, starts.get(storage, start))
    sizes: list[int] = []
    index: dict[int, int] = {}
    for tensor in _tensors([args, kwargs]):
        storage = tensor[0]
        tensor[4] -= starts[storage] // getattr(torch, tensor[1]).itemsize
        new = index.setdefault(storage, len(sizes))
        if new == len(sizes):
            sizes.append(0)
        sizes[new] = max(sizes[new], _extent(tensor))
        tensor[0] = new
    return json.dumps([sizes, args, kwargs], separators=(",", ":"))
