"""The drawing of the rooms, from the contract of their layers in ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTES = {
    "testing": "parts of one's own",
    "commands": "one for each command",
    "console": "what people type",
    "cells": "many runs and prices",
    "setup": "objects from a scenario",
    "drawing": "tables, charts, pages",
    "results": "facts of runs",
    "scenario": "a file; rounds",
    "planning": "who, at what cost",
    "training": "real training; this machine",
    "methods": "what is learnt, priced, cut",
    "work": "what a node does; folders",
    "models": "towers",
    "records": "shared by all",
}
"""What a layer is for, by its first room."""
DARK = {"#ffffff": "#1e2129", "#57606a": "#9aa4af", "#24292f": "#e6edf3", "#dbe9f6": "#22405f", "#eceef0": "#363c47",
        "#2f74b5": "#6cb0f5"}  # fmt: skip
"""The colours of a dark page."""
LEFT, WIDTH, HEIGHT, GAP = 210, 530, 34, 10


def rooms_drawing() -> str:
    """An SVG picture: a row for each layer, a box for each room of it; modules of one file are named in the last."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["edgefl"])
    rows = [re.split(r"\s*\|\s*", layer) for layer in layers]
    rooms = [row for row in ([name for name in row if (ROOT / "edgefl" / name).is_dir()] for row in rows) if row]
    height = 16 + len(rooms) * (HEIGHT + GAP) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" viewBox="0 0 760 {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="15">',
        "<title>The rooms of edgefl: each layer imports only from the layers under it</title>",
        f'<rect width="760" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for number, row in enumerate(rooms):
        top = 16 + number * (HEIGHT + GAP)
        last = number == len(rooms) - 1
        names = [*row, "units, seeds, errors, ..."] if last else row
        width = (WIDTH - GAP * (len(names) - 1)) / len(names)
        note = NOTES.get(row[0], "")
        lines.append(f'<text class="note" x="20" y="{top + 22}" fill="#57606a" font-size="13">{note}</text>')
        for place, name in enumerate(names):
            left, size = LEFT + place * (width + GAP), 12 if " " in name else 15
            fill = "#eceef0" if last else "#dbe9f6"
            lines.append(
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{HEIGHT}" rx="5" fill="{fill}" '
                'stroke="#2f74b5" stroke-opacity="0.5"/>'
            )
            lines.append(
                f'<text class="room" x="{left + width / 2:.0f}" y="{top + 22}" fill="#24292f" font-size="{size}" '
                f'text-anchor="middle">{name}</text>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def dark_rooms_drawing() -> str:
    """The same in colours for a dark page."""
    return re.sub("|".join(DARK), lambda match: DARK[match[0]], rooms_drawing())
