"""PmcmFL: prototypes of each class stand in for a modality that a sample lacks.

One model for everybody, image and text experts in one encoder, and a library of three tables of class prototypes: of
images, of texts, of both fused.  All of it travels both ways in every round.  A sample with one modality is classified
by matching it with a class, whose other prototype completes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.methods.protocol import Setting
from edgefl.methods.prototypes.base import LibraryMethod
from edgefl.methods.prototypes.matching import DISTANCES, MODELS, shapes
from edgefl.methods.state import ServerState, Update
from edgefl.work import Edit, Item, Pass, Payload, Work


class Matching(BaseModel):
    """Fields of ``method.matching``: how matching models are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: PositiveInt = Field(
        description="round from which on clients train matching models and nothing else, usually the schedule's "
        "last; the paper trains them after the last round"
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

    What is missing is missing for a sample (``data.missing``), or for a whole client: an image or text client's
    samples have one modality.
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
        initial: Literal["normal", "zeros"] = Field("normal", description="prototypes before any client has made some")
        prototypes_of: Literal["pairs", "all"] = Field(
            "pairs",
            description="samples that make prototypes: those with both modalities (pairs, public code), or also "
            "those with one, for that modality's table (all, paper)",
        )
        absent: Literal["left-out", "received", "zero"] = Field(
            "left-out",
            description="what a client without samples of a class does for its prototype: nothing (left-out), it "
            "votes for the one that it received (received, public code), or for zero (zero, paper's equation)",
        )
        alignment: NonNegativeFloat = Field(0.0, description="weight of FedPAC's feature alignment, from round 2 on")
        distillation: NonNegativeFloat = Field(
            0.0, description="weight of FedHKD's two terms, at temperature 0.5, from round 2 on"
        )
        inference: Literal["zero", "random", "l1", "l2", "cosine", "classifier", "prior", "oracle"] = Field(
            "zero",
            description="what replaces a missing modality in an evaluation: zeros, normal noise, or a class's "
            "prototype: of the nearest class (l1, l2, cosine), of the class that a trained matching model names "
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
        members: PositiveInt = Field(
            10, description="matching models that an ensemble keeps: those of the clients with the most samples"
        )
        matching: Matching | None = Field(
            None, description="training of the matching models, for inference: classifier or prior"
        )

        @model_validator(mode="after")
        def _consistent(self) -> PmcmFL.Options:
            if self.inference in MODELS and self.matching is None:
                raise ValueError(
                    f"inference {self.inference} asks a model that clients train after the last round, which a method "
                    "can't know: set matching: {round: N} with the schedule's number of rounds"
                )
            if self.inference not in MODELS and self.matching is not None:
                raise ValueError(f"inference {self.inference} needs no matching model: remove matching")
            if self.inference not in MODELS and self.combine != "fedavg":
                raise ValueError(
                    f"combine: {self.combine} is of clients' matching models, and inference {self.inference} has none"
                )
            if self.mix > 1 and self.inference not in (*DISTANCES, *MODELS):
                raise ValueError(
                    f"mix: {self.mix} mixes the classes that match best, but {self.inference} matches none"
                )
            return self

        @property
        def library(self) -> bool:
            """Whether prototypes are used, and so made and sent."""
            terms = self.contrast or self.alignment or self.distillation
            return bool(self.mask == "prototype" or terms or self.inference not in ("zero", "random"))

    summary = "class prototypes for missing modalities, one multiway model (PmcmFL)"
    options: PmcmFL.Options

    def __init__(self, options: Any, setting: Setting):
        if options.contrast and not any("-" in kind for kind in setting.kinds):
            raise MethodError("fused prototypes come from image-text clients, and there are none: set contrast: 0")
        super().__init__(options, setting)

    @property
    def tables(self) -> tuple[str, ...]:
        """Of each modality and of both; of predictions where they are distilled."""
        if not self.options.library:
            return ()
        return (*self.modalities, "fused", *(("predicted",) if self.options.distillation else ()))

    def alone(self, modality: str) -> tuple[str, ...]:
        """Its own table."""
        return (modality,)

    def terms(self, round: int) -> Mapping[str, Any]:
        """The contrast and what other methods add, once there are prototypes."""
        options = self.options
        terms: dict[str, Any] = {
            "contrast": options.contrast if round > 1 else 0.0,
            "temperature": options.temperature,
        }
        if options.alignment:
            terms["alignment"] = options.alignment if round > 1 else 0.0
        if options.distillation:
            weight = options.distillation if round > 1 else 0.0
            terms |= {"predictions": weight, "representations": weight, "softening": 0.5}
        return terms

    def weight(self, update: Update, table: str) -> int:
        """1 and the client's samples of pairs, and for a modality's table those of that modality alone."""
        return 1 + sum(n for pattern, n in update.samples.items() if "-" in pattern or pattern == table)

    def first(self, table: str) -> Tensor:
        """Standard normal, so that the first round's mask is noise; what is distilled is nothing yet."""
        drawn = torch.randn(self.shape(table))
        return drawn * (self.options.initial == "normal" and table != "predicted")

    # matching models --------------------------------------------------------------------------------------------

    @property
    def together(self) -> str:
        """Members of an ensemble, and those of whom one has the most samples, are a round's."""
        chosen = self.options.combine in ("ensemble", "max-data") and self.options.inference in MODELS
        return f"combine: {self.options.combine} is of a round's matching models together" if chosen else ""

    def check_rounds(self, rounds: int) -> None:
        """Raises MethodError where matching models would never be trained."""
        if self.options.matching and self.options.matching.round > rounds:
            raise MethodError(
                f"matching models would be trained from round {self.options.matching.round} on, but the schedule ends "
                f"with round {rounds}: set matching.round to that, or schedule.rounds"
            )

    def initial(self, seed: int) -> ServerState:
        """The model, the library and the matching models that every client begins with."""
        state = super().initial(seed)
        matching = {}
        with torch.random.fork_rng([]):
            torch.manual_seed(seeds.key(seed, "matching"))
            for modality in self.matched():
                for name, shape in self.parameters(modality).items():
                    # as torch's linear layers begin: uniform within 1 / sqrt(inputs)
                    bound = self.widths_of(modality)[int(name.split(".")[2]) // 2] ** -0.5
                    matching[f"table/{name}"] = torch.empty(shape).uniform_(-bound, bound)
                    if self.options.combine == "ensemble":
                        matching[f"table/ensemble.{name}"] = torch.zeros(self.options.members, *shape)
                members = self.options.members if self.options.combine == "ensemble" else 1
                matching[f"table/matched.{modality}"] = torch.zeros(members)
        return ServerState.first({**state.tensors, **matching})

    def matched(self, kind: str | None = None) -> tuple[str, ...]:
        """The modalities that have matching models, of all kinds or of one."""
        if self.options.inference not in MODELS:
            return ()
        kinds = self.setting.kinds.values() if kind is None else [self.setting.kinds[kind]]
        return tuple(m for m in self.modalities if any(m in each.modalities for each in kinds))

    def widths_of(self, modality: str) -> tuple[int, ...]:
        """A matching model's widths, from the feature to scores (classifier) or to a prototype (prior)."""
        width, options = self.widths[modality], self.options
        hidden = (options.matching and options.matching.hidden) or (width, 2 * width)
        return (width, *hidden, self.classes if options.inference == "classifier" else width)

    def parameters(self, modality: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a matching model's parameters."""
        return {f"matching.{modality}.{name}": shape for name, shape in shapes(self.widths_of(modality)).items()}

    def matching_payload(self, modalities: Sequence[str]) -> Payload:
        """Matching models as they travel."""
        named = {name: shape for m in modalities for name, shape in self.parameters(m).items()}
        return Payload("matching", tuple(Item(n, shape, "float32", f"table/{n}") for n, shape in named.items()))

    def work(self, kind: str, round: int) -> Work:
        """As every method with prototypes; from ``matching.round`` on the matching models alone are trained.

        They learn from features that the finished model makes once, of each modality by itself.
        """
        work, matching = super().work(kind, round), self.options.matching
        if matching is None or round < matching.round:
            return work
        described, modalities = self.setting.kinds[kind], self.matched(kind)
        batch = matching.batch or self.setting.training.batch_of(described.pattern)
        having = {m: [p for p in described.patterns if m in p.split("-")] for m in modalities}
        look = [
            Pass("features", "private", (pattern,), batch, False, {"modality": m, "fields": [m, "label"]})
            for m in modalities
            for pattern in having[m]
        ]
        losses = {"classes": matching.epochs}
        if self.options.inference == "prior":
            losses = {"clip": matching.clip_epochs, "distance": matching.mse_epochs}
        fields = ["index", "label"]
        train = [
            Pass("match", "private", (pattern,), batch, True, {"modality": m, "loss": loss, "fields": fields})
            for m in modalities
            for loss, epochs in losses.items()
            for _ in range(epochs)
            for pattern in having[m]
        ]
        payload = self.matching_payload(modalities)
        names = tuple(item.name for item in payload.items)
        # rates are of the model's parts; matching.image is no part of the image tower
        scalars = {name: value for name, value in work.scalars.items() if name != "rates"}
        if matching.lr is not None:
            scalars["lr"] = matching.lr
        return replace(
            work,
            trainable=names,
            edits=(Edit("matching", {"names": list(names)}),),
            passes=(*look, *train),
            down=(self.model_payload(kind), self.library(modalities), payload),
            up=(payload,),
            scalars=scalars,
        )

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The model and the library; what clients' matching models make together."""
        state = super().aggregate(state, updates)
        changed: dict[str, Tensor] = {}
        for modality in self.matched():
            sent = [
                (float(sum(n for pattern, n in update.samples.items() if modality in pattern.split("-"))), update)
                for update in updates
                if f"matching.{modality}.0.weight" in update.payloads.get("matching", {})
            ]
            # the most samples first, of equal ones the first client
            sent = sorted(((n, update) for n, update in sent if n), key=lambda each: (-each[0], each[1].client))
            if sent:
                changed |= self._together(state, modality, sent)
        return state.changed(changed) if changed else state

    def _together(self, state: ServerState, modality: str, sent: Sequence[tuple[float, Update]]) -> dict[str, Tensor]:
        changed: dict[str, Tensor] = {}
        if self.options.combine == "ensemble":
            sent = sent[: self.options.members]
            weights = torch.zeros(self.options.members)
            for place, (samples, update) in enumerate(sent):
                weights[place] = samples * update.discount
            for name, shape in self.parameters(modality).items():
                stacked = torch.zeros(self.options.members, *shape)
                for place, (_, update) in enumerate(sent):
                    stacked[place] = update.payloads["matching"][name]
                changed[f"table/ensemble.{name}"] = stacked
            return {**changed, f"table/matched.{modality}": weights}
        if self.options.combine == "max-data":
            sent = sent[:1]
        total = sum(samples for samples, _ in sent)
        for name in self.parameters(modality):
            old = state.tensors[f"table/{name}"]
            new = old.clone()
            for samples, update in sent:
                new.add_(update.payloads["matching"][name] - old, alpha=samples / total * update.discount)
            changed[f"table/{name}"] = new
        return {**changed, f"table/matched.{modality}": torch.ones(1)}

    # evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, kind: str, split: str) -> Work:
        """The metrics of complete samples and, of a kind with pairs, of the same samples by one modality alone.

        Where the scenario's evaluation has samples that lack a modality, those count as they are.
        """
        work, options, described = super().evaluate(kind, split), self.options, self.setting.kinds[kind]
        args = {"inference": options.inference, "mix": options.mix, **self.joint()}
        (whole,) = work.passes
        args = {**whole.args, **args}
        passes = [replace(whole, step="score-completed", args=args)]
        if len(described.modalities) > 1 and not self.setting.missing.get(kind):
            alone = {**args, "whole": described.pattern, "apart": True}
            passes += [
                Pass("score-completed", whole.data, (m,), whole.batch, False, alone) for m in described.modalities
            ]
        down = [*work.down]
        if options.inference not in ("zero", "random"):
            down.append(self.library(self.modalities))
        if options.inference in MODELS:
            members = [options.members] if options.combine == "ensemble" else [1]
            stacked = "ensemble." if options.combine == "ensemble" else ""
            items = [
                Item(name, (*(members if stacked else ()), *shape), "float32", f"table/{stacked}{name}")
                for m in self.matched(kind)
                for name, shape in self.parameters(m).items()
            ]
            flags = [Item(f"matched.{m}", tuple(members), "float32", f"table/matched.{m}") for m in self.matched(kind)]
            down.append(Payload("matching", (*items, *flags)))
        return replace(work, passes=tuple(passes), down=tuple(down))
