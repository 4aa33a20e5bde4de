"""Krum and multi-Krum: whole updates that lie close to most others (Blanchard et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.state import Update

FEWEST = 3
"""Updates of a group that Krum can compare: with fewer, no attacker is tolerated, and all are kept."""

_AT_ONCE, _TOGETHER = 2**20, 2**24
"""Elements of each update, and of all together, that are compared at a time: it bounds the memory of their copies."""


def shares(
    updates: Sequence[Update], weights: Sequence[float], factors: Sequence[float], options: AggregationOptions
) -> list[float]:
    """The share of each update in the mean: 0 if it isn't kept, and a group's shares add up to its number of updates.

    A group are the updates of one client kind that send the same tensors, or the same slices of them.  An update
    without weight isn't kept and counts for none; tensors without data (meta) are kept.  Ties go to the lower client.
    """
    groups: dict[object, list[int]] = {}
    for index, update in enumerate(updates):
        if weights[index]:
            cuts = update.cuts()
            sent = frozenset((address, cuts.get(address)) for address, _, _ in update.changing())
            groups.setdefault((update.kind, sent), []).append(index)
    found = [0.0] * len(updates)
    for group in groups.values():
        kept = group
        if len(group) >= FEWEST:
            distances = squared_distances([updates[i] for i in group], [factors[i] for i in group])
            if distances is not None:
                kept = [group[i] for i in chosen(distances, options)]
        for index in kept:
            found[index] = len(group) / len(kept)
    return found


def tolerated(updates: int, attackers: int | None) -> int:
    """Attackers f that are assumed among m >= 3 updates: those given, at most the largest with 2 f + 2 < m."""
    most = (updates - 3) // 2
    return most if attackers is None else min(attackers, most)


def chosen(distances: Tensor, options: AggregationOptions) -> list[int]:
    """Rows that Krum keeps (the best one) or multi-Krum (the m - f best), of squared ``distances`` `[m, m]`.

    The score of an update is the sum of its squared distances to the m - f - 2 nearest others; the lowest is the best,
    and of equal ones the first.
    """
    count = len(distances)
    attackers = tolerated(count, options.attackers)
    others = distances.clone().nan_to_num_(nan=inf, posinf=inf).fill_diagonal_(inf)
    scores = others.sort(1).values[:, : count - attackers - 2].sum(1)
    best = scores.sort(stable=True).indices.tolist()
    return sorted(best[: 1 if options.rule == "krum" else count - attackers])


def squared_distances(updates: Sequence[Update], factors: Sequence[float]) -> Tensor | None:
    """Squared L2 distances `[m, m]` between whole updates, in float64; None for tensors without data.

    An update is what its client changed, times its factor, over all tensors that are averaged.
    """
    found = torch.zeros(len(updates), len(updates), dtype=torch.float64, device="cpu")
    sent: dict[str, list[tuple[Tensor, Tensor, float]]] = {}
    for update, factor in zip(updates, factors, strict=True):
        for address, value, base in update.changing():
            sent.setdefault(address, []).append((value.flatten(), base.flatten(), factor))
    step = max(1, min(_AT_ONCE, _TOGETHER // len(updates)))
    for address in sorted(sent):
        rows = sent.pop(address)
        if any(value.is_meta or base.is_meta for value, base, _ in rows):
            return None
        for first in range(0, len(rows[0][0]), step):
            at = slice(first, first + step)
            part = torch.stack([((v[at].to(b.dtype) - b[at]) * factor).double() for v, b, factor in rows])
            # not by products of matrices, which lose the small distances between large updates
            found += torch.cdist(part, part, compute_mode="donot_use_mm_for_euclid_dist").square()
    return found
