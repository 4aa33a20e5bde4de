"""Base of methods whose clients and server exchange representations of public pairs instead of models.

The server has a model of its own for the pairs, and every client has the pairs.  Models need only have the width of
their representations in common.  Subclasses define how the tables are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from edgefl import models
from edgefl.errors import MethodError
from edgefl.methods.protocol import Method
from edgefl.methods.representations.steps import PublicArgs
from edgefl.methods.setting import Kind, Setting
from edgefl.methods.state import ServerState
from edgefl.modalities import MODALITIES
from edgefl.models import ModelOptions
from edgefl.work import Item, Pass, Payload, Work
from edgefl.work.description import HELD_OUT, StepArgs
from edgefl.work.torch_device import threads
from edgefl.work.training_options import OwnTraining
from edgefl.work.update import Update

SERVER = "server"
"""The kind of the server's own model, and the first part of its addresses."""

CONTRIBUTED = "table/contributed"
"""For each modality, whether a client sent representations in the last round: 1 or 0."""

Sent = Sequence[tuple[Update, Tensor]]
"""Updates with their tables ``[pairs, dim]`` of one modality, in order of clients."""


class Exchange(Method):
    """Clients keep their models; tables of the first ``pairs`` public pairs travel."""

    tasks = ("classify", "retrieve")

    class Options(Method.Options):
        """Fields of methods whose server has a model of its own."""

        model: ModelOptions | None = Field(
            None, description="towers of the server's own model; null: the clients' towers"
        )
        pairs: PositiveInt | None = Field(None, description="number of public pairs that are used; null: all")
        public_batch: PositiveInt | None = Field(
            None, description="public pairs per step; null: training.batch of pairs"
        )
        distillation: NonNegativeFloat = Field(0.3, description="weight of the server's distillation loss")
        distance: Literal["mse", "norm"] = Field(
            "mse",
            description="distance in the server's distillation: mean squared error (mse), or mean L2 norm of the "
            "difference (norm)",
        )
        server_epochs: NonNegativeInt = Field(
            1, description="epochs per round in which the server trains on the public pairs"
        )
        server_task: Literal["retrieve", "classify"] = Field(
            "retrieve",
            description="what the server's own model learns of the public pairs: which belong together (retrieve), or "
            "answers to questions, by a classifier of both representations (classify); model.fusion has its layers",
        )
        server_training: OwnTraining | None = Field(
            None,
            description="training of the server's model where it differs from `training`: {optimizer: adamp, lr: 2e-4}",
        )

    needs: ClassVar[Mapping[str, object]] = {
        # representations have the same width for a client that trains a narrower part of its towers
        "model": {
            "image": {"blocks": 2, "width": 16, "heads": 2, "patch": 8},
            "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 8},
            "dimension": 12,
            "dimension_for": "all",
        }
    }
    options: Exchange.Options

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        present = {m for kind in setting.kinds.values() for m in kind.modalities}
        self.modalities = tuple(m for m in MODALITIES if m in present)
        self.pattern = "-".join(self.modalities)
        if len(self.modalities) != 2:
            raise MethodError(
                f"{options.name} exchanges representations between two modalities; the clients have "
                + ", ".join(self.modalities)
            )
        available = setting.public.get(self.pattern, 0)
        self.pairs = options.pairs or available
        if available < max(self.pairs, 2):
            raise MethodError(
                f"{options.name} needs at least {max(self.pairs, 2)} public {self.pattern} samples, but the data have "
                f"{available}: increase data.public, without data.deal_public"
            )
        self.server = self.server_kind()
        # the server trains and evaluates its model as FedAvg does a client kind
        try:
            training = setting.training.with_own(options.server_training or OwnTraining.model_validate({}))
        except ValueError as error:
            raise MethodError(f"method.server_training: {error}") from error
        self.side = Method(options, replace(setting, kinds={self.server.name: self.server}, training=training))
        self.dimension = self.server.dimension
        for kind in map(setting.kinds.__getitem__, self.contributors):
            if kind.dimension != self.dimension:
                raise MethodError(
                    f"representations of {kind.name} clients have {kind.dimension} dimensions, but the server's "
                    f"have {self.dimension}: set model.dimension, and model.dimension_for: all"
                )

    def server_kind(self) -> Kind:
        """The server's own model as a kind."""
        options, setting = self.options, self.setting
        model = options.model or setting.model
        if model is None:
            raise MethodError(f"{options.name} needs a model for the server: set method.model")
        if setting.model is not None and model.tokens != setting.model.tokens:
            raise MethodError(
                f"the server's own text tower reads {model.tokens} tokens, but public texts have the clients' "
                f"{setting.model.tokens}: set method.model.text.tokens to {setting.model.tokens}"
            )
        task, facts, extras = options.server_task, setting.facts, tuple[str, ...]()
        if task == "classify":
            if "public" not in setting.answers:
                raise MethodError(
                    "method.server_task: classify learns answers, and the public pairs have none: set "
                    "data.source.public to a set that has, such as vqa-3000"
                )
            facts = {m: {**each, "classes": setting.answers["public"]} for m, each in facts.items()}
            extras = ("target",)
        recomputed = setting.training.recomputed_blocks
        described = models.describe(model, self.modalities, task, facts, checkpointing=recomputed)
        return Kind(SERVER, self.modalities, task, described, model.weights, extras=extras, vectors=model.vectors)

    @property
    def contributors(self) -> list[str]:
        """Kinds that send representations."""
        return list(self.setting.kinds)

    @property
    def together(self) -> str:
        """Never empty: each aggregation computes new tables from all updates of a round."""
        return "the server learns from the representations of a round's clients together"

    def other(self, modality: str) -> str:
        """The other modality of a pair."""
        return next(m for m in self.modalities if m != modality)

    def first(self, seed: int, tables: Sequence[str]) -> ServerState:
        """The clients' models, the server's own, and empty tables of these names, one for each modality."""
        tensors = dict(super().initial(seed).tensors)
        if self.server.name == SERVER:
            tensors |= self.side.initial(seed).tensors
        for modality in self.modalities:
            for name in tables:
                tensors[f"table/{name}.{modality}"] = torch.zeros(self.shape(name))
        return ServerState.from_tensors({**tensors, CONTRIBUTED: torch.ones(len(self.modalities))})

    def shape(self, name: str) -> tuple[int, ...]:
        """``[pairs, dim]`` of a table, ``[pairs]`` of weights of samples (``...-share``)."""
        return (self.pairs,) if name.endswith("-share") else (self.pairs, self.dimension)

    # passes and payloads ----------------------------------------------------------------------------------------

    def public_pass(
        self, step: str, modalities: Sequence[str], *, train: bool = True, index: bool = False, **args: Any
    ) -> Pass:
        """A pass over the public samples that loads these modalities only."""
        batch = self.options.public_batch or self.setting.training.batch_of(self.pattern)
        fields = [*modalities, *(["index"] if index else [])]
        args = {"samples": self.pairs, "fields": fields, "modalities": list(modalities), **args}
        return Pass(step, "public", (self.pattern,), min(batch, self.pairs), train, cast(PublicArgs, args))

    def representation_pass(self, modalities: Sequence[str]) -> Pass:
        """A pass that writes the outputs ``represented.<modality>``."""
        return self.public_pass("represent", modalities, train=False, name="represented")

    def distillation_pass(self, modalities: Sequence[str], targets: Mapping[str, float]) -> Pass:
        """A pass that trains representations towards tables ``<target>.<modality>``, each with its weight."""
        distance = self.options.distance
        return self.public_pass("distill", modalities, index=True, targets=dict(targets), distance=distance)

    def table(self, name: str, address: str, modalities: Sequence[str]) -> Payload:
        """Payload of tables ``<name>.<modality>`` with the addresses ``table/<address>.<modality>``."""
        items = (Item(f"{name}.{m}", self.shape(name), "float32", f"table/{address}.{m}") for m in modalities)
        return Payload("representations", tuple(items))

    def tables(self, names: Sequence[str], modalities: Sequence[str]) -> Payload:
        """Payload of several tables whose addresses are their own names."""
        items = (item for name in names for item in self.table(name, name, modalities).items)
        return Payload("representations", tuple(items))

    # works ------------------------------------------------------------------------------------------------------

    def on_pairs(self, round: int, passes: Sequence[Pass]) -> Work:
        """A work on the server's model with these passes; the model is sent back if one of them trains."""
        work = self.side.work(self.server.name, round)
        if not any(p.train for p in passes):
            work = replace(work, trainable=(), up=())
        return replace(work, passes=tuple(passes))

    def supervised_passes(self) -> list[Pass]:
        """The server's training epochs on the pairs, or on their answers."""
        if self.server.task == "classify":
            pass_ = self.public_pass("classify", self.modalities, also=list(self.server.extras))
        else:
            pass_ = self.public_pass("contrast", self.modalities)
        return [pass_] * self.options.server_epochs

    def distillation_works(
        self,
        round: int,
        modalities: Sequence[str],
        targets: Mapping[str, float],
        tables: Sequence[str] | None = None,
        first: Sequence[Pass] = (),
    ) -> Sequence[Work]:
        """The server's work: the passes ``first``, then distillation from the tables ``<target>.<modality>``.

        ``targets`` maps tables to weights, relative to ``distillation``.  ``tables`` are sent down, by default the
        targets.  With nothing to distil, the work has only the first passes, and without these there is none.
        """
        weight = self.options.distillation
        if not modalities or not weight:
            return (self.on_pairs(round, first),) if first else ()
        weights = {name: weight * factor for name, factor in targets.items()}
        work = self.on_pairs(round, [*first, self.distillation_pass(modalities, weights)])
        return (replace(work, down=(*work.down, self.tables(tables or tuple(targets), modalities))),)

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains on the pairs and represents them at ``table/public.<modality>``."""
        work = self.on_pairs(round, [*self.supervised_passes(), self.representation_pass(self.modalities)])
        return (replace(work, up=(*work.up, self.table("represented", "public", self.modalities))),)

    def evaluate(self, kind: str, split: str) -> Work:
        """Evaluates the server's own model by its task, whatever the kind."""
        work = self.side.evaluate(self.server.name, split)
        if self.options.server_task == "retrieve" or split == HELD_OUT:
            return work
        if split not in self.setting.answers:
            raise MethodError(
                f"method.server_task: classify is scored by answers, and pairs of the {split} split aren't of the "
                "public pairs' set: name it as data.source.test too, with evaluation.split: test"
            )
        # all of them: without a number, as many as retrieval ranks
        passes = (replace(p, args=cast(StepArgs, {**p.args, "samples": None})) for p in work.passes)
        return replace(work, passes=tuple(passes))

    # updates ----------------------------------------------------------------------------------------------------

    def received_tables(self, updates: Sequence[Update], modality: str) -> Sent:
        """The updates with a table of this modality, and their tables."""
        name = f"represented.{modality}"
        ordered = sorted(updates, key=lambda update: update.client)
        payloads = ((update, update.payloads.get("representations", {})) for update in ordered)
        return [(update, tables[name]) for update, tables in payloads if name in tables]

    def contribution_flags(self, updates: Sequence[Update]) -> dict[str, Tensor]:
        """The flags of this round, which decide the server's next work: on the CPU even if all else is on meta."""
        flags = [float(bool(self.received_tables(updates, m))) for m in self.modalities]
        return {CONTRIBUTED: torch.tensor(flags, device="cpu")}

    def received_modalities(self, state: ServerState) -> list[str]:
        """The modalities that a client sent in the last round."""
        flags = state.tensors[CONTRIBUTED]
        # a profile's state has only shapes: its round has contributions of every modality
        values = [True] * len(flags) if flags.is_meta else flags.tolist()
        return [m for m, flag in zip(self.modalities, values, strict=True) if flag]


