"""FedGEMS: a larger server learns from its own correct outputs and from clients (Cheng et al. 2021), adapted.

In every round and for each modality, the server finds the public pairs that it matches correctly.  On these it is
distilled from its own stored representations.  On the others it is distilled from its clients, each weighted by
softmax(-entropy) of its representation.  Clients are distilled from the server.  The entropy is that of softmax over
a representation's dimensions, which says little, as CreamFL's authors remark of their own comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from edgefl.methods.representations.representation_method import Digesting, best_match, mix_tables
from edgefl.methods.state import ServerState
from edgefl.work import Work
from edgefl.work.update import Update

TABLES = ("memory", "memory-share", "ensemble", "ensemble-share")
"""What the server is distilled from: targets, and for which samples (1 or 0)."""


class FedGEMS(Digesting):
    """``memory-share`` is 1 where the server is correct, ``ensemble-share`` where it isn't and clients sent tables."""

    class Options(Digesting.Options):
        """``method: {name: fedgems}``."""

        name: Literal["fedgems"] = "fedgems"

    summary = "a larger server distils its own correct outputs, and clients elsewhere (FedGEMS, adapted)"
    paper = "Cheng et al. 2021"
    options: FedGEMS.Options

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and empty tables."""
        return self.first(seed, ("public", *TABLES))

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Store the server's correct representations, and combine those of clients."""
        changed = self.contribution_flags(updates)
        for modality in self.modalities:
            own, other = (state.tensors[f"table/public.{m}"] for m in (modality, self.other(modality)))
            correct = (best_match(own, other) == torch.arange(self.pairs)).float()
            memory = state.tensors[f"table/memory.{modality}"]
            changed[f"table/memory.{modality}"] = torch.where(correct[:, None] > 0, own, memory)
            changed[f"table/memory-share.{modality}"] = correct
            sent = self.received_tables(updates, modality)
            changed[f"table/ensemble-share.{modality}"] = (1 - correct) * float(bool(sent))
            if sent:
                shares = torch.stack([-entropy(table) for _, table in sent]).softmax(0)
                changed[f"table/ensemble.{modality}"] = mix_tables(sent, shares, own)
        return state.with_tensors(changed)

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server is distilled from its memory where it is correct, and from its clients elsewhere."""
        return self.distillation_works(round, self.modalities, {"memory": 1.0, "ensemble": 1.0}, TABLES)


def entropy(table: Tensor) -> Tensor:
    """``[samples]``: entropy of the softmax over a representation's dimensions, in nats."""
    logarithm = table.float().log_softmax(1)
    return -(logarithm.exp() * logarithm).sum(1)
