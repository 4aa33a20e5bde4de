"""Steps: what is done with a batch.  Stateless; they preallocate, never call ``.item()`` and never index by a mask,
so that fake tensors take the same path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.work.description import Pass, Source, Work

if TYPE_CHECKING:
    from edgefl.models.client import ClientModel

CLIP_SCALE = 1 / 0.07
"""CLIP's initial logit scale, which FedCola's public code keeps fixed."""


@dataclass
class Context:
    """What a step may read and write while a work runs.

    ``received`` holds tables by item name; ``reference`` the model's parameters and buffers as they were at the start
    (if the work asks for them); ``outputs`` what was preallocated, by name: a payload item that is no parameter is
    taken from here; ``metrics`` are scalar tensors; ``notes`` is a step's own scratch, cleared by nobody.
    """

    work: Work
    model: nn.Module
    source: Source
    device: torch.device
    received: Mapping[str, Tensor] = field(default_factory=dict)
    reference: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    notes: dict[Any, Any] = field(default_factory=dict)

    @property
    def client_model(self) -> ClientModel:
        """The model as a ClientModel."""
        return cast("ClientModel", self.model)

    def output(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """The output of this name, zeros of ``shape`` when first asked for."""
        if name not in self.outputs:
            self.outputs[name] = torch.zeros(shape, dtype=dtype, device=self.device)
        return self.outputs[name]


class Step(ABC):
    """What happens at the start, for each batch and at the finish of each place of a pass."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Before the first batch."""

    @abstractmethod
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The scalar loss of a batch; None in a pass that only looks."""

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """After the last batch."""


def proximal(ctx: Context, pass_: Pass) -> Tensor | float:
    """FedProx's term, ``mu / 2 ||w - w0||^2`` over what trains, for ``args.proximal`` = mu.

    ``args.proximal_norm: tensor`` takes ``mu / 2 sum_t ||w_t - w0_t||`` instead, as FedCola's public code does.
    """
    mu: float = pass_.args.get("proximal", 0.0)
    if not mu:
        return 0.0
    apart = [p - ctx.reference[n] for n, p in ctx.model.named_parameters() if p.requires_grad]
    if pass_.args.get("proximal_norm") == "tensor":
        return mu / 2 * torch.stack([torch.linalg.vector_norm(d) for d in apart]).sum()
    return mu / 2 * torch.stack([d.square().sum() for d in apart]).sum()


class Classify(Step):
    """Cross-entropy of the classifier of one modality, or of two."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch."""
        logits = ctx.client_model.classify(pattern, batch)
        return F.cross_entropy(logits.float(), batch["label"]) + proximal(ctx, pass_)


def clip_loss(a: Tensor, b: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Symmetric InfoNCE over a batch of unit vectors ``[batch, dim]``: row k of a belongs to row k of b."""
    logits = scale * a @ b.T
    target = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


class Contrast(Step):
    """CLIP's loss between the two modalities of a pair."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over both directions."""
        a, b = (ctx.client_model.embed(m, batch[m]).float() for m in pattern.split("-"))
        return clip_loss(a, b, pass_.args.get("scale", CLIP_SCALE)) + proximal(ctx, pass_)


class ScoreClassify(Step):
    """Accuracy, balanced accuracy and macro F1 from a confusion matrix; samples labelled -1 are padding."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """An empty confusion matrix ``[classes, classes]``, rows true."""
        (pattern,) = pass_.patterns
        classes = ctx.client_model.classes(pattern)
        ctx.output("confusion", (classes, classes)).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Count predictions."""
        predicted = ctx.client_model.classify(pattern, batch).argmax(-1)
        confusion, label = ctx.outputs["confusion"], batch["label"]
        cell = label.clamp_min(0) * confusion.shape[1] + predicted
        confusion.view(-1).index_add_(0, cell, (label >= 0).to(confusion.dtype))

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """The metrics; classes without samples don't enter the means."""
        confusion = ctx.outputs["confusion"]
        hits, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        present = (true > 0).float()
        recall = hits / true.clamp_min(1)
        f1 = 2 * hits / (true + predicted).clamp_min(1)
        ctx.metrics["accuracy"] = hits.sum() / true.sum().clamp_min(1)
        ctx.metrics["balanced_accuracy"] = (recall * present).sum() / present.sum().clamp_min(1)
        ctx.metrics["macro_f1"] = (f1 * present).sum() / present.sum().clamp_min(1)


RECALLS = (1, 5, 10, 50)


class ScoreRetrieve(Step):
    """Recall at 1, 5, 10, 50 in both directions over all pairs of the split, and the sum of the two R@1."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Room for both modalities' embeddings ``[pairs, dim]``."""
        (pattern,) = pass_.patterns
        rows = ctx.source.counts(pass_)[pattern] * pass_.batch
        for modality in pattern.split("-"):
            ctx.output(f"embedding.{modality}", (rows, ctx.client_model.dimension))
        ctx.notes["row"] = 0

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Embed a batch of pairs."""
        row = ctx.notes["row"]
        for modality in pattern.split("-"):
            rows = ctx.outputs[f"embedding.{modality}"][row : row + pass_.batch]
            rows.copy_(ctx.client_model.embed(modality, batch[modality]))
        ctx.notes["row"] = row + pass_.batch

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Rank by cosine, a few hundred rows at a time."""
        (pattern,) = pass_.patterns
        first, second = pattern.split("-")
        pairs = ctx.source.size(pass_)
        a, b = (ctx.outputs[f"embedding.{m}"][:pairs] for m in (first, second))
        own = (a * b).sum(1, keepdim=True)
        for name, query, key in ((f"{first}_to_{second}", a, b), (f"{second}_to_{first}", b, a)):
            above, tied = torch.zeros(2, pairs, device=ctx.device).unbind()
            for row in range(0, pairs, 256):
                block = slice(row, row + 256)
                scores = query[block] @ key.T - own[block]
                above[block] = (scores > 1e-6).sum(1)
                tied[block] = (scores.abs() <= 1e-6).sum(1).clamp_min(1)
            for k in RECALLS:
                # among equal scores the own pair's place is a matter of chance: a constant model scores k / pairs
                ctx.metrics[f"{name}_r@{k}"] = ((k - above) / tied).clamp(0, 1).mean()
        for k in RECALLS:
            both = [ctx.metrics[f"{n}_r@{k}"] for n in (f"{first}_to_{second}", f"{second}_to_{first}")]
            ctx.metrics[f"r@{k}"] = (both[0] + both[1]) / 2
        ctx.metrics["r@1_sum"] = 2 * ctx.metrics["r@1"]
