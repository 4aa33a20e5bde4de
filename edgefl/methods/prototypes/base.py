"""What methods with class prototypes have in common: one model for everybody, and tables beside it.

A table ``[classes, dim]`` has a row for each class: of what, says its name (edgefl.work.prototypes).  Clients complete
samples that lack a modality, and send the tables that they made; the server averages each row over those who have it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from edgefl import models, seeds
from edgefl.errors import MethodError
from edgefl.methods.aggregation.combine import Cohort
from edgefl.methods.protocol import Kind, Method, Setting
from edgefl.methods.state import ServerState, Update
from edgefl.models.multiway import MODALITIES
from edgefl.work import Address, Item, Pass, Payload, Work


class LibraryMethod(Method, ABC):
    """A method whose model scores a joint feature, and whose library of class tables travels both ways.

    A subclass says which ``tables`` there are, of which of them a single modality's samples make some (``alone``), and
    with which ``terms`` clients train.
    """

    class Options(Method.Options):
        """Fields that all of them have."""

        mask: Literal["zero", "random", "ignore"] = Field(
            "random",
            description="what replaces the feature of a missing modality: zeros, or normal noise drawn for every "
            "sample and step; ignore leaves such samples out",
        )
        answers: Literal["label", "scores"] | None = Field(
            None,
            description="what is learnt, and what prototypes are made of: each sample's class (label), or what every "
            "class is worth (scores: data with soft targets, as VQA's); null: scores where the data have them",
        )
        prototypes_of: Literal["pairs", "all"] = Field(
            "pairs",
            description="samples that make prototypes: those with both modalities (pairs), or also those with one "
            "(all)",
        )
        absent: Literal["left-out", "received", "zero"] = Field(
            "left-out",
            description="what a client without samples of a class does for its prototype: nothing (left-out), it "
            "votes for the one that it received (received), or for zero (zero)",
        )

    needs: ClassVar[Mapping[str, Any]] = {
        "model": {"multiway": {"blocks": 2, "width": 16, "heads": 2, "patch": 8, "tokens": 8}},
        "data": {"tasks": {"image-text": "classify"}},
    }
    options: LibraryMethod.Options

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        self.name = options.name
        kinds = list(setting.kinds.values())
        for kind in kinds:
            self._check(kind)
        first = kinds[0]
        self.modalities = MODALITIES if first.model["name"] == "multiway" else first.modalities
        self.classes, self.widths = _sizes(first, self.modalities)
        found = {kind.name: _sizes(kind, self.modalities)[0] for kind in kinds}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{kind} {n}" for kind, n in found.items())
            raise MethodError(f"{self.name} has one model for every client, and the kinds differ in classes: {told}")
        if not any("-" in kind for kind in setting.kinds) and self.tables and options.prototypes_of == "pairs":
            raise MethodError(
                "prototypes come from clients with pairs, and there are none: set prototypes_of: all, or do without"
            )

    def _check(self, kind: Kind) -> None:
        if kind.task != "classify":
            raise MethodError(
                f"{self.name} classifies, but {kind.name} clients retrieve: set data.tasks: {{{kind.name}: classify}}"
            )
        if kind.model["name"] != "multiway" and (len(self.setting.kinds) > 1 or "-" not in kind.name):
            raise MethodError(
                f"{self.name} needs the multiway model, whose fusion takes a prototype for a missing feature: write "
                "model: {multiway: {...}} instead of a tower for each modality, or have clients with pairs alone"
            )
        if self.options.mask == "ignore" and "-" not in kind.name:
            raise MethodError(
                f"mask: ignore leaves out samples that lack a modality, which are all that {kind.name} clients have: "
                "leave such clients out of data.clients, or choose another mask"
            )

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """The tables that travel; none where the options do without."""

    def alone(self, modality: str) -> tuple[str, ...]:
        """The tables that samples of one modality make, where they may make some."""
        return ()

    def terms(self, round: int) -> Mapping[str, Any]:
        """What the loss has besides the task's: arguments of the step ``classify-completed``."""
        return {}

    def weight(self, update: Update, table: str) -> int:
        """What a client's rows of a table count: 1 and the samples that may make them."""
        makes = {m for m in self.modalities if self.options.prototypes_of == "all" and table in self.alone(m)}
        return 1 + sum(n for pattern, n in update.samples.items() if "-" in pattern or pattern in makes)

    def shape(self, table: str) -> tuple[int, int]:
        """``[classes, dim]`` of a table."""
        return self.classes, self.classes if table == "predicted" else self.widths[table]

    def first(self, table: str) -> Tensor:
        """A table before anybody made one."""
        return torch.zeros(self.shape(table))

    def initial(self, seed: int) -> ServerState:
        """The same random model for every kind, and the library."""
        tensors = dict(super().initial(seed).tensors)
        with torch.random.fork_rng([]):
            torch.manual_seed(seeds.key(seed, "prototypes"))
            for table in self.tables:
                tensors[f"table/prototypes.{table}"] = self.first(table)
        return ServerState.first(tensors)

    # client -----------------------------------------------------------------------------------------------------

    def work(self, kind: str, round: int) -> Work:
        """Train on samples that something completes, then look at them once more to make prototypes."""
        work, training, described = super().work(kind, round), self.setting.training, self.setting.kinds[kind]
        args = {"mask": self.options.mask, **self.joint(), **self.terms(round)}
        batch, step = training.batch_of, "classify-completed"
        passes = training.epochs * tuple(
            Pass(step, "private", (pattern,), batch(pattern), True, self.fields(pattern, args))
            for pattern in self.patterns(described)
        )
        if not self.tables:
            return replace(work, passes=passes)
        library = self.library()
        return replace(
            work, passes=(*passes, *self.looks(described)), down=(*work.down, library), up=(*work.up, library)
        )

    def patterns(self, kind: Kind) -> tuple[str, ...]:
        """The patterns of samples that a kind trains on in each epoch, whole ones first."""
        return kind.patterns if self.options.mask != "ignore" else (kind.pattern,)

    def looks(self, kind: Kind) -> tuple[Pass, ...]:
        """The passes over a client's samples that make its tables, one for each pattern that makes some."""
        of = {pattern: self.tables if "-" in pattern else self.alone(pattern) for pattern in self.patterns(kind)}
        if self.options.prototypes_of == "pairs":
            of = {pattern: made for pattern, made in of.items() if "-" in pattern}
        # who makes none sends empty tables, for which it looks at nothing but begins and ends
        found = {pattern: made for pattern, made in of.items() if made} or {kind.pattern: ()}
        args = {
            "tables": list(self.tables),
            "made": sorted({table for made in found.values() for table in made}),
            "absent": "received" if self.options.absent == "received" else "zero",
            "mask": self.options.mask,
            **self.joint(),
            **{name: value for name, value in self.terms(2).items() if name == "softening"},
        }
        patterns = list(found)
        return tuple(
            Pass(
                "class-means", "private", (pattern,), self.setting.training.batch_of(pattern), False,
                self.fields(pattern, {**args, "of": list(made), "first": not i, "last": pattern == patterns[-1]}),
            )
            for i, (pattern, made) in enumerate(found.items())
        )  # fmt: skip

    def joint(self) -> dict[str, Any]:
        """What a step must know of a model that isn't ``multiway``."""
        if self.modalities == MODALITIES and len(set(self.widths.values())) == 1:
            return {}
        return {"modalities": list(self.modalities), "widths": dict(self.widths)}

    def fields(self, pattern: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a pass that learns: what every class is worth is asked for where that is learnt."""
        if not self.scored:
            return {name: value for name, value in args.items() if name != "fields"}
        return {**args, "fields": [*pattern.split("-"), "label", "target"]}

    @property
    def scored(self) -> bool:
        """Whether what is learnt are scores of classes."""
        asked = self.options.answers
        return asked == "scores" or (asked is None and any("target" in k.extras for k in self.setting.kinds.values()))

    def library(self, tables: Sequence[str] | None = None) -> Payload:
        """Tables as they travel: all of them unless some are named."""
        named = self.tables if tables is None else tables
        items = (Item(f"prototypes.{t}", self.shape(t), "float32", f"table/prototypes.{t}") for t in named)
        return Payload("prototypes", tuple(items))

    # server -----------------------------------------------------------------------------------------------------

    def evaluate(self, kind: str, split: str) -> Work:
        """As every method; with the score of the best answer where answers have scores."""
        work = super().evaluate(kind, split)
        if not self.scored:
            return work
        fields = {"fields": [*self.setting.kinds[kind].modalities, "label", "target"]}
        return replace(work, passes=tuple(replace(p, args={**p.args, **fields}) for p in work.passes))

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
        averaged = {a.split("/", 1)[1]: t for a, t in found.items() if a.startswith(f"{first}/")}
        changed = {f"{kind}/{name}": t for kind in (first, *others) for name, t in averaged.items()}
        changed |= {a: t for a, t in found.items() if not a.startswith(f"{first}/")}
        made = [update for update in updates if "prototypes" in update.payloads]
        if made:
            changed |= {f"table/prototypes.{table}": self.rows(state, made, table) for table in self.tables}
        return state.changed(changed)

    def rows(self, state: ServerState, updates: Sequence[Update], table: str) -> Tensor:
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
            weight = self.weight(update, table) * (there | (self.options.absent == "zero")).to(old.dtype)
            total += weight
            discounted += update.discount * weight
            rows.addcmul_(sent, (update.discount * weight)[:, None])
            has |= there
        total.clamp_(min=1)
        mean = rows / total[:, None]
        return torch.where(has[:, None], mean + (1 - discounted / total)[:, None] * old, old)


def _sizes(kind: Kind, modalities: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Classes of a kind's model, and the width of each modality's feature and of the joint one."""
    parameters = kind.parameters()
    if kind.model["name"] == "multiway":
        width = parameters["joint.fusion.proj.weight"].shape[0]
        return parameters["joint.head.3.weight"].shape[0], dict.fromkeys((*modalities, "fused"), width)
    module: Any = models.on_meta(kind.model)
    fused = parameters["joint.head.0.weight"].shape[1]
    return module.classes(kind.pattern), {**{m: module.widths[m] for m in modalities}, "fused": fused}
