"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b and c``."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


MOST_NAMED = 4
"""Rows that a sentence names, as many as a reader holds at once; of more it names the first."""


def some_names(names: Sequence[str]) -> str:
    """The same, without the last of many: ``a, b and 7 others``."""
    return join_names(names) if len(names) <= MOST_NAMED else f"{', '.join(names[:2])} and {len(names) - 2} others"
