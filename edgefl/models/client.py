"""A client's model: one tower and a classifier, or several towers into one space for retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.models.options import ModelOptions
from edgefl.models.tower import initialise


class ClientModel(nn.Module):
    """Towers by modality, plus what no single tower owns under ``joint``.

    Parameter names are ``<tower>.<part>[.i].<rest>`` with part one of embedding, blocks, norm, rep, head.
    """

    def __init__(self, description: Mapping[str, Any]):
        super().__init__()
        towers, joint = description["towers"], description.get("joint") or {}
        self.modalities = tuple(towers)
        for name, tower in towers.items():
            own_norm = "norm" not in joint
            module = registry.get("tower", tower["tower"]).build(tower, own_norm)
            if tower.get("classes"):
                module.head = nn.Linear(module.width, tower["classes"])
                initialise(module.head)
            if tower.get("rep"):
                module.rep = nn.Linear(module.width, tower["rep"], bias=False)
                initialise(module.rep)
            self.add_module(name, module)
        if "norm" in joint:
            self.joint = nn.Module()
            self.joint.norm = nn.LayerNorm(joint["norm"], eps=1e-6)

    def tower(self, modality: str) -> Any:
        """The tower of a modality, whatever its class."""
        return self.get_submodule(modality)

    @property
    def dimension(self) -> int:
        """Width of ``feature`` and ``embed``."""
        tower = self.tower(self.modalities[0])
        return int(tower.rep.out_features if hasattr(tower, "rep") else tower.width)

    def _first(self, modality: str, x: Tensor) -> Tensor:
        first: Tensor = self.tower(modality)(x)[:, 0]
        return self.get_submodule("joint.norm")(first) if hasattr(self, "joint") else first

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """The normalised first token of a tower, projected if it has a rep: ``[batch, dim]``."""
        tower, first = self.tower(modality), self._first(modality, x)
        feature: Tensor = tower.rep(first) if hasattr(tower, "rep") else first
        return feature

    def logits(self, modality: str, x: Tensor) -> Tensor:
        """Class scores of one modality: ``[batch, classes]``."""
        scores: Tensor = self.tower(modality).head(self._first(modality, x))
        return scores

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """FedCola's parameter-free retrieval head: the feature on the unit sphere, ``[batch, dim]``."""
        return F.normalize(self.feature(modality, x), dim=-1)


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

    ``facts[modality]`` is what the data fix: channels and size of an image, vocabulary of a text, classes.
    A classifier is one tower with a head; a retrieval model has one final norm for all its towers (as FedCola), or,
    where ``dimension`` is set, a norm and a projection each.  Raises MethodError for a modality without a tower or
    widths that don't meet.
    """
    towers = options.towers
    for modality in modalities:
        if modality not in towers:
            raise MethodError(f"clients with {modality} need a model.{modality} tower; the model has {list(towers)}")
    described: dict[str, Any] = {}
    for modality in modalities:
        fixed = {k: v for k, v in facts[modality].items() if k in ("channels", "size", "vocabulary")}
        described[modality] = {**towers[modality].model_dump(), **fixed, "depth": towers[modality].blocks}
        if checkpointing:
            described[modality]["checkpointing"] = True
        if task == "classify":
            described[modality]["classes"] = facts[modality]["classes"]
        elif options.dimension:
            described[modality]["rep"] = options.dimension
    widths = {towers[m].width for m in modalities}
    joint: dict[str, Any] = {}
    if task != "classify" and not options.dimension:
        if len(widths) > 1:
            raise MethodError(
                f"a retrieval model whose towers have widths {sorted(widths)} needs model.dimension, "
                "the width that they are projected to"
            )
        joint["norm"] = widths.pop()
    return {"name": "towers", "towers": described, "joint": joint}
