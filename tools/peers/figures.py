"""Arithmetic of the tools: ratios of paired rounds, their spread, and Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some numbers."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles, which are interpolated between the sorted values.  Raises ValueError without values."""
    if not values:
        raise ValueError("a spread needs at least one value")
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), low, high, len(values))


def ratios(seconds: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Each round's ratio to the reference's round of the same turn.  Raises ValueError for other numbers of rounds."""
    if len(seconds) != len(reference):
        raise ValueError(f"{len(seconds)} rounds can't be paired with {len(reference)}")
    return [ours / theirs for ours, theirs in zip(seconds, reference, strict=True)]


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn: each turn begins one further, so that everybody has every place equally often."""
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def shares(parts: dict[str, float], whole: float) -> dict[str, float]:
    """The parts and ``the rest`` of a whole, in the unit of both; the rest is below 0 if the parts are more than it."""
    return {**parts, "the rest": whole - sum(parts.values())}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
