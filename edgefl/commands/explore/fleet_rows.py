"""The fleet of a cell as the page has it: its clients, their devices, and what owners grant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.devices import Device, Link, available_memory_bytes
from edgefl.devices.fleet import draw_budgets
from edgefl.planning import DataCoverage, Setup
from edgefl.records.explore import ExploredFleet, HeldClasses, NamedDevice, NamedLink
from edgefl.report.explore.page_columns import Columns
from edgefl.scenario import Scenario

MOST_ROWS = 100_000
"""Rows of a fleet; of more clients those that are equal share a row."""
BITS = (52, 10, 8, 6, 5, 4, 3, 2, 1, 0)
"""Binary digits that granted amounts keep after the first, until there are few enough rows."""

Integers = NDArray[Any]
Floats = NDArray[np.float64]


class Fleets:
    """The rows of the cells' fleets; those of a cell are usually those of the one before."""

    def __init__(self) -> None:
        self._latest: FleetRows | None = None

    def rows(self, scenario: Scenario, setup: Setup, spot: Integers) -> FleetRows:
        """The rows of a scenario's fleet; ``spot`` `[clients]` is equal for clients of equal cost."""
        if self._latest is None or not self._latest.same(scenario, spot):
            self._latest = FleetRows(scenario, setup, spot)
        return self._latest


class FleetRows:
    """The rows of a fleet: clients, or those that are equal where there are too many."""

    def __init__(self, scenario: Scenario, setup: Setup, spot: Integers):
        self.scenario, self.setup, self.clients = scenario, setup, spot
        fleet, options = setup.fleet, scenario.fleet.budgets
        unlimited = options.model_copy(update={"within_device": False})
        granted, _ = draw_budgets(unlimited, fleet.devices, fleet.device_index, setup.seed)
        self.granted = {name: granted[name] for name in fleet.budget_names}
        if fleet.energy_total is not None:
            self.granted["energy_total"] = fleet.energy_total
        held = DataCoverage.of(setup)
        self.names, classes = held.names, held.classes
        self.held: Integers | None = None
        if classes is not None and classes.shape[1]:
            self.held = np.packbits(classes > 0, axis=1, bitorder="little")
        self.rows, self.counts, self.rounded = np.arange(len(spot)), np.ones(len(spot), np.int64), False
        if len(spot) > MOST_ROWS:
            self._share_rows(spot)
        self.spot = spot[self.rows]

    def same(self, scenario: Scenario, spot: Integers) -> bool:
        """Whether these are the rows of another scenario too."""
        mine = self.scenario
        return (mine.seed, mine.data, mine.fleet) == (scenario.seed, scenario.data, scenario.fleet) and np.array_equal(
            self.clients, spot
        )

    def _share_rows(self, spot: Integers) -> None:
        """Let clients share rows that are equal, with fewer and fewer digits of what is granted."""
        alike = spot
        if self.held is not None:
            alike = _together(alike, np.unique(self.held, axis=0, return_inverse=True)[1].ravel())
        exact = self.granted
        drawn = {name: values for name, values in exact.items() if (values != values[0]).any()}
        for bits in BITS:
            self.granted = exact | {name: rounded(values, bits) for name, values in drawn.items()}
            row = alike
            for name in drawn:
                row = _together(row, self.granted[name])
            self.rows, self.counts = np.unique(row, return_index=True, return_counts=True)[1:]
            if len(self.rows) <= MOST_ROWS:
                break
        self.rounded = any((self.granted[name] != values).any() for name, values in exact.items())

    def fleet(self, columns: Columns) -> ExploredFleet:
        """The fleet of these rows."""
        setup, rows = self.setup, self.rows
        fleet, budgets = setup.fleet, self.scenario.fleet.budgets
        granted = {name: columns.add(values[rows]) for name, values in self.granted.items()}
        return ExploredFleet(
            clients=len(fleet),
            rows=len(rows),
            counts=columns.add(self.counts),
            kinds=list(setup.clients.kinds),
            kind=columns.add(np.asarray(setup.clients.client_kind)[rows]),
            devices=named_devices(fleet.devices),
            device=columns.add(fleet.device_index[rows]),
            links=named_links(fleet.links),
            link=columns.add(fleet.link_index[rows]),
            samples=columns.add(np.asarray(setup.clients.client_samples)[rows]),
            energy_total=granted.pop("energy_total", None),
            granted=granted,
            within_device=budgets.within_device,
            classes=None
            if self.held is None
            else HeldClasses(names=list(self.names), width=self.held.shape[1], held=columns.add(self.held[rows])),
            rounded=self.rounded,
        )


def rounded(values: Floats, bits: int) -> Floats:
    """The values with so many binary digits after the first; those just between two are rounded to the even one."""
    mantissa, exponent = np.frexp(values)
    shorter: Floats = np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)
    return shorter


def _together(row: Integers, values: NDArray[Any]) -> Integers:
    """Indices that are equal where both are."""
    distinct, index = np.unique(values, return_inverse=True)
    joined: Integers = np.unique(row.astype(np.int64) * len(distinct) + index, return_inverse=True)[1]
    return joined


def named_devices(devices: Sequence[Device]) -> list[NamedDevice]:
    """Devices with the memory that they have."""
    return [
        NamedDevice(
            name=device.name,
            title=device.title,
            ram_bytes=device.ram_bytes,
            runtime_overhead_bytes=device.runtime_overhead_bytes,
            available_memory_bytes=available_memory_bytes(device),
        )
        for device in devices
    ]


def named_links(links: Sequence[Link]) -> list[NamedLink]:
    """Links by name."""
    return [NamedLink(name=link.name, title=link.title) for link in links]
