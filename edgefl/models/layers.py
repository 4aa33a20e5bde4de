"""Which layers of a transformer block are the same in towers that name them differently.

A tower's class names the layers of its blocks as ``block_layers``: for each layer the parts whose rows it has, in
order.  A layer of several parts has as many rows of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edgefl import registry
from edgefl.errors import MethodError, suggestion
from edgefl.models.model import TowerDescription

BlockLayers = Mapping[str, tuple[str, ...]]
"""Layers of a block by name, and the parts that they have."""

ATTENTION, MLP = ("query", "key", "value", "proj"), ("fc1", "fc2")
"""Parts of attention and of the MLP; ``proj`` is the projection after attention."""
NORMS = ("norm1", "norm2", "post-norm1", "post-norm2")
"""Norms before attention and before the MLP (pre-norm), and after each of their residual sums (post-norm)."""

PRE_NORM_BLOCK: BlockLayers = {
    "attn.qkv": ("query", "key", "value"),
    "attn.proj": ("proj",),
    "mlp.fc1": ("fc1",),
    "mlp.fc2": ("fc2",),
    "norm1": ("norm1",),
    "norm2": ("norm2",),
}
"""The names of edgefl's own block and of timm's, which hold for a tower that says nothing."""


def block_layers(tower: str) -> BlockLayers:
    """The layers of a registered tower's blocks.  Raises MethodError for a part that doesn't exist."""
    layers: Any = getattr(registry.get("tower", tower), "block_layers", PRE_NORM_BLOCK)
    parts = (*ATTENTION, *MLP, *NORMS)
    for layer, held in layers.items():
        if isinstance(held, str) or not held:
            raise MethodError(f"tower {tower}: block_layers[{layer!r}] is {held!r}; write a tuple of parts")
        for part in held:
            if part not in parts:
                raise MethodError(
                    f"tower {tower}: block_layers[{layer!r}] has no part {part!r}{suggestion(part, parts)}"
                )
    found: BlockLayers = layers
    return found


def attention_outputs(towers: Mapping[str, TowerDescription], names: Iterable[str]) -> dict[str, str]:
    """Those of these parameters that are weights of a projection after attention, with their blocks: image.blocks.3."""
    known = {tower: block_layers(described["tower"]) for tower, described in towers.items() if "tower" in described}
    found = {}
    for name in names:
        tower, _, rest = name.partition(".blocks.")
        index, _, layer = rest.partition(".")
        if layer.endswith(".weight") and "proj" in known.get(tower, {}).get(layer.removesuffix(".weight"), ()):
            found[name] = f"{tower}.blocks.{index}"
    return found
