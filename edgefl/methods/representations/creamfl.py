"""CreamFL: clients and server exchange representations of public pairs instead of models (Yu et al., ICLR 2023).

In every round the server sends its representations of the public pairs.  Clients train on private data, and contrast
public samples of their modality with those tables.  They send back their representations, which the server weighs
for each sample (GCA) and is distilled from.  In FedCola's adapted form (``server: federated``) the server's model is
the average of the image-text clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, cast

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from edgefl.errors import MethodError
from edgefl.methods.protocol import Method
from edgefl.methods.representations.representation_method import Exchange, Sent, mix_tables
from edgefl.methods.representations.steps import PublicArgs
from edgefl.methods.setting import Kind, Setting
from edgefl.methods.state import ServerState
from edgefl.registry.part_fields import Fields
from edgefl.work import Pass, Work
from edgefl.work.description import StepArgs
from edgefl.work.torch_device import threads
from edgefl.work.update import Update

IOT = 100.0
"""FedIoT's weight factor of clients with pairs, the default of ``fediot``'s ``pair_weight``."""


class Pcme(Fields):
    """Options of PCME's loss for clients with pairs."""

    samples: PositiveInt = Field(7, description="samples drawn from each Gaussian at every step")
    kl: NonNegativeFloat = Field(
        1e-5, description="weight of the KL divergence of the Gaussians from the standard normal"
    )


class CreamFL(Exchange):
    """Representations of the first ``pairs`` public pairs travel: two tables down, one per modality up."""

    class Options(Exchange.Options):
        """``method: {name: creamfl, server: own, aggregation: gca}``."""

        name: Literal["creamfl"] = "creamfl"
        server: Literal["own", "federated"] = Field(
            "own",
            description="the server's model: one of its own, trained on the public pairs (own), or the average of the "
            "clients with pairs, which then travels (federated, FedCola's adaptation)",
        )
        clients: Literal["private", "averaged"] | None = Field(
            None,
            description="whether clients keep their models (private), or the server averages them by kind "
            "(averaged); null: private, with server: federated averaged",
        )
        aggregation: Literal["gca", "mean", "average", "iot"] = Field(
            "gca",
            description="weights of the clients' representations: by contrast for each sample (gca), equal (mean), "
            "by number of samples (average), or by number of samples with clients with pairs counted 100 times (iot)",
        )
        inter: bool = Field(True, description="whether clients contrast with the other modality's representations")
        intra: bool = Field(
            True,
            description="whether clients move towards their own modality's representations, and away from their own "
            "of the round's start",
        )
        contrast: NonNegativeFloat = Field(0.5, description="weight of the clients' contrast loss")
        steps: Literal["separate", "joint"] = Field(
            "separate",
            description="when clients contrast: in a separate epoch after each private epoch (separate, public "
            "code), or at every private step, with a public batch next to the private one and one update for both "
            "losses (joint, paper)",
        )
        rescale: bool = Field(False, description="whether the inter term is scaled to the magnitude of the intra term")
        temperature: PositiveFloat = Field(0.5, description="temperature of the clients' contrast")
        old: Literal["copy", "table"] = Field(
            "copy",
            description="how a client's representations of the round's start are computed: by a frozen copy of "
            "its model at every step (copy), or once (table), which takes less compute, and less memory where "
            "there are few public samples",
        )
        pcme: Pcme | None = Field(
            None, description="PCME's probabilistic loss for clients with pairs, {samples: 7}; null: CLIP's loss"
        )
        order: Literal["server-first", "server-last"] = Field(
            "server-first",
            description="when the server trains on the pairs: before the clients (server-first), or after them "
            "(server-last, paper)",
        )

        @model_validator(mode="after")
        def _check_server_fields(self) -> CreamFL.Options:
            if self.server == "federated":
                if self.clients == "private":
                    raise ValueError("server: federated averages the clients' models, so clients can't be private")
                for field in ("model", "order", "server_epochs", "server_task"):
                    if getattr(self, field) != type(self).model_fields[field].default:
                        raise ValueError(f"{field} applies to server: own only, but server is federated")
            return self

        @property
        def has_averaged_models(self) -> bool:
            """Whether clients' models travel and are averaged by kind."""
            return (self.clients or ("private" if self.server == "own" else "averaged")) == "averaged"

    summary = "representations of public pairs instead of models, weighted by contrast (CreamFL)"
    paper = "Yu et al. 2023"
    options: CreamFL.Options

    def server_kind(self) -> Kind:
        """The server's model as a kind: its own, or that of the clients with pairs."""
        if self.options.server == "own":
            return super().server_kind()
        if self.pattern not in self.setting.kinds:
            raise MethodError(
                f"server: federated takes the average of {self.pattern} clients for the server's model, and "
                f"there are none: add data.clients.{self.pattern}, or set server: own"
            )
        return self.setting.kinds[self.pattern]

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, with_probabilistic_models(setting) if options.pcme is not None else setting)

    @property
    def contributors(self) -> list[str]:
        """Kinds that contrast and send representations: with ``server: federated`` clients with pairs only train."""
        pairs = self.options.server == "own"
        return [k.name for k in self.setting.kinds.values() if len(k.modalities) == 1 or pairs]

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and empty tables."""
        return self.first(seed, ("public", "target"))

    # client -----------------------------------------------------------------------------------------------------

    def work(self, kind: str, round: int) -> Work:
        """Training on private data with the contrast in or after it, then representing the public samples."""
        work, options = Method.work(self, kind, round), self.options
        if options.pcme is not None and kind == self.pattern:
            step, args = "contrast-probabilistic", cast(StepArgs, options.pcme.model_dump())
            work = replace(work, passes=tuple(replace(p, step=step, args={**p.args, **args}) for p in work.passes))
        if not options.has_averaged_models:
            work = replace(work, keep=tuple(i.name for i in work.down[0].items), up=())
        if kind not in self.contributors:
            return work
        own = list(self.setting.kinds[kind].modalities)
        others = [self.other(modality) for modality in own]
        passes, needed = list(work.passes), list[str]()
        if options.contrast and (options.inter or options.intra):
            contrast = self.public_pass(
                "contrast-public", own, index=True,
                others=others, inter=options.inter, intra=options.intra, temperature=options.temperature,
                weight=options.contrast, rescale=options.rescale,
            )  # fmt: skip
            passes = self._with_contrast(passes, len(self.trained_patterns(kind)), contrast)
            needed = [m for m in self.modalities if (options.intra and m in own) or (options.inter and m in others)]
            if options.intra and options.old == "table":
                passes.insert(0, self.public_pass("represent", own, train=False, name="before"))
        passes.append(self.representation_pass(own))
        return replace(
            work,
            passes=tuple(passes),
            down=(*work.down, *([self.table("public", "public", needed)] if needed else [])),
            up=(*work.up, self.table("represented", "represented", own)),
            reference=options.old == "copy" and options.intra and bool(needed),
        )

    def _with_contrast(self, private: Sequence[Pass], per_epoch: int, contrast: Pass) -> list[Pass]:
        """Each private pass with public batches beside its own, or each private epoch followed by a public one."""
        if self.options.steps == "joint":
            beside = {**asdict(contrast), "patterns": list(contrast.patterns)}
            del beside["around"]  # empty, and a tuple, which JSON doesn't give back
            public: PublicArgs = {"beside": beside}
            return [replace(p, step="joint", args=PublicArgs(**p.args, **public, alone=p.step)) for p in private]
        return [p for at in range(0, len(private), per_epoch) for p in (*private[at : at + per_epoch], contrast)]

    # server -----------------------------------------------------------------------------------------------------

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains on the pairs (server-first), and represents them for the clients."""
        first = self.options.server == "own" and self.options.order == "server-first"
        work = self.on_pairs(
            round, [*(self.supervised_passes() if first else []), self.representation_pass(self.modalities)]
        )
        return (replace(work, up=(*work.up, self.table("represented", "public", self.modalities))),)

    streams = True

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """A target for each modality that a client sent; models by kind where they travel."""
        changed = (
            self.combine(state, updates, lambda address, cohort: {address: 1.0})
            if self.options.has_averaged_models
            else {}
        )
        for modality in self.modalities:
            if sent := self.received_tables(updates, modality):
                old = state.tensors[f"table/public.{modality}"]
                changed[f"table/target.{modality}"] = mix_tables(sent, self._shares(state, modality, sent), old)
        return state.with_tensors({**changed, **self.contribution_flags(updates)})

    def _shares(self, state: ServerState, modality: str, sent: Sent) -> Tensor:
        """Shares of the clients in the target of a modality: ``[clients, pairs]`` or ``[clients, 1]``."""
        options = self.options
        if options.aggregation == "gca":
            other = state.tensors[f"table/public.{self.other(modality)}"]
            with threads(1):
                scores = [gca_scores(table, other) for _, table in sent]
            return torch.stack(scores).softmax(0)
        counts = torch.ones(len(sent))
        if options.aggregation != "mean":
            counts = torch.tensor([float(update.total) for update, _ in sent])
        if options.aggregation == "iot":
            counts *= torch.tensor([IOT if "-" in update.kind else 1.0 for update, _ in sent])
        return (counts / counts.sum().clamp_min(1))[:, None]

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains on the pairs (server-last), and is distilled from this round's targets."""
        last = self.options.server == "own" and self.options.order == "server-last"
        return self.distillation_works(
            round, self.received_modalities(state), {"target": 1.0}, first=self.supervised_passes() if last else ()
        )

    def evaluate(self, kind: str, split: str) -> Work:
        """Evaluates an averaged model of clients, or the server's own by retrieval for pairs and private clients."""
        if self.options.server == "federated" or (self.options.has_averaged_models and kind != self.pattern):
            return Method.evaluate(self, kind, split)
        return super().evaluate(kind, split)


