"""Mean and spread of a figure over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

MOST_FOR_DEVIATION = 4
"""With up to this many seeds a spread is the standard deviation; with more it is the 95 % confidence interval.

Half of the interval is 9 standard deviations with 2 seeds, 1.6 with 4 and 1.2 with 5.
"""
CONFIDENCE = 0.95
"""The coverage that papers of the field print."""


@dataclass(frozen=True)
class SeedSpread:
    """A figure over seeds: ``values`` by seed, with None where the model diverged or the figure doesn't exist.

    ``mean`` is None if a value is None.  ``deviation`` is the standard deviation (n - 1), None for fewer than two
    values.  ``half_width`` is half the 95 % confidence interval of the mean by Student's t, None likewise.  In
    ``diverged`` seeds the figure is that of a diverged model.
    """

    values: tuple[float | None, ...]
    diverged: int = 0

    @property
    def known_values(self) -> list[float]:
        """The values that aren't None."""
        return [value for value in self.values if value is not None]

    @property
    def is_complete(self) -> bool:
        """Whether every seed has a value."""
        return len(self.known_values) == len(self.values) > 0

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return fmean(self.known_values) if self.is_complete else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds."""
        return stdev(self.known_values) if self.is_complete and len(self.values) > 1 else None

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean."""
        if self.deviation is None:
            return None
        from scipy.special import stdtrit  # takes longer to import than a page without spreads to write

        n = len(self.values)
        return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * self.deviation / sqrt(n)

    def reach(self, *, confidence: bool) -> float | None:
        """What is shown beside the mean: half of the confidence interval, or the standard deviation."""
        return self.half_width if confidence else self.deviation


def with_confidence(spreads: Sequence[SeedSpread]) -> bool:
    """Whether all these have enough seeds for a confidence interval."""
    return bool(spreads) and all(len(spread.values) > MOST_FOR_DEVIATION for spread in spreads)


def spread_words(*, confidence: bool) -> str:
    """What stands behind ± in tables and is drawn as bands and error bars, in words."""
    return "half of the 95 % interval (Student's t)" if confidence else "standard deviation"
