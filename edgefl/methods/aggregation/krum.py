"""Krum and multi-Krum: whole updates that lie close to most others (Blanchard et al. 2017)."""

from __future__ import annotations

from math import inf

from torch import Tensor

from edgefl.methods.aggregation.rules import ByUpdate, ComparableUpdates

FEWEST = 3
"""Updates of a group that Krum can compare: the paper's 2 f + 2 < m asks for 3 with f = 0.  Of fewer all are kept."""


class MultiKrum(ByUpdate):
    """The mean of the m - f updates that lie closest to most others; ``aggregation.attackers`` is f."""

    paper = "Blanchard et al. 2017"

    def withstands(self, updates: int) -> int:
        """f, with 2 f + 2 < m (proposition 2 of the paper); none of fewer than 3 updates."""
        return 0 if updates < FEWEST else tolerated_attackers(updates, self.section.attackers)

    def shares(self, group: ComparableUpdates) -> list[float]:
        """1 for an update that is kept, else 0."""
        if len(group) < FEWEST:
            return [1.0] * len(group)
        attackers = tolerated_attackers(len(group), self.section.attackers)
        best = rank_updates(group.squared_distances(), attackers)[: self.most(len(group), attackers)]
        return [float(index in best) for index in range(len(group))]

    def most(self, updates: int, attackers: int) -> int:
        """How many of the best updates are kept."""
        return updates - attackers


class Krum(MultiKrum):
    """The update that lies closest to most others; ``aggregation.attackers`` is their number f that may be wild."""

    def most(self, updates: int, attackers: int) -> int:
        """One."""
        return 1


def tolerated_attackers(updates: int, attackers: int | None) -> int:
    """Attackers f that are assumed among m >= 3 updates: those given, at most the largest with 2 f + 2 < m.

    That is the paper's bound.  More aren't refused, because a round's groups may be smaller than its cohort.
    """
    most = (updates - 3) // 2
    return most if attackers is None else min(attackers, most)


def rank_updates(distances: Tensor, attackers: int) -> list[int]:
    """Updates from the best on, by their squared ``distances`` ``[m, m]``.

    The score of an update is the sum of its squared distances to the m - f - 2 nearest others; the lowest is the best,
    and of equal ones the first.
    """
    others = distances.clone().nan_to_num_(nan=inf, posinf=inf).fill_diagonal_(inf)
    scores = others.sort(1).values[:, : len(distances) - attackers - 2].sum(1)
    return [int(index) for index in scores.sort(stable=True).indices]
