"""The server's step along the mean update: FedAvgM, FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021, algorithm 2).

The mean update is the negative gradient.  There is no bias correction, as published.  Moments are stored among the
server's tables, in the shape of their parameter: they are saved with the state and never travel.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor

from edgefl.methods.aggregation.combine import Parts, Term, moved
from edgefl.methods.aggregation.options import ADAPTIVE, AggregationOptions
from edgefl.work import Address

MEAN_OF, SQUARE_OF = "table/server-optimizer.mean/", "table/server-optimizer.square/"
"""Prefixes of the addresses of moments, followed by the address of their parameter."""

MOMENTUM, BETA2, TAU = 0.9, 0.99, 1e-3
"""Defaults from the paper; its beta1 of adam and yogi is 0.9 too."""
ADAPTIVE_LR = 0.01


def learning_rate(options: AggregationOptions) -> float:
    """The server's rate; 0.01 for adaptive optimizers is only a first guess, as the paper tunes it for each task."""
    if options.lr is not None:
        return options.lr
    return ADAPTIVE_LR if options.optimizer in ADAPTIVE else 1.0


def stepped(
    tensors: Mapping[Address, Tensor], parts: Parts, buffers: Container[Address], options: AggregationOptions
) -> dict[Address, Tensor]:
    """New values and moments of all addresses; buffers are statistics, which every optimizer averages."""
    changed: dict[Address, Tensor] = {}
    for address, terms in parts.items():
        if address in buffers:
            changed[address] = moved(tensors[address], terms)
        else:
            changed |= step(tensors, address, terms, options)
    return changed


def step(
    tensors: Mapping[Address, Tensor],
    address: Address,
    parts: Sequence[Term],
    options: AggregationOptions,
) -> dict[Address, Tensor]:
    """A parameter after its step, and its moments; ``parts`` are the terms of its mean update."""
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
