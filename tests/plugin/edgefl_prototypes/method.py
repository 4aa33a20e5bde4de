"""Prototypes: what a class looks like in feature space is shared beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from edgefl.methods import Method, ServerState, Update
from edgefl.work import Edit, Item, Pass, Payload, Work


class Prototypes(Method):
    """For single-modality clients; a client with pairs never takes part.

    ``table/prototypes.<kind>`` [classes, dim] travels down in half precision and up in full, with the number of
    samples of each class; each client keeps its own prototypes of its last round.
    """

    class Options(Method.Options):
        """``method: {name: prototypes, weight: 0.5, rank: 2}``."""

        name: Literal["prototypes"] = "prototypes"
        weight: NonNegativeFloat = Field(0.5, description="weight of the distance to the prototype")
        rank: PositiveInt = Field(2, description="rank of the change of attention's weights")
        calibrate: bool = Field(True, description="the server trains the classifier on public samples")

    summary = "shared class prototypes, low-rank attention, a classifier calibrated by the server"
    options: Prototypes.Options

    def participates(self, kind: str, round: int) -> bool:
        """Single modalities only."""
        return len(self.setting.kinds[kind].modalities) == 1

    def shape(self, kind: str) -> tuple[int, int]:
        """``[classes, dim]``, as the classifier's weight."""
        classes, dim = self.setting.kinds[kind].parameters()[f"{kind}.head.weight"].shape
        return classes, dim

    def initial(self, seed: int) -> ServerState:
        """No class has a prototype yet."""
        tables: dict[str, Tensor] = {}
        for kind in filter(lambda kind: self.participates(kind, 1), self.setting.kinds):
            tables[f"table/prototypes.{kind}"] = torch.zeros(self.shape(kind))
            tables[f"table/seen.{kind}"] = torch.zeros(self.shape(kind)[0])
        return ServerState.from_tensors({**super().initial(seed).tensors, **tables})

    def work(self, kind: str, round: int) -> Work:
        """Train towards the prototypes, then look at every sample once to make new ones."""
        work = super().work(kind, round)
        if not self.participates(kind, round):
            return work
        shape, address = self.shape(kind), f"table/prototypes.{kind}"
        layers = [name.removesuffix(".weight") for name in work.trainable if name.endswith("attn.qkv.weight")]
        frozen = {f"{layer}.weight" for layer in layers}
        edit = Edit("low-rank", {"layers": layers, "rank": self.options.rank})
        train = tuple(replace(p, step="align", args={"weight": self.options.weight}) for p in work.passes)
        look = Pass("collect-prototypes", "private", work.passes[0].patterns, work.passes[0].batch, False)
        down = Payload("prototypes", (Item("prototypes", shape, "float16", address),))
        own = Payload("own", (Item("prototypes.own", shape, "float32", address),))
        up = (
            Item("prototypes.new", shape, "float32", address),
            Item("prototypes.seen", shape[:1], "float32", f"table/seen.{kind}"),
        )
        return replace(
            work,
            trainable=(
                *(name for name in work.trainable if name not in frozen),
                *(f"{layer}.{name}" for layer in layers for name in ("thin", "wide")),
            ),
            edits=(edit,),
            passes=(*train, look),
            down=(*work.down, down, own),
            up=(*work.up, Payload("prototypes", up)),
            keep=("prototypes.own",),
        )

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Models as FedAvg; a prototype is the mean over the samples of its class, and stays where nobody has any."""
        changed = self.combine(state, updates, lambda address, cohort: {address: 1.0})
        for kind in sorted({update.kind for update in updates}):
            sums, seen = torch.zeros(self.shape(kind)), torch.zeros(self.shape(kind)[0])
            for update in sorted((u for u in updates if u.kind == kind), key=lambda u: u.client):
                sent = update.payloads["prototypes"]
                sums += sent["prototypes.new"] * sent["prototypes.seen"][:, None]
                seen += sent["prototypes.seen"]
            old = state.tensors[f"table/prototypes.{kind}"]
            new = sums / seen.clamp_min(1)[:, None]
            changed[f"table/prototypes.{kind}"] = torch.where(seen[:, None] > 0, new, old)
            changed[f"table/seen.{kind}"] = seen
        return state.with_tensors(changed)

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains each classifier on its public samples."""
        if not self.options.calibrate:
            return ()
        works = []
        for kind in filter(lambda kind: self.participates(kind, round), self.setting.kinds):
            work = super().work(kind, round)
            heads = tuple(name for name in work.trainable if ".head." in name)
            pass_ = replace(work.passes[0], data="public")
            model = work.down[0]
            head = model.only(lambda item: item.name in heads)  # noqa: B023 (used at once)
            works.append(replace(work, trainable=heads, passes=(pass_,), up=(head,)))
        return works
