"""The units in which a shared link counts, and what it takes.

Times and rates are floats; bits are counted and rates summed in whole units of 2^-60: whole numbers have one sum, in
whatever order they are added, and lose nothing beside a large total.
"""

from __future__ import annotations

from math import inf, isfinite

PER_ONE = 60
UNIT = 2.0**PER_ONE
"""Units of a bit, and of a bit a second."""

SPARE = 64
"""Outdated entries that a heap may hold beside as many again as are valid."""


def units_of(bits: float) -> int:
    """Bits in units.  Raises ValueError for less than none."""
    if not (bits >= 0 and isfinite(bits)):
        raise ValueError(f"a flow of {bits} bits: give 0 or more")
    return int(bits * UNIT)


def link_rate(bits_per_second: float) -> float:
    """The rate of a link.  Raises ValueError if nothing would ever arrive, or all of it at once."""
    if not (bits_per_second > 0 and isfinite(bits_per_second)):
        raise ValueError(f"a link of {bits_per_second} bit/s: give a finite rate above 0")
    return float(bits_per_second)


def flow_limit(most: float, capacity: float) -> float:
    """What a flow can take of a link of this capacity.  Raises ValueError if that is nothing."""
    if not most > 0:
        raise ValueError(f"a flow of at most {most} bit/s: give a rate above 0")
    return min(float(most), capacity)


def or_null(moment: float) -> float | None:
    """A moment as JSON can hold it: null if it has not been."""
    return None if moment == -inf else moment


def or_never(moment: float | None) -> float:
    """The moment again."""
    return -inf if moment is None else moment
