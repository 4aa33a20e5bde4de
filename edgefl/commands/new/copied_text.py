"""The text of a scenario that begins as a copy of another."""

from __future__ import annotations

import re
from pathlib import Path

from edgefl.errors import UnknownName, printable, suggestion
from edgefl.scenario.document import write
from edgefl.scenario.library import SCHEMA, find_document, text_of

MODELINE = "# yaml-language-server: $schema="
"""The comment by which editors with yaml-language-server find a file's schema; a path relative to the file follows."""


def copied_text(like: str, path: Path, fleet: str | None = None) -> str:
    """The text of the new scenario at ``path``: that of another under its name, with what to do next above.

    With ``fleet``, a fleet of the library takes the place of the other's. Raises UnknownName if there is none of this
    name, and ScenarioError for a file that is no scenario.
    """
    assert find_document(like).data
    text = _rename_scenario(text_of(like), path.stem)
    head = (
        f"{MODELINE}{SCHEMA}\n"
        f"# Begun as a copy of {printable(like)}.\n"
        f"#   edgefl validate {path.name}    checks it, and with --as yaml prints every default\n"
        f"#   edgefl profile {path.name}     predicts costs without training\n"
        f"#   edgefl run {path.name}\n"
    )
    return head + (text if fleet is None else _with_fleet(text, fleet))


def _with_fleet(text: str, fleet: str) -> str:
    """A scenario's text whose section ``fleet`` is one of the library; comments after the section stay."""
    from edgefl.devices.fleet_profile import fleet_names  # numpy, which a copy without it doesn't need

    if fleet not in (names := fleet_names()):
        near = suggestion(fleet, names).removeprefix("; ")
        listed = f" The fleets are {', '.join(names)}" if near.startswith("did") else ""
        raise UnknownName("fleet", fleet, names, f"{near}{listed}")
    lines = text.splitlines()
    about = f"# `edgefl devices show {fleet}` has its fields and their sources; what is written here replaces one"
    begin = next((i for i, line in enumerate(lines) if re.match(r"fleet\s*:", line)), len(lines))
    end = next((i for i in range(begin + 1, len(lines)) if not re.match(r"\s|$", lines[i])), len(lines))
    while end > begin + 1 and not lines[end - 1].strip():
        end -= 1
    lines[begin:end] = [about, "fleet:", f"  like: {fleet}"]
    return "\n".join(lines) + "\n"


def _rename_scenario(text: str, name: str) -> str:
    """A scenario's text without its modeline and with this name."""
    lines = [line for line in text.splitlines() if not line.startswith(MODELINE)]
    named = write({"name": name}).strip()
    for number, line in enumerate(lines):
        if re.match(r"name\s*:", line):
            lines[number] = named
            break
    else:
        first = next((i for i, line in enumerate(lines) if re.match(r"edgefl\s*:", line)), -1)
        lines.insert(first + 1, named)
    return "\n".join(lines) + "\n"
