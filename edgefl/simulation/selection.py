"""Selections: who of the eligible clients takes part in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefl import seeds
from edgefl.simulation.options import RoundOptions


def places(share: float, clients: int, eligible: int) -> int:
    """``max(int(share x clients), 1)`` places, as many as there are eligible clients for."""
    return min(max(int(share * clients), 1), eligible)


def random(
    eligible: Mapping[str, Sequence[int]], population: Mapping[str, int], options: RoundOptions, seed: int, round: int
) -> list[int]:
    """Uniformly without replacement; per client kind if stratified, else from the union.

    ``eligible`` lists clients by kind, ``population`` counts all clients of those kinds.  Ascending by client.
    """
    everyone = sum(population.values())
    share = options.cohort / everyone if isinstance(options.cohort, int) else options.cohort
    groups = dict(eligible) if options.stratify else {"": [c for clients in eligible.values() for c in clients]}
    chosen: list[int] = []
    for index, (kind, clients) in enumerate(groups.items()):
        count = places(share, population[kind] if options.stratify else everyone, len(clients))
        draw = seeds.generator(seed, "cohort", round, index)
        chosen += [int(c) for c in draw.choice(sorted(clients), count, replace=False)] if count else []
    return sorted(chosen)
