"""PmcmFL: class prototypes replace a modality that a sample lacks.

All clients share one model, an encoder with image and text experts, and a library of three tables of class prototypes:
of images, of texts, and of both fused.  Model and library travel both ways in every round.  A sample with one modality
is matched with a class, whose prototype completes the other modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.methods.prototypes.losses import PrototypeArgs
from edgefl.methods.prototypes.matching import DISTANCES, MODELS, shapes
from edgefl.methods.prototypes.prototype_method import LibraryMethod
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState
from edgefl.registry.part_fields import Fields
from edgefl.work import Edit, Item, Pass, Payload, Work
from edgefl.work.update import Update


class MatchingOptions(Fields):
    """Fields of ``method.matching``: how matching models are trained."""

    round: PositiveInt = Field(
        description="first round in which clients train matching models only, usually the schedule's last; the paper "
        "trains them after the last round"
    )
    clients: Literal["cohort", "all"] = Field(
        "cohort",
        description="who trains them in a matching round: its cohort, or all clients that may take part, each once "
        "(all, paper)",
    )
    epochs: PositiveInt = Field(100, description="epochs of the classifier")
    clip_epochs: PositiveInt = Field(200, description="first epochs of the prior, by CLIP's loss")
    mse_epochs: PositiveInt = Field(500, description="later epochs of the prior, by squared distance")
    hidden: tuple[PositiveInt, ...] | None = Field(
        None, min_length=1, description="widths of the hidden layers; null: the feature's width, and twice that"
    )
    batch: PositiveInt | None = Field(None, description="samples per step; null: training.batch")
    lr: PositiveFloat | None = Field(None, description="learning rate; null: training.lr of that round")


class PmcmFL(LibraryMethod):
    """Prototype mask and prototype contrast; every kind of client classifies.

    A modality may be missing from a sample (``data.missing``), or from all samples of an image or text client.
    """

    class Options(LibraryMethod.Options):
        """``method: {name: pmcmfl, mask: prototype, contrast: 0.01, inference: l1}``."""

        name: Literal["pmcmfl"] = "pmcmfl"
        mask: Literal["prototype", "zero", "random", "ignore"] = Field(  # type: ignore[assignment]
            "prototype",
            description="what replaces the feature of a missing modality in training: the prototype of the sample's "
            "class, zeros, or normal noise drawn for every sample and step; ignore leaves such samples out",
        )
        contrast: NonNegativeFloat = Field(
            0.01, description="weight of the contrast between fused features and their prototypes, from round 2 on"
        )
        temperature: PositiveFloat = Field(0.07, description="temperature of that contrast")
        prototypes_of: Literal["pairs", "all"] = Field(
            "pairs",
            description="samples that prototypes are computed from: those with both modalities (pairs, public code), "
            "or also those with one, for that modality's table (all, paper)",
        )
        absent: Literal["left-out", "received", "zero"] = Field(
            "left-out",
            description="what a client without samples of a class contributes to its prototype: nothing (left-out), "
            "the prototype that it received (received, public code), or zero (zero, paper's equation)",
        )
        alignment: NonNegativeFloat = Field(0.0, description="weight of FedPAC's feature alignment, from round 2 on")
        distillation: NonNegativeFloat = Field(
            0.0, description="weight of FedHKD's two terms, at temperature 0.5, from round 2 on"
        )
        inference: Literal["zero", "random", "l1", "l2", "cosine", "classifier", "prior", "oracle"] = Field(
            "zero",
            description="what replaces a missing modality in an evaluation: zeros, normal noise, or a class's "
            "prototype: of the nearest class (l1, l2, cosine), of the class that a trained matching model predicts "
            "(classifier, prior), or of the true class (oracle)",
        )
        mix: PositiveInt = Field(
            1, description="number of classes whose prototypes are mixed at inference, those that match best"
        )
        combine: Literal["fedavg", "max-data", "ensemble"] = Field(
            "fedavg",
            description="how the server joins the clients' matching models: mean by samples (fedavg), the model of "
            "the client with the most samples (max-data), or mean of the scores by samples (ensemble)",
        )
        members: PositiveInt | None = Field(
            10,
            description="matching models that an ensemble keeps: those of the clients with the most samples; null: of "
            "all clients",
        )
        matching: MatchingOptions | None = Field(
            None, description="training of the matching models, for inference: classifier or prior"
        )

        @model_validator(mode="after")
        def _consistent(self) -> PmcmFL.Options:
            if self.inference in MODELS and self.matching is None:
                raise ValueError(
                    f"inference {self.inference} needs matching models, which clients train from a given round on: "
                    "set matching: {round: N}, with N usually the schedule's last round"
                )
            if self.inference not in MODELS and self.matching is not None:
                raise ValueError(f"inference {self.inference} needs no matching model: remove matching")
            if self.inference not in MODELS and self.combine != "fedavg":
                raise ValueError(
                    f"combine: {self.combine} applies to matching models, and inference {self.inference} uses none"
                )
            if self.mix > 1 and self.inference not in (*DISTANCES, *MODELS):
                raise ValueError(
                    f"mix: {self.mix} mixes the classes that match best, but inference {self.inference} matches none"
                )
            return self

        @property
        def library(self) -> bool:
            """Whether prototypes are used, and therefore computed and sent."""
            terms = self.contrast or self.alignment or self.distillation
            return bool(self.mask == "prototype" or terms or self.inference not in ("zero", "random"))

    summary = "class prototypes for missing modalities, one multiway model (PmcmFL)"
    paper = "Bao et al. 2023"
    options: PmcmFL.Options

    def __init__(self, options: Any, setting: Setting):
        if options.contrast and not any("-" in kind for kind in setting.kinds):
            raise MethodError("fused prototypes come from image-text clients, and there are none: set contrast: 0")
        super().__init__(options, setting)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of each modality, of fused features and, if distilled, of predictions."""
        if not self.options.library:
            return ()
        return (*self.modalities, "fused", *(("predicted",) if self.options.distillation else ()))

    def alone(self, modality: str) -> tuple[str, ...]:
        """The table of the modality itself."""
        return (modality,)

    def terms(self, round: int) -> PrototypeArgs:
        """The contrast, and the optional terms of other methods, from round 2 on."""
        options = self.options
        terms: PrototypeArgs = {"contrast": options.contrast if round > 1 else 0.0, "temperature": options.temperature}
        if options.alignment:
            terms["alignment"] = options.alignment if round > 1 else 0.0
        if options.distillation:
            weight = options.distillation if round > 1 else 0.0
            terms = {**terms, "predictions": weight, "representations": weight, "softening": 0.5}
        return terms

    def weight(self, update: Update, table: str) -> int:
        """1 plus the client's pairs and, for a modality's table, its samples of only that modality."""
        return 1 + sum(n for pattern, n in update.samples.items() if "-" in pattern or pattern == table)

    def first(self, table: str) -> Tensor:
        """Standard normal, so that the first round's mask is noise; zeros for ``predicted``."""
        return torch.randn(self.shape(table)) * (table != "predicted")

    # matching models --------------------------------------------------------------------------------------------

    @property
    def together(self) -> str:
        """Not empty if matching models are selected from a round's updates (``ensemble``, ``max-data``)."""
        chosen = self.options.combine in ("ensemble", "max-data") and self.options.inference in MODELS
        return f"combine: {self.options.combine} selects from all matching models of a round" if chosen else ""

    def check_rounds(self, rounds: int) -> None:
        """Raises MethodError if matching models would never be trained."""
        if self.options.matching and self.options.matching.round > rounds:
            raise MethodError(
                f"matching models would be trained from round {self.options.matching.round} on, but the schedule ends "
                f"with round {rounds}: decrease matching.round, or increase schedule.rounds"
            )

    def draws_all(self, round: int) -> bool:
        """True in the rounds of matching models with ``clients: all``."""
        matching = self.options.matching
        return matching is not None and matching.clients == "all" and round >= matching.round

    def models_of(self, modality: str) -> int:
        """The number of matching models of a modality that the server keeps."""
        if self.options.combine != "ensemble":
            return 1
        senders = [n for kind, n in self.setting.clients.items() if modality in self.setting.kinds[kind].modalities]
        return self.options.members or sum(senders)

    def initial(self, seed: int) -> ServerState:
        """The initial model, library and matching models."""
        state = super().initial(seed)
        matching = {}
        with seeds.seeding_globals(seeds.key(seed, "matching")):
            for modality in self.matching_modalities():
                for name, shape in self.parameters(modality).items():
                    # as torch initialises linear layers: uniform within 1 / sqrt(inputs)
                    bound = self.widths_of(modality)[int(name.split(".")[2]) // 2] ** -0.5
                    matching[f"table/{name}"] = torch.empty(shape).uniform_(-bound, bound)
                    if self.options.combine == "ensemble":
                        matching[f"table/ensemble.{name}"] = torch.zeros(self.models_of(modality), *shape)
                matching[f"table/matched.{modality}"] = torch.zeros(self.models_of(modality))
        return ServerState.from_tensors({**state.tensors, **matching})

    def matching_modalities(self, kind: str | None = None) -> tuple[str, ...]:
        """The modalities that have matching models, of all kinds or of one."""
        if self.options.inference not in MODELS:
            return ()
        kinds = self.setting.kinds.values() if kind is None else [self.setting.kinds[kind]]
        return tuple(m for m in self.modalities if any(m in described.modalities for described in kinds))

    def widths_of(self, modality: str) -> tuple[int, ...]:
        """A matching model's widths, from the feature to scores (classifier) or to a prototype (prior)."""
        width, options = self.widths[modality], self.options
        hidden = (options.matching and options.matching.hidden) or (width, 2 * width)
        return (width, *hidden, self.classes if options.inference == "classifier" else width)

    def parameters(self, modality: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a matching model's parameters."""
        return {f"matching.{modality}.{name}": shape for name, shape in shapes(self.widths_of(modality)).items()}

    def matching_payload(self, modalities: Sequence[str]) -> Payload:
        """Payload of the matching models of these modalities."""
        named = {name: shape for m in modalities for name, shape in self.parameters(m).items()}
        return Payload("matching", tuple(Item(n, shape, "float32", f"table/{n}") for n, shape in named.items()))

    def work(self, kind: str, round: int) -> Work:
        """As every method with prototypes; from ``matching.round`` on only the matching models are trained.

        They are trained on features that the finished model computes once, for each modality separately.
        """
        work, matching = super().work(kind, round), self.options.matching
        if matching is None or round < matching.round:
            return work
        described, modalities = self.setting.kinds[kind], self.matching_modalities(kind)
        batch = matching.batch or self.setting.training.batch_of(described.pattern)
        patterns_with = {m: [p for p in described.patterns if m in p.split("-")] for m in modalities}
        feature_passes = [
            Pass("features", "private", (pattern,), batch, False, PrototypeArgs(fields=[m, "label"], modality=m))
            for m in modalities
            for pattern in patterns_with[m]
        ]
        losses = {"classes": matching.epochs}
        if self.options.inference == "prior":
            losses = {"clip": matching.clip_epochs, "distance": matching.mse_epochs}
        fields = ["index", "label"]
        matching_passes = [
            Pass("match", "private", (pattern,), batch, True, PrototypeArgs(fields=fields, modality=m, loss=loss))
            for m in modalities
            for loss, epochs in losses.items()
            for _ in range(epochs)
            for pattern in patterns_with[m]
        ]
        payload = self.matching_payload(modalities)
        names = tuple(item.name for item in payload.items)
        # rates apply to the model's parts, and matching.image is not a part of the image tower; matching's own epochs
        # are no local epochs
        scalars = {name: value for name, value in work.scalars.items() if name not in ("rates", "epoch_decay")}
        if matching.lr is not None:
            scalars["lr"] = matching.lr
        return replace(
            work,
            trainable=names,
            edits=(Edit("matching", {"names": list(names)}),),
            passes=(*feature_passes, *matching_passes),
            down=(self.model_payload(kind), self.library(modalities), payload),
            up=(payload,),
            scalars=scalars,
        )

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The model, the library and the matching models."""
        state = super().aggregate(state, updates)
        changed: dict[str, Tensor] = {}
        for modality in self.matching_modalities():
            sent = [
                (float(sum(n for pattern, n in update.samples.items() if modality in pattern.split("-"))), update)
                for update in updates
                if f"matching.{modality}.0.weight" in update.payloads.get("matching", {})
            ]
            # the most samples first, ties by client id
            sent = sorted(((n, update) for n, update in sent if n), key=lambda item: (-item[0], item[1].client))
            if sent:
                changed |= self._combined_matching(state, modality, sent)
        return state.with_tensors(changed) if changed else state

    def _combined_matching(
        self, state: ServerState, modality: str, sent: Sequence[tuple[float, Update]]
    ) -> dict[str, Tensor]:
        changed: dict[str, Tensor] = {}
        if self.options.combine == "ensemble":
            sent = sent[: self.models_of(modality)]
            weights = torch.zeros(self.models_of(modality))
            for index, (samples, update) in enumerate(sent):
                weights[index] = samples * update.weight_factor
            for name, shape in self.parameters(modality).items():
                stacked = torch.zeros(len(weights), *shape)
                for index, (_, update) in enumerate(sent):
                    stacked[index] = update.payloads["matching"][name]
                changed[f"table/ensemble.{name}"] = stacked
            return {**changed, f"table/matched.{modality}": weights}
        if self.options.combine == "max-data":
            sent = sent[:1]
        total = sum(samples for samples, _ in sent)
        for name in self.parameters(modality):
            old = state.tensors[f"table/{name}"]
            new = old.clone()
            for samples, update in sent:
                new.add_(update.payloads["matching"][name] - old, alpha=samples / total * update.weight_factor)
            changed[f"table/{name}"] = new
        return {**changed, f"table/matched.{modality}": torch.ones(1)}

    # evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, kind: str, split: str) -> Work:
        """Evaluation on complete samples and, for a kind with pairs, on the same samples by one modality only.

        If the scenario's evaluation has samples that lack a modality, the samples are scored as they are instead.
        """
        work, options, described = super().evaluate(kind, split), self.options, self.setting.kinds[kind]
        (whole,) = work.passes
        inference: PrototypeArgs = {"inference": options.inference, "mix": options.mix}
        args: PrototypeArgs = {**whole.args, **inference, **self.joint()}
        passes = [replace(whole, step="score-completed", args=args)]
        if len(described.modalities) > 1 and not self.setting.missing.get(kind):
            alone: PrototypeArgs = {**args, "whole": described.pattern, "apart": True}
            passes += [
                Pass("score-completed", whole.data, (m,), whole.batch, False, alone) for m in described.modalities
            ]
        down = [*work.down]
        if options.inference not in ("zero", "random"):
            down.append(self.library(self.modalities))
        if options.inference in MODELS:
            stacked = "ensemble." if options.combine == "ensemble" else ""
            items = [
                Item(name, (*((self.models_of(m),) if stacked else ()), *shape), "float32", f"table/{stacked}{name}")
                for m in self.matching_modalities(kind)
                for name, shape in self.parameters(m).items()
            ]
            flags = [
                Item(f"matched.{m}", (self.models_of(m),), "float32", f"table/matched.{m}")
                for m in self.matching_modalities(kind)
            ]
            down.append(Payload("matching", (*items, *flags)))
        return replace(work, passes=tuple(passes), down=tuple(down))
