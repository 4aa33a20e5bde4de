"""CreamFL: clients and server exchange representations of public pairs instead of models (Yu et al., ICLR 2023).

Every round the server sends its representations of the public pairs; clients train on their own data and, on the
public samples of their modality, against those tables; they send back their representations, which the server weighs
against each other sample by sample (GCA) and learns from.  FedCola's adapted form (``server: federated``) has the
average of the image-text clients for the server's model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from edgefl import models
from edgefl.errors import MethodError
from edgefl.methods.protocol import Kind, Method, Setting
from edgefl.methods.state import ServerState, Update
from edgefl.models import MODALITIES, ModelOptions
from edgefl.work import Item, Pass, Payload, Work

SERVER = "server"
"""The kind of the server's own model, and the first part of its addresses."""

IOT = 100.0
"""FedIoT's factor on clients with pairs."""

CONTRIBUTED = "table/contributed"
"""For each modality, whether a client sent representations in the last round: 1 or 0."""


class CreamFL(Method):
    """Representations of the first ``pairs`` public pairs travel: two tables down, one per modality up."""

    class Options(Method.Options):
        """``method: {name: creamfl, server: own, aggregation: gca}``."""

        name: Literal["creamfl"] = "creamfl"
        server: Literal["own", "federated"] = Field(
            "own",
            description="the server's model: its own, trained on the public pairs, or the average of the clients "
            "with pairs, which then travels (as FedCola adapts it)",
        )
        clients: Literal["private", "averaged"] | None = Field(
            None,
            description="whether clients keep their models, or the server averages them by kind; private with a "
            "server's own model unless said otherwise",
        )
        model: ModelOptions | None = Field(None, description="towers of the server's own model; the clients' if null")
        pairs: PositiveInt | None = Field(None, description="public pairs that are used; all if null")
        public_batch: PositiveInt | None = Field(
            None, description="public pairs a step; as training.batch for pairs if null"
        )
        aggregation: Literal["gca", "mean", "average", "iot"] = Field(
            "gca",
            description="of the clients' representations: contrastive weights for each sample, equal ones, by number "
            "of samples, or by number of samples times 100 for clients with pairs",
        )
        denominator: Literal["others", "all"] = Field(
            "others", description="whether a sample's own pair counts in GCA's sum (all: as the public code)"
        )
        inter: bool = Field(True, description="clients contrast with the other modality's representations")
        intra: bool = Field(True, description="clients stay near their modality's, and leave their own old ones")
        contrast: NonNegativeFloat = Field(0.5, description="weight of the clients' contrast")
        rescale: bool = Field(False, description="give the inter term the magnitude of the intra term")
        temperature: PositiveFloat = Field(0.5, description="of the clients' contrast")
        old: Literal["copy", "table"] = Field(
            "copy",
            description="a client's old representations: from a frozen copy of its model at every step, or computed "
            "once (less compute, and less memory where the public set is small)",
        )
        pair_clients: Literal["contrast", "plain"] | None = Field(
            None,
            description="whether clients with pairs contrast and send representations too, or only train; plain "
            "with server: federated unless said otherwise",
        )
        distillation: NonNegativeFloat = Field(0.3, description="weight of the server's distillation")
        distance: Literal["mse", "norm"] = Field(
            "mse", description="of distillation: mean squared error (public code), or mean distance (paper)"
        )
        order: Literal["server-first", "server-last"] = Field(
            "server-first", description="when the server trains on the pairs: before the clients, or after (paper)"
        )
        server_epochs: PositiveInt = Field(1, description="the server's epochs on the public pairs a round")
        server_lr: PositiveFloat | None = Field(None, description="of the server's model; as the clients' if null")

        @model_validator(mode="after")
        def _defined(self) -> CreamFL.Options:
            if self.server == "federated":
                if self.clients == "private":
                    raise ValueError("server: federated averages the clients' models: they can't stay private")
                for field in ("model", "order", "server_epochs"):
                    if getattr(self, field) != type(self).model_fields[field].default:
                        raise ValueError(f"{field} is of a server's own model: it has no meaning with federated")
            if not self.averaged and not self.pairs_contribute:
                raise ValueError("clients with pairs would exchange nothing: plain goes with clients: averaged")
            return self

        @property
        def averaged(self) -> bool:
            """Whether clients' models travel and are averaged by kind."""
            return (self.clients or ("private" if self.server == "own" else "averaged")) == "averaged"

        @property
        def pairs_contribute(self) -> bool:
            """Whether clients with pairs contrast and send representations."""
            return (self.pair_clients or ("contrast" if self.server == "own" else "plain")) == "contrast"

    summary = "representations of public pairs instead of models, weighed by contrast (CreamFL)"
    options: CreamFL.Options

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        there = {m for kind in setting.kinds.values() for m in kind.modalities}
        self.modalities = tuple(m for m in MODALITIES if m in there)
        self.pattern = "-".join(self.modalities)
        if len(self.modalities) != 2:
            raise MethodError(
                "creamfl exchanges representations between two modalities; the clients have "
                + ", ".join(self.modalities)
            )
        held = setting.public.get(self.pattern, 0)
        self.pairs = options.pairs or held
        if held < max(self.pairs, 2):
            raise MethodError(
                f"creamfl wants {max(self.pairs, 2)} public {self.pattern} samples or more; the data have {held}: "
                "raise data.public"
            )
        self.server = self._server()
        # what the server does with its model is what a client of one kind would
        self.side = Method(options, replace(setting, kinds={self.server.name: self.server}))
        self.dimension = self.server.dimension
        for kind in map(setting.kinds.__getitem__, self.contributors):
            if kind.dimension != self.dimension:
                raise MethodError(
                    f"representations of {kind.name} clients have {kind.dimension} dimensions, the server's "
                    f"{self.dimension}: set model.dimension, and model.dimension_for: all"
                )

    def _server(self) -> Kind:
        """The server's model as a kind: its own, or that of the clients with pairs."""
        kinds, options, setting = self.setting.kinds, self.options, self.setting
        if options.server == "federated":
            if self.pattern not in kinds:
                raise MethodError(
                    f"server: federated takes the average of {self.pattern} clients for the server's model, and "
                    f"there are none: add data.clients.{self.pattern}, or set server: own"
                )
            return kinds[self.pattern]
        model = options.model or setting.model
        if model is None:
            raise MethodError("creamfl needs the towers of the server's own model")
        if setting.model is not None and model.tokens != setting.model.tokens:
            raise MethodError(
                f"the server's own text tower reads {model.tokens} tokens, but public texts have the clients' "
                f"{setting.model.tokens}: set method.model.text.tokens to that"
            )
        checkpointing = setting.training.checkpointing
        described = models.describe(model, self.modalities, "retrieve", setting.facts, checkpointing=checkpointing)
        return Kind(SERVER, self.modalities, "retrieve", described, model.weights)

    @property
    def contributors(self) -> list[str]:
        """Kinds that contrast and send representations."""
        pairs = self.options.pairs_contribute
        return [k.name for k in self.setting.kinds.values() if len(k.modalities) == 1 or pairs]

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and empty tables."""
        tensors = dict(super().initial(seed).tensors)
        if self.options.server == "own":
            tensors |= self.side.initial(seed).tensors
        for modality in self.modalities:
            for name in ("public", "target"):
                tensors[f"table/{name}.{modality}"] = torch.zeros(self.pairs, self.dimension)
        return ServerState.first({**tensors, CONTRIBUTED: torch.ones(len(self.modalities))})

    # client -----------------------------------------------------------------------------------------------------

    def work(self, kind: str, round: int) -> Work:
        """Each epoch on private data is followed by one on the public samples; in the end they are represented."""
        work, options = super().work(kind, round), self.options
        if not options.averaged:
            work = replace(work, keep=tuple(i.name for i in work.down[0].items), up=())
        if kind not in self.contributors:
            return work
        own = list(self.setting.kinds[kind].modalities)
        others = [next(m for m in self.modalities if m != modality) for modality in own]
        passes, needed = list(work.passes), list[str]()
        if options.contrast and (options.inter or options.intra):
            contrast = self._public(
                "contrast-public", own, index=True,
                others=others, inter=options.inter, intra=options.intra, temperature=options.temperature,
                weight=options.contrast, rescale=options.rescale,
            )  # fmt: skip
            passes = [p for private in passes for p in (private, contrast)]
            needed = [m for m in self.modalities if (options.intra and m in own) or (options.inter and m in others)]
            if options.intra and options.old == "table":
                passes.insert(0, self._public("represent", own, train=False, name="before"))
        passes.append(self._public("represent", own, train=False, name="represented"))
        return replace(
            work,
            passes=tuple(passes),
            down=(*work.down, *([self._table("public", "public", needed)] if needed else [])),
            up=(*work.up, self._table("represented", "represented", own)),
            reference=options.old == "copy" and any(p.args.get("intra") for p in passes),
        )

    def _public(
        self, step: str, modalities: Sequence[str], *, train: bool = True, index: bool = False, **args: Any
    ) -> Pass:
        """A pass over the public samples, of whose batches a client loads its own modalities only."""
        batch = self.options.public_batch or self.setting.training.batch_of(self.pattern)
        fields = [*modalities, *(["index"] if index else [])]
        args = {"samples": self.pairs, "fields": fields, "modalities": list(modalities), **args}
        return Pass(step, "public", (self.pattern,), min(batch, self.pairs), train, args)

    def _table(self, name: str, address: str, modalities: Sequence[str]) -> Payload:
        shape = (self.pairs, self.dimension)
        items = (Item(f"{name}.{m}", shape, "float32", f"table/{address}.{m}") for m in modalities)
        return Payload("representations", tuple(items))

    # server -----------------------------------------------------------------------------------------------------

    def _on_pairs(self, round: int, passes: Sequence[Pass]) -> Work:
        """A work on the server's model, which goes back where it came from if it trains."""
        work = self.side.work(self.server.name, round)
        if self.options.server_lr is not None:
            decay = work.optimizer["lr"] / self.setting.training.lr
            work = replace(work, optimizer={**work.optimizer, "lr": self.options.server_lr * decay})
        if not any(p.train for p in passes):
            work = replace(work, trainable=(), up=())
        return replace(work, passes=tuple(passes))

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains on the pairs, if it does so first, and represents them for the clients."""
        options = self.options
        passes: list[Pass] = [self._public("represent", self.modalities, train=False, name="represented")]
        if options.server == "own" and options.order == "server-first":
            passes = [self._public("contrast", self.modalities)] * options.server_epochs + passes
        work = self._on_pairs(round, passes)
        return (replace(work, up=(*work.up, self._table("represented", "public", self.modalities))),)

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """A target for each modality that a client sent; models by kind where they travel."""
        changed = self.combine(state, updates, lambda address, cohort: {address: 1.0}) if self.options.averaged else {}
        contributed = []
        for modality in self.modalities:
            sent = [
                (update, update.payloads["representations"][f"represented.{modality}"])
                for update in sorted(updates, key=lambda update: update.client)
                if f"represented.{modality}" in update.payloads.get("representations", {})
            ]
            contributed.append(float(bool(sent)))
            if sent:
                changed[f"table/target.{modality}"] = self._target(state, modality, sent)
        # values also where everything else is shapes: they decide what the server does next
        return state.changed({**changed, CONTRIBUTED: torch.tensor(contributed, device="cpu")})

    def _target(self, state: ServerState, modality: str, sent: Sequence[tuple[Update, Tensor]]) -> Tensor:
        """What the server is to learn of a modality, ``[pairs, dim]``."""
        tables, options = [table for _, table in sent], self.options
        if options.aggregation == "gca":
            (other,) = (m for m in self.modalities if m != modality)
            seen = state.tensors[f"table/public.{other}"]
            with one_thread():
                scores = [gca_scores(t, seen, own_pair=options.denominator == "all") for t in tables]
            return weighed(tables, torch.stack(scores).softmax(0))
        counts = torch.ones(len(sent))
        if options.aggregation != "mean":
            counts = torch.tensor([float(update.total) for update, _ in sent])
        if options.aggregation == "iot":
            counts *= torch.tensor([IOT if "-" in update.kind else 1.0 for update, _ in sent])
        return weighed(tables, (counts / counts.sum().clamp_min(1))[:, None])

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains on the pairs, if it does so last, and learns from the targets of this round."""
        options, passes = self.options, []
        if options.server == "own" and options.order == "server-last":
            passes += [self._public("contrast", self.modalities)] * options.server_epochs
        flags = state.tensors[CONTRIBUTED]
        # a profile asks with a state of shapes alone: what does a round cost that everybody contributes to
        seen = [True] * len(flags) if flags.is_meta else flags.tolist()
        reached = [m for m, flag in zip(self.modalities, seen, strict=True) if flag]
        if reached and options.distillation:
            settings: dict[str, Any] = {"weight": options.distillation, "distance": options.distance}
            passes.append(self._public("distill", reached, index=True, **settings))
        if not passes:
            return ()
        work = self._on_pairs(round, passes)
        targets = self._table("target", "target", reached) if reached and options.distillation else None
        return (replace(work, down=(*work.down, targets)) if targets else work,)

    def evaluate(self, kind: str, split: str) -> Work:
        """The server's own model, by retrieval, wherever the server has no model of the clients to score."""
        if self.options.server == "federated" or (self.options.averaged and kind != self.pattern):
            return super().evaluate(kind, split)
        return self.side.evaluate(self.server.name, split)


def gca_scores(table: Tensor, other: Tensor, *, own_pair: bool = False, rows: int = 1024) -> Tensor:
    """``[samples]``: how well each representation finds its own pair in the other modality's table.

    CreamFL's score, ``i_k . t_k - log sum_{j != k} exp(i_k . t_j)``; with ``own_pair`` the sum has j = k too (public
    code).  ``rows`` of ``[samples, samples]`` are in memory at a time; the result doesn't depend on it.
    """
    found = []
    for start in range(0, len(table), rows):
        logits = table[start : start + rows].float() @ other.T
        own = logits.diagonal(start).clone()
        if not own_pair:
            logits.diagonal(start).fill_(-torch.inf)
        found.append(own - logits.logsumexp(1))
    return torch.cat(found)


def weighed(tables: Sequence[Tensor], shares: Tensor) -> Tensor:
    """``sum_c shares[c] tables[c]``, shares ``[clients, samples]`` or ``[clients, 1]``."""
    total = torch.zeros(tables[0].shape)
    for table, share in zip(tables, shares, strict=True):
        total.addcmul_(table.float(), share[:, None])
    return total


@contextmanager
def one_thread() -> Iterator[None]:
    """With more, sums of a product of matrices may differ from machine to machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
