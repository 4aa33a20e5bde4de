"""What people look at: a run's facts from its records, as plain data, tables and progress."""

from __future__ import annotations

from edgefl.report.facts import compared, facts_of, summary
from edgefl.report.progress import Lines, Live, make_progress
from edgefl.report.tables import (
    print_devices,
    print_methods,
    print_profile,
    print_summary,
    print_sweep,
    print_validation,
    screen,
)

__all__ = [
    "Lines",
    "Live",
    "compared",
    "facts_of",
    "make_progress",
    "print_devices",
    "print_methods",
    "print_profile",
    "print_summary",
    "print_sweep",
    "print_validation",
    "screen",
    "summary",
]
