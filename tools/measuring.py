"""What the tools share: arguments, timers, ratios of pairs, their spread, and Markdown tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    """Each number's ratio to the reference's of the same turn.  Raises ValueError for other numbers of turns."""
    if len(seconds) != len(reference):
        raise ValueError(f"{len(seconds)} turns can't be paired with {len(reference)}")
    return [ours / theirs for ours, theirs in zip(seconds, reference, strict=True)]


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn: each turn begins one further, so that everybody has every place equally often."""
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def seconds_of(do: Callable[[], object]) -> float:
    """Processor seconds of one call, of all threads of this process."""
    started = time.process_time()
    do()
    return time.process_time() - started


def paired(calls: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Processor seconds of each call in every turn; the calls alternate, and each begins equally many turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in in_turn(list(calls), turn):
            found[name].append(seconds_of(calls[name]))
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """A Markdown table.  Its first column is text, and so are the others unless they are ``numbers``."""
    lines = [head, ["---", *["---:" if numbers else "---"] * (len(head) - 1)], *rows]
    texts = (f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    return "\n".join(" ".join(text.split()) for text in texts)


def parser_of(doc: str | None, command: str | None = None) -> argparse.ArgumentParser:
    """A parser that tells the first line of a module's text."""
    return argparse.ArgumentParser(prog=command, description=(doc or "").partition("\n")[0])


def several(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes names, separated by commas."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} isn't one of {', '.join(known)}")
        return names

    return read