def with_probabilistic_models(setting: Setting) -> Setting:
    """The setting with probabilistic models, which have deviations of embeddings, for clients with pairs.

    Raises MethodError if there are no such clients, or if they don't retrieve by two towers.
    """
    kinds = dict(setting.kinds)
    pairs = [kind for kind in kinds.values() if len(kind.modalities) == 2]
    if not pairs:
        raise MethodError("pcme is the loss of clients with pairs, and there are none: remove method.pcme")
    for kind in pairs:
        if kind.task == "classify" or kind.model["name"] not in ("towers", "probabilistic"):
            what = "classify" if kind.task == "classify" else f"have the model {kind.model['name']}"
            raise MethodError(f"pcme is a loss of retrieval by two towers; {kind.name} clients {what}")
        kinds[kind.name] = replace(kind, model={**kind.model, "name": "probabilistic"})
    return replace(setting, kinds=kinds)


def gca_scores(table: Tensor, other: Tensor, *, rows: int = 1024) -> Tensor:
    """``[samples]``: how well each representation matches its own pair in the other modality's table.

    CreamFL's score, ``i_k . t_k - log sum_{j != k} exp(i_k . t_j)``.  ``rows`` of ``[samples, samples]`` are in memory
    at a time; the result doesn't depend on it.
    """
    scores = []
    for start in range(0, len(table), rows):
        logits = table[start : start + rows].float() @ other.T
        own = logits.diagonal(start).clone()
        logits.diagonal(start).fill_(-torch.inf)
        scores.append(own - logits.logsumexp(1))
    return torch.cat(scores)
