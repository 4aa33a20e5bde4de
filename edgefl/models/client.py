"""A client's model: one tower and a classifier, or several towers into one space or under one classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.models.multiway import describe_multiway
from edgefl.models.options import ModelOptions
from edgefl.models.tower import initialise, stand_in

FACTS = ("channels", "size", "vocabulary", "bins", "frames")
"""What the data fix about a tower."""


class ClientModel(nn.Module):
    """Towers by modality, plus what no single tower owns under ``joint``.

    Parameter names are ``<tower>.<part>[.i].<rest>`` with part one of embedding, blocks, pooler, norm, rep, head.
    """

    def __init__(self, description: Mapping[str, Any]):
        super().__init__()
        towers, joint = description["towers"], description.get("joint") or {}
        self.modalities = tuple(towers)
        self.widths: dict[str, int] = {}
        for name, tower in towers.items():
            own_norm = "norm" not in joint
            module = registry.get("tower", tower["tower"]).build(tower, own_norm)
            self.widths[name] = add_read_out(module, module.width, tower)
            self.add_module(name, module)
        if joint:
            self.joint = nn.Module()
        if "norm" in joint:
            self.joint.norm = nn.LayerNorm(joint["norm"], eps=1e-6)
        if "classes" in joint:
            self.joint.head = mlp(sum(self.widths.values()), joint["hidden"], joint["classes"], joint["dropout"])

    def tower(self, modality: str) -> Any:
        """The tower of a modality, whatever its class."""
        return self.get_submodule(modality)

    @property
    def dimension(self) -> int:
        """Width of ``feature`` and ``embed``."""
        return self.widths[self.modalities[0]]

    def classes(self, pattern: str) -> int:
        """How many classes samples of this pattern are told apart into."""
        head = self.tower(pattern).head if self._alone(pattern) else self.get_submodule("joint.head")[-1]  # type: ignore[index]
        return int(cast(nn.Linear, head).out_features)

    def _alone(self, pattern: str) -> bool:
        """Whether samples of this pattern have a classifier of their own, and not that of pairs."""
        return pattern in self.widths and hasattr(self.tower(pattern), "head")

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """What a tower reads from its tokens, normalised, and projected if it has a rep: ``[batch, dim]``."""
        tower = self.tower(modality)
        tokens: Tensor = tower(x)
        feature: Tensor = tower.read(tokens) if hasattr(tower, "read") else tokens[:, 0]
        if hasattr(self, "joint") and hasattr(self.joint, "norm"):
            feature = cast(nn.Module, self.joint.norm)(feature)
        return tower.rep(feature) if hasattr(tower, "rep") else feature

    def logits(self, modality: str, x: Tensor) -> Tensor:
        """Class scores of one modality: ``[batch, classes]``."""
        scores: Tensor = self.tower(modality).head(self.feature(modality, x))
        return scores

    def features(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The ``feature`` of each modality in ``batch``, ``[batch, dim]``."""
        return {m: self.feature(m, batch[m]) for m in self.modalities if m in batch}

    def fuse(self, first: Tensor, second: Tensor) -> Tensor:
        """Two features side by side, ``[batch, sum of dims]``, in the order of ``modalities``."""
        return torch.cat([first, second], -1)

    def scores(self, fused: Tensor) -> Tensor:
        """Class scores ``[batch, classes]`` of two fused features."""
        scores: Tensor = self.get_submodule("joint.head")(fused)
        return scores

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str = "zero") -> Tensor:
        """Class scores of samples of a pattern, of one modality or two side by side: ``[batch, classes]``.

        Where the model classifies pairs, ``mask`` says what stands for the feature of a modality that the pattern
        lacks: ``zero``, or ``random``, standard normal for every sample.
        """
        if self._alone(pattern):
            return self.logits(pattern, batch[pattern])
        found = self.features({m: batch[m] for m in pattern.split("-")})
        like = next(iter(found.values()))
        parts = [found[m] if m in found else stand_in(mask, like, self.widths[m]) for m in self.modalities]
        return self.scores(self.fuse(*parts))

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """FedCola's parameter-free retrieval head: the feature on the unit sphere, ``[batch, dim]``."""
        return F.normalize(self.feature(modality, x), dim=-1)


