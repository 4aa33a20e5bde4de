"""The page about devices names every number that a profile can have, and holds none itself."""

from __future__ import annotations

import re
from pathlib import Path

from edgefl import devices

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "devices.md"


def test_every_number_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    explained = set(re.findall(r"`([a-z0-9_]+)`", text))
    facts = {number for name in devices.device_names() for number in devices.load_device(name).facts}
    facts |= {number for name in devices.link_names() for number in devices.load_link(name).facts}
    assert facts <= explained
    assert all(kind in text for kind in devices.DEVICE_KINDS)


def test_what_the_page_asks_for_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    known = {*devices.device_names(), *devices.link_names(), *devices.fleet_names()}
    for name in ("raspberry-pi-4-4gb", "phones", "lora-sf7", "lte"):
        assert name in text and name in known
    assert devices.load_device("raspberry-pi-4-4gb").facts["compute_watts"].value == 7.2
