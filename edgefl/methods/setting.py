"""What a method is given: the kinds of clients with their models, and the settings of the run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from torch import Tensor

from edgefl import models
from edgefl.devices import Device, Link
from edgefl.memo import cache_folder, recall, remember
from edgefl.methods.aggregation.options import MEAN, AggregationOptions
from edgefl.models import Frozen, ModelOptions, adapters
from edgefl.models.model import ModelDescription
from edgefl.models.quantised import is_part
from edgefl.models.tried import check_tensors
from edgefl.work import Address, Item, Payload, TensorSpec, digest
from edgefl.work.description import MissingRates
from edgefl.work.tasks import Like, like
from edgefl.work.training_options import TrainingOptions


@dataclass(frozen=True)
class Kind:
    """A kind of client.

    A method may give it another model: ``replace(kind, model={**kind.model, "name": "exits", "exits": 4})``.
    """

    name: str
    """One of ``edgefl.modalities.KINDS``: ``image``, ``text``, ``image-text``, ..."""
    modalities: tuple[str, ...]
    """Its modalities."""
    task: str
    """The registered name of its task."""
    model: ModelDescription
    """Description of its model at full depth."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Where towers have pre-trained values from; no cost depends on it."""
    patterns: tuple[str, ...] = ()
    """Modality patterns of its samples, the complete one first, and only this unless samples lack modalities."""
    extras: tuple[str, ...] = ()
    """Further fields of its data: ``target`` (soft answers), ``group`` (captions of one image), ``next`` (tokens)."""
    delivers_base: bool = False
    """Whether clients receive what stands under an adapter when they first take part."""
    adapter_weights: Mapping[str, str] = field(default_factory=dict)
    """Where the adapter of a tower has its first values from; no cost depends on it."""
    vectors: Mapping[str, str] = field(default_factory=dict)
    """Files of word vectors by tower, as its embedding's first values; no cost depends on them."""

    def __post_init__(self) -> None:
        if not self.patterns:
            object.__setattr__(self, "patterns", (self.pattern,))

    @property
    def pattern(self) -> str:
        """The modality pattern of its complete samples."""
        return "-".join(self.modalities)

    @property
    def like(self) -> Like:
        """Whose data and models its task has: ``classify``, ``retrieve`` or ``next-token``."""
        return like(self.task)

    def parameters(self) -> dict[str, TensorSpec]:
        """Shape and dtype of every parameter and buffer of the model by name, in order; cached."""
        parameters, buffers = tensors_of(self.model)
        return {**parameters, **buffers}

    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters, with an adapter of those that it lets train; buffers can't train; cached."""
        return self._split[0]

    def fixed_parameters(self) -> frozenset[str]:
        """Names of the parameters that no client trains at any stage: those of the model under an adapter, what is
        quantised, and what a tower holds without gradients (``requires_grad_(False)``)."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[tuple[str, ...], frozenset[str]]:
        return _split_parameters(Frozen(self.model))

    @cached_property
    def payload(self) -> Payload:
        """The whole model at the addresses ``<kind>/<parameter>``: one object, since works of each round hold it."""
        fixed, address = self.fixed_parameters(), f"{self.name}/"
        items = (Item(n, s.shape, s.dtype, address + n, fixed=n in fixed) for n, s in self.parameters().items())
        return Payload("model", tuple(items))

    @property
    def dimension(self) -> int:
        """Width of the model's representations (its ``embed``)."""
        return _dimension(Frozen(self.model))


@dataclass(frozen=True)
class DeviceVariant:
    """Which works a client does where ``training.by`` names devices."""

    keys: tuple[str, ...]
    """The keys of ``training.by`` that name its device, in their order"""
    own: Hashable
    """The method's own variant of the client"""

    def __str__(self) -> str:
        return ", ".join([*(self.keys or ("other devices",)), *([] if self.own is None else [str(self.own)])])


@dataclass(frozen=True)
class ClientFacts:
    """What a method's ``variant`` may know of one client."""

    kind: str
    """Its kind."""
    index: int
    """Its number, from 0."""
    samples: int
    """Private samples that it trains on."""
    device: Device
    """Its device, such as ``device.flops_per_second``."""
    link: Link
    """Its link."""


Specs = dict[str, TensorSpec]