def add_read_out(module: nn.Module, width: int, tower: Mapping[str, Any]) -> int:
    """Give ``module`` the projection and the classifier that a tower is described with; the width of its feature."""
    if rep := tower.get("rep"):
        module.rep = projection(width, rep)
        width = rep if isinstance(rep, int) else rep["dimension"]
    if tower.get("classes"):
        module.head = nn.Linear(width, tower["classes"])
        initialise(module.head)
    return width


def projection(width: int, rep: int | Mapping[str, Any]) -> nn.Module:
    """A linear layer, or the projection of LW-FedMML."""
    if isinstance(rep, int):
        layer = nn.Linear(width, rep, bias=False)
        initialise(layer)
        return layer
    return mlp(width, rep["hidden"], rep["dimension"], rep["dropout"], bias=False, batch_norm=rep["batch_norm"])


def mlp(
    width: int, hidden: Sequence[int], out: int, dropout: float, *, bias: bool = True, batch_norm: bool = False
) -> nn.Sequential:
    """Hidden layers of linear, dropout, batch norm and ReLU under a linear layer, whose batch norm has no scale."""
    layers: list[nn.Module] = []
    for each in hidden:
        layers.append(nn.Linear(width, each, bias=bias))
        layers += [nn.Dropout(dropout)] if dropout else []
        layers += [nn.BatchNorm1d(each)] if batch_norm else []
        layers.append(nn.ReLU())
        width = each
    layers.append(nn.Linear(width, out, bias=bias))
    layers += [nn.BatchNorm1d(out, affine=False)] if batch_norm else []
    mlp = nn.Sequential(*layers)
    initialise(mlp)
    return mlp


def build_client_model(description: Mapping[str, Any]) -> ClientModel:
    """The model named ``towers``."""
    return ClientModel(description)


def describe(
    options: ModelOptions,
    modalities: Sequence[str],
    task: str,
    facts: Mapping[str, Mapping[str, int]],
    *,
    checkpointing: bool = False,
) -> dict[str, Any]:
    """The description of a client kind's model at full depth.

    ``facts[modality]`` is what the data fix: channels and size of an image, vocabulary of a text, bins and frames of
    a spectrogram, classes.  A classifier of one modality is a tower with a head, one of two has their features side
    by side under a joint head; a retrieval model has one final norm for all its towers (as FedCola), or, where
    ``dimension`` is set, a norm and a projection each.  Where weights come from is not in it: no cost depends on it.
    Raises MethodError for a modality without a tower or widths that don't meet.
    """
    if options.multiway is not None:
        return describe_multiway(options.multiway, modalities, task, facts, checkpointing=checkpointing)
    towers = options.towers
    for modality in modalities:
        if modality not in towers:
            raise MethodError(f"clients with {modality} need a model.{modality} tower; the model has {list(towers)}")
    alone = len(modalities) == 1
    rep: Any = options.dimension
    if rep and options.projection is not None:
        rep = {**options.projection.model_dump(mode="json"), "dimension": options.dimension}
    described: dict[str, Any] = {}
    for modality in modalities:
        fixed = {k: v for k, v in facts[modality].items() if k in FACTS}
        own = towers[modality].model_dump(exclude={"weights"})
        described[modality] = {**own, **fixed, "depth": towers[modality].blocks}
        if checkpointing:
            described[modality]["checkpointing"] = True
        if task == "classify" and alone:
            described[modality]["classes"] = facts[modality]["classes"]
        if rep and (not alone or options.dimension_for == "all"):
            described[modality]["rep"] = rep
    joint: dict[str, Any] = {}
    if task == "classify" and not alone:
        joint = {**options.fusion.model_dump(mode="json"), "classes": facts[modalities[0]]["classes"]}
    elif task != "classify" and not rep:
        widths = {towers[m].width for m in modalities}
        if len(widths) > 1:
            raise MethodError(
                f"a retrieval model whose towers have widths {sorted(widths)} needs model.dimension, "
                "the width that they are projected to"
            )
        joint["norm"] = widths.pop()
    return {"name": "towers", "towers": described, "joint": joint}
