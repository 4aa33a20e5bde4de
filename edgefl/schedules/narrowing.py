"""Works on narrower models: HeteroFL's width slices (Diao, Ding and Tarokh 2021)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.models import width
from edgefl.work.description import Edit, Item, Payload, Work
from edgefl.work.slices import Cut, cut_between


def narrowed(work: Work, share: float, scaler: bool) -> Work:
    """The work on a model with ``share`` of its attention heads; payloads carry the matching slices.

    With ``scaler`` the blocks' linear layers divide their outputs by the share during training.  Raises MethodError
    for a model that can't be narrowed, or a payload that needs the full width.
    """
    model = width.at_width(work.model, share)
    if model == work.model:
        return work
    cuts = _cuts(json.dumps(work.model), json.dumps(model), registry.changes())

    def narrow(payload: Payload) -> Payload:
        return replace(payload, items=tuple(_item(item, cuts, work.model) for item in payload.items))

    edits = work.edits
    if scaler:
        each = width.shares(work.model, model)
        layers = {n.removesuffix(".weight"): each[n.split(".")[0]] for n in cuts if ".blocks." in n and ".norm" not in n
                  and n.endswith(".weight") and ".exit." not in n}  # fmt: skip
        edits = (*edits, Edit("scale", {"layers": {n: s for n, s in layers.items() if s < 1}}))
    return replace(
        work,
        model=model,
        edits=edits,
        down=tuple(map(narrow, work.down)),
        up=tuple(map(narrow, work.up)),
    )


Shape = tuple[int, ...]


@cache
def _cuts(full: str, narrow: str, changes: int) -> dict[str, tuple[Shape, Shape, Cut | None]]:
    """The full shape, the narrow shape and the cut of every parameter and buffer, by name."""
    descriptions: list[dict[str, Any]] = [json.loads(full), json.loads(narrow)]
    whole, part = ({n: tuple(t.shape) for n, t in models.on_meta(d).state_dict().items()} for d in descriptions)
    found = {}
    for name, shape in whole.items():
        sizes = [width.parts_of(description, name) for description in descriptions]
        parts = {dimension: (sizes[0][dimension], sizes[1][dimension]) for dimension in sizes[0]}
        found[name] = shape, part[name], cut_between(shape, part[name], parts)
    return found


def _item(item: Item, cuts: Mapping[str, tuple[Shape, Shape, Cut | None]], model: Mapping[str, Any]) -> Item:
    if item.is_table:
        read = {tower["width"] for tower in model["towers"].values() if not tower.get("rep")}
        if item.shape and item.shape[-1] in read:
            name = item.source.rpartition("/")[2]
            if name in cuts and cuts[name][0] == item.shape:
                raise MethodError(
                    f"widths: the table {item.source!r} has the name and shape of the parameter {name!r}, of which "
                    f"narrower models have a slice: give its item like={name!r} (Method.like_model)"
                )
            raise MethodError(
                f"widths: {item.source.removeprefix('table/')!r} holds representations of the full model's width, "
                f"{item.shape[-1]}, which narrower models don't have: set model.dimension and dimension_for: all"
            )
        return item
    if item.parameter in cuts:
        full, narrow, cut = cuts[item.parameter]
    else:
        # a tensor received beside the model, such as a partner's weight, is cut as the model's own tensor of that name
        rest = item.source.split("/", 1)[1].partition(".")[2]
        own = [cuts[f"{tower}.{rest}"] for tower in model["towers"] if f"{tower}.{rest}" in cuts]
        full, narrow, cut = next((each for each in own if each[0] == item.shape), ((), (), None))
    if full != item.shape:
        raise MethodError(
            f"widths: {item.name!r} of shape {item.shape} matches no parameter of the model and can't be narrowed"
        )
    return replace(item, shape=narrow, cut=cut)
