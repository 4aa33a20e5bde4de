"""FedCola (the ECCV paper's transfer version): complementary local training and collaborative aggregation.

Single-modality clients train with the other modality's block weights behind gates and merge them before upload; the
server averages chosen block parameters of the same modality over client kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from edgefl.errors import MethodError
from edgefl.methods.aggregation.combine import Cohort
from edgefl.methods.protocol import Method
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address, Edit, Item, Payload, Work

TOWERS = "towers that work: vit or timm-vit for images, transformer for texts"
"""The towers whose blocks have the linear layers of LAYERS, as the end of a message."""

LAYERS = {
    "none": (),
    "attention": ("attn.qkv", "attn.proj"),
    "mlp": ("mlp.fc1", "mlp.fc2"),
    "blocks": ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"),
}
"""Linear layers of a block in each co-layer option."""
NORMS = ("norm1", "norm2")

Scope = Literal["none", "attention", "mlp", "blocks"]


class FedCola(Method):
    """Complementary training (CL), collaborative aggregation (CA) and compensation (CP).

    docs/explanation/methods/fedcola.md describes the three parts.
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
        def _defined(self) -> FedCola.Options:
            if self.compensation and self.range == "all" and self.collaborate != "none":
                raise ValueError("compensation is not defined for range 'all'; set compensation: false")
            return self

    summary = "gates to the other modality's blocks, shared attention across client kinds (FedCola, transfer version)"
    options: FedCola.Options

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
        if self.setting.kinds[kind].fixed():
            raise MethodError(
                f"complementary: {self.options.complementary} trains whole layers, and an adapter leaves them as they "
                "are: set complementary: none"
            )
        tower, other, other_tower = partner
        specs, partner_specs = self.setting.kinds[kind].parameters(), self.setting.kinds[other].parameters()
        for name, modality in ((kind, tower), (other, other_tower)):
            layer = f"{modality}.blocks.0.{LAYERS[self.options.complementary][0]}"
            if f"{layer}.weight" not in self.setting.kinds[name].parameters():
                own = self.setting.kinds[name].model["towers"].get(modality)
                used = f"the tower {own.get('tower', modality)}" if own else "the one encoder"
                raise MethodError(
                    f"complementary: {self.options.complementary} adds the other modality's blocks to the same layers "
                    f"of each block, and blocks of {used} of {name} clients have no "
                    f"{layer.partition('.0.')[2]}; {TOWERS}, or complementary: none"
                )
        layers, items = [], []
        blocks = min(k.model["towers"][t]["blocks"] for k, t in
                     ((self.setting.kinds[kind], tower), (self.setting.kinds[other], other_tower)))  # fmt: skip
        for index in range(blocks):
            for layer in LAYERS[self.options.complementary]:
                name, source = f"{tower}.blocks.{index}.{layer}", f"{other_tower}.blocks.{index}.{layer}"
                if specs[f"{name}.weight"] != partner_specs[f"{source}.weight"]:
                    raise MethodError(
                        f"complementary training needs blocks of the same shape: {name} is "
                        f"{specs[f'{name}.weight'].shape}, {source} is {partner_specs[f'{source}.weight'].shape}; "
                        "give both towers the same width, or set complementary: none"
                    )
                layers.append(name)
                items += self._partner_items(name, f"{other}/{source}", partner_specs[f"{source}.weight"].shape)
            if self.options.complementary == "blocks" and self.options.partner_payload == "all":
                for norm in NORMS:
                    shape = partner_specs[f"{other_tower}.blocks.{index}.{norm}.weight"].shape
                    items += self._partner_items(
                        f"{tower}.blocks.{index}.{norm}", f"{other}/{other_tower}.blocks.{index}.{norm}", shape
                    )
        gates = tuple(f"{layer}.gate" for layer in layers)
        partners = tuple(f"{layer}.partner" for layer in layers) if self.options.partner == "trainable" else ()
        return replace(
            work,
            trainable=(*work.trainable, *gates, *partners),
            edits=(Edit("gate", {"layers": layers}),),
            down=(*work.down, Payload("partner", tuple(items), follows="trained")),
        )

    def _partner_items(self, name: str, source: Address, shape: tuple[int, ...]) -> list[Item]:
        weight = Item(f"{name}.partner", shape, "float32", f"{source}.weight")
        if self.options.partner_payload == "weights":
            return [weight]
        return [weight, Item(f"{name}.partner_bias", shape[:1], "float32", f"{source}.bias")]

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
        image = {a.split("/", 1)[1]: t for a, t in state.tensors.items() if "/image.blocks." in a}
        tensors = dict(state.tensors)
        for address, value in state.tensors.items():
            twin = image.get(address.split("/", 1)[1].replace("text.", "image.", 1))
            if "/text.blocks." in address and twin is not None and twin.shape == value.shape:
                tensors[address] = twin
        return ServerState.first(tensors)

    def shared(self, name: str) -> bool:
        """Whether a parameter is averaged over client kinds."""
        parts = name.split(".")
        if self.options.collaborate == "none" or parts[1] != "blocks":
            return False
        if self.options.collaborate == "blocks":
            return True
        return parts[3] == {"attention": "attn", "mlp": "mlp"}[self.options.collaborate]

    def siblings(self, address: Address) -> list[Address]:
        """The addresses whose deltas change this one, itself included: one per tower in range."""
        name = address.split("/", 1)[1]
        if not self.shared(name):
            return [address]
        tower, suffix = name.split(".", 1)
        addresses = []
        for other in self.setting.kinds.values():
            towers = other.modalities if self.options.range == "all" else (tower,)
            addresses += [f"{other.name}/{t}.{suffix}" for t in towers if f"{t}.{suffix}" in other.parameters()]
        return addresses

    def mix(self, address: Address, cohort: Cohort) -> dict[Address, float]:
        """A row of the paper's Omega (its 4th row corrected: the first entry is n_vl, not n_l).

        Without compensation the shares are over the clients that sent a sibling.  With it the denominator is over all
        clients of kinds that share a modality with this one, so that rows of the image-text model sum to less than 1.
        """
        counts = {b: cohort.by_address.get(b, 0.0) for b in self.siblings(address)}
        if not self.options.compensation:
            total = sum(counts.values())
        else:
            own = set(self.setting.kinds[address.split("/", 1)[0]].modalities)
            total = sum(n for k, n in cohort.by_kind.items() if own & set(self.setting.kinds[k].modalities))
        return {b: n / total for b, n in counts.items() if n} if total else {}

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Uni-modal and collaborative aggregation in one coefficient table."""
        return state.changed(self.combine(state, updates, self.mix))