class Digesting(Exchange):
    """Clients are distilled from the server's tables ``digested`` before they train (*digest*)."""

    class Options(Exchange.Options):
        """Fields of ``Exchange``, and the weight of the digest."""

        digest: NonNegativeFloat = Field(1.0, description="weight of the clients' distance to the server")

    options: Digesting.Options
    digested: ClassVar[str] = "public"

    def work(self, kind: str, round: int) -> Work:
        """Distillation from the server's tables, training on private data, then representing the public samples.

        The model stays with its client; the tables of its own modalities travel, down only if ``digest`` isn't 0.
        """
        work, own, weight = super().work(kind, round), list(self.setting.kinds[kind].modalities), self.options.digest
        first = [self.distillation_pass(own, {"target": weight})] if weight else []
        down = [self.table("target", self.digested, own)] if weight else []
        return replace(
            work,
            passes=(*first, *work.passes, self.representation_pass(own)),
            down=(*work.down, *down),
            up=(self.table("represented", "represented", own),),
            keep=tuple(item.name for item in work.down[0].items),
        )


def mix_tables(sent: Sent, shares: Tensor, old: Tensor) -> Tensor:
    """``sum_c shares[c] factor_c R_c``, shares ``[clients, samples]`` or ``[clients, 1]``.

    A round policy's weight factor reduces a client's share without normalising; the remainder is taken from ``old``.
    """
    tables = [table for _, table in sent]
    factors = [update.weight_factor for update, _ in sent]
    if all(factor == 1 for factor in factors):
        return weighted_sum(tables, shares)
    shares = shares * torch.tensor(factors)[:, None]
    return weighted_sum([*tables, old], torch.cat([shares, 1 - shares.sum(0, keepdim=True)]))


def weighted_sum(tables: Sequence[Tensor], shares: Tensor) -> Tensor:
    """``sum_c shares[c] tables[c]``, shares ``[clients, samples]`` or ``[clients, 1]``."""
    total = torch.zeros(tables[0].shape)
    for table, share in zip(tables, shares, strict=True):
        total.addcmul_(table.float(), share[:, None])
    return total


def best_match(table: Tensor, other: Tensor, *, rows: int = 1024) -> Tensor:
    """``[samples]``: for each row, the index of the nearest row of the other modality's table, the lowest of ties.

    ``rows`` of ``[samples, samples]`` are in memory at a time; the result doesn't depend on it.
    """
    with threads(1):  # with more, sums in matrix products may differ between machines
        parts = [(table[start : start + rows].float() @ other.T).argmax(1) for start in range(0, len(table), rows)]
    return torch.cat(parts)
