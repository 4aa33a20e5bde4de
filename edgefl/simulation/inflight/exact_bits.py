"""Units in which a shared link counts, and checks of its arguments.

Times and rates are floats.  Bits are counted and rates are summed as integers in units of 2^-60: sums of integers are
exact and don't depend on their order.
"""

from __future__ import annotations

from math import inf, isfinite

PER_ONE = 60
UNIT = 2.0**PER_ONE
"""Number of units in a bit, and in a bit/s."""

SPARE = 64
"""Outdated entries that a heap may hold in addition to its number of valid entries."""


def units_of(bits: float) -> int:
    """Bits in units.  Raises ValueError for a negative or infinite number."""
    if not (bits >= 0 and isfinite(bits)):
        raise ValueError(f"the bits of a flow must be finite and 0 or more, not {bits}")
    return int(bits * UNIT)


def link_rate(bits_per_second: float) -> float:
    """The rate of a link in bit/s.  Raises ValueError unless it is finite and above 0."""
    if not (bits_per_second > 0 and isfinite(bits_per_second)):
        raise ValueError(f"the rate of a link must be finite and above 0 bit/s, not {bits_per_second}")
    return float(bits_per_second)


def flow_limit(most: float, capacity: float) -> float:
    """Highest rate of a flow on a link of this capacity, in bit/s.  Raises ValueError unless ``most`` is above 0."""
    if not most > 0:
        raise ValueError(f"the highest rate of a flow must be above 0 bit/s, not {most}")
    return min(float(most), capacity)


def or_null(moment: float) -> float | None:
    """A time as JSON can hold it: None for -inf."""
    return None if moment == -inf else moment


def or_never(moment: float | None) -> float:
    """The time that ``or_null`` converted: -inf for None."""
    return -inf if moment is None else moment
