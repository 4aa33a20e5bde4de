"""The plug-in files that a run began with, by which it goes on and is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.errors import RunError
from edgefl.runs.contents import read_json
from edgefl.runs.folders import comparison, is_comparison

SHOWN = 12
"""Digits of a hash in a message: 48 bits, by which a user tells two contents apart; the comparison reads all."""


def recorded_files(folder: Path) -> dict[str, str]:
    """SHA-256 by name of the plug-in files that a run, or the runs of a comparison, began with.

    Empty for a folder that holds no run.  Raises RunError for an ``environment.json`` that can't be read.
    """
    folders = comparison(folder).values() if is_comparison(folder) else [folder]
    found: dict[str, str] = {}
    for each in folders:
        path = each / "environment.json"
        entries = read_json(path).get("plug_ins", []) if path.is_file() else []
        if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
            raise RunError(f"{path}: plug_ins must be a list of entries with file and sha256")
        found |= {entry["file"]: entry["sha256"] for entry in entries}
    return found


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, Mapping) and all(isinstance(entry.get(name), str) for name in ("file", "sha256"))


def check_plug_in_files(folder: Path) -> None:
    """Raise RunError unless the plug-in files of a run are loaded with the contents that it began with."""
    now = registry.plug_in_files()
    for name, sha256 in recorded_files(folder).items():
        if sha256 in now.values():  # it may have another name now
            continue
        if name not in now:
            raise RunError(
                f"the run at {folder} was made with the plug-in file {name} (SHA-256 {sha256[:SHOWN]}...), which isn't "
                f"loaded: add --plugin {name}, or import that module in Python first"
            )
        raise RunError(
            f"the run at {folder} was made with another content of the plug-in file {name}: SHA-256 "
            f"{sha256[:SHOWN]}... then, {now[name][:SHOWN]}... now; load the file as it was, or start a new run"
        )
