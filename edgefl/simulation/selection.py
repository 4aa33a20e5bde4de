"""Selections: who of the eligible clients takes part in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefl import seeds
from edgefl.devices.fleet import apportion
from edgefl.simulation.options import RoundOptions


def places(cohort: float, population: Mapping[str, int]) -> dict[str, int]:
    """Places of each group of clients.

    A share gives each group ``max(int(share x clients), 1)``; a number is dealt to the groups by their size, so that
    it is met exactly (or everyone takes part).
    """
    if isinstance(cohort, int):
        return apportion({group: float(n) for group, n in population.items()}, min(cohort, sum(population.values())))
    return {group: max(int(cohort * n), 1) for group, n in population.items()}


def random(
    eligible: Mapping[str, Sequence[int]], population: Mapping[str, int], options: RoundOptions, seed: int, round: int
) -> list[int]:
    """Uniformly without replacement; per client kind if stratified, else from the union.

    ``eligible`` lists clients by kind, ``population`` counts all clients of those kinds.  Ascending by client.
    """
    groups = dict(eligible) if options.stratify else {"": [c for clients in eligible.values() for c in clients]}
    sizes = dict(population) if options.stratify else {"": sum(population.values())}
    seats = places(options.cohort, sizes) if any(sizes.values()) else {}
    chosen: list[int] = []
    for index, (group, clients) in enumerate(groups.items()):
        count = min(seats.get(group, 0), len(clients))
        draw = seeds.generator(seed, "cohort", round, index)
        chosen += [int(c) for c in draw.choice(sorted(clients), count, replace=False)] if count else []
    return sorted(chosen)
