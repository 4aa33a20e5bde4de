"""What a schedule sees of a round that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

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

    def moved_addresses(self) -> list[Address]:
        """The models' tensors of floating point, buffers among them, that are others after the round."""
        return [
            address
            for address, new in self.after.items()
            if new is not self.before.get(address, new) and is_averaged(address) and new.is_floating_point()
        ]
