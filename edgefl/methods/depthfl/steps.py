"""Steps on a model with exits: the sum of their losses, and mutual distillation (DepthFL)."""

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

    No gradient flows to the teacher p_j.
    """
    logs = [F.log_softmax(z, -1) for z in scores]
    terms = [
        F.kl_div(logs[i], logs[j].detach(), log_target=True, reduction="batchmean")
        for i in range(len(logs))
        for j in range(len(logs))
        if i != j
    ]
    return torch.stack(terms).sum() / (len(logs) - 1)


def joint_loss(ctx: Context, losses: Sequence[Tensor], scores: Sequence[Sequence[Tensor]]) -> Tensor:
    """The exits' losses and their weighted distillation, summed; ``scores`` are tables with one entry per exit."""
    total = torch.stack(list(losses)).sum()
    weight = ctx.work.number(WEIGHT, 0.0)
    if not weight or len(losses) < 2:
        return total
    distilled: Tensor = weight * torch.stack([mutual(table) for table in scores]).mean()
    return total + distilled


class ClassifyExits(Step):
    """Cross-entropy of every exit that trains (VQA's loss for batches with soft answers), and distillation.

    Model ``exits``; ``args.mask`` as for ``classify``; the scalar ``distillation`` is the second term's weight.
    """

    averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """A sum over exits of means over the batch."""
        model = cast(ExitModel, ctx.model)
        mask = pass_.args.get("mask", "zero")
        scores = [s.to(ctx.floating) for s in model.exit_scores(pattern, batch, model.training_places(), mask)]
        if "target" in batch:
            target = batch["target"]
            losses = [F.binary_cross_entropy_with_logits(s, target, reduction="sum") / s.shape[0] for s in scores]
        else:
            losses = [F.cross_entropy(s, batch["label"]) for s in scores]
        return joint_loss(ctx, losses, [scores])


class ContrastExits(Step):
    """CLIP's loss at every exit that trains, and mutual distillation of similarities in both directions.

    Model ``exits``; ``args.scale`` as for ``contrast``; the scalar ``distillation`` is the second term's weight.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """A sum over exits of means over both directions."""
        model = cast(ExitModel, ctx.model)
        places, scale = model.training_places(), pass_.args.get("scale", CLIP_SCALE)
        first, second = (model.exit_features(m, batch[m], places) for m in pattern.split("-"))
        tables = [
            scale * F.normalize(a.to(ctx.floating), dim=-1) @ F.normalize(b.to(ctx.floating), dim=-1).T
            for a, b in zip(first, second, strict=True)
        ]
        target = torch.arange(tables[0].shape[0], device=tables[0].device)
        losses = [(F.cross_entropy(t, target) + F.cross_entropy(t.T, target)) / 2 for t in tables]
        return joint_loss(ctx, losses, [tables, [t.T for t in tables]])
