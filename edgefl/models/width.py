"""Narrower models (HeteroFL): the leading attention heads of every block and the channels that belong to them."""

from __future__ import annotations

from edgefl.errors import MethodError
from edgefl.models.model import JointDescription, ModelDescription, TowerDescription

CUTTABLE = ("vit", "transformer")
"""Towers that can be narrowed to some of their attention heads."""


def heads_of(heads: int, share: float) -> int:
    """``share`` of ``heads``, rounded to the nearest whole number (halves up) and at least 1."""
    return max(1, int(share * heads + 0.5))


def at_width(description: ModelDescription, share: float) -> ModelDescription:
    """The description of the same model with about ``share`` of the heads in each tower (see ``heads_of``).

    The width of a head stays.  Projections and classifiers keep their hidden layers and output widths.  Raises
    MethodError for a model that can't be narrowed, or if towers under one norm would have different widths.
    """
    if (model := description["name"]) not in ("towers", "exits"):
        raise MethodError(f"model {model!r} can't be narrowed: only {' and '.join(CUTTABLE)} towers can")
    if "adapter" in description and share != 1:
        raise MethodError("a model with an adapter can't be narrowed: set adapter: none, or schedule: elastic")
    towers: dict[str, TowerDescription] = {}
    for name, tower in description["towers"].items():
        if tower["tower"] not in CUTTABLE:
            raise MethodError(
                f"model.{name} can't be narrowed: it is a {tower['tower']!r} tower; allowed: {', '.join(CUTTABLE)}"
            )
        heads = heads_of(tower["heads"], share)
        towers[name] = {**tower, "heads": heads, "width": heads * (tower["width"] // tower["heads"])}
    joint: JointDescription = {**(description.get("joint") or {})}
    if "norm" in joint:
        widths = {tower["width"] for tower in towers.values()}
        if len(widths) > 1:
            raise MethodError(
                f"at width {share:g} the towers have widths {sorted(widths)}, but they share one norm: "
                "give them equal heads, or a projection each (model.dimension)"
            )
        joint["norm"] = widths.pop()
    return {**description, "towers": towers, "joint": joint}


def parts_of(description: ModelDescription, name: str) -> dict[int, tuple[int, ...]]:
    """Sizes of the concatenated segments of a parameter, by dimension; a dimension with one segment is left out.

    Attention concatenates query, key and value; a joint classifier concatenates the features of the towers.
    """
    towers = description["towers"]
    tower, _, rest = name.partition(".")
    if ".attn.qkv." in rest:
        return {0: (towers[tower]["width"],) * 3}
    if name == "joint.head.0.weight" or (name.endswith(".exit.head.0.weight") and len(towers) > 1):
        return {1: tuple(_feature_width(t) for t in towers.values())}
    return {}


def _feature_width(tower: TowerDescription) -> int:
    """Width of a tower's feature, after its projection if it has one."""
    rep = tower.get("rep")
    return int(tower["width"] if not rep else rep if isinstance(rep, int) else rep["dimension"])


def shares(full: ModelDescription, narrow: ModelDescription) -> dict[str, float]:
    """The width of each tower in ``narrow`` divided by its width in ``full``."""
    return {name: narrow["towers"][name]["width"] / tower["width"] for name, tower in full["towers"].items()}
