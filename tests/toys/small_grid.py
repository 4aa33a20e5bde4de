"""A comparison of four small runs, and what is equal in the folders of equal runs."""

from pathlib import Path

GRID = {
    "edgefl": 1,
    "name": "grid",
    "data": {"source": "glyphs", "clients": {"image": 4}, "samples": 20, "size": 16, "validation": 20, "test": 20},
    "model": {"image": {"tower": "vit", "blocks": 1, "width": 8, "heads": 2, "patch": 8}},
    "method": "fedavg",
    "schedule": {"name": "end-to-end", "rounds": 2},
    "training": {"batch": 8},
    "round": {"cohort": 2},
    "executor": {"name": "inline", "device": "cpu"},
    "compare": {"method": ["fedavg", "fedprox"], "seed": [1, 2]},
}
UNTRAINED = {
    "name": "table",
    "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 20, "test": 20},
    "model": {"image": {"blocks": 1, "width": 8, "heads": 1}},
    "schedule": {"rounds": 1},
    "training": {"mode": "none"},
    "executor": "inline",
}
"""A round that trains nothing, for comparisons whose runs only have to be there."""
DIFFER = ("host.jsonl", "files.json", "state.json", "writer.lock")
"""Files with wall times, or with digests of such files."""


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files that equal runs share, by path."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in DIFFER)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
