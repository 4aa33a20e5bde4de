"""The losses with class prototypes and the steps that train by them: PmcmFL's, FedPAC's and FedHKD's.

One step classifies completed samples, the other computes the prototypes of a client.

A prototype is the mean feature ``[dim]`` of a class: of its images, its texts, or both fused; or the mean prediction
``[classes]`` of its samples.  A table of them is ``[classes, dim]``, received and sent as
``prototypes.<image|text|...|fused|predicted>``.  The steps need models that compute and fuse features
separately (``Fusing``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl.models.multiway import MODALITIES
from edgefl.work.description import Pass, StepArgs
from edgefl.work.steps import Context, Step

TABLES = (*MODALITIES, "fused")
"""PmcmFL's tables of prototypes."""


class PrototypeArgs(StepArgs, total=False):
    """Arguments of the steps of methods with prototypes; their classes say what each means."""

    widths: Mapping[str, int]
    contrast: float
    temperature: float
    alignment: float
    predictions: float
    representations: float
    softening: float
    tables: Sequence[str]
    of: Sequence[str]
    made: Sequence[str]
    first: bool
    last: bool
    absent: str
    inference: str
    mix: int
    apart: bool
    modality: str
    loss: str


@runtime_checkable
class Fusing(Protocol):
    """A model of pairs that computes the features of single modalities separately from their fusion."""

    def features(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The feature ``[batch, dim]`` of each modality in the batch."""
        ...

    def fuse(self, first: Tensor, second: Tensor) -> Tensor:
        """The joint feature of two features."""
        ...

    def scores(self, fused: Tensor) -> Tensor:
        """Class scores ``[batch, classes]`` of a joint feature."""
        ...


def answer_loss(scores: Tensor, label: Tensor, target: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of ``[batch, classes]`` logits: summed over classes, mean over the batch.

    VQA's loss.  ``target`` [batch, classes] has a score for each class; without one it is 1 for the sample's class.
    """
    if target is None:
        target = torch.zeros_like(scores).scatter_(1, label[:, None], 1.0)
    return F.binary_cross_entropy_with_logits(scores, target, reduction="sum") / label.shape[0]


def prototype_contrast(fused: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Mean of ``-log softmax_j(h_k . p_j / temperature)[k]``; p_j is the prototype of sample j's class, j of the batch.

    Neither is normalised.  Another sample of the same class counts as a negative (PmcmFL's L_c).
    """
    return F.cross_entropy(fused @ prototypes.T / temperature, torch.arange(fused.shape[0], device=fused.device))


def alignment(fused: Tensor, table: Tensor, label: Tensor) -> Tensor:
    """FedPAC's alignment: squared distance to the prototype of a sample's class, mean over batch and elements.

    A sample whose class has no prototype yet (a row of zeros) adds nothing.
    """
    near = table[label]
    return ((fused - near).square() * present_mask(near)[:, None]).mean()


def prediction_distance(model: Fusing, table: Tensor, predicted: Tensor, temperature: float) -> Tensor:
    """FedHKD's first term: mean over classes of ``||softmax(G(H_j) / temperature) - Q_j||``; no gradient goes to H."""
    covered = present_mask(table)
    scores = model.scores(table).float()
    distances = torch.linalg.vector_norm((scores / temperature).softmax(1) - predicted, dim=1)
    mean: Tensor = (distances * covered).sum() / covered.sum().clamp_min(1)
    return mean


def representation_distance(fused: Tensor, table: Tensor, label: Tensor) -> Tensor:
    """FedHKD's second term: mean over the batch of ``||h - H_y||``; 0 for a class that has no row yet."""
    near = table[label]
    mean: Tensor = (torch.linalg.vector_norm(fused - near, dim=1) * present_mask(near)).mean()
    return mean


def present_mask(rows: Tensor) -> Tensor:
    """``[rows]`` of 1 and 0: whether a client had the class; a row of zeros means that none did."""
    return (rows != 0).any(1).to(rows.dtype)


def features(ctx: Context, batch: Mapping[str, Tensor], pattern: str, args: PrototypeArgs) -> dict[str, Tensor]:
    """Features of both modalities ``[batch, dim]``; ``args.mask`` replaces one that the pattern lacks.

    The model's own features come first.  ``args.modalities`` are both, in the order in which they are fused.
    """
    by_modality = cast(Fusing, ctx.model).features({m: batch[m] for m in pattern.split("-")})
    like = next(iter(by_modality.values()))
    for modality in args.get("modalities", MODALITIES):
        if modality not in by_modality:
            by_modality[modality] = _replacement(ctx, modality, like, batch["label"], args)
    return by_modality


def _replacement(ctx: Context, modality: str, like: Tensor, label: Tensor, args: PrototypeArgs) -> Tensor:
    if args["mask"] == "prototype":
        # padding has label -1, and its result isn't used
        return ctx.received[f"prototypes.{modality}"][label.clamp_min(0)].to(like.dtype)
    width = args.get("widths", {}).get(modality, like.shape[1])
    empty = like.new_zeros(like.shape[0], width)
    return torch.randn_like(empty) if args["mask"] == "random" else empty


def fuse_features(ctx: Context, by_modality: Mapping[str, Tensor], args: PrototypeArgs) -> Tensor:
    """The joint feature of both modalities."""
    first, second = (by_modality[m] for m in args.get("modalities", MODALITIES))
    return cast(Fusing, ctx.model).fuse(first, second)


class ClassifyCompleted(Step):
    """``answer_loss`` of the fused feature, with a replacement for a missing modality, and terms for its class.

    Args: ``mask``, the replacement: ``prototype`` (of the sample's class, as received), ``zero`` or ``random``
    (standard normal, drawn for every sample and step).  Weights of the terms, 0 or left out for none: ``contrast``
    (``prototype_contrast``, at ``temperature``), ``alignment``, and ``predictions`` and ``representations`` (FedHKD's
    two, at ``softening``).  ``modalities`` and ``widths`` are the model's, if they aren't image and text of one
    width.  No gradient goes to a prototype.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch."""
        model, args, label = cast(Fusing, ctx.model), cast(PrototypeArgs, pass_.args), batch["label"]
        fused = fuse_features(ctx, features(ctx, batch, pattern, args), args)
        loss = answer_loss(model.scores(fused).float(), label, batch.get("target"))
        table = ctx.received.get("prototypes.fused")
        if table is None:
            return loss
        if weight := args.get("contrast"):
            loss = loss + weight * prototype_contrast(fused.float(), table[label], args["temperature"])
        if weight := args.get("alignment"):
            loss = loss + weight * alignment(fused.float(), table, label)
        if weight := args.get("predictions"):
            predicted = ctx.received["prototypes.predicted"]
            loss = loss + weight * prediction_distance(model, table, predicted, args["softening"])
        if weight := args.get("representations"):
            loss = loss + weight * representation_distance(fused.float(), table, label)
        return loss


class ClassMeans(Step):
    """Writes the client's own ``prototypes.*`` ``[classes, dim]``: the mean features of each class's samples.

    A sample counts for its class or, with ``target`` [batch, classes], for every class by its score:
    ``P = (Y^T H) / (Y^T 1)``.  Args: ``tables`` that are sent; ``of``, the tables that this pass contributes to, and
    ``made``, those that any pass contributes to; whether it is the ``first`` and the ``last`` of these passes;
    ``absent``, the value of rows whose class the client lacks, and of all rows of other tables: ``zero``, or
    ``received``, the row that it received; ``softening``, the temperature of ``predicted``; and ``mask``,
    ``modalities`` and ``widths`` as for ``classify-completed``.  Samples labelled -1 are padding.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate sums, and numbers of samples ``seen.<table>`` [classes]."""
        args = cast(PrototypeArgs, pass_.args)
        if not args["first"]:
            return
        for table in args["tables"]:
            shape = tuple(ctx.received[f"prototypes.{table}"].shape)
            ctx.output(f"prototypes.{table}", shape).zero_()
            ctx.output(f"seen.{table}", shape[:1]).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Add the features of a batch to the sums."""
        args = cast(PrototypeArgs, pass_.args)
        of = args["of"]
        if not of:
            return
        by_modality = features(ctx, batch, pattern, args)
        if "fused" in of or "predicted" in of:
            by_modality["fused"] = fuse_features(ctx, by_modality, args)
        if "predicted" in of:
            scores = cast(Fusing, ctx.model).scores(by_modality["fused"]).float()
            by_modality["predicted"] = (scores / args["softening"]).softmax(1)
        real = (batch["label"] >= 0).to(torch.float32)
        label = batch["label"].clamp_min(0)
        weights = batch["target"] * real[:, None] if "target" in batch else None
        for table in of:
            sums, seen = ctx.outputs[f"prototypes.{table}"], ctx.outputs[f"seen.{table}"]
            if weights is None:
                sums.index_add_(0, label, by_modality[table].float() * real[:, None])
                seen.index_add_(0, label, real)
            else:
                sums.add_(weights.T @ by_modality[table].float())
                seen.add_(weights.sum(0))

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Divide the sums by the numbers of samples, after the last pass."""
        args = cast(PrototypeArgs, pass_.args)
        if not args["last"]:
            return
        for table in args["tables"]:
            seen = ctx.outputs[f"seen.{table}"][:, None]
            # soft targets may add up to less than 1
            rows = ctx.outputs[f"prototypes.{table}"].div_(torch.where(seen > 0, seen, 1.0))
            if args["absent"] == "received":
                old = ctx.received[f"prototypes.{table}"]
                rows.copy_(torch.where(seen > 0, rows, old) if table in args["made"] else old)
