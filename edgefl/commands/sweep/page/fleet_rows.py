"""The fleet of a cell as the page has it: its clients, their devices, and what owners grant."""

from __future__ import annotations

import numpy as np

from edgefl.devices.fleet import draw_budgets
from edgefl.drawing.sliders.page_columns import PageColumns
from edgefl.drawing.sliders.page_data import HeldClasses, SliderFleet
from edgefl.drawing.sliders.words import named_devices, named_links
from edgefl.planning.coverage import DataCoverage
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario


def fleet_rows(scenario: Scenario, setup: Setup, columns: PageColumns) -> SliderFleet:
    """The fleet of a scenario, with a row for each client."""
    fleet, clients, budgets = setup.fleet, setup.clients, scenario.fleet.budgets
    unlimited = budgets.model_copy(update={"within_device": False})
    granted, _ = draw_budgets(unlimited, fleet.devices, fleet.device_index, setup.seed)
    data = DataCoverage.from_setup(setup)
    held: HeldClasses | None = None
    if data.classes is not None and data.classes.shape[1]:
        bits = np.packbits(data.classes > 0, axis=1, bitorder="little")
        held = HeldClasses(names=list(data.names), width=bits.shape[1], held=columns.add(bits))
    return SliderFleet(
        clients=len(fleet),
        rows=len(fleet),
        counts=columns.add(np.ones(len(fleet), np.uint8)),
        kinds=list(clients.kinds),
        kind=columns.add(np.asarray(clients.client_kind)),
        devices=named_devices(fleet.devices),
        device=columns.add(fleet.device_index),
        links=named_links(fleet.links),
        link=columns.add(fleet.link_index),
        samples=columns.add(np.asarray(clients.client_samples)),
        granted={name: columns.add(granted[name]) for name in fleet.budget_names},
        caps={name: columns.add(cap) for name, cap in (fleet.caps.amounts if fleet.caps else {}).items()},
        within_device=budgets.within_device,
        classes=held,
    )
