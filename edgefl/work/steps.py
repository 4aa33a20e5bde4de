"""Steps: computations on a batch.

They have no state, preallocate outputs, never call ``.item()`` and never index by a mask, so that fake tensors take
the same path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.models.client import ClientModel
from edgefl.models.model import inputs
from edgefl.models.multiway import MultiwayModel
from edgefl.work.chunked_loss import summed_cross_entropy
from edgefl.work.description import Pass, Source, Work

CLIP_SCALE = 1 / 0.07
"""CLIP's initial logit scale, which FedCola's public code keeps fixed."""

Peer = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Takes the tensors that a batch sends, by name, and gives those that come back."""


@dataclass
class Context:
    """What a step may read and write: one for the whole work."""

    work: Work
    """The work, as the stage has cut it."""
    model: nn.Module
    """The model with its edits; in training mode in a pass that trains, else in evaluation mode."""
    source: Source
    """The node's data: counts and shapes. The interpreter fetches the batches."""
    device: torch.device
    """Where the tensors are."""
    received: Mapping[str, Tensor] = field(default_factory=dict)
    """Tables and tensors like parameters, received or kept, by item name; never write into them."""
    reference: Mapping[str, Tensor] = field(default_factory=dict)
    """Copies of parameters and buffers as they were before the first pass (after edits are applied), by name; empty
    unless ``Work.reference``."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """What ``output`` and ``outputs_like`` have made, by name: from here come the items of ``up`` and ``keep`` that the
    model doesn't have."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Scalar tensors by name. Those of ``Method.evaluate`` become the run's metrics; those of a client's work stand in
    its record and in ``Update.metrics``."""
    notes: dict[Any, Any] = field(default_factory=dict)
    """Free for steps to use; it lasts until the work ends."""
    trained: Mapping[str, Tensor] = field(default_factory=dict)
    """The parameters that train, by name, those of edits included."""
    optimizer: torch.optim.Optimizer | None = None
    """That of the parameters that train; None if no pass trains."""
    updates: int = 0
    """Updates of the optimizer so far; with ``accumulation: k``, one for k batches."""
    peer: Peer | None = None
    """Who answers what a step exchanges; None in a prediction, whose answers have shapes alone."""

    @property
    def client_model(self) -> ClientModel | MultiwayModel:
        """The model, typed as a client's model for type checkers."""
        return cast(ClientModel | MultiwayModel, self.model)

    @property
    def floating(self) -> torch.dtype:
        """``torch.float32``, or ``torch.float64`` for a model of that precision: of losses, outputs and metrics."""
        return torch.float64 if self.work.model.get("dtype") == "float64" else torch.float32

    @cached_property
    def inputs(self) -> Mapping[str, torch.dtype]:
        """The dtype in which each modality's floating inputs are taken, where it isn't float32."""
        return inputs(self.work.model)

    def output(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """The output of this name: zeros of ``shape`` when first asked for, the same tensor afterwards.

        ``dtype`` is ``floating`` unless given.
        """
        if name not in self.outputs:
            self.outputs[name] = torch.zeros(shape, dtype=dtype or self.floating, device=self.device)
        return self.outputs[name]

    def score(self, loss: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Add a batch to the metric ``loss``: the mean over the samples of all passes without training.

        A repeated sample, whose label is -1, doesn't count.
        """
        share = (batch["label"] >= 0).sum() / sum(self.source.size(p) for p in self.work.passes if not p.train)
        self.metrics.setdefault("loss", torch.zeros((), dtype=self.floating, device=self.device)).add_(loss * share)

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
    """What happens with a batch: what runs at the start, for each batch, before each update and at the end of a pass.

    The cost is predicted on tensors without data.  So no shape may depend on data: never call ``.item()``,
    ``.tolist()`` or ``bool(tensor)``, and never index by a mask; use ``where``, ``index_add_``, or a product with a
    mask.  Allocate outputs in ``start`` with ``ctx.output``, and write to them in place afterwards.  Read data from
    ``batch`` and ``ctx`` only: a step may run in a worker process.  Random numbers may come from the global
    generators of torch, numpy and random, which are seeded for each work by the client and its dispatch.  Numbers that
    differ between rounds come from ``ctx.work.scalars``.
    """

    chunks: bool = False
    """Whether ``loss`` computes the scores of ``args.chunk`` tokens at a time (``training.loss_chunk``). Default:
    False. A class that overrides ``loss`` says it again."""
    averages_samples: bool = False
    """Whether ``loss`` is a mean over the batch's samples, each seen alone, as ``training.private`` needs it. Default:
    False. A class that overrides ``loss`` says it again."""
    metrics_of: str = ""
    """The task whose metrics it writes, ``classify`` or ``retrieve``: its passes get those of ``evaluation.metrics`` as
    ``args.metrics``."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Before the first batch, without gradients: allocate outputs here.  By default nothing."""

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
        """Before each update of the optimizer and before clipping: change ``parameter.grad`` of ``ctx.trained``."""

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """After the last batch and its update, without gradients: complete outputs.  By default nothing."""


def says(step: type[Step], name: str) -> bool:
    """Whether a step says ``chunks`` or ``averages_samples`` of its loss: in the class that has the loss, or below."""
    for cls in step.__mro__:
        if name in vars(cls):
            return bool(vars(cls)[name])
        if "loss" in vars(cls):
            return False
    return False


class Wrapper(Step):
    """A step around whatever step a pass has: a proximal term, a penalty, a change of gradients, for every task.

    It is made with the step inside, as ``self.step``.  Its functions are the inner step's; override what differs and
    call ``super()``.  ``Work.around`` puts it around the passes that train, outside of those that are there already.
    Its arguments stand in ``pass_.args`` beside the step's own, so ``around`` refuses names that have a meaning there.
    """

    averages_samples = True  # if the step inside does

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


class ClassifyStep(Step):
    """Cross-entropy of the classifier of one modality, or of a pair.

    If batches have soft answers (``target`` [batch, classes]), it is VQA's loss: binary cross-entropy, summed over
    classes, mean over the batch.
    ``args.mask`` (``zero`` or ``random``) replaces a modality that the pattern lacks.  Losses of a tower's auxiliary
    classifiers are added with its weight for them.
    """

    averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch; a repeated sample, whose label is -1, doesn't count."""
        model = ctx.client_model
        total = self._loss_of(model.classify(pattern, batch, pass_.args.get("mask", "zero")).to(ctx.floating), batch)
        for weight, scores in model.take_auxiliary_scores():
            total = total + weight * self._loss_of(scores.to(ctx.floating), batch)
        return total

    @staticmethod
    def _loss_of(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        if "target" in batch:
            total = F.binary_cross_entropy_with_logits(logits, batch["target"], reduction="sum")
            return total / logits.shape[0]
        return F.cross_entropy(logits, batch["label"], ignore_index=-1)


class NextTokenStep(Step):
    """Cross-entropy of each token of a text given those before it: the mean over the batch's tokens but padding.

    ``next`` [batch, tokens], a field that the pass asks for, are the tokens that follow, -1 where there is none.
    ``args.chunk`` is the number of tokens whose scores are in memory at a time; without it, all are.
    """

    chunks = averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over tokens; a repeated sample, whose label is -1, doesn't count."""
        model, after = cast(ClientModel, ctx.model), following(batch).flatten()
        if chunk := pass_.args.get("chunk"):
            scores, hidden = model.tower(pattern).vocabulary_scores, model.tokens(pattern, batch[pattern]).flatten(0, 1)
            total = summed_cross_entropy(scores, hidden, after, chunk, tuple(ctx.trained.values()), ctx.floating)
            return total / (after >= 0).sum().clamp_min(1)
        scores = model.next_tokens(pattern, batch[pattern]).to(ctx.floating)
        return F.cross_entropy(scores.flatten(0, 1), after, ignore_index=-1)


def following(batch: Mapping[str, Tensor]) -> Tensor:
    """The tokens that follow ``[batch, tokens]``; -1 where there is none, and for repeated samples."""
    return batch["next"].masked_fill(batch["label"][:, None] == -1, -1)


def clip_loss(a: Tensor, b: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Symmetric InfoNCE over a batch of unit vectors ``[batch, dim]``: row k of a belongs to row k of b."""
    logits = scale * a @ b.T
    target = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


class Contrast(Step):
    """CLIP's loss between the two modalities of a pair; ``args.scale``, or 1 / 0.07, multiplies the similarities."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over both directions."""
        a, b = (ctx.client_model.embed(m, batch[m]).to(ctx.floating) for m in pattern.split("-"))
        return clip_loss(a, b, pass_.args.get("scale", CLIP_SCALE))
