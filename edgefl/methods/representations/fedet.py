"""Fed-ET: an ensemble of small clients' models teaches a large server's (Cho et al. 2022), adapted to representations.

A client's weight for a sample is its confidence: the variance of its representation over dimensions.  The server also
learns, with a small weight, from clients whose match for a sample differs from the consensus's (*diversity*).  The
published method copies the server's representation layers into clients' models.  Here models may have any shape: the
server's representations are sent instead, and clients are distilled from them before they train.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from edgefl.methods.representations.representation_method import Digesting, Sent, best_match, mix_tables
from edgefl.methods.state import ServerState
from edgefl.work import Address, Work
from edgefl.work.update import Update


class FedET(Digesting):
    """Tables ``target`` (consensus), ``diverse`` (of clients that disagree) and ``diverse-share`` (1 if any does)."""

    class Options(Digesting.Options):
        """``method: {name: fedet, diversity: 0.05}``."""

        name: Literal["fedet"] = "fedet"
        diversity: NonNegativeFloat = Field(
            0.05,
            description="weight of the representations of clients that disagree with the consensus; the consensus "
            "has weight 1",
        )

    summary = "a larger server distils clients weighted by confidence, and is distilled back (Fed-ET, adapted)"
    paper = "Cho et al. 2022"
    options: FedET.Options

    def initial(self, seed: int) -> ServerState:
        """The clients' models, the server's own, and empty tables."""
        return self.first(seed, ("public", "target", "diverse", "diverse-share"))

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """For each modality that was sent: the consensus, and the mean of clients that disagree with it."""
        changed = self.contribution_flags(updates)
        for modality in self.modalities:
            if sent := self.received_tables(updates, modality):
                changed |= self._targets(state, modality, sent)
        return state.with_tensors(changed)

    def _targets(self, state: ServerState, modality: str, sent: Sent) -> dict[Address, Tensor]:
        old, other = (state.tensors[f"table/public.{m}"] for m in (modality, self.other(modality)))
        shares = confidences([table for _, table in sent])
        consensus = mix_tables(sent, shares, old)
        matches = best_match(consensus, other)
        disagrees = torch.stack([best_match(table, other) != matches for _, table in sent]).float()
        weights = shares * disagrees
        return {
            f"table/target.{modality}": consensus,
            f"table/diverse.{modality}": mix_tables(sent, weights / weights.sum(0).clamp_min(1e-12), old),
            f"table/diverse-share.{modality}": disagrees.amax(0),
        }

    def after(self, state: ServerState, round: int) -> Sequence[Work]:
        """The server is distilled from the consensus and, by ``diversity``, from clients that disagree."""
        targets, tables = {"target": 1.0}, ["target"]
        if self.options.diversity:
            targets["diverse"] = self.options.diversity
            tables += ["diverse", "diverse-share"]
        return self.distillation_works(round, self.received_modalities(state), targets, tables)


def confidences(tables: Sequence[Tensor]) -> Tensor:
    """``[clients, samples]``: each representation's variance over its dimensions, with sum 1 for each sample."""
    variance = torch.stack([table.float().var(1, correction=0) for table in tables]).clamp_min(1e-12)
    return variance / variance.sum(0)
