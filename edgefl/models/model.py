"""What every described model is from outside: a module of tensors, which pickles as its description and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, NotRequired, TypedDict

import torch
from torch import Tensor, nn

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
"""Dtypes in which tensors are held and travel."""
Dtype = Literal["float32", "bfloat16", "float16"]
"""Dtypes in which a scenario may have a part of a model."""
Quantiser = Literal["nf4", "nf4-double", "int8"]
"""In what a scenario may have frozen linear layers."""
Gives = Literal["scores", "next token", "embeddings"]
AUXILIARY_WEIGHT = 0.3
"""What the loss of an auxiliary classifier is multiplied by, if its tower doesn't say (GoogLeNet: Szegedy et al. 2015,
section 5)."""


class ProjectionDescription(TypedDict):
    """An MLP that projects a feature to ``dimension``, as in LW-FedMML."""

    hidden: Sequence[int]
    dimension: int
    dropout: float
    batch_norm: bool


class TowerDescription(TypedDict, total=False):
    """A tower: the fields of several towers, and what the data determine.

    It has the other fields of its ``Options`` too, which ``edgefl.models.tower.chosen`` reads.
    """

    tower: str
    blocks: int
    depth: int
    width: int
    heads: int
    patch: int
    variant: str
    tokens: int
    channels: int
    size: int
    vocabulary: int
    bins: int
    frames: int
    readings: int
    classes: int
    rep: int | ProjectionDescription
    predicts: bool
    checkpointing: int
    dtype: str


class JointDescription(TypedDict, total=False):
    """What the towers of a model share: a norm of that width, or a classifier of their concatenated features."""

    norm: int
    classes: int
    hidden: Sequence[int]
    dropout: float


class AdapterDescription(TypedDict, total=False):
    """An adapter: its name, the parts that train beside it, and the fields of edgefl's own."""

    name: str
    also: Sequence[str]
    rank: int
    scale: float
    parts: Sequence[str]
    alpha: float
    of: int
    dtype: str


class QuantisedDescription(TypedDict):
    """How the linear layers of a tower's frozen ``blocks`` are held."""

    to: Quantiser
    blocks: Sequence[int]


class HalfDescription(TypedDict):
    """A half of a split model: the client's (``first``) or the server's, with the client's blocks of each tower."""

    name: Literal["first", "last"]
    cut: Mapping[str, int]


class ModelDescription(TypedDict):
    """A model as plain JSON, which a work carries.  Models of plug-ins may have fields of their own."""

    name: str
    towers: Mapping[str, TowerDescription]
    joint: NotRequired[JointDescription]
    modalities: NotRequired[Sequence[str]]
    adapter: NotRequired[AdapterDescription]
    dtype: NotRequired[str]
    quantize: NotRequired[Mapping[str, QuantisedDescription]]
    exits: NotRequired[int]
    ensemble: NotRequired[bool]
    half: NotRequired[HalfDescription]


def gives(description: ModelDescription) -> Gives:
    """What ``forward`` of a described model gives: class scores, scores of the next token, or embeddings."""
    towers = description["towers"].values()
    if any(tower.get("predicts") for tower in towers):
        return "next token"
    joint = description.get("joint") or {}
    return "scores" if joint.get("classes") or any(tower.get("classes") for tower in towers) else "embeddings"


def dtype_of(described: Mapping[str, Any]) -> torch.dtype:
    """The dtype of a described tower or adapter, or of what a task adds to the towers of a described model."""
    dtype: torch.dtype = getattr(torch, described.get("dtype", "float32"))
    return dtype


def inputs(description: ModelDescription) -> dict[str, torch.dtype]:
    """In which dtype the floating inputs of a modality are taken, by modality, where it isn't float32."""
    found: dict[str, torch.dtype] = {}
    for name, tower in description.get("towers", {}).items():
        if (dtype := dtype_of(tower)) is not torch.float32:
            found |= dict.fromkeys(description.get("modalities", [name]), dtype)
    return found


class Model(nn.Module):
    """A model of one modality or two.  Subclasses give ``classify`` and ``embed``, causal ones ``next_tokens``."""

    modalities: tuple[str, ...]

    def __init__(self, description: ModelDescription):
        super().__init__()
        self.description = description
        self.gives = gives(description)

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        """Inputs in the order of ``modalities``: images ``[batch, channels, size, size]``, tokens ``[batch, tokens]``,
        spectrograms ``[batch, frames, bins]``, as the run's ``preprocessing`` makes them.

        Class scores ``[batch, classes]``; of a text model that predicts, ``[batch, tokens, vocabulary]``; of a model
        that retrieves, the normalised embedding ``[batch, dim]`` of each input.  Raises TypeError for another number
        of inputs.
        """
        given = (first,) if second is None else (first, second)
        if len(given) != len(self.modalities):
            raise TypeError(f"this model takes {' and '.join(self.modalities)}: {len(given)} inputs were given")
        dtypes = inputs(self.description)
        batch = {
            modality: x.to(dtypes.get(modality, x.dtype)) if x.is_floating_point() else x
            for modality, x in zip(self.modalities, given, strict=True)
        }
        if self.gives == "next token":
            scores: Tensor = self.next_tokens(self.modalities[0], first)
            return scores
        if self.gives == "scores":
            return self.classify("-".join(self.modalities), batch)
        embedded = tuple(self.embed(modality, x) for modality, x in batch.items())
        return embedded[0] if len(embedded) == 1 else embedded

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str = "zero") -> Tensor:
        """Class scores of samples of a pattern: ``[batch, classes]``."""
        raise NotImplementedError

    def take_auxiliary_scores(self) -> list[tuple[float, Tensor]]:
        """Class scores ``[batch, classes]`` of towers' auxiliary classifiers, and their losses' weights; taken once."""
        towers = ((getattr(each, "auxiliary_weight", AUXILIARY_WEIGHT), vars(each)) for each in self.children())
        return [(weight, scores) for weight, held in towers for scores in held.pop("auxiliary_scores", ())]

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """The L2-normalised feature of one modality: ``[batch, dim]``."""
        raise NotImplementedError

    def next_tokens(self, modality: str, x: Tensor) -> Tensor:
        """Scores of the token after each one: ``[batch, tokens, vocabulary]``."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        """As description and values, because some towers' classes are made when they are built."""
        return _rebuild_model, (dict(self.description), self.state_dict(), self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """Of the module as it is, with whatever was added to it since it was built."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied  # the protocol of copy.deepcopy, whose caller holds what it copies
        copied.__dict__ = deepcopy(self.__dict__, memo)
        return copied


def _rebuild_model(description: ModelDescription, state: Mapping[str, Tensor], training: bool) -> nn.Module:
    from edgefl.models import build

    module = build(description)
    module.load_state_dict(state, assign=True)
    return module.train(training)
