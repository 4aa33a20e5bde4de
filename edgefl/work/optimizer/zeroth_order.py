"""Zeroth-order training (MeZO, Malladi et al. 2023, algorithm 1): two forward passes of a batch, no gradients.

    g = (L(w + e z) - L(w - e z)) / (2 e),    w <- w - lr g z,    z standard normal

z is drawn again from its seed wherever it is needed, some rows of a tensor at a time (``AT_ONCE``). Draws come from a
CPU generator for each seed and parameter, so they depend neither on the device nor on which other parameters train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from edgefl import seeds
from edgefl.work.description import Description, Pass
from edgefl.work.meter.meter import Meter, NoMeter
from edgefl.work.step_faults import missing_gradients
from edgefl.work.steps import Context, Step

AT_ONCE = 2**22
"""Elements of z that are drawn at a time, unless a single row of the tensor has more: 16 MiB in float32.

The time is the same from 2^16 to 2^24.  It must not change: where a piece isn't a multiple of 16 elements, torch draws
other numbers than for the whole, and clients and the server draw the same z.
"""
STEPS = "steps"
"""The output ``[directions]`` of a work whose directions come from a pool: sums of lr g by direction."""


def without_gradients(work: Description) -> bool:
    """Whether a work trains by differences of losses."""
    return work.optimizer.get("name") == "mezo"


def direction(seed: int, name: str, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a parameter as views, in order, each with its z: standard normal numbers in float32, drawn on the CPU."""
    generator = torch.Generator("cpu").manual_seed(seeds.key(seed, f"direction {name}"))
    whole = not tensor.dim() or not tensor.numel()
    for part in [tensor] if whole else tensor.split(max(1, AT_ONCE * len(tensor) // tensor.numel())):
        yield part, torch.randn(part.shape, generator=generator, device="cpu")


def pooled_seed(round: int, index: int) -> int:
    """The seed of a direction of a round's pool, which all clients and the server know."""
    return seeds.key(round, "pool of directions", index)


class ZerothOrderTrainer:
    """Updates of a work whose optimizer is ``mezo``.

    ``epsilon`` is e.  Each update has a new direction; with ``directions`` it is one of the round's pool, chosen at
    random, and ``ctx.outputs["steps"]`` sums up lr g.  Both passes draw the same random numbers, and the model is in
    evaluation mode, as in the authors' code.
    """

    def __init__(self, ctx: Context, seed: int):
        work = ctx.work
        self.ctx, self.seed, self.epsilon = ctx, seed, float(work.optimizer["epsilon"])
        self.lr, self.round = work.number("lr"), int(work.number("round", 0))
        self.factor = 1.0
        self.pool = int(work.optimizer.get("directions", 0))
        self.steps = ctx.output(STEPS, (self.pool,)) if self.pool else None

    def scale_rates(self, factor: float) -> None:
        """Set the learning rate to that of the first local epoch, times ``factor``."""
        self.factor = factor

    def begin(self, step: Step, pass_: Pass) -> None:
        """Raises MethodError if the step would change gradients."""
        if step.changes_gradients:
            raise missing_gradients(pass_, "optimizer mezo has no", "optimizer: sgd, adam or adamw")

    def train(self, forward: Callable[[], Tensor], meter: Meter | NoMeter) -> Tensor:
        """Update by one batch; returns the mean of both losses."""
        drawn = seeds.key(self.seed, "direction", self.ctx.updates)
        index = drawn % self.pool if self.pool else 0
        z = pooled_seed(self.round, index) if self.pool else drawn
        losses = []
        for distance in (self.epsilon, -2 * self.epsilon):
            self._move(z, distance, meter)
            seeds.seed_globals(seeds.key(self.seed, "noise", self.ctx.updates))
            losses.append(forward())
        step = (losses[0] - losses[1]).float() * (self.lr * self.factor / (2 * self.epsilon))
        self._move(z, self.epsilon - step, meter)
        if self.steps is not None:
            self.steps[index] += step
        self.ctx.updates += 1
        return (losses[0] + losses[1]) / 2

    def end_batch(self, index: int, meter: Meter | NoMeter) -> None:
        """Nothing: ``train`` has updated the parameters."""

    end_pass = end_batch

    def _move(self, seed: int, distance: float | Tensor, meter: Meter | NoMeter) -> None:
        """``w <- w + distance z``, in place."""
        meter.enter("optimizer")
        for name, parameter in self.ctx.trained.items():
            for part, z in direction(seed, name, parameter):
                part.add_(z.to(part.device).mul_(distance))
                del part, z  # before the next are drawn: else two would be in the peak
        meter.enter("forward")
