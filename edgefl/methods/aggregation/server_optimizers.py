"""The server's step along the mean update: FedAvgM, FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021, algorithm 2).

The mean update is the gradient's negative.  There is no bias correction, as published.  What an optimizer remembers
stands among the server's tables, so that it is kept with the rest, never travels and has the parameter's shape.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor

from edgefl.methods.aggregation.combine import Parts, moved
from edgefl.methods.aggregation.options import ADAPTIVE, AggregationOptions
from edgefl.work import Address

MEAN_OF, SQUARE_OF = "table/server-optimizer.mean/", "table/server-optimizer.square/"
"""Where moments of a parameter stand: one of these, and its address."""

MOMENTUM, BETA2, TAU = 0.9, 0.99, 1e-3
"""The paper's; its beta1 is 0.9 too, for adam and yogi."""
ADAPTIVE_LR = 0.01


def learning_rate(options: AggregationOptions) -> float:
    """The server's; the paper tunes it for each task, so 0.01 of the adaptive ones is only where to begin."""
    if options.lr is not None:
        return options.lr
    return ADAPTIVE_LR if options.optimizer in ADAPTIVE else 1.0


def stepped(
    tensors: Mapping[Address, Tensor], parts: Parts, buffers: Container[Address], options: AggregationOptions
) -> dict[Address, Tensor]:
    """All that changes; buffers, which are statistics, are averaged whatever the optimizer."""
    changed: dict[Address, Tensor] = {}
    for address, each in parts.items():
        if address in buffers:
            changed[address] = moved(tensors[address], each)
        else:
            changed |= step(tensors, address, each, options)
    return changed


def step(
    tensors: Mapping[Address, Tensor],
    address: Address,
    parts: Sequence[tuple[float, Tensor]],
    options: AggregationOptions,
) -> dict[Address, Tensor]:
    """A parameter after its step, and its moments; ``parts`` are coefficients and deltas of its mean update."""
    old, lr = tensors[address], learning_rate(options)
    if options.optimizer == "average":
        return {address: moved(old, parts, lr)}
    change = moved(torch.zeros_like(old), parts)
    mean = tensors.get(MEAN_OF + address)
    mean = torch.zeros_like(old) if mean is None else mean
    if options.optimizer == "momentum":
        beta = MOMENTUM if options.momentum is None else options.momentum
        mean = beta * mean + change
        return {address: old + lr * mean, MEAN_OF + address: mean}
    tau = TAU if options.tau is None else options.tau
    beta1 = options.beta1
    if beta1 is None:
        beta1 = 0.0 if options.optimizer == "adagrad" else MOMENTUM
    beta2 = BETA2 if options.beta2 is None else options.beta2
    square = tensors.get(SQUARE_OF + address)
    square = torch.full_like(old, tau**2) if square is None else square  # v_-1 >= tau^2
    squared = change.square()
    if options.optimizer == "adagrad":
        square = square + squared
    elif options.optimizer == "adam":
        square = beta2 * square + (1 - beta2) * squared
    else:
        square = square - (1 - beta2) * squared * (square - squared).sign()
    mean = beta1 * mean + (1 - beta1) * change
    moments = {SQUARE_OF + address: square, **({MEAN_OF + address: mean} if beta1 else {})}
    return {address: old + lr * mean / (square.sqrt() + tau), **moments}
