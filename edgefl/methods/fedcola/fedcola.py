"""FedCola (the ECCV paper's transfer version): complementary local training and collaborative aggregation.

Single-modality clients train with the other modality's block weights behind gates and merge them before upload; the
server averages chosen block parameters of the same modality over client kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator
from torch import Tensor

from edgefl import models
from edgefl.errors import MethodError
from edgefl.methods.aggregation import Cohort
from edgefl.methods.aggregation.combine import Source, address_of
from edgefl.methods.fedcola.stacks import PARTS, WORKING, Key, Stack, shape_difference, shares, sources
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState
from edgefl.work import Address, Edit, Item, Payload, Work
from edgefl.work.update import Update

Scope = Literal["none", "attention", "mlp", "blocks"]


class FedCola(Method):
    """Complementary training (CL), collaborative aggregation (CA) and compensation (CP).

    docs/concepts/methods/fedcola.md describes the three parts.
    """

    class Options(Method.Options):
        """``method: {name: fedcola, complementary: blocks, collaborate: attention, compensation: true}``."""

        name: Literal["fedcola"] = "fedcola"
        complementary: Scope = Field(
            "blocks", description="linear layers of a block that train together with the other modality's weights"
        )
        partner: Literal["trainable", "frozen"] = Field(
            "trainable", description="whether the other modality's weights train too (trainable) or not (frozen)"
        )
        partner_payload: Literal["all", "weights"] = Field(
            "all",
            description="what travels of the other modality's blocks: all parameters, as the paper counts them "
            "(all), or only the weights that are used (weights)",
        )
        collaborate: Scope = Field(
            "attention", description="block parameters that the server averages over client kinds"
        )
        range: Literal["in-modality", "all"] = Field(
            "in-modality",
            description="over which blocks they are averaged: those of the same modality (in-modality), or those of "
            "both (all)",
        )
        compensation: bool = Field(
            True, description="whether an update is scaled by the share of samples that it comes from"
        )
        text_init: Literal["image", "random"] = Field(
            "image",
            description="initial values of text blocks: those of the image blocks (image, paper), or random ones "
            "(random, public code)",
        )

        @model_validator(mode="after")
        def _check_compensation(self) -> FedCola.Options:
            if self.compensation and self.range == "all" and self.collaborate != "none":
                raise ValueError("compensation is not defined for range 'all'; set compensation: false")
            return self

    summary = "gates to the other modality's blocks, shared attention across client kinds (FedCola, transfer version)"
    paper = "Sun et al. 2024"
    options: FedCola.Options

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        if options.range == "all" and options.collaborate != "none":
            self._check_range()

    # client -----------------------------------------------------------------------------------------------------

    def partner_of(self, kind: str) -> tuple[str, str, str] | None:
        """``(own tower, partner kind, partner tower)`` of a single-modality kind, if there is a partner."""
        kinds = self.setting.kinds
        if len(kinds[kind].modalities) != 1:
            return None
        (own,) = kinds[kind].modalities
        others = [k for k in kinds.values() if len(k.modalities) == 1 and k.modalities != (own,)]
        return (own, others[0].name, others[0].modalities[0]) if others else None

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work, gated where the kind has a partner."""
        work = super().work(kind, round)
        partner = self.partner_of(kind)
        if partner is None or self.options.complementary == "none":
            return work
        if self.setting.kinds[kind].fixed_parameters():
            raise MethodError(
                f"complementary: {self.options.complementary} trains whole layers, and an adapter leaves them as they "
                "are: set complementary: none"
            )
        tower, other, other_tower = partner
        own, source = (self._stack(*names) for names in ((kind, tower), (other, other_tower)))
        blocks = min(models.blocks(self.setting.kinds[each.kind].model)[each.tower] for each in (own, source))
        layers: list[str] = []
        pieces: dict[str, list[str]] = {}
        items: list[Item] = []
        for index in range(blocks):
            for layer in own.linear(index, PARTS[self.options.complementary]):
                if clause := shape_difference(own, source, [f"{layer}.weight"]):
                    raise MethodError(
                        f"complementary training needs blocks of the same shape: {clause}; "
                        "give both towers the same width, or set complementary: none"
                    )
                layers.append(layer)
                weights = _partner_items(f"{layer}.partner", source, own.keys[f"{layer}.weight"])
                if len(weights) > 1:
                    pieces[layer] = [item.name for item in weights]
                items += weights
                if self.options.partner_payload == "all":
                    items += _partner_items(f"{layer}.partner_bias", source, own.keys.get(f"{layer}.bias", ()))
            if self.options.complementary == "blocks" and self.options.partner_payload == "all":
                for norm in source.norms(index):
                    name = f"{tower}.{norm.partition('.')[2]}"
                    for leaf, given in (("weight", "partner"), ("bias", "partner_bias")):
                        items += _partner_items(f"{name}.{given}", source, source.keys.get(f"{norm}.{leaf}", ()))
        gates = tuple(f"{layer}.gate" for layer in layers)
        partners = tuple(f"{layer}.partner" for layer in layers) if self.options.partner == "trainable" else ()
        return replace(
            work,
            trainable=(*work.trainable, *gates, *partners),
            edits=(Edit("gate", {"layers": layers, **({"pieces": pieces} if pieces else {})}),),
            down=(*work.down, Payload("partner", tuple(items), follows="trained")),
        )

    def _stack(self, kind: str, modality: str) -> Stack:
        """The blocks of a modality's tower.  Raises MethodError if they have nothing that complementary layers need."""
        stack, needed = self.stacks.get((kind, modality)), PARTS[self.options.complementary]
        missing = [part for part in needed if stack is None or f"0.{part}.weight" not in stack.places]
        if stack is None or missing:
            own = self.setting.kinds[kind].model["towers"].get(modality)
            used = f"the tower {own.get('tower', modality)}" if own else "the one encoder"
            raise MethodError(
                f"complementary: {self.options.complementary} adds the other modality's blocks to the same layers "
                f"of each block, and blocks of {used} of {kind} clients have no {', '.join(missing)}; "
                f"towers that work: {WORKING}; or set complementary: none"
            )
        return stack

    # server -----------------------------------------------------------------------------------------------------

    def initial(self, seed: int) -> ServerState:
        """Initial models; with ``text_init: image`` text blocks start as the image blocks where shapes agree."""
        state = super().initial(seed)
        if self.options.text_init == "random":
            return state
        pretrained = self.setting.pretrained() if self.setting.pretrained else {}
        if any(name.startswith("text.") for name in pretrained) or any(
            "text" in kind.weights for kind in self.setting.kinds.values()
        ):
            return state  # pre-trained text weights stay
        image = next((stack for (_, tower), stack in self.stacks.items() if tower == "image"), None)
        tensors, twins = dict(state.tensors), dict[str, Tensor | None]()
        for (kind, tower), stack in self.stacks.items():
            if tower != "text" or image is None:
                continue
            for name, shape in stack.shapes.items():
                if name not in twins:
                    twins[name] = image.value(stack.keys[name], state.tensors)
                if (twin := twins[name]) is not None and tuple(twin.shape) == shape:
                    tensors[f"{kind}/{name}"] = twin
        return ServerState.from_tensors(tensors)

    @cached_property
    def stacks(self) -> dict[tuple[str, str], Stack]:
        """The blocks of each tower of each kind, by kind and tower."""
        return {(k.name, tower): Stack(k, tower) for k in self.setting.kinds.values() for tower in k.model["towers"]}

    def is_shared(self, name: str) -> bool:
        """Whether a parameter is averaged over client kinds."""
        tower, part = (*name.split("."), "")[:2]
        if self.options.collaborate == "none" or part != "blocks":
            return False
        if self.options.collaborate == "blocks":
            return True
        stack = next(stack for (_, own), stack in self.stacks.items() if own == tower)
        return stack.scope(name) == self.options.collaborate

    def siblings(self, address: Address) -> list[Source]:
        """The addresses or rows whose deltas change this one, itself included: of one tower each in range."""
        kind, name = address.split("/", 1)
        if not self.is_shared(name):
            return [address]
        own = self.stacks[kind, name.split(".", 1)[0]]
        everywhere = self.options.range == "all"
        return sources(own, name, [s for s in self.stacks.values() if everywhere or s.tower == own.tower])

    def _check_range(self) -> None:
        """Raises MethodError unless blocks of all modalities have something of one shape to average."""
        first, *others = {stack.tower: stack for stack in self.stacks.values()}.values()
        for other in others:
            names = [name for name in first.shapes if self.is_shared(name)]
            if clause := shape_difference(first, other, names):
                raise MethodError(
                    f"range: all averages the same layers of all modalities: {clause}; "
                    "give the towers the same width, or set range: in-modality"
                )
            trained = set(self.setting.kinds[first.kind].trainable())
            if not any(key in other.places for name in names if name in trained for key in first.keys[name]):
                raise MethodError(
                    f"range: all averages {self.options.collaborate} of all modalities, and the towers of "
                    f"{first.tower} and {other.tower} have nothing of it in common that trains; towers that work: "
                    f"{WORKING}; or set range: in-modality"
                )

    def mix(self, address: Address, cohort: Cohort) -> dict[Source, float]:
        """A row of the paper's Omega (its 4th row corrected: the first entry is n_vl, not n_l).

        Without compensation the shares are over the clients that sent a sibling.  With it the denominator is over all
        clients of kinds that share a modality with this one, so that rows of the image-text model sum to less than 1.
        """
        counts = {b: cohort.by_address.get(address_of(b), 0.0) for b in self.siblings(address)}
        if self.options.compensation:
            own = set(self.setting.kinds[address.split("/", 1)[0]].modalities)
            total = sum(n for k, n in cohort.by_kind.items() if own & set(self.setting.kinds[k].modalities))
            return {b: n / total for b, n in counts.items() if n} if total else {}
        return shares(counts)

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Uni-modal and collaborative aggregation in one coefficient table."""
        return state.with_tensors(self.combine(state, updates, self.mix))


def _partner_items(name: str, source: Stack, keys: Sequence[Key]) -> list[Item]:
    """Items of the partner's tensors, or rows of them, that are these keys; none if it has no such tensors."""
    if not all(key in source.places for key in keys):
        return []
    pieces, items = source.pieces(keys), []
    for place, held in pieces:
        part = f".{'-'.join(key.split('.')[1] for key in held)}" if len(pieces) > 1 else ""
        cut = None if place.rows is None else ((place.rows,), *(((0, size),) for size in place.shape[1:]))
        dtype = source.dtypes[place.name]
        items.append(Item(f"{name}{part}", place.shape, dtype, f"{source.kind}/{place.name}", cut))
    return items
