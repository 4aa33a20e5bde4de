"""Write the pages of docs/reference that are generated from the code.

    python tools/reference.py

writes ``scenario.md``, ``command-line.md``, ``errors.md`` and ``python.md``, and the scenarios' JSON Schema, which
``edgefl schema`` prints and ``edgefl methods`` and its kin read without importing torch.  They are committed, so that
they can be read without building the site; a test fails when they are out of date.  Run it where no plug-in of edgefl
is installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from reference_pages.command_line import command_line_page
from reference_pages.errors import EXIT_CODES, error_classes, errors_page
from reference_pages.python import python_page
from reference_pages.scenario import scenario_page

from edgefl.scenario import json_schema, library_folder
from edgefl.scenario.library import SCHEMA

__all__ = ["EXIT_CODES", "error_classes", "main", "pages"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"


def pages() -> dict[str, str]:
    """Text of each page by its file name."""
    return {
        "scenario.md": scenario_page(),
        "command-line.md": command_line_page(),
        "errors.md": errors_page(),
        "python.md": python_page(),
    }


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")
    schema = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    (library_folder() / SCHEMA).write_text(schema, encoding="utf-8")


if __name__ == "__main__":
    main()
