"""Write what edgefl knows of its own parts without importing them.

    python tools/own_parts.py

writes ``edgefl/commands/own_parts.json``, which ``edgefl methods`` and the other lists read, and
``scenarios/edgefl.schema.json``, which ``edgefl schema`` prints and editors read.  Run it where no plug-in of edgefl is
installed.
"""

from __future__ import annotations

import json

from edgefl import registry
from edgefl.commands.new import SCHEMA
from edgefl.commands.parts import LISTED, OWN, described
from edgefl.scenario import json_schema, library_folder


def own_parts() -> str:
    """The lists' text: the entries of each section, in the order of their names."""
    sections = {
        section: [
            described(noun, name) for name in registry.names(noun) if registry.origin(noun, name).package == "edgefl"
        ]
        for section, noun in LISTED.items()
    }
    return json.dumps(sections, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OWN.write_text(own_parts(), encoding="utf-8")
    schema = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    (library_folder() / SCHEMA).write_text(schema, encoding="utf-8")
