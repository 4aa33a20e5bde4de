"""Mean and spread of a figure over seeds, and which of several figures is apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

MOST_FOR_DEVIATION = 4
"""With up to this many seeds a spread is the standard deviation; with more it is the 95 % confidence interval."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: ``values`` by seed, with None where the model diverged or the figure doesn't exist.

    ``mean`` is None if a value is None.  ``deviation`` is the standard deviation (n - 1), None for fewer than two
    values.  ``half_width`` is half the 95 % confidence interval of the mean by Student's t, None likewise.  In
    ``diverged`` seeds the figure is that of a diverged model.
    """

    values: tuple[float | None, ...]
    diverged: int = 0

    @property
    def known(self) -> list[float]:
        """The values that aren't None."""
        return [value for value in self.values if value is not None]

    @property
    def complete(self) -> bool:
        """Whether every seed has a value."""
        return len(self.known) == len(self.values) > 0

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return fmean(self.known) if self.complete else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds."""
        return stdev(self.known) if self.complete and len(self.values) > 1 else None

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean."""
        if self.deviation is None:
            return None
        n = len(self.values)
        return student_t(n - 1) * self.deviation / sqrt(n)

    def interval(self, *, confidence: bool) -> tuple[float, float] | None:
        """Mean ± half the confidence interval, or mean ± standard deviation; None where there is no spread."""
        reach = self.half_width if confidence else self.deviation
        return None if self.mean is None or reach is None else (self.mean - reach, self.mean + reach)


def student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution for this many degrees of freedom, wrong by at most 0.02 %.

    Expansion about the normal quantile: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.  For few
    degrees, where the expansion is wrong by more, these are tabulated quantiles.
    """
    few = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445}
    if degrees in few:
        return few[degrees]
    z, n = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def with_confidence(spreads: Sequence[Spread]) -> bool:
    """Whether all these have enough seeds for a confidence interval."""
    return bool(spreads) and all(len(spread.values) > MOST_FOR_DEVIATION for spread in spreads)


def best_of(spreads: Sequence[Spread], *, higher: bool, confidence: bool) -> int | None:
    """Index of the best figure if its interval is apart from all others', else None.

    ``higher`` says whether a larger figure is better.  None if there is a single figure, or if one lacks a spread.
    """
    intervals = [spread.interval(confidence=confidence) for spread in spreads]
    known = [(low, high) if higher else (-high, -low) for low, high in filter(None, intervals)]
    if len(known) < 2 or len(known) < len(spreads):
        return None
    best = max(range(len(known)), key=lambda index: known[index][0])
    others = [high for index, (_, high) in enumerate(known) if index != best]
    return best if known[best][0] > max(others) else None
