"""Names and units that a message proposes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefl import units
from edgefl.commands.new.command import new
from edgefl.devices import device_names, link_names
from edgefl.errors import ScenarioError, UnitError, suggestion


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("LTE", ["lte"]),
        ("phone-midd", ["phone-mid"]),
        ("pi4", ["raspberry-pi-4-2gb", "raspberry-pi-4-4gb", "raspberry-pi-4-8gb"]),
        ("pi5", ["orange-pi-5-8gb", "raspberry-pi-5-8gb"]),
        ("h200", ["server-h200"]),
        ("m1", ["macbook-air-m1"]),
        ("macbook", ["macbook-air-m1", "macbook-air-m2"]),
    ],
)
def test_a_name_is_proposed_for_what_it_may_stand_for(typed: str, meant: list[str]) -> None:
    names = [*device_names(), *link_names()]
    assert suggestion(typed, names) == f"; did you mean {' or '.join(map(repr, meant))}?"


def test_all_names_are_told_where_none_is_near() -> None:
    assert suggestion("zzz", ["one", "two"]) == "; allowed: one, two"
    assert suggestion("a", device_names()).startswith("; allowed: ")  # many begin so
    assert suggestion("zzz", []) == ""


@pytest.mark.parametrize(
    ("amount", "quantity", "meant"),
    [("30m", units.SECONDS, "'min' or 'ms'"), ("5 MIB", units.BYTES, "'MiB'"), ("2 hourss", units.SECONDS, "'hours'")],
)
def test_a_unit_is_proposed(amount: str, quantity: units.Quantity, meant: str) -> None:
    with pytest.raises(UnitError, match=f"did you mean {meant}\\?$"):
        quantity.parse(amount)


def test_a_new_scenario_makes_its_folders(tmp_path: Path) -> None:
    made = new(str(tmp_path / "study" / "phd"))
    assert Path(made["scenario"]) == tmp_path / "study" / "phd.yaml" and Path(made["scenario"]).is_file()
    with pytest.raises(ScenarioError, match="its folder can't be made"):
        new(str(tmp_path / "study" / "phd.yaml" / "other"))
