"""Rules that end a stage: a metric that gets no better, and blocks whose updates cancel each other out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, linear_regression
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from edgefl.records.metrics import BestMetric, metric_value
from edgefl.registry.part_fields import Fields
from edgefl.schedules.stages import EARLY, EndedRound, Ending, Stage, part_of

LOSS = "loss"
"""The name of a metric that every round has: the mean training loss of a kind's clients."""


class UntilOptions(Fields):
    """The metric that ends a stage, and after how long without a better one."""

    metric: str = Field(
        description="metric of evaluation.split, as kind and name: image.accuracy, mean.accuracy (over kinds); "
        "image.loss is the mean training loss, which every round has"
    )
    patience: PositiveInt = Field(
        description="the stage ends after so many evaluations in a row that were no better than its best before"
    )

    @property
    def is_loss(self) -> bool:
        """Whether it follows the training loss."""
        return self.metric.partition(".")[2] == LOSS


class Patience(Ending):
    """Ends a stage once ``patience`` evaluations in a row were no better than the best of the stage before."""

    state: ClassVar = ("best",)
    best: BestMetric

    def __init__(self, until: UntilOptions):
        self.until, self.best = until, BestMetric.from_name(until.metric)

    def sees(self, seen: EndedRound, stage: Stage) -> bool:
        """Whether the patience is over; a round without a value doesn't count, one that isn't finite is no better."""
        losses = {kind: {LOSS: loss} for kind, loss in seen.losses.items()}
        if not (found := losses if self.until.is_loss else seen.metrics):
            return False
        self.best.sees(metric_value(found, self.best.metric), seen.round)
        return self.best.without >= self.until.patience

    def fewest(self, first: int, every: int) -> int:
        """One more evaluation than the patience, since the first of a stage is its best."""
        every = 1 if self.until.is_loss else every
        return ((first - 1) // every + 1 + self.until.patience) * every - first + 1


class PaceOptions(Fields):
    """When a block has converged."""

    window: PositiveInt = Field(3, description="rounds whose updates are added up")
    fit: int = Field(3, ge=2, description="values that the line is fitted through")
    slope: float = Field(
        0.02, gt=0, allow_inf_nan=False, description="the block is flat while the line's slope is smaller, either way"
    )
    patience: PositiveInt = Field(2, description="flat rounds in a row after which the stage ends")


@dataclass
class Pace(Ending):
    """Ends a stage once the updates of its blocks cancel each other out no more than in the rounds before.

    With the updates U of the last ``window`` rounds a round has the ratio |sum U| / sum |U| in the norm L``power``: 1
    for updates of one direction, near 0 for those that go round in circles.  A line is fitted by least squares through
    the last ``fit`` means over ``smooth`` ratios.  Its slope must be flat for ``patience`` rounds.

    All of the stage's blocks count together, with the embedding where it trains; the output (norm and head) doesn't.
    """

    state: ClassVar = ("lengths", "ratios", "flat")
    options: PaceOptions
    power: Literal[1, 2]
    smooth: int = 1
    updates: list[dict[str, Tensor]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    flat: int = 0

    def sees(self, seen: EndedRound, stage: Stage) -> bool:
        """Whether the blocks have converged; a round that moved none of them doesn't count."""
        change = {
            address: _precise(seen.after[address]) - _precise(seen.before[address])
            for address in seen.moved_addresses()
            if stage.is_active(name := address.partition("/")[2]) and part_of(name)[1] in ("blocks", *EARLY)
        }
        length, options = self._norm(change.items()), self.options
        if not 0 < length < inf:
            return False
        self.updates = [*self.updates, change][-options.window :]
        self.lengths = [*self.lengths, length][-options.window :]
        if len(self.lengths) < options.window:
            return False
        names = sorted({name for update in self.updates for name in update})
        sums = ((n, torch.stack([update[n] for update in self.updates if n in update]).sum(0)) for n in names)
        ratios = [*self.ratios, self._norm(sums) / sum(self.lengths)]
        self.ratios = ratios[1 - self.smooth - options.fit :]
        means = [fmean(self.ratios[i : i + self.smooth]) for i in range(len(self.ratios) - self.smooth + 1)]
        if len(means) < options.fit:
            return False
        slope = linear_regression(range(options.fit), means).slope
        self.flat = self.flat + 1 if abs(slope) < options.slope else 0
        return self.flat >= options.patience

    def fewest(self, first: int, every: int) -> int:
        """A window of updates for the first ratio, and one round for each further ratio, mean and flat line."""
        return self.options.window + self.smooth + self.options.fit + self.options.patience - 3

    def tensors(self) -> dict[str, Tensor]:
        """The updates of the window."""
        return {f"{n}:{name}": tensor for n, update in enumerate(self.updates) for name, tensor in update.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these updates."""
        self.updates = [{} for _ in self.lengths]
        for key, tensor in tensors.items():
            number, _, name = key.partition(":")
            self.updates[int(number)][name] = tensor

    def _norm(self, tensors: Iterable[tuple[str, Tensor]]) -> float:
        # in the order of names, as a resumed run has read them in another
        total = sum(float(t.double().abs().pow(self.power).sum()) for _, t in sorted(tensors))
        return float(total ** (1 / self.power))


def _precise(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.promote_types(tensor.dtype, torch.float32))
