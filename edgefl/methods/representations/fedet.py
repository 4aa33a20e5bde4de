"""Fed-ET: an ensemble of small clients' models teaches a large server's (Cho et al. 2022), adapted to representations.

A client counts on a sample by its confidence, the variance of what it says over dimensions; and those whose match for
a sample differs from the consensus's teach the server a little too (*diversity*).  The published method sends the
server's layers of representation back into clients' models, which here may be of any shape: its representations come
back instead, and clients move towards them before they train.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from edgefl.methods.representations.base import Digesting, Sent, best_match, mixed
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address, Work


class FedET(Digesting):
    """Tables ``target`` (the consensus), ``diverse`` (of those who disagree) and ``diverse-share`` (where some do)."""

    class Options(Digesting.Options):
        """``method: {name: fedet, diversity: 0.05}``."""

        name: Literal["fedet"] = "fedet"
        diversity: NonNegativeFloat = Field(
            0.05,
            description="weight of the representations of clients that disagree with the consensus; the consensus "
            "has weight 1",
        )

    summary = "clients count by their confidence and teach a larger server, which comes back (Fed-ET, adapted)"
    options: FedET.Options

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and empty tables."""
        return self.first(seed, ("public", "target", "diverse", "diverse-share"))

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """For each modality that was sent: the consensus, and what those say who disagree with it."""
        changed = self.contributed(updates)
        for modality in self.modalities:
            if sent := self.sent(updates, modality):
                changed |= self._targets(state, modality, sent)
        return state.changed(changed)

    def _targets(self, state: ServerState, modality: str, sent: Sent) -> dict[Address, Tensor]:
        old, other = (state.tensors[f"table/public.{m}"] for m in (modality, self.other(modality)))
        shares = confidences([table for _, table in sent])
        consensus = mixed(sent, shares, old)
        agreed = best_match(consensus, other)
        apart = torch.stack([best_match(table, other) != agreed for _, table in sent]).float()
        heard = shares * apart
        return {
            f"table/target.{modality}": consensus,
            f"table/diverse.{modality}": mixed(sent, heard / heard.sum(0).clamp_min(1e-12), old),
            f"table/diverse-share.{modality}": apart.amax(0),
        }

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server learns from the consensus, and a little from those who disagree."""
        targets, tables = {"target": 1.0}, ["target"]
        if self.options.diversity:
            targets["diverse"] = self.options.diversity
            tables += ["diverse", "diverse-share"]
        return self.distilling(round, self.reached(state), targets, tables)


def confidences(tables: Sequence[Tensor]) -> Tensor:
    """``[clients, samples]``: each representation's variance over its dimensions, of which a sample's sum is 1."""
    variance = torch.stack([table.float().var(1, correction=0) for table in tables]).clamp_min(1e-12)
    return variance / variance.sum(0)
