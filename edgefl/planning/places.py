"""How many places of a cohort each group of clients has."""

from __future__ import annotations

from collections.abc import Mapping

from edgefl.devices.fleet import apportion


def places(cohort: float, population: Mapping[str, int]) -> dict[str, int]:
    """Places of each group of clients.

    A share gives each group ``max(int(share x clients), 1)``; a number is dealt to the groups by their size, so that
    it is met exactly (or everyone takes part).
    """
    if isinstance(cohort, int):
        return apportion({group: float(n) for group, n in population.items()}, min(cohort, sum(population.values())))
    return {group: max(int(cohort * n), 1) for group, n in population.items()}
