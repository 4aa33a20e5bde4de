"""Towers (encoders of one modality) and the models composed of them.

A model's description is plain data, so that a Work can carry it.  ``build`` makes the module from a description.
``at_depth`` shortens the description, not the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import nn

from edgefl import registry, seeds
from edgefl.errors import MethodError
from edgefl.memo import library_version
from edgefl.models import adapters, beit3, dtypes, quantised
from edgefl.models.client import describe
from edgefl.models.exits import places_of
from edgefl.models.halves import drop_other_half
from edgefl.models.model import ModelDescription, TowerDescription, dtype_of
from edgefl.models.options import ModelOptions
from edgefl.models.tower import SkipInitialisation

__all__ = [
    "Frozen", "ModelOptions", "at_depth", "blocks", "blueprint", "build", "check_weights", "describe",
    "dtype_of", "load_weights", "on_meta", "versions",
]  # fmt: skip


def build(description: ModelDescription) -> nn.Module:
    """Build the module that a description specifies, on torch's current default device.

    Parameters are initialised from torch's global generator, in float32, then put into their dtypes and quantised.
    Raises UnknownName if no model of that name is registered.
    """
    module: nn.Module = registry.get("model", description["name"])(description)
    added: set[str] = set()
    if adapter := description.get("adapter"):
        before = {name for name, _ in module.named_parameters()}
        adapters.attach(module, adapter)
        added = {name for name, _ in module.named_parameters()} - before
    dtypes.cast(module, description, added)
    quantised.quantise(module, description)
    if half := description.get("half"):
        drop_other_half(module, half["name"], half["cut"])
    return module


def parts_of(description: ModelDescription) -> set[tuple[str, str]]:
    """The registered parts, as noun and name, that build the described model."""
    parts = {("model", description["name"])}
    if adapter := description.get("adapter"):
        parts.add(("adapter", adapter["name"]))
    return parts | {("tower", t["tower"]) for t in description.get("towers", {}).values() if "tower" in t}


def code(description: ModelDescription) -> list[str]:
    """Digests of the code that builds the described model, sorted: edgefl's ``ROOMS`` and the packages of plug-ins."""
    library = [f"bitsandbytes {library_version('bitsandbytes') or 'absent'}"] if description.get("quantize") else []
    parts = (registry.fingerprint(*part, ROOMS) for part in parts_of(description))
    return sorted({registry.package_digest("edgefl", ROOMS), *parts, *library})


ROOMS = ("models", "operator_classes", "registry", "seeds", "units")
"""The rooms whose code decides what a model's tensors are."""


def versions() -> list[str]:
    """Names and versions of the libraries that models are built from; they are part of the key of cached costs."""
    return [f"{name} {library_version(name) or 'absent'}" for name in ("torch", "torchvision", "timm", "transformers")]


@seeds.seeding_globals(0)
def on_meta(description: ModelDescription) -> nn.Module:
    """Build the described module on the meta device: its tensors have shapes and dtypes but no data."""
    # Random initialisation of meta tensors would import torch's compiler, which takes seconds.
    with torch.device("meta"), SkipInitialisation():
        return build(description)


def blueprint(description: ModelDescription) -> nn.Module:
    """The described module on the meta device, one for all who ask for it: nothing of it may be changed."""
    return _blueprint(Frozen(description))


class Frozen:
    """A model's description as a hashable cache key, while no part is registered anew."""

    def __init__(self, description: ModelDescription):
        self.description = description
        self._text = f"{registry.changes()} {description!r}"

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self._text == other._text


@lru_cache(maxsize=8)
def _blueprint(key: Frozen) -> nn.Module:
    return on_meta(key.description)


def load_weights(module: nn.Module, description: ModelDescription, weights: Mapping[str, str]) -> None:
    """Copy pre-trained weights into the towers of ``module``.

    ``weights`` maps a tower's name to the source of its weights (see docs/reference/towers.md).  Towers that the
    model doesn't have are skipped, and a module on the meta device is left as it is.  No layer is quantised yet.
    Raises MethodError if a tower can't load weights, or if they can't be found or have other shapes.
    """
    for name, source in weights.items():
        tower = description["towers"].get(name)
        # meta tensors have no data to overwrite
        if tower is not None and not any(p.is_meta for p in module.parameters()):
            load = beit3.load if name == "multiway" else getattr(registry.get("tower", tower["tower"]), "load", None)
            if load is None:
                raise MethodError(
                    f"model.{name}.weights is {source!r}, but tower {tower['tower']!r} can't load weights"
                )
            load(module.get_submodule(name), source, tower)


def check_weights(description: ModelDescription, tower: str, source: str) -> None:
    """Raise the MethodError with which ``load_weights`` would refuse the weights of a tower; no module keeps them."""
    described = quantised.without(description)
    load_weights(on_meta(described).to_empty(device="cpu"), described, {tower: source})


def blocks(description: ModelDescription) -> dict[str, int]:
    """Number of blocks of each tower at full depth, by tower."""
    return {name: tower["blocks"] for name, tower in description["towers"].items()}


def at_depth(description: ModelDescription, depth: Mapping[str, int]) -> ModelDescription:
    """The description of the same model with only the first ``depth[tower]`` blocks of each tower.

    A tower that ``depth`` doesn't name keeps its blocks.  Raises MethodError if a model with exits would keep no exit.
    """
    towers: dict[str, TowerDescription] = {
        name: {**tower, "depth": depth.get(name, tower["depth"])} for name, tower in description["towers"].items()
    }
    shallow: ModelDescription = {**description, "towers": towers}
    if "exits" in shallow:
        places_of(shallow)  # raises MethodError if no exit is left
    return shallow
