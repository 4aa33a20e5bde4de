"""Judging fleets without planning: what works cost on devices and over links, and what clients choose of them.

Predicting is slow and doesn't depend on devices; judging needs only the predicted costs.  So a fleet with other numbers
is judged without predicting again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgefl.arrays import Floats, Integers
from edgefl.cost.phases import Phases, numbers_of
from edgefl.cost.price import amounts_of, price_phases
from edgefl.devices import Device, Link
from edgefl.devices.budgets import BUDGETS, amounts
from edgefl.planning.judge import StageChoices, choose_stages
from edgefl.planning.planner import Demand


@dataclass(frozen=True)
class Priced:
    """What works cost on pairs of device and link: ``costs`` `[pairs, works]` by budget."""

    costs: Mapping[str, Floats]

    def work_costs(self, works: Integers, pairs: Integers) -> dict[str, Floats]:
        """The costs of these works, each on its pair: `[n]` by budget."""
        width = next(iter(self.costs.values())).shape[1]
        places = pairs.astype(np.int64) * width + works
        return {name: values.ravel()[places] for name, values in self.costs.items()}


class Prices:
    """The prices of works on any devices and links, by the ``names`` of budgets; a device's computing is kept.

    Compute time doesn't depend on the link, nor transfer time on the device.
    """

    def __init__(self, demands: Sequence[Demand], names: Sequence[str] = BUDGETS):
        self.names = names
        # by identity, since demands of equal works share the object, which is held here
        self._computes = {id(demand.compute): demand.compute for demand in demands}
        self._compute_of = [id(demand.compute) for demand in demands]
        self._exchanges = [demand.compute.exchange for demand in demands]
        self._amounts = amounts_of([(demand.compute, demand.traffic) for demand in demands])
        self._cool: dict[Device, tuple[Floats, Floats]] = {}

    def on(self, pairs: Sequence[tuple[Device, Link]], throttling: bool) -> Priced:
        """The prices on these pairs."""
        costs = {name: np.empty((len(pairs), len(self._compute_of))) for name in self.names}
        for index, (device, link) in enumerate(pairs):
            price = price_phases(self.phases(device, link, throttling), self._amounts, device, link)
            for name, values in amounts(self.names, price).items():
                costs[name][index] = values
        return Priced(costs)

    def phases(self, device: Device, link: Link, throttling: bool) -> Phases:
        """The phases of each work's round on a device and link, without jitter."""
        cool, busy = self._computing(device)
        moved = self._amounts["download_bytes"], self._amounts["upload_bytes"]
        return Phases(numbers_of(*moved, cool, device, link, busy, self._exchanges), throttling)

    def _computing(self, device: Device) -> tuple[Floats, Floats]:
        """Seconds of loading and computing each work, without throttling, and the share that is busy: `[works]`."""
        key = replace(device, compute_watts=0.0, idle_watts=0.0)  # power doesn't change times
        if key not in self._cool:
            by = {i: compute.cool(device) for i, compute in self._computes.items()}
            cool, busy = np.array([by[index] for index in self._compute_of], dtype=float).reshape(-1, 2).T
            self._cool[key] = cool, busy
        return self._cool[key]


def choose(
    offered: Mapping[int, Integers], pairs: Integers, priced: Priced, budgets: Mapping[str, Floats], *, why: bool = True
) -> StageChoices:
    """The first offered work that fits each client's budgets, or else the nearest (``choose_stages``).

    ``offered`` has the works `[clients]` by index of their stage, best first; ``pairs`` `[clients]` says where each
    client does them; ``StageChoices.row`` is the work.
    """

    def offer(works: Integers, left: Integers) -> tuple[Integers, dict[str, Floats]]:
        chosen = works[left]
        return chosen, priced.work_costs(chosen, pairs[left])

    return choose_stages({index: partial(offer, works) for index, works in offered.items()}, budgets, why=why)
