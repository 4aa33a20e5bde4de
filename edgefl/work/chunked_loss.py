"""Cross-entropy in chunks of rows: scores of a large vocabulary, and their gradients, are in memory for one at a time.

A chunk's gradients are computed with its loss, so nothing is computed twice (as in Liger Kernel, Hsu et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Scores = Callable[[Tensor], Tensor]
"""Scores ``[rows, vocabulary]`` of hidden states ``[rows, width]``."""


def summed_cross_entropy(
    scores: Scores, hidden: Tensor, target: Tensor, chunk: int, trained: Sequence[Tensor], floating: torch.dtype
) -> Tensor:
    """Sum of the cross-entropies of ``hidden`` [rows, width] against ``target`` [rows], -1 where there is none.

    ``trained`` are the parameters that train, of which ``scores`` reads some; the loss is computed in ``floating``.
    """
    if torch.is_grad_enabled():
        total: Tensor = _Summed.apply(scores, hidden, target, chunk, floating, *trained)  # type: ignore[no-untyped-call]
        return total
    total = torch.zeros((), dtype=floating, device=hidden.device)
    for rows, after in zip(hidden.split(chunk), target.split(chunk), strict=True):
        total += _sum_loss(scores(rows), after, floating)
    return total


def _sum_loss(scores: Tensor, target: Tensor, floating: torch.dtype) -> Tensor:
    return F.cross_entropy(scores.to(floating), target, ignore_index=-1, reduction="sum")


class _Summed(torch.autograd.Function):
    """``summed_cross_entropy`` with gradients, which wait for the backward pass to scale them."""

    @staticmethod
    def forward(
        ctx: Any, scores: Scores, hidden: Tensor, target: Tensor, chunk: int, floating: torch.dtype, *trained: Tensor
    ) -> Tensor:
        total = torch.zeros((), dtype=floating, device=hidden.device)
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[1] else None
        sums = _Sums()
        for start in range(0, len(hidden), chunk):
            here = slice(start, start + chunk)
            rows = hidden[here].detach().requires_grad_(of_hidden is not None)
            with torch.enable_grad(), sums:
                lost = _sum_loss(scores(rows), target[here], floating)
            inputs = [*([rows] if of_hidden is not None else ()), *trained]
            with torch.autocast(hidden.device.type, enabled=False):
                gradients = dict(zip(inputs, torch.autograd.grad(lost, inputs, allow_unused=True), strict=True))
            if of_hidden is not None:
                of_hidden[here] = gradients.pop(rows)
            for parameter, gradient in gradients.items():
                if gradient is not None:
                    sums.add(parameter, gradient)
            total += lost.detach()
            del lost, gradients  # else they would live beside the next chunk's, in the peak
        ctx.gradients = [of_hidden, *(sums.of.get(parameter) for parameter in trained)]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # the graph may outlive the update
        of_hidden, *others = (None if each is None else each.mul_(factor) for each in gradients)
        return (None, of_hidden, None, None, None, *others)


class _Sums(TorchFunctionMode):
    """The gradients of parameters, summed over calls; a linear layer's weight has one buffer for all of its calls.

    torch would make the whole gradient of a weight anew for each.  Under autocast a weight is cast once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[Tensor, Tensor] = {}
        self._cast: dict[Tensor, Tensor] = {}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and not kwargs and isinstance(args[1], torch.nn.Parameter):
            return self._linear(*args)
        return func(*args, **(kwargs or {}))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.dim() > 2:  # a model may have a dimension for one batch
            return self._linear(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], -1)
        used = weight.detach()
        if torch.is_autocast_enabled(x.device.type) and used.dtype is torch.float32:
            dtype = torch.get_autocast_dtype(x.device.type)
            if weight not in self._cast:
                self._cast[weight] = used.to(dtype)
            x, used, bias = x.to(dtype), self._cast[weight], None if bias is None else bias.to(dtype)
        product: Tensor = _Linear.apply(x, used, bias, weight, self)  # type: ignore[no-untyped-call]
        return product

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add to a parameter's sum."""
        if parameter in self.of:
            self.of[parameter] += gradient
        else:
            self.of[parameter] = gradient

    def add_product(self, weight: Tensor, first: Tensor, second: Tensor) -> None:
        """Add ``first @ second`` to a weight's sum, in its dtype."""
        first, second = first.to(weight.dtype), second.to(weight.dtype)
        if weight in self.of:
            self.of[weight].addmm_(first, second)
        else:
            self.of[weight] = first @ second


class _Linear(torch.autograd.Function):
    """``x [rows, in] @ used [out, in].T + bias``; ``used`` are values of ``weight``, whose gradient goes to sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, used: Tensor, bias: Tensor | None, weight: Tensor, sums: _Sums) -> Tensor:
        ctx.save_for_backward(x, used, weight)
        ctx.sums = sums
        return F.linear(x, used, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, used, weight = ctx.saved_tensors
        if ctx.needs_input_grad[3]:
            ctx.sums.add_product(weight, gradient.T, x)
        of_x = gradient @ used if ctx.needs_input_grad[0] else None
        return of_x, None, gradient.sum(0) if ctx.needs_input_grad[2] else None, None, None
