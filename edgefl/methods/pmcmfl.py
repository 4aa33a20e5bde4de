"""PmcmFL: prototypes of each class stand in for a modality that a client lacks.

One model for everybody, image and text experts in one encoder, and a library of three tables of class prototypes: of
images, of texts, of both fused.  All of it travels both ways in every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator
from torch import Tensor

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.methods.aggregation import Cohort
from edgefl.methods.protocol import Method, Setting
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address, Item, Pass, Payload, Work
from edgefl.work.prototypes import TABLES


class PmcmFL(Method):
    """Prototype mask and prototype contrast on the ``multiway`` model; every kind of client classifies.

    What is missing is missing for a whole client: an image or text client's samples have one modality, an image-text
    client's have both.
    """

    class Options(Method.Options):
        """``method: {name: pmcmfl, mask: prototype, contrast: 0.01}``."""

        name: Literal["pmcmfl"] = "pmcmfl"
        mask: Literal["prototype", "zero", "random"] = Field(
            "prototype",
            description="what stands for a missing modality's feature in training: the prototype of the sample's "
            "class, zeros, or normal noise for every sample and step",
        )
        contrast: NonNegativeFloat = Field(
            0.01, description="weight of the contrast of fused features with their prototypes, from round 2 on"
        )
        temperature: PositiveFloat = Field(0.07, description="of the contrast")
        initial: Literal["normal", "zeros"] = Field("normal", description="prototypes before any client made some")
        prototypes_of: Literal["pairs", "all"] = Field(
            "pairs",
            description="samples that make prototypes: those with both modalities (public code), or also those with "
            "one, for that modality's table (paper)",
        )
        absent: Literal["left-out", "received", "zero"] = Field(
            "left-out",
            description="a client without samples of a class: has no part in its prototype, votes for the one that it "
            "received (public code), or for zero (paper's equation)",
        )

        @field_validator("mask", mode="before")
        @classmethod
        def _can_train(cls, value: Any) -> Any:
            if value == "ignore":
                raise ValueError(
                    "ignore leaves out samples that lack a modality, which here are all that a client has: leave such "
                    "clients out of data.clients, or choose prototype, zero or random"
                )
            return value

        @property
        def library(self) -> bool:
            """Whether prototypes are used, and so made and sent."""
            return self.mask == "prototype" or self.contrast > 0

    summary = "class prototypes for missing modalities, one multiway model (PmcmFL)"
    options: PmcmFL.Options
    needs: ClassVar[Mapping[str, Any]] = {
        "model": {"multiway": {"blocks": 2, "width": 16, "heads": 2, "patch": 8, "tokens": 8}},
        "data": {"tasks": {"image-text": "classify"}},
    }

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        classes = dict[str, int]()
        for kind in setting.kinds.values():
            if kind.model["name"] != "multiway":
                raise MethodError(
                    "pmcmfl needs the multiway model, whose fusion takes a prototype for a missing feature: write "
                    "model: {multiway: {...}} instead of a tower for each modality"
                )
            if kind.task != "classify":
                raise MethodError(
                    f"pmcmfl classifies, but {kind.name} clients retrieve: set data.tasks: {{{kind.name}: classify}}"
                )
            shapes = kind.parameters()
            classes[kind.name] = shapes["joint.head.3.weight"].shape[0]
            self.dimension = shapes["joint.fusion.proj.weight"].shape[0]
        if len(set(classes.values())) > 1:
            told = ", ".join(f"{kind} {n}" for kind, n in classes.items())
            raise MethodError(f"pmcmfl has one model for every client, and the kinds differ in classes: {told}")
        self.classes = next(iter(classes.values()))
        if not any("-" in kind for kind in setting.kinds):
            if options.contrast:
                raise MethodError("fused prototypes come from image-text clients, and there are none: set contrast: 0")
            if options.library and options.prototypes_of == "pairs":
                raise MethodError(
                    "prototypes come from image-text clients, and there are none: set prototypes_of: all, or mask: zero"
                )

    def initial(self, seed: int) -> ServerState:
        """The same random model for every kind, and the library."""
        tensors = dict(super().initial(seed).tensors)
        if self.options.library:
            with torch.random.fork_rng([]):
                torch.manual_seed(seeds.key(seed, "prototypes"))
                for table in TABLES:
                    drawn = torch.randn(self.classes, self.dimension)
                    tensors[f"table/prototypes.{table}"] = drawn * (self.options.initial == "normal")
        return ServerState.first(tensors)

    # client -----------------------------------------------------------------------------------------------------

    def work(self, kind: str, round: int) -> Work:
        """Train on samples that something completes, then look at them once more to make prototypes."""
        work, options = super().work(kind, round), self.options
        args = {
            "mask": options.mask,
            "contrast": options.contrast if round > 1 else 0.0,
            "temperature": options.temperature,
        }
        passes = tuple(replace(p, step="classify-completed", args=args) for p in work.passes)
        if not options.library:
            return replace(work, passes=passes)
        described = self.setting.kinds[kind]
        of = list(described.modalities) if options.prototypes_of == "all" else []
        made = {
            "of": list(TABLES) if len(described.modalities) > 1 else of,
            "absent": "received" if options.absent == "received" else "zero",
        }
        look = Pass("class-means", "private", (described.pattern,), passes[0].batch, False, made)
        shape = (self.classes, self.dimension)
        items = (Item(f"prototypes.{t}", shape, "float32", f"table/prototypes.{t}") for t in TABLES)
        library = Payload("prototypes", tuple(items))
        return replace(work, passes=(*passes, look), down=(*work.down, library), up=(*work.up, library))

    # server -----------------------------------------------------------------------------------------------------

    def mix(self, address: Address, cohort: Cohort) -> Mapping[Address, float]:
        """Samples of every kind's clients over all that sent the parameter, whatever their kind."""
        name = address.split("/", 1)[1]
        sent = {b: n for k in self.setting.kinds if (n := cohort.by_address.get(b := f"{k}/{name}", 0.0))}
        total = sum(sent.values())
        return {b: n / total for b, n in sent.items()}

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """One model, which stands under every kind; the library."""
        first, *others = self.setting.kinds
        found = self.combine(state, updates, self.mix, among=f"{first}/")
        averaged = {a.split("/", 1)[1]: t for a, t in found.items()}
        changed = {f"{kind}/{name}": t for kind in (first, *others) for name, t in averaged.items()}
        if self.options.library:
            changed |= {f"table/prototypes.{t}": self._prototypes(state, updates, t) for t in TABLES}
        return state.changed(changed)

    def _prototypes(self, state: ServerState, updates: Sequence[Update], table: str) -> Tensor:
        """A table ``[classes, dim]``: for each class the mean of its clients' rows; without any it stays.

        A row of zeros says that a client lacks the class.  A policy's discount keeps that share of the old row.
        """
        old, total = state.tensors[f"table/prototypes.{table}"], torch.zeros(self.classes)
        rows, discounted, has = (
            torch.zeros_like(old),
            torch.zeros(self.classes),
            torch.zeros(self.classes, dtype=torch.bool),
        )
        for update in sorted(updates, key=lambda update: update.client):
            sent = update.payloads["prototypes"][f"prototypes.{table}"].to(old.dtype)
            there = (sent != 0).any(1)
            weight = prototype_weight(update, table) * (there | (self.options.absent == "zero")).to(old.dtype)
            total += weight
            discounted += update.discount * weight
            rows.addcmul_(sent, (update.discount * weight)[:, None])
            has |= there
        total.clamp_(min=1)
        mean = rows / total[:, None]
        return torch.where(has[:, None], mean + (1 - discounted / total)[:, None] * old, old)


def prototype_weight(update: Update, table: str) -> int:
    """1 and the client's samples of pairs, and for a modality's table those of that modality alone."""
    return 1 + sum(n for pattern, n in update.samples.items() if "-" in pattern or pattern == table)
