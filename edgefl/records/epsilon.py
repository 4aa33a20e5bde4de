"""Privacy in records: what rounds with noise have spent, in words too, and what secure aggregation takes."""

from __future__ import annotations

from edgefl.records.record import UNSET, Maybe, Record


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


class SecureSums(Record):
    """What secure aggregation asks of the server, by the updates that came and those that dropped out."""

    unmasked_secrets: int | Maybe = UNSET
    """Secrets that the server puts together from shares, one for each client; this and the next only with
    [`aggregation.secure`](../guides/privacy.md#secure-aggregation)"""
    unmasked_vectors: int | Maybe = UNSET
    """Masks, each as long as an update, that it expands: one for each update, and all neighbours' of a dropout"""


def privacy_words(spent: PrivacySpent | Maybe) -> str:
    """One line: "epsilon 3.24 at delta 1e-06 (pld, noise 0.8, one client added or removed)"; empty without noise."""
    if not isinstance(spent, PrivacySpent):
        return ""
    how = f"{spent.accountant}, noise {spent.noise:g}, {spent.neighbours}"
    return f"epsilon {spent.epsilon:.4g} at delta {spent.delta:g} ({how})"