@cache
def _dimension(key: Frozen) -> int:
    return int(models.blueprint(key.description).dimension)  # type: ignore[arg-type]


def tensors_of(model: ModelDescription) -> tuple[Specs, Specs]:
    """Parameters and buffers of a described model by name, in order; cached."""
    return _tensors(Frozen(model))[:2]


@cache
def _tensors(key: Frozen) -> tuple[Specs, Specs, frozenset[str]]:
    """Parameters and buffers of a description, and the parameters that it holds without gradients.

    They are cached on disk, since building a large model takes time.
    """
    folder, name = (
        cache_folder() / "shapes",
        digest([key.description, "with gradients", *models.versions(), *models.code(key.description)]),
    )
    specs = recall(folder, name, _specs, "shapes")
    if specs is None:
        module = models.on_meta(key.description)
        check_tensors(f"model {key.description['name']}", module)
        specs = (
            {n: TensorSpec.from_tensor(t) for n, t in module.named_parameters()},
            {n: TensorSpec.from_tensor(t) for n, t in module.named_buffers()},
            frozenset(n for n, t in module.named_parameters() if not t.requires_grad),
        )
        rows = [[[n, list(s.shape), s.dtype, n not in specs[2]] for n, s in part.items()] for part in specs[:2]]
        remember(folder, name, rows)
    return specs


@cache
def _split_parameters(key: Frozen) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of the parameters that train and that don't, of a description; asked once a round."""
    (names, _, frozen), adapter = _tensors(key), key.description.get("adapter")
    own = tuple(
        name for name in names
        if not is_part(name) and name not in frozen and (adapter is None or adapters.trains(adapter, name))
    )  # fmt: skip
    return own, frozenset(names) - set(own)


def _specs(raw: Any) -> tuple[Specs, Specs, frozenset[str]]:
    parameters, buffers = ({n: TensorSpec(tuple(shape), dtype) for n, shape, dtype, _ in part} for part in raw)
    return parameters, buffers, frozenset(n for n, _, _, trains in raw[0] if not trains)


@dataclass(frozen=True)
class Setting:
    """What a method knows of the scenario, as ``self.setting``."""

    kinds: Mapping[str, Kind]
    """``Kind`` by name."""
    training: TrainingOptions
    """The scenario's ``training`` section."""
    evaluation_batch: int = 100
    """``evaluation.batch``."""
    pairs: int = 500
    """``evaluation.pairs``."""
    model: ModelOptions | None = None
    """The ``model`` section, for a model of the server's own."""
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What the data fix about a tower: channels, size, vocabulary, classes, ..."""
    public: Mapping[str, int] = field(default_factory=dict)
    """Number of public samples by pattern."""
    answers: Mapping[str, int] = field(default_factory=dict)
    """Number of answers to choose from, by the server's splits whose pairs have answers, as the public ones have."""
    aggregation: AggregationOptions = MEAN
    """The ``aggregation`` section."""
    fold: int = 1000
    """``evaluation.fold``."""
    missing: Mapping[str, MissingRates] = field(default_factory=dict)
    """``evaluation.missing`` by kind: what samples lack in an evaluation."""
    pretrained: Callable[[], Mapping[str, Tensor]] | None = None
    """Gives the first values of pre-trained towers by name (``image.blocks.0...``)."""
    token_ids: Callable[[], Mapping[str, int]] = dict
    """Gives the ids of the vocabulary's tokens."""
    clients: Mapping[str, int] = field(default_factory=dict)
    """Number of clients of each kind in the whole fleet, those that are never admitted included."""
    cohort: Mapping[str, int] = field(default_factory=dict)
    """Updates of each kind that one aggregation takes, at most."""
    averages_products: bool = False
    """Whether the server averages the products of LoRA's factors (``flexlora``), and not the factors themselves."""
    each_client: Callable[[], Iterable[ClientFacts]] | None = None
    """Gives the facts of all clients, ascending, on the scenario's fleet; only a method with a ``variant`` asks."""

    @cached_property
    def buffers(self) -> frozenset[Address]:
        """Addresses of the buffers of all client models."""
        return frozenset(
            f"{kind.name}/{name}"
            for kind in self.kinds.values()
            for name in kind.parameters().keys() - set(kind.trainable())
        )
