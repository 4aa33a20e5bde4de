"""Orders in which the clients of a group are asked."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from edgefl.arrays import Floats, Integers

NO_CLIENTS = np.empty(0, dtype=np.int64)

FEW = 64
"""Up to so many positions, sets are faster than sorting: 64 took 5 us against 18 us, and 256 about as long."""


class SelectionOrder(Protocol):
    """An order of distinct positions in a group, returned in pieces."""

    def take(self, wanted: int) -> Integers:
        """The next positions, about ``wanted`` of them; empty at the end of the order."""


class RandomOrder:
    """Positions 0 to ``size`` - 1 in random order: uniform, or drawn by weight without replacement.

    ``sums`` `[size]` are the cumulative weights.  The cost scales with the positions taken, until half of them (by
    weight) are; then the remaining ones are ordered at once.  The first piece of a uniform order is
    ``draw.choice(size, wanted, replace=False)``.
    """

    def __init__(self, draw: np.random.Generator, size: int, sums: Floats | None = None):
        self._draw, self._size, self._sums = draw, size, sums
        self._taken = NO_CLIENTS
        self._weight = 0.0
        self._remaining: Integers | None = None

    def take(self, wanted: int) -> Integers:
        """The next positions, about ``wanted`` of them; empty when all are taken."""
        if self._remaining is None and self._sums is None and not len(self._taken):
            if wanted == 1:  # without a size the draw is the same, and takes half as long
                return self._mark_taken(np.array([self._draw.choice(self._size, replace=False)]))
            return self._mark_taken(self._draw.choice(self._size, min(wanted, self._size), replace=False))
        while self._remaining is None and self._sparse(wanted):
            positions = self._new(self._draw_positions(wanted))
            if len(positions):
                return self._mark_taken(positions)
        if self._remaining is None:
            free = np.ones(self._size, dtype=bool)
            free[self._taken] = False
            self._remaining = self._shuffle(free.nonzero()[0])
        positions, self._remaining = self._remaining[:wanted], self._remaining[wanted:]
        return positions

    def _new(self, positions: Integers) -> Integers:
        """The distinct ones of these positions that aren't taken, in order."""
        if len(positions) + len(self._taken) <= FEW:
            taken = set(self._taken.tolist())
            return np.array([p for p in dict.fromkeys(positions.tolist()) if p not in taken], dtype=np.int64)
        _, first = np.unique(positions, return_index=True)
        positions = positions[np.sort(first)]
        return positions[~np.isin(positions, self._taken)]

    def _sparse(self, wanted: int) -> bool:
        if 2 * (len(self._taken) + wanted) > self._size:
            return False
        return self._sums is None or 2 * self._weight < self._sums[-1]

    def _draw_positions(self, wanted: int) -> Integers:
        if self._sums is None:
            return self._draw.integers(self._size, size=wanted)
        positions: Integers = np.searchsorted(self._sums, self._draw.random(wanted) * self._sums[-1], side="right")
        positions = np.minimum(positions, self._size - 1)  # a product may round up to the last sum
        return positions

    def _shuffle(self, positions: Integers) -> Integers:
        if self._sums is None:
            return self._draw.permutation(positions)
        return positions[by_weight(self._draw, self._weights(positions))]

    def _weights(self, positions: Integers) -> Floats:
        assert self._sums is not None
        return self._sums[positions] - np.where(positions > 0, self._sums[positions - 1], 0.0)

    def _mark_taken(self, positions: Integers) -> Integers:
        self._taken = np.concatenate([self._taken, positions])
        if self._sums is not None:
            self._weight += float(self._weights(positions).sum())
        return positions


def by_weight(draw: np.random.Generator, weights: Floats) -> Integers:
    """All positions of ``weights``, drawn by weight without replacement; zero weights come last.

    Positions are sorted by exponential waiting times whose rates are the weights: each comes first with a probability
    proportional to its weight (Efraimidis and Spirakis 2006).
    """
    order = draw.permutation(len(weights))
    with np.errstate(divide="ignore"):
        waits = draw.exponential(size=len(weights)) / weights[order]
    return order[np.argsort(waits, kind="stable")]


class Circle:
    """Positions in cyclic order from ``start``."""

    def __init__(self, size: int, start: int):
        self._size, self._start, self._given = size, start, 0

    def take(self, wanted: int) -> Integers:
        """The next ``wanted`` positions; empty after one cycle."""
        count = min(wanted, self._size - self._given)
        positions = (self._start + self._given + np.arange(count)) % max(self._size, 1)
        self._given += count
        return positions
