"""Hostile inputs in cases of fifty, so that an attack can go on after them; the search is that of ``tools/fuzz.py``."""

from __future__ import annotations

import atexit
from functools import cache

from fuzzing.judging import Judge
from fuzzing.search import search

SHARES = ("scenarios",) * 18 + ("profiles",) * 8 + ("traces",) * 6 + ("tables",) * 5 + ("runs",) * 3
"""Kinds of input of cases that follow one another."""
INPUTS = 50
"""Different inputs of a case."""


@cache
def _judge() -> Judge:
    judge = Judge()
    atexit.register(judge.__exit__)
    return judge


def inputs(number: int, seed: int) -> tuple[list[str], list[str]]:
    """Try the inputs of a case; what was tried, and a line for each failure with its smallest input."""
    kind = SHARES[number % len(SHARES)]
    found = search(_judge(), kind, 1_000_000 * seed + number, count=INPUTS, shrink_seconds=10.0)
    lines = [
        f"{each.finding.signature}: {each.finding.message[:200]} "
        f"({', '.join(f'{name}: {each.case.files.get(name)!r:.200}' for name in each.case.hostile)})"
        for each in found.values()
    ]
    return [f"{INPUTS} {kind}"], lines
