"""Narrower models: the leading heads of every attention, and what goes with them (HeteroFL's width slices)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefl.errors import MethodError

CUTTABLE = ("vit", "transformer")
"""Towers whose blocks are cut by heads."""


def heads_of(heads: int, share: float) -> int:
    """The nearest number of heads to a share of them, at least one; halves are rounded up."""
    return max(1, int(share * heads + 0.5))


def at_width(description: Mapping[str, Any], share: float) -> dict[str, Any]:
    """The same model with the nearest number of heads to ``share`` in each tower; a head is as wide as before.

    Projections and classifiers keep their hidden layers and what they give.  Raises MethodError for a model that
    can't be cut, or whose towers would be of different widths where one norm reads them all.
    """
    if (model := description["name"]) not in ("towers", "exits"):
        raise MethodError(f"widths can't be cut of the model {model!r}: only of {' and '.join(CUTTABLE)} towers")
    towers = {}
    for name, tower in description["towers"].items():
        if tower["tower"] not in CUTTABLE:
            raise MethodError(
                f"widths can't be cut of model.{name}, a {tower['tower']!r} tower; allowed: {', '.join(CUTTABLE)}"
            )
        heads = heads_of(tower["heads"], share)
        towers[name] = {**tower, "heads": heads, "width": heads * (tower["width"] // tower["heads"])}
    joint = dict(description.get("joint") or {})
    if "norm" in joint:
        widths = {tower["width"] for tower in towers.values()}
        if len(widths) > 1:
            raise MethodError(
                f"a width of {share:g} leaves the towers {sorted(widths)} wide, under one norm: give them equal heads, "
                "or a projection each (model.dimension)"
            )
        joint["norm"] = widths.pop()
    return {**description, "towers": towers, "joint": joint}


def parts_of(description: Mapping[str, Any], name: str) -> dict[int, tuple[int, ...]]:
    """Sizes of the parts that dimensions of a parameter are made of, for those that have more than one.

    Query, key and value lie one after the other, and so do the features that a joint classifier reads.
    """
    towers = description["towers"]
    tower, _, rest = name.partition(".")
    if ".attn.qkv." in rest:
        return {0: (towers[tower]["width"],) * 3}
    if name == "joint.head.0.weight" or (name.endswith(".exit.head.0.weight") and len(towers) > 1):
        return {1: tuple(_read(t) for t in towers.values())}
    return {}


def _read(tower: Mapping[str, Any]) -> int:
    """Width of what is read from a tower."""
    rep = tower.get("rep")
    return int(tower["width"] if not rep else rep if isinstance(rep, int) else rep["dimension"])


def shares(full: Mapping[str, Any], narrow: Mapping[str, Any]) -> dict[str, float]:
    """The share of its width that each tower has left."""
    return {name: narrow["towers"][name]["width"] / tower["width"] for name, tower in full["towers"].items()}
