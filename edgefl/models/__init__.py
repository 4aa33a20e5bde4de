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
from edgefl.models.options import ModelOptions

__all__ = ["ModelOptions", "at_depth", "blocks", "build", "describe"]


def build(description: Mapping[str, Any]) -> nn.Module:
    """The module of this description, on the current default device, randomly initialised from torch's generator.

    Raises UnknownName if no such model is registered.
    """
    module: nn.Module = registry.get("model", description["name"])(description)
    return module


def blocks(description: Mapping[str, Any]) -> dict[str, int]:
    """Blocks of each tower at full depth."""
    return {name: tower["blocks"] for name, tower in description["towers"].items()}


def at_depth(description: Mapping[str, Any], depth: Mapping[str, int]) -> dict[str, Any]:
    """The same model with only the first ``depth[tower]`` blocks of each tower."""
    towers = {
        name: {**tower, "depth": depth.get(name, tower["depth"])} for name, tower in description["towers"].items()
    }
    return {**description, "towers": towers}
