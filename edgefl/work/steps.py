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

    ``received`` holds tables and tensors like parameters by item name; ``reference`` the model's parameters and buffers
    as they were at the start (if the work asks for them); ``outputs`` preallocated tensors by name, from which payload
    items that are no parameters are taken; ``metrics`` scalar tensors; ``notes`` scratch data of steps, which is never
    cleared.  ``trained`` are the parameters that train, by name; ``optimizer`` is theirs, None if no pass trains;
    ``updates`` counts its updates so far.
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
    trained: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None
    updates: int = 0

    @property
    def client_model(self) -> ClientModel | MultiwayModel:
        """The model, typed as a client's model."""
        return cast(ClientModel | MultiwayModel, self.model)

    def output(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """The output of this name; on first use it is created as zeros of ``shape``."""
        if name not in self.outputs:
            self.outputs[name] = torch.zeros(shape, dtype=dtype, device=self.device)
        return self.outputs[name]

    def score(self, loss: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Add a batch to the metric ``loss``: the mean over the samples of all passes without training.

        A repeated sample, whose label is -1, doesn't count.
        """
        share = (batch["label"] >= 0).sum() / sum(self.source.size(p) for p in self.work.passes if not p.train)
        self.metrics.setdefault("loss", torch.zeros((), device=self.device)).add_(loss * share)

    def like(self, name: str) -> dict[str, Tensor]:
        """The received tensors ``<name>.<parameter>``, by the parameters' names."""
        start = f"{name}."
        return {n.removeprefix(start): tensor for n, tensor in self.received.items() if n.startswith(start)}

    def outputs_like(self, name: str) -> dict[str, Tensor]:
        """The outputs ``<name>.<parameter>``, by the names of the parameters that train or that were received so.

        They begin as what was received by these names, or as zeros.
        """
        parameters = dict(self.model.named_parameters())
        names = dict.fromkeys((*self.like(name), *self.trained))
        return {n: self._output_like(f"{name}.{n}", parameters[n]) for n in names if n in parameters}

    def _output_like(self, name: str, parameter: nn.Parameter) -> Tensor:
        if name not in self.outputs and name in self.received:
            self.outputs[name] = self.received[name].detach().clone()
        return self.output(name, tuple(parameter.shape), parameter.dtype)


class Step(ABC):
    """Base class: what runs at the start, for each batch, before each update and at the finish of a pass.

    ``stacks`` says that ``loss`` computes with nothing but the batch, ``ctx.model``, ``ctx.trained``, ``ctx.reference``
    and the arguments of work and pass, and writes nothing: several clients may be trained at once
    (``training.stack``).  A class that overrides ``loss`` says it again.
    """

    stacks: bool = False
    metrics_of: str = ""
    """The task whose metrics it writes, to which ``evaluation.metrics`` adds: ``classify`` or ``retrieve``."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate outputs; called before the first batch, without gradients."""

    @abstractmethod
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The scalar loss of a batch, or None in a pass without training.

        A loss of such a pass goes into the metric ``loss``, the mean over its samples.
        """

    @property
    def changes_gradients(self) -> bool:
        """Whether ``gradient`` does anything."""
        return type(self).gradient is not Step.gradient

    def gradient(self, ctx: Context, pass_: Pass) -> None:
        """Change ``parameter.grad`` of ``ctx.trained``; called before each update of the optimizer, before clipping."""

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Complete outputs; called after the last batch, without gradients."""


class Wrapper(Step):
    """Base class of steps around whatever step a pass has: a term of the loss, a change of gradients.

    A pass names it in ``around``.  Override what differs, and call ``super()`` for the step inside.
    """

    def __init__(self, step: Step):
        self.step = step

    @property
    def changes_gradients(self) -> bool:
        """Whether its own ``gradient`` or the inner step's does anything."""
        return type(self).gradient is not Wrapper.gradient or self.step.changes_gradients

    def start(self, ctx: Context, pass_: Pass) -> None:
        """The inner step's."""
        self.step.start(ctx, pass_)

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The inner step's."""
        return self.step.loss(ctx, batch, pattern, pass_)

    def gradient(self, ctx: Context, pass_: Pass) -> None:
        """The inner step's."""
        self.step.gradient(ctx, pass_)

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """The inner step's."""
        self.step.finish(ctx, pass_)


class Classify(Step):
    """Cross-entropy of the classifier of one modality, or of a pair.

    If batches have soft answers (``target`` [batch, classes]), it is VQA's loss: binary cross-entropy, summed over
    classes, mean over the batch.
    ``args.mask`` (``zero`` or ``random``) replaces a modality that the pattern lacks.
    """

    stacks = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch; a repeated sample, whose label is -1, doesn't count."""
        logits = ctx.client_model.classify(pattern, batch, pass_.args.get("mask", "zero")).float()
        if "target" in batch:
            total = F.binary_cross_entropy_with_logits(logits, batch["target"], reduction="sum")
            return total / logits.shape[0]
        return F.cross_entropy(logits, batch["label"], ignore_index=-1)


class NextToken(Step):
    """Cross-entropy of each token of a text given those before it: the mean over the batch's tokens but padding.

    ``next`` [batch, tokens] are the tokens that follow, -1 where there is none.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over tokens; a repeated sample, whose label is -1, doesn't count."""
        scores = cast(ClientModel, ctx.model).next_tokens(pattern, batch[pattern]).float()
        return F.cross_entropy(scores.flatten(0, 1), following(batch).flatten(), ignore_index=-1)


def following(batch: Mapping[str, Tensor]) -> Tensor:
    """The tokens that follow ``[batch, tokens]``; -1 where there is none, and for repeated samples."""
    return batch["next"].masked_fill(batch["label"][:, None] == -1, -1)


def clip_loss(a: Tensor, b: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Symmetric InfoNCE over a batch of unit vectors ``[batch, dim]``: row k of a belongs to row k of b."""
    logits = scale * a @ b.T
    target = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


class Contrast(Step):
    """CLIP's loss between the two modalities of a pair."""

    stacks = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over both directions."""
        a, b = (ctx.client_model.embed(m, batch[m]).float() for m in pattern.split("-"))
        return clip_loss(a, b, pass_.args.get("scale", CLIP_SCALE))
