"""Results of ``gpu_check.py`` as JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def read(path: Path) -> Json:
    """The content of a JSON file; an empty dictionary if the file doesn't exist."""
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def write(path: Path, value: Json) -> None:
    """Write a JSON file atomically."""
    from edgefl.runs.durable import replace_file

    replace_file(path, json.dumps(value, indent=1).encode())
