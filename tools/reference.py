"""Write the pages of docs/reference that are generated from the code.

    python tools/reference.py

writes ``scenario.md``, ``command-line.md``, ``errors.md`` and ``python.md``.  The pages are committed, so that they can
be read without building the site; a test fails when they are out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from reference_pages.command_line import command_line_page
from reference_pages.errors import EXIT_CODES, error_classes, errors_page
from reference_pages.python import python_page
from reference_pages.scenario import scenario_page

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


if __name__ == "__main__":
    main()
