"""Numbers of a cohort's places for each group of clients."""

from __future__ import annotations

from collections.abc import Mapping

from edgefl.devices.fleet import apportion


def places(cohort: float, population: Mapping[str, int]) -> dict[str, int]:
    """Number of places of each group of clients.

    A share gives each group ``max(int(share x clients), 1)``.  A number is apportioned to the groups by size and met
    exactly, unless the population is smaller.
    """
    if isinstance(cohort, int):
        return apportion({group: float(n) for group, n in population.items()}, min(cohort, sum(population.values())))
    return {group: max(int(cohort * n), 1) for group, n in population.items()}
