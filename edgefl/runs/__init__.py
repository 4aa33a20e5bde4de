"""The run directory: append-only records, atomic checkpoints, and reading finished and unfinished runs."""

from __future__ import annotations

from edgefl.runs.directory import RunDirectory
from edgefl.runs.environment import environment
from edgefl.runs.folders import TABLES, comparison, comparison_sets, create_comparison, is_comparison, is_run
from edgefl.runs.reading import Run, read_run

__all__ = [
    "TABLES", "Run", "RunDirectory", "comparison", "comparison_sets", "create_comparison", "environment",
    "is_comparison", "is_run", "read_run",
]  # fmt: skip
