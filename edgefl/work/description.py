"""Work: what a node does in one round, as plain data.

A Work holds no client id, no sample count and no round, so that equal works are equal values: their cost is
predicted once and shared by every client that does them.  What a round gives to a work (``scalars``) goes beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from edgefl.work.codecs import Codec
from edgefl.work.slices import Cut

Address = str
"""A name at the server: ``<kind>/<tower>.<part>[.i].<rest>``, or ``table/<name>`` for what is not a parameter."""

Json = Mapping[str, Any]

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor that need not exist."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The spec of an existing tensor."""
        return cls(tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])

    def empty(self) -> Tensor:
        """A tensor of it without values, on torch's device of the moment."""
        return torch.empty(self.shape, dtype=DTYPES[self.dtype])


@dataclass(frozen=True)
class Item:
    """One tensor of a payload.

    ``name`` is the client's own name for it; ``source`` is its address at the server, the only map between client
    kinds; ``shape`` and ``dtype`` are what travels unless the payload has a codec, and what arrives in any case.
    ``cut`` says which part of the server's tensor it is, if not all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: Address
    cut: Cut | None = None

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return TensorSpec(self.shape, self.dtype)


@dataclass(frozen=True)
class Payload:
    """Named tensors that travel together: ``model``, ``partner``, ``prototypes``, ...

    Under a schedule's stage a payload on its way down follows what is ``attached``, or only what is ``trained``.
    ``codec`` says how the tensors travel, if not as they are.
    """

    name: str
    items: tuple[Item, ...]
    follows: Literal["attached", "trained"] = "attached"
    codec: Codec | None = None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors that travel, as the papers count traffic."""
        return sum(map(self.bytes_of, self.items))

    @property
    def serialised_bytes(self) -> int:
        """Bytes of the payload as a safetensors file, header included; known without any data."""
        return serialised_bytes({name: spec for item in self.items for name, spec in self.wire(item).items()})

    def bytes_of(self, item: Item) -> int:
        """Bytes of the tensors that travel for one item."""
        return sum(spec.bytes for spec in self.wire(item).values())

    def wire(self, item: Item) -> dict[str, TensorSpec]:
        """The tensors that travel for one item."""
        if self.codec is None:
            return {item.name: item.spec}
        found = self.codec.wire(item.name, item.shape, item.dtype)
        return {name: TensorSpec(*spec) for name, spec in found.items()}

    def encoded(
        self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], held: Container[str] = ()
    ) -> dict[str, Tensor]:
        """What travels, given the items' tensors and what the other side has of them; ``held`` stay as they are."""
        found: dict[str, Tensor] = {}
        for item in self.items:
            value = tensors[item.name].to(DTYPES[item.dtype])
            if self.codec is None or item.name in held:
                found[item.name] = value
            else:
                found |= self.codec.encode(item.name, value, base.get(item.name))
        return found

    def decoded(self, wire: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The items' tensors as they arrive, given what travelled and the same ``base``."""
        if self.codec is None:
            return {item.name: wire[item.name] for item in self.items}
        decode = self.codec.decode
        return {i.name: decode(i.name, i.shape, DTYPES[i.dtype], wire, base.get(i.name)) for i in self.items}

    def only(self, keep: Callable[[Item], bool]) -> Payload:
        """This payload with the items for which ``keep`` is true."""
        return replace(self, items=tuple(item for item in self.items if keep(item)))


@dataclass(frozen=True)
class Pass:
    """One sweep over a data split: ``step`` names a registered Step; places of equal passes are numbered 0, 1, ...

    ``patterns`` are modality patterns of the samples ("image", "text", "image-text"), visited in this order, one
    pattern per batch; ``train`` says whether parameters move; ``args`` is what the step reads.
    """

    step: str
    data: Literal["private", "public", "validation", "test"]
    patterns: tuple[str, ...]
    batch: int
    train: bool = True
    args: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Edit:
    """A registered change of the model for the time of the work (FedCola's gates): its name and its arguments."""

    name: str
    args: Json = field(default_factory=dict)


OPTIMIZER_SCALARS = ("lr", "weight_decay", "betas", "momentum", "rates")
"""The scalars that the optimizer reads; all others are weights of loss terms."""


class Scalars(dict[str, Any]):
    """Numbers that a round gives to a work: learning rates and weights of loss terms, by name.

    A work costs the same whatever they are, but for zero, with which a term may be left out of the graph.  So two
    ``Scalars`` are equal if they have the same names and the same of them are zero.
    """

    def zeros(self) -> dict[str, Any]:
        """Of each number whether it is something; a list in which nothing is zero counts as one number."""
        return {name: _something(value) for name, value in self.items()}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Scalars):
            return self.zeros() == other.zeros()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def _something(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _something(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [_something(one) for one in value]
        return inner if False in inner else True
    return bool(value)


@dataclass(frozen=True)
class Work:
    """What a node does in one round, as plain data.  Works that are equal cost the same.

    ``model`` describes the module (edgefl.models.build); ``trainable`` names the parameters that train, after
    edits; ``optimizer``, ``precision`` and ``attention`` are plain settings; ``passes`` come in true order; ``down``
    and ``up`` travel; ``keep`` names items of ``down`` that stay on the node: they have their first value from there,
    never travel, and start every later round as the node left them; ``reference`` asks for a frozen copy of the model
    as it starts.  ``scalars`` go with the work and aren't part of what it is: learning rates and weights of loss
    terms, which may be others in each round.  Steps read them as ``ctx.work.scalars``; the optimizer's own
    (``OPTIMIZER_SCALARS``) may be given among its settings too, and are moved.
    """

    kind: str
    model: Json
    trainable: tuple[str, ...]
    passes: tuple[Pass, ...]
    down: tuple[Payload, ...] = ()
    up: tuple[Payload, ...] = ()
    edits: tuple[Edit, ...] = ()
    optimizer: Json = field(default_factory=dict)
    precision: str = "float32"
    keep: tuple[str, ...] = ()
    reference: bool = False
    attention: str = "device"
    scalars: Json = field(default_factory=Scalars)

    def __post_init__(self) -> None:
        given = {name: value for name, value in self.optimizer.items() if name in OPTIMIZER_SCALARS}
        if given or not isinstance(self.scalars, Scalars):
            object.__setattr__(self, "scalars", Scalars({**self.scalars, **given}))
        if given:
            object.__setattr__(self, "optimizer", {n: v for n, v in self.optimizer.items() if n not in given})

    @property
    def accumulation(self) -> int:
        """Batches whose gradients make one update of the optimizer."""
        return int(self.optimizer.get("accumulation", 1))

    @property
    def loss_weights(self) -> dict[str, Any]:
        """The scalars that no optimizer reads."""
        return {name: value for name, value in self.scalars.items() if name not in OPTIMIZER_SCALARS}

    def encode(self) -> str:
        """JSON text from which ``decode`` makes an equal Work."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> Work:
        """The Work that ``encode`` wrote."""
        raw = json.loads(text)

        def payload(p: Json) -> Payload:
            items = tuple(
                Item(**{**i, "shape": tuple(i["shape"]), "cut": i["cut"] and _cut(i["cut"])}) for i in p["items"]
            )
            codec = p["codec"] and Codec(**{**p["codec"], "exact": tuple(p["codec"]["exact"])})
            return Payload(p["name"], items, p["follows"], codec)

        return cls(
            **{
                **raw,
                "trainable": tuple(raw["trainable"]),
                "keep": tuple(raw["keep"]),
                "passes": tuple(Pass(**{**p, "patterns": tuple(p["patterns"])}) for p in raw["passes"]),
                "down": tuple(map(payload, raw["down"])),
                "up": tuple(map(payload, raw["up"])),
                "edits": tuple(Edit(**e) for e in raw["edits"]),
                "scalars": Scalars(raw["scalars"]),
            }
        )

    def received(self, wire: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the node starts from, by item name, given what travelled to it and what it has already."""
        if not any(p.codec for p in self.down):
            return wire
        found = {name: value for p in self.down for name, value in p.decoded(wire, {}).items()}
        return found | {name: wire[name] for name in self.keep if name in wire}

    def bases(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of what a node started from, that of which an upload is an update: not tables, nor what a node keeps."""
        kept = set(self.keep)
        return {
            i.name: inputs[i.name]
            for p in self.down
            for i in p.items
            if not i.source.startswith("table/") and i.name not in kept
        }

    def fitted(self, size: Callable[[Pass], int]) -> Work:
        """This work for a node with ``size(pass)`` samples: a private batch is never larger than the samples there.

        Such a client has a smaller peak, and its cost follows because the batch is part of the cost key.
        """
        return replace(
            self,
            passes=tuple(
                replace(p, batch=max(1, min(p.batch, size(p)))) if p.data == "private" else p for p in self.passes
            ),
        )


def _cut(raw: Any) -> Cut:
    return tuple(tuple((start, stop) for start, stop in ranges) for ranges in raw)


@runtime_checkable
class Source(Protocol):
    """The data side of a work: read as shapes for a prediction, as batches for training."""

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """The largest shapes of a batch of this pattern, by field ("image", "text", "label")."""
        ...

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern in one place of the pass."""
        ...

    def size(self, pass_: Pass) -> int:
        """Samples that one place of the pass draws from, over all its patterns."""
        ...

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """``(pattern, batch)`` in the pass's order; ``seed`` decides shuffling (training passes only)."""
        ...


_SAFETENSORS = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16", "float16": "F16",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
# in the order in which the format's own writer puts dtypes: the digits of the offsets depend on it
_ORDER = {dtype: place for place, dtype in enumerate(_SAFETENSORS)}


def serialised_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Size in bytes of a safetensors file with these tensors: 8 + JSON header padded to 8 + tensor bytes."""
    if not specs:
        return 0
    offset, entries = 0, {}
    order = sorted(specs, key=lambda name: (_ORDER[specs[name].dtype], name))
    for name in order:
        spec = specs[name]
        entries[name] = {
            "dtype": _SAFETENSORS[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.bytes],
        }
        offset += spec.bytes
    header = len(json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-header // 8) * 8 + offset


def digest(value: Any) -> str:
    """A short content hash of plain data."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
