"""The text of a scenario that begins as a copy of another."""

from __future__ import annotations

import re
from pathlib import Path

from edgefl.errors import printable
from edgefl.scenario.document import write
from edgefl.scenario.library import SCHEMA, find_document, text_of

MODELINE = "# yaml-language-server: $schema="
"""The comment by which editors with yaml-language-server find a file's schema; a path relative to the file follows."""


def copied_text(like: str, path: Path) -> str:
    """The text of the new scenario at ``path``: that of another under its name, with what to do next above.

    Raises ScenarioError for a file that is no scenario.
    """
    assert find_document(like).data
    head = (
        f"{MODELINE}{SCHEMA}\n"
        f"# Begun as a copy of {printable(like)}.\n"
        f"#   edgefl validate {path.name}    checks it, and with --as yaml prints every default\n"
        f"#   edgefl profile {path.name}     predicts costs without training\n"
        f"#   edgefl run {path.name}\n"
    )
    return head + _rename_scenario(text_of(like), path.stem)


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
