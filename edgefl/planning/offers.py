"""Judging fleets without planning: what works cost on devices and over links, and what clients choose of them.

Predicting is slow and doesn't depend on devices; judging needs only the predicted costs.  So a fleet with other numbers
is judged without predicting again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.cost import numbers_of, priced
from edgefl.cost.phases import NUMBERS
from edgefl.devices import Device, Link
from edgefl.planning.judge import Choices, choose_stages
from edgefl.planning.price import Demand

Integers = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Priced:
    """What works cost on pairs of device and link: ``costs`` `[pairs, works]` by the keys of BUDGETS."""

    costs: Mapping[str, Floats]

    def of(self, works: Integers, pairs: Integers) -> dict[str, Floats]:
        """The costs of these works, each on its pair: `[n]` by the keys of BUDGETS."""
        return {name: values[pairs, works] for name, values in self.costs.items()}


class Prices:
    """The prices of works on any devices and links; what works take on a device is computed once.

    Compute time doesn't depend on the link, nor transfer time on the device.
    """

    def __init__(self, demands: Sequence[Demand]):
        self._computes = {id(demand.compute): demand.compute for demand in demands}
        self._compute_of = [id(demand.compute) for demand in demands]
        computes, moved = [d.compute for d in demands], [d.traffic for d in demands]
        self._down = np.array([t.serialised_download_bytes for t in moved], dtype=float)
        self._up = np.array([t.serialised_upload_bytes for t in moved], dtype=float)
        self._fixed = {
            "memory": np.array([c.peak_memory_bytes for c in computes], dtype=float),
            "flops": np.array([c.forward_flops + c.backward_flops for c in computes], dtype=float),
            "bytes": self._down + self._up,
        }
        self._cool: dict[Device, Floats] = {}

    def on(self, pairs: Sequence[tuple[Device, Link]], throttling: bool) -> Priced:
        """The prices on these pairs."""
        works = len(self._compute_of)
        rows = [numbers_of(self._down, self._up, self._cool_seconds(device), device, link) for device, link in pairs]
        numbers = np.array([np.stack(np.broadcast_arrays(*row), axis=1) for row in rows])
        seconds, joules = priced(numbers.reshape(-1, len(NUMBERS)), throttling)
        shape = len(pairs), works
        costs = {name: np.broadcast_to(values, shape) for name, values in self._fixed.items()}
        return Priced(costs | {"seconds": seconds.reshape(shape), "joules": joules.reshape(shape)})

    def _cool_seconds(self, device: Device) -> Floats:
        """Seconds of loading and computing each work, without throttling: `[works]`."""
        key = replace(device, compute_watts=0.0, idle_watts=0.0)  # power doesn't change times
        if key not in self._cool:
            by = {i: compute.seconds(device) + compute.load_seconds(device) for i, compute in self._computes.items()}
            self._cool[key] = np.array([by[index] for index in self._compute_of], dtype=float)
        return self._cool[key]


def choose(
    offered: Mapping[int, Integers], pairs: Integers, priced: Priced, budgets: Mapping[str, Floats], *, why: bool = True
) -> Choices:
    """The first offered work that fits each client's budgets, or else the nearest (``choose_stages``).

    ``offered`` has the works `[clients]` by index of their stage, best first; ``pairs`` `[clients]` says where each
    client does them; ``Choices.row`` is the work.
    """

    def offer(works: Integers, left: Integers) -> tuple[Integers, dict[str, Floats]]:
        chosen = works[left]
        return chosen, priced.of(chosen, pairs[left])

    return choose_stages({index: partial(offer, works) for index, works in offered.items()}, budgets, why=why)
