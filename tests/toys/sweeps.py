"""Sweeps of devices and pages of one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import edgefl
from edgefl.commands.sweep.answer import DeviceCheck
from edgefl.commands.sweep.on_devices import check_combinations
from edgefl.commands.sweep.page.asked import PageRequest
from edgefl.commands.sweep.page.choices import MOST_ON_PAGE, propose_axes
from edgefl.commands.sweep.page.of_fleet import page_of_fleet
from edgefl.commands.sweep.page.page import page_of_devices
from edgefl.commands.sweep.sweep_grid import sweep_grid_of
from edgefl.drawing.sliders.page_data import DeviceChoices, FleetSliders
from edgefl.runs.progress import silent
from edgefl.setup.compose import scenario_of


def check_of(scenario: Any, devices: str | Sequence[str] = "all", **options: Any) -> DeviceCheck:
    """The answers of devices for a scenario that compares nothing."""
    checks = edgefl.sweep(scenario, devices=devices, **options).devices
    assert checks and len(checks) == 1
    return next(iter(checks.values()))


def asked_of(scenario: Any, vary: Sequence[str] = ()) -> PageRequest:
    """What a page of a scenario is about."""
    whole = scenario_of(scenario)
    return PageRequest(
        scenario, (), whole, sweep_grid_of([scenario], [whole], vary or propose_axes(whole), None, MOST_ON_PAGE)
    )


def fleet_page(scenario: Any, vary: Sequence[str] = (), jobs: int = 1) -> FleetSliders:
    """What the page of a scenario's fleet has."""
    asked = asked_of(scenario, vary)
    return page_of_fleet(asked, dict(asked.grid.refused), jobs)


def devices_page(scenario: Any, vary: Sequence[str] = ()) -> DeviceChoices:
    """What the page of the library's devices has."""
    asked = asked_of(scenario, vary)
    refused = dict(asked.grid.refused)
    checks = check_combinations(
        asked.grid, ["all"], refused, link=None, stage=None, kind=None, jobs=1, many=True, on_progress=silent
    )
    return page_of_devices(asked, checks, refused, ["all"])
