"""Privacy in records, only with `aggregation.noise` or `privacy.epsilon`: what rounds have spent, and the words."""

from __future__ import annotations

from edgefl.records.record import Maybe, Record


class PrivacySpent(Record):
    """What the rounds so far have spent."""

    epsilon: float
    """Epsilon of all rounds so far"""
    delta: float
    """The chance with which it may not hold (`privacy.delta`)"""
    noise: float
    """Deviation of the noise on each sum as a multiple of `aggregation.clip`: given, or found for `privacy.epsilon`"""
    neighbours: str
    """By what federations differ that epsilon can't tell apart: `one client added or removed`, or
    `one client replaced`"""
    accountant: str
    """`pld` or `rdp`"""


def privacy_words(spent: PrivacySpent | Maybe) -> str:
    """One line: "epsilon 3.24 at delta 1e-06 (pld, noise 0.8, one client added or removed)"; empty without noise."""
    if not isinstance(spent, PrivacySpent):
        return ""
    how = f"{spent.accountant}, noise {spent.noise:g}, {spent.neighbours}"
    return f"epsilon {spent.epsilon:.4g} at delta {spent.delta:g} ({how})"
