"""Sums of clipped changes as integers modulo R, which is what secure aggregation lets a server learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from edgefl.work import Address
from edgefl.work.slices import Cut, covers, take, within
from edgefl.work.sums import Key, Payloads, Upload, changing, exact


class FixedPointMeans:
    """Means like those of ``WeightedMeans``, of values in -``clip`` to ``clip`` that are rounded to 2^``bits`` levels.

    ``most`` updates are added at most, so that R = most (2^bits - 1) + 1 holds their sum; each has weight 1.
    """

    def __init__(
        self,
        cuts: Mapping[Address, Sequence[Cut | None]],
        totals: Mapping[Key, float],
        clip: float,
        bits: int,
        most: int,
    ):
        self.cuts, self.totals, self.clip = cuts, totals, clip
        self.levels = 2**bits - 1
        self.modulus = most * self.levels + 1
        self.sums: dict[Key, Tensor] = {}
        self.sent: set[Address] = set()
        self._added: dict[Key, tuple[int, torch.dtype]] = {}

    def add(
        self, upload: Upload, payloads: Payloads, base: Mapping[Address, Tensor], weight: float, factor: float
    ) -> None:
        """Add an update, whose ``factor`` brings its values into the range."""
        for address, cut, value, start in changing(upload, payloads, base):
            self.sent.add(address)
            for part in self.cuts[address]:
                if not covers(cut, part):
                    continue
                inner = None if cut == part else within(cut, part)
                its, began = take(value, inner), exact(take(start, inner))
                change = (its.to(began.dtype) - began).double() * factor
                coded = ((change / self.clip + 1) * (self.levels / 2)).round().clamp(0, self.levels).long()
                key = address, part
                self.sums[key] = (self.sums.get(key, torch.zeros_like(coded)) + coded) % self.modulus
                self._added[key] = self._added.get(key, (0, began.dtype))[0] + 1, began.dtype

    @property
    def means(self) -> dict[Key, Tensor]:
        """The means over those that were added; who did not arrive is in no sum."""
        found = {}
        for key, total in self.sums.items():
            times, dtype = self._added[key]
            whole = (total.double() * 2 / self.levels - times) * self.clip
            found[key] = (whole / self.totals[key]).to(dtype)
        return found
