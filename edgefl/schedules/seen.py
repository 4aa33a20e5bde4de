"""What a schedule sees of a round that has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from edgefl.schedules.stages import part_of
from edgefl.work import Address
from edgefl.work.sums import is_averaged


@dataclass(frozen=True)
class EndedRound:
    """A round that has ended, as ``Schedule.learn`` gets it."""

    round: int
    """The round."""
    metrics: Mapping[str, Mapping[str, float | None]]
    """Metrics of its evaluation by kind and name; empty without one, None for one that isn't finite."""
    losses: Mapping[str, float | None]
    """Mean training loss of each kind's updates, weighted by samples; None if none is finite, absent without
    updates."""
    before: Mapping[Address, Tensor] = field(repr=False)
    """The server's tensors before the round; one that the round left alone is the same object ``after`` it."""
    after: Mapping[Address, Tensor] = field(repr=False)
    """The server's tensors after the round."""

    @cached_property
    def moved(self) -> dict[str, float]:
        """L2 norm of the change of each part in this round: ``image/image.blocks.3``, ``image/image.head``.

        Buffers count, tables don't.
        """
        squares: dict[str, float] = {}
        for address in self.averaged():
            old, new = self.before[address], self.after[address]
            kind, _, name = address.partition("/")
            tower, part, block = part_of(name)
            key = f"{kind}/{tower}.{part}" + ("" if block is None else f".{block}")
            change = 0.0 if new is old else float((new.double() - old.double()).square().sum())
            squares[key] = squares.get(key, 0.0) + change
        return {key: square**0.5 for key, square in squares.items()}

    def averaged(self) -> Iterator[Address]:
        """The addresses of the models' tensors of floating point, which averages move."""
        for address, new in self.after.items():
            if address in self.before and is_averaged(address) and new.is_floating_point():
                yield address
