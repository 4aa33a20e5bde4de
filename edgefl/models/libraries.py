"""A trained tower as the model of the library that it was built from: timm or transformers."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from edgefl import registry, seeds
from edgefl.models import quantised
from edgefl.models.model import Model, TowerDescription


def as_library(model: Model, modality: str, description: TowerDescription) -> nn.Module | None:
    """The library's own model with the values of a modality's tower; None for a tower that no library has.

    It has the classifier where the library's reads the feature that the tower gives.  The norm that towers of a
    retrieval model share stands for its own.  What the tower leaves out, such as a pooler, has random values.
    """
    part = library_part(description)
    if part is None:
        return None
    model = quantised.restored_model(model)
    tower = model.get_submodule(modality)
    names = library_names(model, modality, description)
    given = {names[name]: value for name, value in model.state_dict().items() if name in names}
    head: Any = getattr(tower, "head", None)
    classified = hasattr(part, "classifier") and isinstance(head, nn.Linear) and not hasattr(tower, "rep")
    with seeds.seeding_globals(0):
        whole: Any = part.library(description, classes=head.out_features) if classified else part.library(description)
        if classified:
            layer = part.classifier(whole)
            if not isinstance(layer, nn.Linear) or layer.weight.shape != head.weight.shape:
                whole = part.library(description)
            else:
                layer.load_state_dict(head.state_dict())
    own = dict(whole.state_dict(keep_vars=True))
    with torch.no_grad():
        for name, value in given.items():
            if name in own:
                own[name].copy_(value)
    whole.eval()
    return cast(nn.Module, whole)


def library_part(description: TowerDescription) -> Any:
    """The part that builds a described tower from a library's model; None for a tower that no library has."""
    part: Any = registry.get("tower", description["tower"]) if "tower" in description else None
    part = part if hasattr(part, "library") else getattr(part, "made", None)
    return part if hasattr(part, "library") else None


def library_names(model: nn.Module, modality: str, description: TowerDescription) -> dict[str, str]:
    """The library's name of each of a model's tensors that its tower of a modality has from a library.

    The norm that towers of a retrieval model share stands for the tower's own.
    """
    own = model.state_dict().keys()
    names = _own_names(library_part(description), model.get_submodule(modality), description)
    places = [(f"{modality}.{name}", f"joint.{name}" if name.startswith("norm.") else "") for name in names]
    found = (next((place for place in both if place in own), None) for both in places)
    return {place: name for place, name in zip(found, names.values(), strict=True) if place}


def _own_names(part: Any, tower: Any, description: TowerDescription) -> dict[str, str]:
    """The library's name of each of the tower's tensors: the one of the same tensor before the model is taken apart."""
    if hasattr(tower, "own_name"):
        own = (name for name in tower.state_dict() if name.partition(".")[0] not in ("head", "rep"))
        return {name: tower.own_name(name) for name in own}
    with torch.device("meta"):
        model = part.library(description)
        tensors = _tensors(model)  # held, so that no new tensor gets the id of one that the model loses
        before = {id(value): name for name, value in tensors.items()}
        taken_apart = part.of_library(model, description, True)
    return {name: before[id(value)] for name, value in _tensors(taken_apart).items() if id(value) in before}


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
