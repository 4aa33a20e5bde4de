"""The profile library as listed and shown: filters, derived figures, fleets, files of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgefl import devices
from edgefl.devices.browsing import browse, describe
from edgefl.errors import DeviceError, UnknownName


def _names(section: str, search: str) -> set[str]:
    return {one["name"] for one in browse(search=search)[section]}


def test_everything_is_listed() -> None:
    found = browse()
    assert [one["name"] for one in found["devices"]] == devices.device_names()
    assert [one["name"] for one in found["links"]] == devices.link_names()
    assert [one["name"] for one in found["fleets"]] == devices.fleet_names()
    assert browse(sections=("links",)).to_data().keys() == {"links"}


def test_a_search_is_for_a_part_of_a_name_or_title() -> None:
    assert {"phone-entry", "phone-mid", "phone-flagship"} <= _names("devices", search="phone")
    assert "raspberry-pi-5-8gb" not in _names("devices", search="phone")
    assert browse(search="no such thing").to_data() == {"devices": [], "links": [], "fleets": []}
    assert _names("links", search="SATELLITE") == {"satellite-leo", "satellite-geo"}


def test_one_profile() -> None:
    board = describe("raspberry-pi-4-4gb")
    assert board["derived"]["flops_per_joule"] == pytest.approx(board["values"]["flops_per_second"]["value"] / 7.2)
    assert board["values"]["compute_watts"]["source"]["quote"]
    assert (board["metered"], describe("server-h200")["metered"]) == (0, 1)
    assert describe("lte")["derived"]["download_goodput_bits_per_second"] == pytest.approx(12.61e6)
    phones = describe("phones")
    titles = {field: source["title"] for field, source in phones["sources"].items()}
    assert titles["devices"].startswith("RAM of Android") and titles["failures"] == "Own estimate"
    assert sum(phones["devices"].values()) == pytest.approx(1) and phones["derived"]["least_ram_bytes"] <= 2**32
    with pytest.raises(UnknownName, match="unknown device, link or fleet 'phonse'; did you mean 'phones'"):
        describe("phonse")


def test_a_file_says_itself_what_it_is(tmp_path: Path) -> None:
    for folder, name, profile in (("devices", "phone-mid", "device"), ("networks", "lte", "link"),
                                  ("fleets", "phones", "fleet")):  # fmt: skip
        shutil.copy(devices.library_folder() / folder / f"{name}.yaml", tmp_path / "mine.yaml")
        found = describe(str(tmp_path / "mine.yaml"))
        assert (found["profile"], found["name"]) == (profile, "mine")


def test_a_fleet_of_ones_own_that_adds_up_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (devices.library_folder() / "fleets" / "phones.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("phone-mid: 40%", "phone-mid: 60%"), encoding="utf-8")
    with pytest.raises(DeviceError, match=r"mine\.yaml:\d+: fleet\.devices: the shares add up to 120 %") as caught:
        describe(str(path))
    line = int(str(caught.value).removeprefix(str(path)).split(":")[1])
    assert text.splitlines()[line - 1].startswith("  devices:")
