"""FedMD: clients with any models agree on public samples (Li and Wang 2019), adapted to representations of pairs.

What is exchanged is a table of representations instead of class scores, and a server learns too (CreamFL's comparison
adds that).  In every round clients are distilled from the consensus (*digest*), then train on their own data
(*revisit*) and send their tables; the mean of these is the next consensus, from which the server's model is distilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat

from edgefl.methods.representations.representation_method import Digesting, mix_tables
from edgefl.methods.state import ServerState
from edgefl.work import Work
from edgefl.work.update import Update


class FedMD(Digesting):
    """The consensus of both modalities is at ``table/consensus.<modality>``."""

    class Options(Digesting.Options):
        """``method: {name: fedmd, digest: 1.0}``."""

        name: Literal["fedmd"] = "fedmd"
        digest: NonNegativeFloat = Field(1.0, description="weight of the clients' distance to the consensus")

    summary = "clients are distilled from the mean of their representations of public pairs (FedMD, adapted)"
    paper = "Li and Wang 2019"
    options: FedMD.Options
    digested = "consensus"

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and an empty consensus."""
        return self.first(seed, ("consensus",))

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server trains on the pairs; its representations of them in round 1 are the first consensus."""
        first = round == 1
        passes = self.supervised_passes() + ([self.representation_pass(self.modalities)] if first else [])
        if not passes:
            return ()
        work = self.on_pairs(round, passes)
        return (
            replace(work, up=(*work.up, self.table("represented", "consensus", self.modalities))) if first else work,
        )

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The consensus of a modality is the mean over the clients that sent it; without any it is unchanged."""
        changed = self.contribution_flags(updates)
        for modality in self.modalities:
            if sent := self.received_tables(updates, modality):
                address = f"table/consensus.{modality}"
                changed[address] = mix_tables(sent, torch.full((len(sent), 1), 1 / len(sent)), state.tensors[address])
        return state.with_tensors(changed)

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server is distilled from the new consensus."""
        return self.distillation_works(round, self.received_modalities(state), {"consensus": 1.0})
