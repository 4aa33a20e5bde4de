"""Hostile profiles: devices, links and fleets of the library with mutations, and scenarios that use them."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from hypothesis import strategies as st

from edgefl.devices import library_folder
from fuzzing.case import Case
from fuzzing.scenarios import TINY, dumped
from fuzzing.texts import odd_files, rewritten
from fuzzing.values import mutated

SECTIONS = {
    "devices": {"devices": {"./mine.yaml": 1}},
    "networks": {"links": {"./mine.yaml": 1}},
    "fleets": {"like": "./mine.yaml"},
}
"""How a scenario's fleet names a profile's file, by the folder of the library."""


@cache
def shipped() -> list[tuple[str, bytes, Any]]:
    """Folder, text and data of the library's profiles: every fleet, and a third of the devices and links."""
    found = []
    for section in SECTIONS:
        paths = sorted((library_folder() / section).glob("*.yaml"))
        for path in paths if section == "fleets" else paths[::3]:
            found.append((section, path.read_bytes(), yaml.load(path.read_bytes(), yaml.BaseLoader)))
    return found


@st.composite
def profiles(draw: st.DrawFn) -> Case:
    """A hostile profile, and a scenario whose fleet names it."""
    section = draw(st.sampled_from((*SECTIONS, "fleets")))
    text, data = draw(st.sampled_from([(text, data) for of, text, data in shipped() if of == section]))
    how = draw(st.sampled_from(("mutated", "mutated", "text", "odd")))
    if how == "mutated":
        content: Any = dumped(draw(mutated(data)))
    else:
        content = draw(rewritten(text)) if how == "text" else draw(odd_files)
    scenario = dumped({**TINY,
                       "fleet": SECTIONS[section]})  # fmt: skip
    return Case("profiles", {"mine.yaml": content, "scenario.yaml": scenario}, ("mine.yaml",))
