"""The server's step along the mean update: FedAvgM, FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021, algorithm 2).

The mean update is the negative gradient.  There is no bias correction, as published.  Moments are stored among the
server's tables: they are saved with the state and never travel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.methods.aggregation.combine import MixTerm, Parts, apply_terms
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.registry.answers import describe_answer
from edgefl.registry.part_fields import NamedFields, build_part
from edgefl.work import Address
from edgefl.work.sums import exact

MOMENTUM, BETA2, TAU = 0.9, 0.99, 1e-3
"""Defaults from the paper; its beta1 of adam and yogi is 0.9 too."""


class ServerOptimizer(ABC):
    """A step of the server along the mean update of a parameter, made for each aggregation."""

    class Options(NamedFields):
        """Fields next to the name: none."""

    options: Any
    """The ``Options`` of this optimizer."""
    section: AggregationOptions
    """The scenario's ``aggregation`` section."""
    lr: float
    """The learning rate."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    default_lr: ClassVar[float] = 1.0
    """The learning rate where ``aggregation.lr`` isn't given."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that it keeps for each parameter, at ``table/server-optimizer.NAME/ADDRESS``."""

    def __init__(self, options: Any, section: AggregationOptions):
        self.options, self.section = options, section
        self.lr = self.default_lr if section.lr is None else section.lr

    @abstractmethod
    def step(self, value: Tensor, change: Tensor, kept: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The new value of a parameter, and what is kept for its next step.

        ``change`` is its mean update; ``kept`` is what the last step kept, empty at the first.  Tensors may be without
        data (meta).
        """

    def along(
        self, value: Tensor, terms: Sequence[MixTerm], kept: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """``step`` along the sum of the terms of a mean update."""
        found: object = self.step(value, apply_terms(torch.zeros_like(value), terms), kept)
        match found:
            case (Tensor() as new, Mapping() as left):
                return new, dict(left)
        raise MethodError(
            f"{registry.describe_part('server optimizer', self.options.name)}: step() returned "
            f"{describe_answer(found)}, not the new value and a mapping of what is kept"
        )


class Average(ServerOptimizer):
    """The mean update itself, times the learning rate."""

    def step(self, value: Tensor, change: Tensor, kept: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``w + lr Delta``."""
        return value + self.lr * change, {}

    def along(
        self, value: Tensor, terms: Sequence[MixTerm], kept: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same term by term, without a sum of their own."""
        return apply_terms(value, terms, self.lr), {}


class Momentum(ServerOptimizer):
    """A running sum of mean updates (FedAvgM); ``aggregation.momentum`` is its decay."""

    keeps = ("mean",)

    def step(self, value: Tensor, change: Tensor, kept: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``v <- beta v + Delta;  w + lr v``."""
        beta = MOMENTUM if self.section.momentum is None else self.section.momentum
        mean = beta * kept.get("mean", torch.zeros_like(value)) + change
        return value + self.lr * mean, {"mean": mean}


class Adaptive(ServerOptimizer):
    """A step divided by the root of a second moment."""

    paper = "Reddi et al. 2021"

    default_lr = 0.01  # only a first guess, as the paper tunes it for each task
    keeps = ("mean", "square")
    beta1: ClassVar[float] = MOMENTUM

    def step(self, value: Tensor, change: Tensor, kept: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """``m <- beta1 m + (1 - beta1) Delta;  w + lr m / (sqrt(u) + tau)``, u from ``second_moment``."""
        section = self.section
        tau = TAU if section.tau is None else section.tau
        beta1 = self.beta1 if section.beta1 is None else section.beta1
        square = kept.get("square")
        square = torch.full_like(value, tau**2) if square is None else square  # v_-1 >= tau^2
        square = self.second_moment(square, change.square(), BETA2 if section.beta2 is None else section.beta2)
        mean = beta1 * kept.get("mean", torch.zeros_like(value)) + (1 - beta1) * change
        new = value + self.lr * mean / (square.sqrt() + tau)
        return new, {"square": square, **({"mean": mean} if beta1 else {})}

    @abstractmethod
    def second_moment(self, square: Tensor, new: Tensor, beta2: float) -> Tensor:
        """The second moment after a mean update whose square is ``new``."""


class Adagrad(Adaptive):
    """The sum of squared updates (FedAdagrad)."""

    beta1 = 0.0

    def second_moment(self, square: Tensor, new: Tensor, beta2: float) -> Tensor:
        """``u + Delta^2``."""
        return square + new


class ServerAdam(Adaptive):
    """The running mean of squared updates (FedAdam)."""

    def second_moment(self, square: Tensor, new: Tensor, beta2: float) -> Tensor:
        """``beta2 u + (1 - beta2) Delta^2``."""
        return beta2 * square + (1 - beta2) * new


class Yogi(Adaptive):
    """A second moment that changes by no more than the squared update (FedYogi)."""

    def second_moment(self, square: Tensor, new: Tensor, beta2: float) -> Tensor:
        """``u - (1 - beta2) Delta^2 sign(u - Delta^2)``."""
        return square - (1 - beta2) * new * (square - new).sign()


def moment_address(name: str, address: Address) -> Address:
    """The address of a tensor that an optimizer keeps for a parameter."""
    return f"table/server-optimizer.{name}/{address}"


def server_step(
    tensors: Mapping[Address, Tensor], parts: Parts, buffers: Container[Address], options: AggregationOptions
) -> dict[Address, Tensor]:
    """New values and moments of all addresses; buffers are statistics, which every optimizer averages.

    Raises MethodError for a step that changes a parameter's shape or keeps what ``keeps`` doesn't name.
    """
    optimizer: ServerOptimizer = build_part("server optimizer", options.optimizer, options)
    changed: dict[Address, Tensor] = {}
    for address, terms in parts.items():
        value = tensors[address]
        if address in buffers:
            changed[address] = apply_terms(value, terms)
            continue
        places = {name: moment_address(name, address) for name in optimizer.keeps}
        kept = {name: tensors[place] for name, place in places.items() if place in tensors}
        new, left = optimizer.along(exact(value), terms, kept)
        if new.shape != value.shape or not left.keys() <= places.keys():
            raise MethodError(
                f"{registry.describe_part('server optimizer', options.optimizer_name)}: step() returned a value "
                f"{list(new.shape)} for {list(value.shape)} and kept {sorted(left)}; allowed: the parameter's shape, "
                f"and {sorted(places) or 'nothing'} (keeps)"
            )
        changed[address] = new.to(value.dtype)
        changed |= {places[name]: tensor for name, tensor in left.items()}
    return changed
