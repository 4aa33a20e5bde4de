"""Towers and the models made of them.

A model is described by plain data (so that a Work can carry it) and built by ``build``; ``at_depth`` cuts the
description, not the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from edgefl import registry
from edgefl.models.client import describe
from edgefl.models.options import MODALITIES, ModelOptions

__all__ = ["MODALITIES", "ModelOptions", "at_depth", "blocks", "build", "describe", "load_weights"]


def build(description: Mapping[str, Any]) -> nn.Module:
    """The module of this description, on the current default device, randomly initialised from torch's generator.

    Raises UnknownName if no such model is registered.
    """
    module: nn.Module = registry.get("model", description["name"])(description)
    return module


def load_weights(module: nn.Module, description: Mapping[str, Any], weights: Mapping[str, str]) -> None:
    """Give towers their pre-trained values: ``weights`` says by tower where they are (see docs/models.md).

    Raises MethodError for a tower that can't be given any, or weights that can't be found or don't fit.
    """
    for name, source in weights.items():
        tower = description["towers"].get(name)
        if tower is not None:
            registry.get("tower", tower["tower"]).load(module.get_submodule(name), source, tower)


def blocks(description: Mapping[str, Any]) -> dict[str, int]:
    """Blocks of each tower at full depth."""
    return {name: tower["blocks"] for name, tower in description["towers"].items()}


def at_depth(description: Mapping[str, Any], depth: Mapping[str, int]) -> dict[str, Any]:
    """The same model with only the first ``depth[tower]`` blocks of each tower."""
    towers = {
        name: {**tower, "depth": depth.get(name, tower["depth"])} for name, tower in description["towers"].items()
    }
    return {**description, "towers": towers}
