"""Tables of fleets say which shares a source has, and which are our own estimates."""

from __future__ import annotations

import io

from rich.console import Console

from edgefl.commands.devices.table import print_devices
from edgefl.devices.browsing import browse, describe
from edgefl.records.devices import DeviceProfile, FleetSheet, Library, LinkProfile


def _printed(result: Library | DeviceProfile | LinkProfile | FleetSheet) -> list[str]:
    file = io.StringIO()
    print_devices(result, Console(file=file, width=200))
    return file.getvalue().splitlines()


def test_a_fleet_says_of_each_field_whose_it_is() -> None:
    robots = _printed(describe("jetson-robots"))
    assert [line.split() for line in robots if "share, " in line] == [
        ["device", "share,", "own", "estimate"], ["link", "share,", "own", "estimate"],
    ]  # fmt: skip
    (hours,) = (line for line in robots if line.startswith("availability"))
    assert "after a source" in hours and "3 h, 'off': 8 h" in hours
    title = robots.index("Nova Carter, Isaac documentation, NVIDIA (2026-11-21)")
    assert robots[title + 2].startswith("  availability: Battery Capacity: 1033 Wh")
    assert sum("share, after a source" in line for line in _printed(describe("phones"))) == 2


def test_the_list_of_fleets_names_shares_without_a_source() -> None:
    rows = {line.split()[0]: line for line in _printed(browse(sections=("fleets",))) if line}
    assert " devices and links " in rows["campus"] and " none " in rows["phones"]
