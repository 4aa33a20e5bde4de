"""FedGEMS: a larger server remembers what it knows and asks clients for the rest (Cheng et al. 2021), adapted.

Of the public pairs the server splits off, in every round and for each modality, those that it matches right already:
on them it keeps to what it remembers of itself; on the others it learns from its clients, each by softmax(-entropy) of
what it says.  Clients learn from the server.  The entropy is that of softmax over a representation's dimensions, which
says little, as CreamFL's authors remark of their own comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from edgefl.methods.representations.base import Exchange, best_match, mixed
from edgefl.methods.state import ServerState, Update
from edgefl.work import Work

TABLES = ("memory", "memory-share", "ensemble", "ensemble-share")
"""What the server learns from: targets, and for which samples (1 or 0)."""


class FedGEMS(Exchange):
    """``memory-share`` is 1 where the server is right, ``ensemble-share`` where it isn't and clients were heard."""

    class Options(Exchange.Options):
        """``method: {name: fedgems}``."""

        name: Literal["fedgems"] = "fedgems"
        digest: NonNegativeFloat = Field(
            1.0, description="weight of the clients' distance to the server's representations"
        )

    summary = "a server that remembers what it has right and asks clients for the rest (FedGEMS, adapted)"
    options: FedGEMS.Options

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and empty tables."""
        return self.first(seed, ("public", *TABLES))

    def work(self, kind: str, round: int) -> Work:
        """Learn the server's representations, train on private data, represent the public samples."""
        return self.digesting(kind, round, self.options.digest, "public")

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """What the server has right now it remembers; of the rest, what clients say."""
        changed = self.contributed(updates)
        for modality in self.modalities:
            own, other = (state.tensors[f"table/public.{m}"] for m in (modality, self.other(modality)))
            right = (best_match(own, other) == torch.arange(self.pairs)).float()
            memory = state.tensors[f"table/memory.{modality}"]
            changed[f"table/memory.{modality}"] = torch.where(right[:, None] > 0, own, memory)
            changed[f"table/memory-share.{modality}"] = right
            sent = self.sent(updates, modality)
            changed[f"table/ensemble-share.{modality}"] = (1 - right) * float(bool(sent))
            if sent:
                shares = torch.stack([-entropy(table) for _, table in sent]).softmax(0)
                changed[f"table/ensemble.{modality}"] = mixed(sent, shares, own)
        return state.changed(changed)

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server keeps to its memory where it is right, and learns from its clients where it isn't."""
        weight = self.options.distillation
        if not weight:
            return ()
        work = self.on_pairs(round, [self.distil(self.modalities, {"memory": weight, "ensemble": weight})])
        return (replace(work, down=(*work.down, self.tables(TABLES, self.modalities))),)


def entropy(table: Tensor) -> Tensor:
    """``[samples]``: of the softmax over a representation's dimensions, in nats."""
    logarithm = table.float().log_softmax(1)
    return -(logarithm.exp() * logarithm).sum(1)
