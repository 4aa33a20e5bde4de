"""Steps on a model with exits: the sum of their losses, and what they learn from each other (DepthFL)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl.models.exits import ExitModel
from edgefl.work.description import Pass
from edgefl.work.steps import CLIP_SCALE, Context, Step

WEIGHT = "distillation"
"""The weight of mutual distillation among a work's scalars."""


def mutual(scores: Sequence[Tensor]) -> Tensor:
    """``sum_i sum_{j != i} KL(p_j || p_i) / (exits - 1)`` of exits' scores ``[batch, n]``, mean over the batch.

    Who teaches gets no gradient.
    """
    logs = [F.log_softmax(z, -1) for z in scores]
    terms = [
        F.kl_div(logs[i], logs[j].detach(), log_target=True, reduction="batchmean")
        for i in range(len(logs))
        for j in range(len(logs))
        if i != j
    ]
    return torch.stack(terms).sum() / (len(logs) - 1)


def together(ctx: Context, losses: Sequence[Tensor], scores: Sequence[Sequence[Tensor]]) -> Tensor:
    """The sum of the exits' losses and their weighted distillation; ``scores`` are tables, each with all exits'."""
    total = torch.stack(list(losses)).sum()
    weight = ctx.work.scalars.get(WEIGHT, 0.0)
    if not weight or len(losses) < 2:
        return total
    learnt: Tensor = weight * torch.stack([mutual(table) for table in scores]).mean()
    return total + learnt


class ClassifyExits(Step):
    """Cross-entropy of every exit that trains (VQA's loss where batches have soft answers), and distillation."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """A sum over exits of means over the batch."""
        model = cast(ExitModel, ctx.model)
        mask = pass_.args.get("mask", "zero")
        scores = [s.float() for s in model.exit_scores(pattern, batch, model.training_places(), mask)]
        if "target" in batch:
            target = batch["target"]
            losses = [F.binary_cross_entropy_with_logits(s, target, reduction="sum") / s.shape[0] for s in scores]
        else:
            losses = [F.cross_entropy(s, batch["label"]) for s in scores]
        return together(ctx, losses, [scores])


class ContrastExits(Step):
    """CLIP's loss at every exit that trains; exits teach each other which pairs are alike, in both directions."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """A sum over exits of means over both directions."""
        model = cast(ExitModel, ctx.model)
        places, scale = model.training_places(), pass_.args.get("scale", CLIP_SCALE)
        one, other = (model.exit_features(m, batch[m], places) for m in pattern.split("-"))
        tables = [
            scale * F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).T
            for a, b in zip(one, other, strict=True)
        ]
        own = torch.arange(tables[0].shape[0], device=tables[0].device)
        losses = [(F.cross_entropy(t, own) + F.cross_entropy(t.T, own)) / 2 for t in tables]
        return together(ctx, losses, [tables, [t.T for t in tables]])
