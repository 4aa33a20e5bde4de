"""Write edgefl/commands/own_parts.json: edgefl's own parts with a line and their options each.

    python tools/own_parts.py

``edgefl methods`` and its kin read the file, so that they don't import torch.
"""

from __future__ import annotations

import json

from edgefl import registry
from edgefl.commands.parts import LISTED, OWN, described


def own_parts() -> str:
    """The file's text: the entries of each section, in the order of their names."""
    sections = {
        section: [
            described(noun, name) for name in registry.names(noun) if registry.origin(noun, name).package == "edgefl"
        ]
        for section, noun in LISTED.items()
    }
    return json.dumps(sections, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OWN.write_text(own_parts(), encoding="utf-8")
