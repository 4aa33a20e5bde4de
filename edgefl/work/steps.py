"""Steps: computations on a batch.

They have no state, preallocate outputs, never call ``.item()`` and never index by a mask, so that fake tensors take
the same path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.models.client import ClientModel
from edgefl.models.multiway import MultiwayModel
from edgefl.work.description import Pass, Source, Work

CLIP_SCALE = 1 / 0.07
"""CLIP's initial logit scale, which FedCola's public code keeps fixed."""


@dataclass
class Context:
    """What a step may read and write while a work runs.

    ``received`` holds tables by item name; ``reference`` the model's parameters and buffers as they were at the start
    (if the work asks for them); ``outputs`` preallocated tensors by name, from which payload items that are no
    parameters are taken; ``metrics`` scalar tensors; ``notes`` scratch data of steps, which is never cleared.
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
    def client_model(self) -> ClientModel | MultiwayModel:
        """The model, typed as a client's model."""
        return cast(ClientModel | MultiwayModel, self.model)

    def output(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """The output of this name; on first use it is created as zeros of ``shape``."""
        if name not in self.outputs:
            self.outputs[name] = torch.zeros(shape, dtype=dtype, device=self.device)
        return self.outputs[name]


class Step(ABC):
    """Base class: what runs at the start, for each batch and at the finish of each occurrence of a pass."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate outputs; called before the first batch."""

    @abstractmethod
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The scalar loss of a batch; None in a pass without training."""

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Complete outputs; called after the last batch, without gradients."""


def proximal(ctx: Context, pass_: Pass) -> Tensor | float:
    """FedProx's term, ``mu / 2 ||w - w0||^2`` over the parameters that train, for ``args.proximal`` = mu.

    ``args.proximal_norm: tensor`` takes ``mu / 2 sum_t ||w_t - w0_t||`` instead, as FedCola's public code does.
    """
    mu: float = pass_.args.get("proximal", 0.0)
    if not mu:
        return 0.0
    differences = [p - ctx.reference[n] for n, p in ctx.model.named_parameters() if p.requires_grad]
    if pass_.args.get("proximal_norm") == "tensor":
        return mu / 2 * torch.stack([torch.linalg.vector_norm(d) for d in differences]).sum()
    return mu / 2 * torch.stack([d.square().sum() for d in differences]).sum()


class Classify(Step):
    """Cross-entropy of the classifier of one modality, or of a pair.

    If batches have soft answers (``target`` [batch, classes]), it is VQA's loss: binary cross-entropy, summed over
    classes, mean over the batch.
    ``args.mask`` (``zero`` or ``random``) replaces a modality that the pattern lacks.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch, plus the proximal term."""
        logits = ctx.client_model.classify(pattern, batch, pass_.args.get("mask", "zero")).float()
        if "target" in batch:
            total = F.binary_cross_entropy_with_logits(logits, batch["target"], reduction="sum")
            return total / logits.shape[0] + proximal(ctx, pass_)
        return F.cross_entropy(logits, batch["label"]) + proximal(ctx, pass_)


def clip_loss(a: Tensor, b: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Symmetric InfoNCE over a batch of unit vectors ``[batch, dim]``: row k of a belongs to row k of b."""
    logits = scale * a @ b.T
    target = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


class Contrast(Step):
    """CLIP's loss between the two modalities of a pair."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over both directions, plus the proximal term."""
        a, b = (ctx.client_model.embed(m, batch[m]).float() for m in pattern.split("-"))
        return clip_loss(a, b, pass_.args.get("scale", CLIP_SCALE)) + proximal(ctx, pass_)
