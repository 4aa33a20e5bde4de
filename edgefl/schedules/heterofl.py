"""HeteroFL: each client trains the widest model that fits its own budgets (Diao, Ding and Tarokh 2021)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, Literal, cast

from pydantic import Field, field_validator
from torch import Tensor, nn

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.models import width as widths
from edgefl.models.model import ModelDescription
from edgefl.schedules.stages import PARTS, Schedule, Stage
from edgefl.work.description import Edit, Item, Payload, Work
from edgefl.work.slices import Cut, cut_between

Shape = tuple[int, ...]
Width = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class HeteroFL(Schedule):
    """A client trains the leading attention heads and the matching slices of all layers: the widest that fits."""

    paper = "Diao, Ding and Tarokh 2021"

    class Options(Schedule.Options):
        """Fields of ``schedule: {name: heterofl}``."""

        name: Literal["heterofl"] = "heterofl"
        widths: tuple[Width, ...] = Field(
            (1.0, 0.5, 0.25), description="shares of the heads that clients are offered; 1 among them, the server's"
        )
        scaler: bool = Field(
            True, description="divide what the blocks' linear layers give by the share while training, as the paper"
        )

        @field_validator("widths")
        @classmethod
        def _whole(cls, value: tuple[float, ...]) -> tuple[float, ...]:
            if len(set(value)) < len(value):
                raise ValueError(f"widths {list(value)} has a value twice; each may stand once")
            if 1.0 not in value:
                raise ValueError(f"widths {list(value)} lacks 1, the server's model; add it")
            return tuple(sorted(value, reverse=True))

    def __init__(self, options: HeteroFL.Options, blocks: Mapping[str, int]):
        rounds, zero = options.rounds or 10, dict.fromkeys(blocks, 0)
        whole = NarrowStage(1, dict(blocks), zero, PARTS, rounds, scaler=options.scaler)
        offered = tuple(
            replace(whole, index=i + 1, width=width, label=f"width {width:g}") for i, width in enumerate(options.widths)
        )
        super().__init__(offered[:1], offered=offered)

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """All widths, the widest first."""
        return self.offered

    def evaluated_stage(self, reached: Collection[int]) -> Stage | None:
        """The widest that an update has reached: channels beyond it are as they were drawn.  The whole before any."""
        return self.offered[min(reached, default=1) - 1] if len(self.offered) > 1 else None


@dataclass(frozen=True)
class NarrowStage(Stage):
    """A stage whose model has ``width``, a share of the attention heads, counted from the first head.

    With ``scaler`` the blocks' linear layers divide their outputs by the share during training.
    """

    width: float = 1.0
    scaler: bool = False

    def restrict_work(self, work: Work) -> Work:
        """The work on the narrower model; payloads carry the matching slices.

        Raises MethodError for a model that can't be narrowed, or a payload that needs the full width.
        """
        work = super().restrict_work(work)
        if self.width == 1 or (model := widths.at_width(work.model, self.width)) == work.model:
            return work
        cuts = _cuts(json.dumps(work.model), json.dumps(model), registry.changes())

        def narrow(payload: Payload) -> Payload:
            return replace(payload, items=tuple(_item(item, cuts, work.model) for item in payload.items))

        edits = work.edits
        if self.scaler:
            each = widths.shares(work.model, model)
            layers = {n.removesuffix(".weight"): each[n.split(".")[0]] for n in cuts if ".blocks." in n
                      and ".norm" not in n and n.endswith(".weight") and ".exit." not in n}  # fmt: skip
            edits = (*edits, Edit("scale", {"layers": {n: s for n, s in layers.items() if s < 1}}))
        return replace(
            work, model=model, edits=edits, down=tuple(map(narrow, work.down)), up=tuple(map(narrow, work.up))
        )


@cache
def _cuts(full: str, narrow: str, changes: int) -> dict[str, tuple[Shape, Shape, Cut | None]]:
    """The full shape, the narrow shape and the cut of every parameter and buffer, by name."""
    descriptions: list[ModelDescription] = [json.loads(full), json.loads(narrow)]
    whole, part = ({n: tuple(t.shape) for n, t in models.blueprint(d).state_dict().items()} for d in descriptions)
    found = {}
    for name, shape in whole.items():
        sizes = [widths.parts_of(description, name) for description in descriptions]
        parts = {dimension: (sizes[0][dimension], sizes[1][dimension]) for dimension in sizes[0]}
        found[name] = shape, part[name], cut_between(shape, part[name], parts)
    return found


def _item(item: Item, cuts: Mapping[str, tuple[Shape, Shape, Cut | None]], model: ModelDescription) -> Item:
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


def _scale_output(share: float, layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
    return out / share if layer.training else None


class Scale:
    """HeteroFL's scaler; ``args.layers`` has the share of each layer's width that remains.

    In training a layer's output is divided by that share; at inference it isn't.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """The empty set: the edit adds no parameter."""
        return set()

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """The edit itself, which doesn't depend on what trains."""
        return edit

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Register the hooks that scale the layers' outputs."""
        for name, share in cast(Mapping[str, float], edit.args["layers"]).items():
            layer: Any = module.get_submodule(name)
            layer.scaled = layer.register_forward_hook(partial(_scale_output, share))

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Remove the hooks from the layers."""
        for name in cast(Mapping[str, float], edit.args["layers"]):
            layer: Any = module.get_submodule(name)
            layer.scaled.remove()
            del layer.scaled
