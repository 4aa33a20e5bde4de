"""Steps with class prototypes: classifying what a prototype completes, and collecting the prototypes of a client.

A prototype is the mean feature ``[dim]`` of a class: of its images, its texts, or both fused.  A table of them is
``[classes, dim]``, received and sent as ``prototypes.<image|text|fused>``.  For the multiway model, whose fusion
takes features apart from the encoder that made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl.models.multiway import MODALITIES, MultiwayModel
from edgefl.work.description import Pass
from edgefl.work.steps import Context, Step

TABLES = (*MODALITIES, "fused")
"""What there are prototypes of."""


def answer_loss(scores: Tensor, label: Tensor) -> Tensor:
    """Binary cross-entropy of ``[batch, classes]`` logits: summed over classes, mean over the batch.

    VQA's loss, whose targets are soft there; here the one class of each sample.
    """
    target = torch.zeros_like(scores).scatter_(1, label[:, None], 1.0)
    return F.binary_cross_entropy_with_logits(scores, target, reduction="sum") / label.shape[0]


def prototype_contrast(fused: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Mean of ``-log softmax_j(h_k . p_j / temperature)[k]``; p_j is the prototype of sample j's class, j of the batch.

    Neither is normalised.  Another sample of the same class counts as a negative (METHODS: PmcmFL's L_c).
    """
    return F.cross_entropy(fused @ prototypes.T / temperature, torch.arange(fused.shape[0], device=fused.device))


class ClassifyCompleted(Step):
    """``answer_loss`` of the fused feature, in which something stands for a missing modality; plus the contrast.

    Args: ``mask``, what stands there: ``prototype`` (of the sample's class, as received), ``zero`` or ``random``
    (standard normal, drawn for every sample and step); ``contrast``, the weight of ``prototype_contrast`` with the
    received fused prototypes, and its ``temperature``.  No gradient goes to a prototype.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch."""
        model, args, label = cast(MultiwayModel, ctx.model), pass_.args, batch["label"]
        found = model.features({m: batch[m] for m in pattern.split("-")})
        like = next(iter(found.values()))
        image, text = (
            found[m] if m in found else self._stand_in(ctx, m, like, label, args["mask"]) for m in MODALITIES
        )
        fused = model.fuse(image, text)
        loss = answer_loss(model.scores(fused).float(), label)
        if args["contrast"]:
            near = ctx.received["prototypes.fused"][label]
            loss = loss + args["contrast"] * prototype_contrast(fused.float(), near, args["temperature"])
        return loss

    @staticmethod
    def _stand_in(ctx: Context, modality: str, like: Tensor, label: Tensor, mask: str) -> Tensor:
        match mask:
            case "zero":
                return torch.zeros_like(like)
            case "random":
                return torch.randn_like(like)
        return ctx.received[f"prototypes.{modality}"][label].to(like.dtype)


class ClassMeans(Step):
    """Writes the client's own ``prototypes.*`` ``[classes, dim]``: the mean features of each class's samples.

    Args: ``of``, the tables that this client's samples make; ``absent``, what a row is whose class it lacks, and any
    row of the other tables: ``zero``, or ``received``, the row that it got.  Samples labelled -1 are padding.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Empty sums, and ``seen`` [classes] samples."""
        for table in TABLES:
            shape = tuple(ctx.received[f"prototypes.{table}"].shape)
            ctx.output(f"prototypes.{table}", shape).zero_()
        ctx.output("seen", shape[:1]).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Add a batch."""
        if not (of := pass_.args["of"]):
            return
        model = cast(MultiwayModel, ctx.model)
        found = model.features({m: batch[m] for m in pattern.split("-")})
        if "fused" in of:
            found["fused"] = model.fuse(found["image"], found["text"])
        real = (batch["label"] >= 0).to(torch.float32)
        label = batch["label"].clamp_min(0)
        for table in of:
            ctx.outputs[f"prototypes.{table}"].index_add_(0, label, found[table].float() * real[:, None])
        ctx.outputs["seen"].index_add_(0, label, real)

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Sums become means."""
        of, seen = pass_.args["of"], ctx.outputs["seen"][:, None]
        for table in TABLES:
            rows = ctx.outputs[f"prototypes.{table}"].div_(seen.clamp_min(1))
            if pass_.args["absent"] == "received":
                old = ctx.received[f"prototypes.{table}"]
                rows.copy_(torch.where(seen > 0, rows, old) if table in of else old)
