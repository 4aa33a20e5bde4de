"""Towers and the models made of them.

A model is described by plain data (so that a Work can carry it) and built by ``build``; ``at_depth`` cuts the
description, not the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.models.client import describe
from edgefl.models.exits import places_of
from edgefl.models.options import MODALITIES, ModelOptions

__all__ = [
    "MODALITIES",
    "ModelOptions",
    "at_depth",
    "blocks",
    "build",
    "describe",
    "load_weights",
    "on_meta",
    "versions",
]


def build(description: Mapping[str, Any]) -> nn.Module:
    """The module of this description, on the current default device, randomly initialised from torch's generator.

    Raises UnknownName if no such model is registered.
    """
    module: nn.Module = registry.get("model", description["name"])(description)
    return module


class _Unfilled(TorchFunctionMode):
    """Leaves tensors without data as they are where they would be filled with draws."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _FILLS:
            filled = args[0] if args else kwargs.get("tensor")
            if isinstance(filled, torch.Tensor) and filled.device.type == "meta":
                return filled
        return func(*args, **kwargs)


_FILLS = frozenset({"normal_", "uniform_", "bernoulli_", "erfinv_", "clamp_", "fill_", "zero_"})


def code(description: Mapping[str, Any]) -> list[str]:
    """Hashes of the packages whose code makes the module of this description."""
    named = {("model", description["name"])}
    named |= {("tower", t["tower"]) for t in description.get("towers", {}).values() if "tower" in t}
    return sorted({registry.package_digest("edgefl"), *(registry.fingerprint(*name) for name in named)})


def versions() -> list[str]:
    """The versions of the libraries that models are made of, as part of what a memo's key says."""
    return [f"{name} {_version(name)}" for name in ("torch", "torchvision", "timm", "transformers")]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def on_meta(description: Mapping[str, Any]) -> nn.Module:
    """The module of this description with shapes and no data."""
    # torch's draws on meta tensors import its compiler, which takes seconds
    with torch.device("meta"), _Unfilled():
        return build(description)


def load_weights(module: nn.Module, description: Mapping[str, Any], weights: Mapping[str, str]) -> None:
    """Give towers their pre-trained values: ``weights`` says by tower where they are (see docs/models.md).

    Raises MethodError for a tower that can't be given any, or weights that can't be found or don't fit.
    """
    for name, source in weights.items():
        tower = description["towers"].get(name)
        # shapes without data have nothing to fill
        if tower is not None and not any(p.is_meta for p in module.parameters()):
            load = getattr(registry.get("tower", tower["tower"]), "load", None)
            if load is None:
                raise MethodError(f"model.{name}.weights is {source!r}, but tower {tower['tower']!r} can't load any")
            load(module.get_submodule(name), source, tower)


def blocks(description: Mapping[str, Any]) -> dict[str, int]:
    """Blocks of each tower at full depth."""
    return {name: tower["blocks"] for name, tower in description["towers"].items()}


def at_depth(description: Mapping[str, Any], depth: Mapping[str, int]) -> dict[str, Any]:
    """The same model with only the first ``depth[tower]`` blocks of each tower.

    Raises MethodError where a model with exits would have none.
    """
    towers = {
        name: {**tower, "depth": depth.get(name, tower["depth"])} for name, tower in description["towers"].items()
    }
    part = {**description, "towers": towers}
    if "exits" in part:
        places_of(part)
    return part
