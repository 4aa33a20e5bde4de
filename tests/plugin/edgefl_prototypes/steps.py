"""Training towards prototypes, and collecting one's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl.work import Context, Pass, Step


class Align(Step):
    """Cross-entropy, plus the squared distance of each feature to its class's prototype."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """The prototypes ``[classes, dim]``: half everybody's, half those that this client kept."""
        target = ctx.output("target", tuple(ctx.received["prototypes"].shape))
        target.copy_(ctx.received["prototypes"]).add_(ctx.received["prototypes.own"]).div_(2)

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch; a class without a prototype doesn't pull."""
        feature = ctx.client_model.feature(pattern, batch[pattern])
        logits = ctx.model.get_submodule(pattern).head(feature)
        target = ctx.outputs["target"][batch["label"]]
        known = (target.abs().sum(1) > 0).to(feature.dtype)
        apart = ((feature - target).square().mean(1) * known).mean()
        return F.cross_entropy(logits, batch["label"]) + pass_.args["weight"] * apart


class Collect(Step):
    """Mean feature of each class: ``prototypes.new`` [classes, dim], ``prototypes.seen`` [classes] samples."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Empty sums; what the client keeps is written to an output of the same name."""
        shape = tuple(ctx.received["prototypes"].shape)
        ctx.output("prototypes.new", shape).zero_()
        ctx.output("prototypes.seen", shape[:1]).zero_()
        ctx.output("prototypes.own", shape).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Add a batch; samples labelled -1 are padding."""
        feature = ctx.client_model.feature(pattern, batch[pattern])
        real = (batch["label"] >= 0).to(feature.dtype)
        label = batch["label"].clamp_min(0)
        ctx.outputs["prototypes.new"].index_add_(0, label, feature * real[:, None])
        ctx.outputs["prototypes.seen"].index_add_(0, label, real)

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Means; a class that this client lacks stays zero."""
        new = ctx.outputs["prototypes.new"]
        new.div_(ctx.outputs["prototypes.seen"].clamp_min(1)[:, None])
        ctx.outputs["prototypes.own"].copy_(new)
        ctx.metrics["classes_seen"] = (ctx.outputs["prototypes.seen"] > 0).to(torch.float32).sum()
