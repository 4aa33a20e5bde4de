"""Work: what a node does in one round, as plain data.

A Work holds no client id, no sample count and no round.  Numbers that change with the round are its ``scalars``; all
else is its ``Form``.  Clients whose works have one form share its predicted cost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypedDict, cast, runtime_checkable
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from edgefl.errors import MethodError
from edgefl.models.model import DTYPES, ModelDescription
from edgefl.plain_data import from_data, to_data
from edgefl.work.codecs import Codec
from edgefl.work.slices import Cut

if TYPE_CHECKING:
    from edgefl.work.packed import PayloadLayout

Address = str
"""Name of a tensor at the server: ``<kind>/<tower>.<part>[.i].<rest>``, or ``table/<name>`` if not a parameter."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor that need not exist."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """Size of the elements in bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> TensorSpec:
        """The spec of an existing tensor."""
        return cls(tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])

    def empty(self) -> Tensor:
        """An uninitialised tensor of this spec on torch's default device."""
        return torch.empty(self.shape, dtype=DTYPES[self.dtype])


@dataclass(frozen=True)
class Item:
    """One tensor of a payload.

    The address is the only link between kinds: an item ``image.blocks.0.mlp.fc1.partner`` may have the source
    ``text/text.blocks.0.mlp.fc1.weight``.  An item of ``up`` is looked up by name in the model's parameters, then its
    buffers, then ``Context.outputs``, and is sent in its dtype.
    """

    name: str
    """The node's own name for it: a parameter or buffer of its model, or the name of a table."""
    shape: tuple[int, ...]
    """Its shape at the node."""
    dtype: str
    """``float32``, ``float16``, ``int64``, ...: what arrives, and without a codec what travels."""
    source: Address
    """Its address at the server: ``KIND/PARAMETER``, or ``table/NAME`` for what is no parameter; an address with
    another beginning (``lora-KIND/NAME``) is averaged as parameters are, and is in no model that ``read_run`` gives."""
    cut: Cut | None = None
    """The part of the server's tensor that it is, for a narrower model; None for all of it; set by a schedule."""
    like: str | None = None
    """A parameter of the model whose shape the tensor has, and whose stages, widths and versions it follows: a
    client's control variate, its personal copy.  It is zeros while the server has none at ``source``."""
    fixed: bool = False
    """Whether no client trains it at any stage: then it is sent only where the client's copy is older, and never
    back."""
    merges: Address | None = None
    """The address of an item by which the node brings its own copy of this tensor up to date: it is received only where
    the node's copy of that item is more than one version old."""

    @property
    def parameter(self) -> str:
        """The name that decides at which stages it exists and trains: ``like``, or its own."""
        return self.like or self.name

    @property
    def is_table(self) -> bool:
        """Whether it is a table that belongs to no parameter; no stage cuts it."""
        return self.like is None and self.source.startswith("table/")

    @property
    def is_beside_model(self) -> bool:
        """Whether the node holds it next to the model: a table, or a tensor like a parameter."""
        return self.like is not None or self.source.startswith("table/")

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype as a TensorSpec."""
        return TensorSpec(self.shape, self.dtype)


@dataclass(frozen=True)
class Payload:
    """Named tensors that travel together: ``model``, ``partner``, ``prototypes``, ..."""

    name: str
    """Records split bytes by it, and ``Update.payloads`` is keyed by it."""
    items: tuple[Item, ...]
    """The tensors."""
    follows: Literal["attached", "trained"] = "attached"
    """Which items go down at a schedule's stage: ``attached`` parameters, or only ``trained`` ones."""
    codec: Codec | None = None
    """Encodes the tensors; set by the scenario's ``payload`` section, a method leaves it None."""
    travels: bool = True
    """Whether it is sent; False for the half of a model that stays at the server (``split``)."""
    in_turn: bool = False
    """Whether clients of a round change it one after the other, in place of a mean."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the items."""
        return tuple(item.name for item in self.items)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors that travel, as the papers count traffic."""
        return sum(map(self.bytes_of, self.items))

    @property
    def serialised_bytes(self) -> int:
        """Bytes of the payload as a safetensors file, header included; known without any data."""
        return serialised_bytes(self.specs)

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The tensors that travel, by name."""
        return {name: spec for item in self.items for name, spec in self.wire(item).items()}

    @cached_property
    def places(self) -> PayloadLayout | None:
        """Where the items' tensors lie together in memory; None if a codec encodes them."""
        from edgefl.work.packed import PayloadLayout  # which is built on payloads

        return None if self.codec is not None else PayloadLayout(self)

    def bytes_of(self, item: Item) -> int:
        """Bytes of the tensors that travel for one item."""
        return sum(spec.bytes for spec in self.wire(item).values())

    def wire(self, item: Item) -> dict[str, TensorSpec]:
        """The tensors that travel for one item."""
        if self.codec is None:
            return {item.name: item.spec}
        tensors = self.codec.wire(item.name, item.shape, item.dtype)
        return {name: TensorSpec(*spec) for name, spec in tensors.items()}

    def encode_tensors(
        self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], held: Container[str] = ()
    ) -> dict[str, Tensor]:
        """Wire tensors of the items' ``tensors``; ``base`` are the receiver's values, ``held`` items aren't encoded."""
        wire: dict[str, Tensor] = {}
        for item in self.items:
            value, dtype = tensors[item.name], DTYPES[item.dtype]
            value = value if value.dtype is dtype else value.to(dtype)
            if self.codec is None or item.name in held:
                wire[item.name] = value
            else:
                wire |= self.codec.encode(item.name, value, base.get(item.name))
        return wire

    def decode_tensors(self, wire: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The items' tensors, decoded from the wire tensors and the same ``base``."""
        if self.codec is None:
            return {item.name: wire[item.name] for item in self.items}
        decode = self.codec.decode
        return {i.name: decode(i.name, i.shape, DTYPES[i.dtype], wire, base.get(i.name)) for i in self.items}

    def with_sources(self, sources: Mapping[str, Address]) -> Payload:
        """This payload with the items that are named in ``sources`` at these addresses."""
        items = (
            i if sources.get(i.name, i.source) == i.source else replace(i, source=sources[i.name]) for i in self.items
        )
        return replace(self, items=tuple(items))

    def only(self, keep: Callable[[Item], bool]) -> Payload:
        """This payload with the items for which ``keep`` is true."""
        return replace(self, items=tuple(item for item in self.items if keep(item)))


class MissingRates(TypedDict, total=False):
    """Shares of samples that lack a modality, by modality; or the shares of samples by ``patterns`` of modalities."""

    image: float
    text: float
    audio: float
    patterns: Mapping[str, float]


class StepArgs(TypedDict, total=False):
    """Arguments of a pass that several steps read, or its batches; those of one step are in a class of its own."""

    fields: Sequence[str]
    modalities: Sequence[str]
    samples: int
    fold: int
    mask: str
    chunk: int
    missing: Mapping[str, MissingRates]
    whole: str
    metrics: Sequence[Mapping[str, object]]
    scale: float
    once: bool
    also: Sequence[str]
    without: Sequence[str]
    beside: Mapping[str, object]
    steps: int
    share: float
    poisson: float


@dataclass(frozen=True)
class BatchExchange:
    """What the two halves of a split model exchange for each batch.

    Up go the tokens of each modality and the batch's other fields (its labels).  Down come the tokens' gradients and
    the loss.
    """

    tokens: Mapping[str, TensorSpec]
    """A sample's tokens at the cut, by modality: ``[tokens, width]``."""
    loss: TensorSpec = TensorSpec(())
    """The loss of a batch, a scalar in the dtype of losses."""

    def up(self, batch: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """The tensors that go up for a batch with these fields."""
        return {name: self._of_batch(name, spec) if name in self.tokens else spec for name, spec in batch.items()}

    def down(self, batch: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """The tensors that come down."""
        gradients = {name: self._of_batch(name, spec) for name, spec in batch.items() if name in self.tokens}
        return {**gradients, LOSS: self.loss}

    def _of_batch(self, name: str, spec: TensorSpec) -> TensorSpec:
        return TensorSpec((spec.shape[0], *self.tokens[name].shape), self.tokens[name].dtype)


LOSS = "loss"
"""The name under which a batch's loss comes down."""

HELD_OUT = "held-out"
"""The split of a client's own samples that it doesn't train on (``evaluation.clients``)."""

POOLED: Final = "pooled"
"""The private samples of all clients of a kind, with which only a server trains that has them all (``central``)."""


@dataclass(frozen=True)
class Pass:
    """One sweep over a split of the node's data.

    A work may contain equal passes; each occurrence has a step object of its own.
    """

    step: str
    """Registered name of the step."""
    data: Literal["private", "held-out", "pooled", "public", "validation", "test"]
    """``private``, ``held-out`` (its own samples that it doesn't train on) or ``public`` on a client; ``public``,
    ``validation``, ``test`` or ``pooled`` (the private samples of all clients) on the server."""
    patterns: tuple[str, ...]
    """Modality patterns of the samples, ``image``, ``text``, ``image-text``; visited in this order, one pattern per
    batch."""
    batch: int
    """Samples per step."""
    train: bool = True
    """Whether parameters move; decides gradients, the model's mode, shuffling and the last batch."""
    args: StepArgs = field(default_factory=StepArgs)
    """Plain data for the step, and for the data that make its batches."""
    around: tuple[str, ...] = ()
    """Registered ``Wrapper``s of the step, the innermost first."""
    exchange: BatchExchange | None = None
    """What is exchanged for each batch, if the model is split."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the registered steps that it runs: its own, and those around it."""
        return (self.step, *self.around)

    def inside(self, wrapper: str, **args: Any) -> Pass:
        """This pass with a registered Wrapper and its arguments around its step."""
        return replace(self, around=(*self.around, wrapper), args=cast(StepArgs, {**self.args, **args}))


@dataclass(frozen=True)
class Edit:
    """A registered change of the model that lasts for one work, such as FedCola's gates."""

    name: str
    """Registered name of the edit."""
    args: Mapping[str, object] = field(default_factory=dict)
    """Plain data for it."""


class PartRates(TypedDict, total=False):
    """Learning rate (or one for each stage) and weight decay of a part of the model."""

    lr: float | list[float]
    weight_decay: float


class OptimizerSettings(TypedDict, total=False):
    """Settings of a work's optimizer, and its scalars (``OPTIMIZER_SCALARS``), which a work holds apart."""

    name: str
    implementation: str
    options: Mapping[str, object]
    accumulation: int
    clip: float
    step_in_backward: bool
    offload_states: bool
    note_gradients: bool
    epsilon: float
    directions: int
    lr: float
    weight_decay: float
    betas: Sequence[float]
    momentum: float
    rates: Mapping[str, PartRates]
    epoch_decay: float
    round: int


OPTIMIZER_SCALARS = ("lr", "weight_decay", "betas", "momentum", "rates", "epoch_decay", "round")
"""The scalars that the optimizer reads; all others are weights of loss terms."""


Scalar = int | float | Sequence[float] | Mapping[str, PartRates]


class Scalars(dict[str, Scalar]):
    """Numbers of a work that may change with the round, by name: learning rates and weights of loss terms.

    A method writes ``replace(work, scalars={**work.scalars, "pull": 0.1 * round})``, and a step reads
    ``ctx.work.scalars["pull"]``.  ``lr``, ``weight_decay``, ``betas``, ``momentum``, ``rates``, ``epoch_decay``
    and ``round`` are the optimizer's; all others are a method's own.  ``epoch_decay`` multiplies every learning rate
    after each local epoch: the k-th of equal passes that train on private samples is a part of epoch k.

    They don't affect the cost, except that a term with weight zero may be left out of the graph.  So a work's form has
    their names and which of them are zero (``zeros``), and not their values: the cost is predicted once for all values
    that aren't zero.  Values in ``Pass.args`` are part of the work: another value there needs another prediction.
    """

    def zeros(self) -> dict[str, object]:
        """Whether each number is nonzero, by name; a list without zeros counts as one number."""
        return {name: _nonzero(value) for name, value in self.items()}


def _nonzero(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _nonzero(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [_nonzero(item) for item in value]
        return inner if False in inner else True
    return bool(value)


@dataclass(frozen=True)
class Description:
    """What a node does, but for the numbers that may change with the round: what ``Work`` and ``Form`` share."""

    kind: str
    """Client kind, or ``server`` for a model of the server's own; in messages and records."""
    model: ModelDescription
    """Description of the model (for ``edgefl.models.build``), as ``Kind.model``."""
    trainable: tuple[str, ...]
    """Parameters that train, those that edits add included."""
    passes: tuple[Pass, ...]
    """In the order in which they run; a pass that is listed k times runs k times."""
    down: tuple[Payload, ...] = ()
    """What the node needs at the start."""
    up: tuple[Payload, ...] = ()
    """What it sends up."""
    edits: tuple[Edit, ...] = ()
    """Changes of the model that last as long as the work."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """``name`` (``sgd``, ``adam``, ``adamw``), ``implementation``, ``accumulation``, ``clip``; its state is new in
    every work, and lasts through its passes."""
    precision: str = "float32"
    """``float32``; ``bfloat16`` or ``float16`` for autocast around ``Step.loss``; or ``float64``, which the model's
    description has as its ``dtype``."""
    keep: tuple[str, ...] = ()
    """Items of ``down`` that stay on the node and never travel.  Their first value is the server's; every later round
    starts with the value that the node left."""
    reference: bool | tuple[str, ...] = False
    """Whether ``Context.reference`` has a frozen copy of the model as it starts; or the names of what is copied, of
    which at a stage those that train at full depth are copied where they train."""
    attention: str = "device"
    """Which kernel computes attention: ``device``, ``math``, ``flash``, ``efficient``, ``cudnn``."""
    split: Mapping[str, int] = field(default_factory=dict)
    """Blocks of each tower that the client computes, with the embeddings before them, if the server computes the rest
    for each batch (``edgefl.work.halves``); empty: the client computes all."""

    @property
    def in_turn(self) -> bool:
        """Whether clients of a round change a part of the model one after the other."""
        return any(payload.in_turn for payload in self.up)

    @property
    def accumulation(self) -> int:
        """Batches whose gradients make one update of the optimizer."""
        return int(self.optimizer.get("accumulation", 1))

    def encode(self) -> str:
        """JSON text from which ``decode`` makes an equal one."""
        return json.dumps(to_data(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> Self:
        """What ``encode`` wrote."""
        return from_data(cls, json.loads(text))

    def limit_batches(self, size: Callable[[Pass], int]) -> Self:
        """This for a node with ``size(pass)`` samples: batches of the node's own samples are limited to that size.

        A smaller batch lowers the peak memory.  The cost follows, because the batch is part of the cost key.  One
        whose batches all fit is returned as it is.
        """
        return self.change_passes(lambda p: _limit_batch(p, size))

    def change_passes(self, change: Callable[[Pass], Pass]) -> Self:
        """This with what ``change`` makes of each pass; itself if all stay as they are."""
        # epochs repeat the same objects, which this holds, so that ids stay theirs: each is changed once
        changed = {key: change(p) for key, p in {id(p): p for p in self.passes}.items()}
        passes = tuple(changed[id(p)] for p in self.passes)
        same = all(new is old for new, old in zip(passes, self.passes, strict=True))
        return self if same else replace(self, passes=passes)

    def starting_tensors(self, wire: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors that the node starts from, by item name; ``wire`` holds wire tensors and kept items."""
        if not any(p.codec for p in self.down):
            return wire
        tensors = {name: value for p in self.down for name, value in p.decode_tensors(wire, {}).items()}
        return tensors | {name: wire[name] for name in self.keep if name in wire}

    def bases(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs to which uploads are differences: neither tables nor kept items."""
        keep = set(self.keep)
        return {
            i.name: inputs[i.name] for p in self.down for i in p.items if not i.is_beside_model and i.name not in keep
        }


@dataclass(frozen=True)
class Work(Description):
    """What a node does in one round, as plain data; a method writes it for the full depth of the model.

    Works of equal ``form`` cost the same.
    """

    scalars: Mapping[str, Scalar] = field(default_factory=Scalars)
    """Numbers that may differ from round to round: learning rates, weights of loss terms.  Those of the optimizer may
    be given in ``optimizer`` too, from which they are moved."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in self.optimizer.items() if name in OPTIMIZER_SCALARS}
        if given or not isinstance(self.scalars, Scalars):
            object.__setattr__(self, "scalars", Scalars({**self.scalars, **cast(Mapping[str, Scalar], given)}))
        if given:
            object.__setattr__(self, "optimizer", {n: v for n, v in self.optimizer.items() if n not in given})

    @cached_property
    def form(self) -> Form:
        """This work without the values of its scalars: its other fields, and which scalars are zero."""
        return Form(**_shared_fields(self), zeros=Scalars(self.scalars).zeros())

    @property
    def loss_weights(self) -> dict[str, Scalar]:
        """The scalars that the optimizer doesn't read."""
        return {name: value for name, value in self.scalars.items() if name not in OPTIMIZER_SCALARS}

    def number(self, name: str, default: int | float | None = None) -> int | float:
        """The scalar of this name that is a single number, such as ``lr``.  Raises KeyError without a ``default``."""
        return cast(int | float, self.scalars[name] if default is None else self.scalars.get(name, default))

    def around(self, wrapper: str, **args: Any) -> Work:
        """This work with a registered Wrapper and its arguments around the step of every pass that trains.

        If no pass trains, it is around all of them.  Raises MethodError for an argument that means something else to
        the batches or to steps of edgefl, such as ``share``, by which a pass trains on a part of its samples.
        """
        if taken := sorted(args.keys() & StepArgs.__annotations__.keys()):
            raise MethodError(
                f"the wrapper {wrapper!r} can't have an argument {taken[0]!r}, which means something else in a pass: "
                "give it another name"
            )
        some_train = any(p.train for p in self.passes)
        return self.change_passes(lambda p: p.inside(wrapper, **args) if p.train or not some_train else p)


@dataclass(frozen=True)
class Form(Description):
    """A Work without the values of its scalars: what rounds with other learning rates have in common.

    ``zeros`` says of each scalar whether it is nonzero (``Scalars.zeros``).  A form is no Work: only ``bind`` to
    scalars it can be trained.  Forms of equal content are equal, and ``intern_form`` gives one object for all of them.
    """

    zeros: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Content hash, which takes milliseconds where hundreds of tensors travel."""
        passes = [(p.step, p.data, p.patterns, p.batch, p.train, p.args, p.around, p.exchange) for p in self.passes]
        edits = [(edit.name, edit.args) for edit in self.edits]
        content = {
            **_shared_fields(self),
            "passes": passes,
            "edits": edits,
            "down": _rows(self.down),
            "up": self.upload,
        }
        return digest([content, self.zeros])

    @cached_property
    def upload(self) -> str:
        """Content hash of what is sent: equal for forms that send the same."""
        return digest(_rows(self.up))

    @cached_property
    def model_key(self) -> str:
        """The digest of the model's description."""
        return digest(self.model)

    def __hash__(self) -> int:
        return hash(self.key)

    def bind(self, scalars: Mapping[str, Scalar]) -> Work:
        """The work of this form with these scalars.

        Raises ValueError if they have other names than this form's, or others of them are zero.
        """
        work = Work(**_shared_fields(self), scalars=scalars)
        if Scalars(work.scalars).zeros() != self.zeros:
            raise ValueError(
                f"scalars {dict(scalars)} don't belong to this form of kind {self.kind!r}: the nonzero ones must be "
                f"those of {dict(self.zeros)}"
            )
        # in place of the cached property: its form would be an equal one, whose key takes milliseconds again
        work.__dict__["form"] = self
        return work


_FORMS: WeakValueDictionary[str, Form] = WeakValueDictionary()


def _limit_batch(p: Pass, size: Callable[[Pass], int]) -> Pass:
    batch = max(1, min(p.batch, size(p))) if p.data in ("private", HELD_OUT, POOLED) else p.batch
    return p if batch == p.batch else replace(p, batch=batch)


def intern_form(form: Form) -> Form:
    """One form for all that are equal to it, as long as somebody holds it: caches compare forms by identity."""
    return _FORMS.setdefault(form.key, form)


def _rows(payloads: tuple[Payload, ...]) -> list[Any]:
    """Payloads as plain data.  ``asdict`` copies deeply: 300 items take it 2.5 ms, and 0.02 ms here."""
    rows = [
        [(i.name, i.shape, i.dtype, i.source, i.cut, i.like, i.fixed) for i in payload.items] for payload in payloads
    ]
    return [
        (p.name, p.follows, p.codec and asdict(p.codec), p.travels, p.in_turn, items)
        for p, items in zip(payloads, rows, strict=True)
    ]


_SHARED = tuple(each.name for each in fields(Description))


def _shared_fields(description: Description) -> dict[str, Any]:
    return {name: getattr(description, name) for name in _SHARED}


@runtime_checkable
class Source(Protocol):
    """The data of a work: shapes for a prediction, batches for training."""

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """The largest shapes of a batch of this pattern, by field ("image", "text", "label")."""
        ...

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern in one occurrence of the pass."""
        ...

    def size(self, pass_: Pass) -> int:
        """Samples that one occurrence of the pass draws from, over all its patterns; padding isn't counted."""
        ...

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """``(pattern, batch)`` in the pass's order; ``seed`` decides shuffling (training passes only)."""
        ...


_SAFETENSORS = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16", "float16": "F16",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
# In the order in which safetensors writes dtypes (then by name).  The offsets are decimal numbers in the header, so
# that another order has other digits, and another size of the file.
_ORDER = {dtype: index for index, dtype in enumerate(_SAFETENSORS)}


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
