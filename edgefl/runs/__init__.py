"""The run directory: append-only records, atomic checkpoints, and reading finished and unfinished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.runs.directory import RunDirectory
    from edgefl.runs.folders import TABLES, comparison, comparison_sets, create_comparison, is_comparison, is_run
    from edgefl.runs.reading import Run, read_run

__all__ = [
    "TABLES", "Run", "RunDirectory", "comparison", "comparison_sets", "create_comparison", "is_comparison", "is_run",
    "read_run",
]  # fmt: skip

_MODULES = {
    "RunDirectory": "directory",
    **dict.fromkeys(
        ("TABLES", "comparison", "comparison_sets", "create_comparison", "is_comparison", "is_run"), "folders"
    ),
    **dict.fromkeys(("Run", "read_run"), "reading"),
}
"""Module of each public name.  It is imported on first use: what a command says of itself needs no records."""

__getattr__ = first_use.imports(__name__, _MODULES)
