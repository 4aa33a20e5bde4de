"""Base of methods with class prototypes: one model for all clients, and tables of prototypes.

A table ``[classes, dim]`` has a row for each class; its name says of which feature (see ``prototypes.losses``).
Clients complete samples that lack a modality, and send the tables that they compute; the server averages each row over
the clients that have the class.
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
from edgefl.methods.aggregation import Cohort
from edgefl.methods.protocol import Method
from edgefl.methods.prototypes.losses import PrototypeArgs
from edgefl.methods.setting import Kind, Setting
from edgefl.methods.state import ServerState
from edgefl.models.multiway import MODALITIES
from edgefl.work import Address, Item, Pass, Payload, Work
from edgefl.work.description import StepArgs
from edgefl.work.update import Update


class LibraryMethod(Method, ABC):
    """A method whose model scores a joint feature, and whose library of class tables travels both ways.

    A subclass defines the ``tables``, those of them that a single modality's samples contribute to (``alone``), and the
    ``terms`` of the clients' loss.
    """

    tasks = ("classify", "retrieve")

    class Options(Method.Options):
        """Fields of all methods with class prototypes."""

        mask: Literal["zero", "random", "ignore"] = Field(
            "random",
            description="what replaces the feature of a missing modality: zeros, or normal noise drawn for every "
            "sample and step; ignore leaves such samples out",
        )
        answers: Literal["label", "scores"] | None = Field(
            None,
            description="targets of training and of prototypes: each sample's class (label), or a score for every "
            "class (scores, for data with soft targets such as VQA's); null: scores if the data have them",
        )
        prototypes_of: Literal["pairs", "all"] = Field(
            "pairs",
            description="samples that prototypes are computed from: those with both modalities (pairs), or also those "
            "with one (all)",
        )
        absent: Literal["left-out", "received", "zero"] = Field(
            "left-out",
            description="what a client without samples of a class contributes to its prototype: nothing (left-out), "
            "the prototype that it received (received), or zero (zero)",
        )

    needs: ClassVar[Mapping[str, object]] = {
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
        classes_of = {kind.name: _sizes(kind, self.modalities)[0] for kind in kinds}
        if len(set(classes_of.values())) > 1:
            counts = ", ".join(f"{kind} {n}" for kind, n in classes_of.items())
            raise MethodError(
                f"{self.name} has one model for all clients, but the kinds differ in their number of classes: {counts}"
            )
        if not any("-" in kind for kind in setting.kinds) and self.tables and options.prototypes_of == "pairs":
            raise MethodError(
                "prototypes come from clients with pairs, and there are none: set prototypes_of: all, or use none"
            )

    def _check(self, kind: Kind) -> None:
        if kind.task != "classify":
            raise MethodError(
                f"{self.name} classifies, but {kind.name} clients retrieve: set data.tasks: {{{kind.name}: classify}}"
            )
        if kind.model["name"] != "multiway" and (len(self.setting.kinds) > 1 or "-" not in kind.name):
            raise MethodError(
                f"{self.name} needs the multiway model, whose fusion accepts a prototype for a missing feature: set "
                "model: {multiway: {...}} instead of a tower for each modality, or have only clients with pairs"
            )
        if self.options.mask == "ignore" and "-" not in kind.name:
            raise MethodError(
                f"mask: ignore leaves out samples that lack a modality, which are all that {kind.name} clients have: "
                "leave such clients out of data.clients, or choose another mask"
            )

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """The tables that travel; none if the options use no prototypes."""

    def alone(self, modality: str) -> tuple[str, ...]:
        """The tables that samples of one modality contribute to."""
        return ()

    def terms(self, round: int) -> PrototypeArgs:
        """Loss terms besides the task's loss, as arguments of the step ``classify-completed``."""
        return {}

    def weight(self, update: Update, table: str) -> int:
        """Weight of a client's rows of a table: 1 plus the samples that contribute to them."""
        makes = {m for m in self.modalities if self.options.prototypes_of == "all" and table in self.alone(m)}
        return 1 + sum(n for pattern, n in update.samples.items() if "-" in pattern or pattern in makes)

    def shape(self, table: str) -> tuple[int, int]:
        """``[classes, dim]`` of a table."""
        return self.classes, self.classes if table == "predicted" else self.widths[table]

    def first(self, table: str) -> Tensor:
        """Initial value of a table, before any client sent one."""
        return torch.zeros(self.shape(table))

    def initial(self, seed: int) -> ServerState:
        """The same random model for every kind, and the library."""
        tensors = dict(super().initial(seed).tensors)
        with seeds.seeding_globals(seeds.key(seed, "prototypes")):
            for table in self.tables:
                tensors[f"table/prototypes.{table}"] = self.first(table)
        return ServerState.from_tensors(tensors)

    # client -----------------------------------------------------------------------------------------------------

    def work(self, kind: str, round: int) -> Work:
        """Training on completed samples, then passes over the same samples that compute prototypes."""
        work, training, described = super().work(kind, round), self.setting.training.of(kind), self.setting.kinds[kind]
        args: PrototypeArgs = {"mask": self.options.mask, **self.joint(), **self.terms(round)}
        batch, step = training.batch_of, "classify-completed"
        passes = training.repeat_passes([
            Pass(step, "private", (pattern,), batch(pattern), True, self.fields(pattern, args))
            for pattern in self.patterns(described)
        ])  # fmt: skip
        if not self.tables:
            return replace(work, passes=passes)
        library = self.library()
        return replace(
            work, passes=(*passes, *self.looks(described)), down=(*work.down, library), up=(*work.up, library)
        )

    def patterns(self, kind: Kind) -> tuple[str, ...]:
        """The patterns of samples that a kind trains on in each epoch, complete ones first."""
        return kind.patterns if self.options.mask != "ignore" else (kind.pattern,)

    def looks(self, kind: Kind) -> tuple[Pass, ...]:
        """The passes that compute a client's tables, one for each pattern of samples that contributes."""
        tables_of = {pattern: self.tables if "-" in pattern else self.alone(pattern) for pattern in self.patterns(kind)}
        if self.options.prototypes_of == "pairs":
            tables_of = {pattern: made for pattern, made in tables_of.items() if "-" in pattern}
        # a client that contributes to none sends empty tables, from a pass that skips its batches
        contributing = {pattern: made for pattern, made in tables_of.items() if made} or {kind.pattern: ()}
        args: PrototypeArgs = {
            "tables": list(self.tables),
            "made": sorted({table for made in contributing.values() for table in made}),
            "absent": "received" if self.options.absent == "received" else "zero",
            "mask": self.options.mask,
            **self.joint(),
        }
        if "softening" in (terms := self.terms(2)):
            args["softening"] = terms["softening"]
        patterns = list(contributing)
        return tuple(
            Pass(
                "class-means", "private", (pattern,), self.setting.training.batch_of(pattern), False,
                self.fields(pattern, {**args, "of": list(made), "first": not i, "last": pattern == patterns[-1]}),
            )
            for i, (pattern, made) in enumerate(contributing.items())
        )  # fmt: skip

    def joint(self) -> PrototypeArgs:
        """Step arguments for a model other than ``multiway``: its modalities and widths."""
        if self.modalities == MODALITIES and len(set(self.widths.values())) == 1:
            return {}
        return {"modalities": list(self.modalities), "widths": dict(self.widths)}

    def fields(self, pattern: str, args: PrototypeArgs) -> PrototypeArgs:
        """Arguments of a pass, with the field ``target`` requested if targets are scores."""
        if not self.has_score_targets:
            return args
        return {**args, "fields": [*pattern.split("-"), "label", "target"]}

    @property
    def has_score_targets(self) -> bool:
        """Whether targets are scores of classes, not labels."""
        answers = self.options.answers
        return answers == "scores" or (
            answers is None and any("target" in k.extras for k in self.setting.kinds.values())
        )

    def library(self, tables: Sequence[str] | None = None) -> Payload:
        """Payload of the named tables, by default of all."""
        named = self.tables if tables is None else tables
        items = (Item(f"prototypes.{t}", self.shape(t), "float32", f"table/prototypes.{t}") for t in named)
        return Payload("prototypes", tuple(items))

    # server -----------------------------------------------------------------------------------------------------

    def evaluate(self, kind: str, split: str) -> Work:
        """FedAvg's evaluation, with the score of the predicted class if targets are scores."""
        work = super().evaluate(kind, split)
        if not self.has_score_targets:
            return work
        fields: StepArgs = {"fields": [*self.setting.kinds[kind].modalities, "label", "target"]}
        return replace(work, passes=tuple(replace(p, args={**p.args, **fields}) for p in work.passes))

    def mix(self, address: Address, cohort: Cohort) -> Mapping[Address, float]:
        """Shares of the kinds by samples, over all clients that sent the parameter."""
        name = address.split("/", 1)[1]
        counts = {b: n for k in self.setting.kinds if (n := cohort.by_address.get(b := f"{k}/{name}", 0.0))}
        total = sum(counts.values())
        return {b: n / total for b, n in counts.items()}

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The model, which is stored under every kind, and the library."""
        first, *others = self.setting.kinds
        combined = self.combine(state, updates, self.mix, among=f"{first}/")
        averaged = {a.split("/", 1)[1]: t for a, t in combined.items() if a.startswith(f"{first}/")}
        changed = {f"{kind}/{name}": t for kind in (first, *others) for name, t in averaged.items()}
        changed |= {a: t for a, t in combined.items() if not a.startswith(f"{first}/")}
        contributions = [update for update in updates if "prototypes" in update.payloads]
        if contributions:
            changed |= {f"table/prototypes.{table}": self.rows(state, contributions, table) for table in self.tables}
        return state.with_tensors(changed)

    def rows(self, state: ServerState, updates: Sequence[Update], table: str) -> Tensor:
        """A table ``[classes, dim]``: for each class the weighted mean of clients' rows, else the old row.

        A row of zeros means that a client lacks the class.  A policy's weight factor keeps a share of the old row.
        """
        old, total = state.tensors[f"table/prototypes.{table}"], torch.zeros(self.classes)
        rows, applied, covered = (
            torch.zeros_like(old),
            torch.zeros(self.classes),
            torch.zeros(self.classes, dtype=torch.bool),
        )
        for update in sorted(updates, key=lambda update: update.client):
            values = update.payloads["prototypes"][f"prototypes.{table}"].to(old.dtype)
            present = (values != 0).any(1)
            weight = self.weight(update, table) * (present | (self.options.absent == "zero")).to(old.dtype)
            total += weight
            applied += update.weight_factor * weight
            rows.addcmul_(values, (update.weight_factor * weight)[:, None])
            covered |= present
        total.clamp_(min=1)
        mean = rows / total[:, None]
        return torch.where(covered[:, None], mean + (1 - applied / total)[:, None] * old, old)


def _sizes(kind: Kind, modalities: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Number of classes of a kind's model, and the width of each modality's feature and of the joint one."""
    parameters = kind.parameters()
    if kind.model["name"] == "multiway":
        width = parameters["joint.fusion.proj.weight"].shape[0]
        return parameters["joint.head.3.weight"].shape[0], dict.fromkeys((*modalities, "fused"), width)
    module: Any = models.on_meta(kind.model)
    fused = parameters["joint.head.0.weight"].shape[1]
    return module.classes(kind.pattern), {**{m: module.widths[m] for m in modalities}, "fused": fused}
