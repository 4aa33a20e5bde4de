"""Timeline of live memory: bytes that are alive after every operator of a work, by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """Live memory after one operator.

    ``operator`` is torch's name (``aten.addmm``); ``scope`` the running part of the model (``image.blocks.3``), empty
    outside of it, and in the backward phase the part whose gradients are computed; ``phase`` is start, forward,
    backward, optimizer or finish; ``step`` counts the metered steps of this pass and pattern from 1.  ``totals`` are
    bytes in the order of ``edgefl.work.PARTS``.
    """

    operator: str
    scope: str
    phase: str
    distinct_pass: int
    pattern: str
    step: int
    totals: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Live bytes, summed over all parts."""
        return sum(self.totals)


@dataclass(frozen=True)
class Timeline:
    """The moments of a work in order."""

    moments: Sequence[Moment]

    @property
    def peak(self) -> int:
        """Index of the first moment with the most bytes."""
        return max(range(len(self.moments)), key=lambda i: (self.moments[i].bytes, -i))
