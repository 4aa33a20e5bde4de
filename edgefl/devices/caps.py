"""Caps: budgets for a day, or for all rounds together, of the bytes that cross a metered link and of joules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgefl.arrays import Booleans, Floats, Integers

ROUND, DAY, JOB = range(3)
"""What a budget is for: one round, a day from midnight to midnight, or all rounds together."""
LIMITS = ("round", "day", "job")
"""Their names in records, in the same order."""
SECONDS_PER_DAY = 86_400.0
"""Seconds from one midnight of the fleet's clock to the next."""


class Cap(NamedTuple):
    """The budget of a round whose amounts a cap adds up, and for how long: DAY or JOB."""

    budget: str
    lasts: int


CAPS = {
    "bytes_per_day": Cap("bytes", DAY), "energy_per_day": Cap("joules", DAY),
    "bytes_total": Cap("bytes", JOB), "energy_total": Cap("joules", JOB),
}  # fmt: skip
"""The caps of ``fleet.budgets`` by name."""
CAPPED = ("bytes", "joules")
"""The budgets that they add up."""


@dataclass(frozen=True)
class Caps:
    """The caps that a fleet states: ``amounts`` by name, `[all clients]` each, inf for clients without one.

    What clients have spent is a table of the simulation, ``spent`` `[caps + 1, all clients]`: a row for each cap in the
    order of ``amounts``, of a daily one for the client's last day, whose number is the last row.  A round counts when
    and where it ends.  ``begins`` is the time of day in seconds at which the run begins.
    """

    amounts: Mapping[str, Floats]
    begins: float = 0.0

    def names(self, lasts: int) -> list[str]:
        """Those for a day, or for all rounds."""
        return [name for name in self.amounts if CAPS[name].lasts == lasts]

    def of(self, budget: str) -> list[str]:
        """Those that add up this budget's amounts."""
        return [name for name in self.amounts if CAPS[name].budget == budget]

    def nothing_spent(self) -> Floats:
        """The table at the beginning."""
        return np.zeros((len(self.amounts) + 1, len(next(iter(self.amounts.values())))))

    def spend(self, spent: Floats, clients: Integers, amounts: Mapping[str, Floats], at: Floats) -> None:
        """Add the amounts of rounds, by budget, that these distinct clients ended ``at`` virtual times, `[n]`."""
        days = self._days(at)
        for row, name in enumerate(self.amounts):
            before = spent[row, clients]
            if CAPS[name].lasts == DAY:
                before = np.where(spent[-1, clients] == days, before, 0.0)
            spent[row, clients] = before + amounts[CAPS[name].budget]
        spent[-1, clients] = days

    def remainder(self, name: str, clients: Integers | slice, spent: Floats | None, at: float = 0.0) -> Floats:
        """What is left of a cap, at least 0, `[n]`: of a daily one on the day of ``at``; all without ``spent``."""
        whole: Floats = self.amounts[name][clients]
        if spent is None:
            return whole
        gone = spent[list(self.amounts).index(name), clients]
        if CAPS[name].lasts == DAY:
            gone = np.where(spent[-1, clients] == self._days(at), gone, 0.0)
        return np.maximum(whole - gone, 0.0)

    def ready(self, spent: Floats, clients: Integers, costs: Mapping[str, Floats], at: float) -> Booleans:
        """Whether a round that costs so much, by budget, fits what is left of the day: `[n]`."""
        fits = np.ones(len(clients), dtype=bool)
        for name in self.names(DAY):
            fits &= costs[CAPS[name].budget] <= self.remainder(name, clients, spent, at)
        return fits

    def rounds(self, client: int, costs: Mapping[str, float]) -> dict[str, int]:
        """How many rounds that cost so much, by budget, fit each cap that this client has: whole / cost, rounded down.

        A cap that a round takes nothing of isn't told.
        """
        costing = {name: costs[CAPS[name].budget] for name in self.amounts}
        limited = (name for name, cost in costing.items() if cost and np.isfinite(self.amounts[name][client]))
        return {name: int(self.amounts[name][client] // costing[name]) for name in limited}

    def tightest(
        self, budget: str, granted: Floats, clients: Integers | slice, spent: Floats | None
    ) -> tuple[Floats, Integers]:
        """What a round may take of a budget at most, and what that is for: ROUND, DAY or JOB, both `[n]`.

        ``granted`` is for a round.  A round may take a whole day's cap, and what is left of one for all rounds.
        """
        least, lasts = granted, np.zeros(len(granted), np.int8)
        for name in self.of(budget):
            amount = self.remainder(name, clients, spent if CAPS[name].lasts == JOB else None)
            lasts = np.where(amount < least, np.int8(CAPS[name].lasts), lasts)
            least = np.minimum(least, amount)
        return least, lasts

    def midnight(self, at: float) -> float:
        """The virtual time of the first midnight after this one."""
        return float(self._days(at) + 1) * SECONDS_PER_DAY - self.begins

    def _days(self, at: Floats | float) -> Floats:
        return np.floor((np.asarray(at, dtype=float) + self.begins) / SECONDS_PER_DAY)
