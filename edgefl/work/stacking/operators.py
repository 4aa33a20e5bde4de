"""Operators of a model for stacked tensors, where torch's own rules are slow or lacking.

``torch.vmap`` has no rule for attention on a CPU, which it would compute client by client; it makes a grouped
convolution of a patch embedding, and of a linear layer a product whose weight's gradient is transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class StackedOperators(TorchFunctionMode):
    """Mode inside ``torch.vmap`` in which linear layers, patches and attention are products of batched matrices."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is torch.conv2d and not kwargs and (patch := _patch_of(*args)):
            return _patches(patch, *args[:3])
        if func is F.scaled_dot_product_attention and not kwargs and len(args) == 3:
            return _attention(*args)
        return func(*args, **kwargs)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``[..., in] -> [..., out]``."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    out: Tensor = _Product.apply(rows, weight)  # type: ignore[no-untyped-call]
    if x.dim() != 2:
        out = out.reshape(*x.shape[:-1], weight.shape[0])
    return out if bias is None else out + bias


class _Product(torch.autograd.Function):
    """``x w^T``, ``[n, in] x [out, in] -> [n, out]``; the gradient of the weight is laid out as the weight is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return grads[0] @ weight if of_x else None, grads[0].T @ x if of_weight else None


def _patch_of(x: Tensor, weight: Tensor, *more: Any) -> int | None:
    """The side of the squares that a convolution divides pictures ``[batch, in, height, width]`` into, if it does."""
    given = [*more, *[None, (1, 1), (0, 0), (1, 1), 1][len(more) :]]
    _, stride, padding, dilation, groups = given
    side = weight.shape[-1]
    square = weight.shape[-2] == side and tuple(stride) == (side, side)
    plain = padding in ((0, 0), "valid") and tuple(dilation) == (1, 1) and groups == 1
    fits = x.dim() == 4 and x.shape[-1] % side == 0 and x.shape[-2] % side == 0
    return side if square and plain and fits else None


def _patches(side: int, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution whose stride is its kernel's size: a linear layer on each square."""
    batch, channels, height, width = x.shape
    squares = x.reshape(batch, channels, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
    out = _linear(squares.reshape(batch, height // side, width // side, -1), weight.flatten(1), bias)
    return out.permute(0, 3, 1, 2)


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention without mask or dropout: ``softmax(q k^T / sqrt(d)) v``, ``[..., tokens, d]``."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    mixed: Tensor = scores.softmax(-1) @ value
    return mixed
