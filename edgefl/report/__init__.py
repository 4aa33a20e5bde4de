"""Output for people: summaries of runs, tables on the console, figures, and progress lines."""

from __future__ import annotations

from edgefl.report.comparison import comparison_csv, orderings_markdown, print_comparison
from edgefl.report.console import screen
from edgefl.report.facts import compared, facts_of, summary
from edgefl.report.figures import FIGURE_FORMS, TIMELINE_FORMS, check_figure, draw_stages
from edgefl.report.library import print_devices
from edgefl.report.measured import print_counts, print_measured
from edgefl.report.profile import (
    draw_device_check,
    print_clients,
    print_compared_profiles,
    print_cost_difference,
    print_device_check,
    print_profile,
    profile_csv,
)
from edgefl.report.progress import Lines, Live, make_progress
from edgefl.report.sweep import print_sweep
from edgefl.report.sweep_figure import SWEEP_FORMS, draw_sweep
from edgefl.report.tables import print_methods, print_summary, print_validation
from edgefl.report.timeline import draw_timeline

__all__ = [
    "FIGURE_FORMS",
    "Lines",
    "Live",
    "SWEEP_FORMS",
    "TIMELINE_FORMS",
    "check_figure",
    "compared",
    "comparison_csv",
    "draw_device_check",
    "draw_stages",
    "draw_sweep",
    "draw_timeline",
    "facts_of",
    "make_progress",
    "orderings_markdown",
    "print_clients",
    "print_compared_profiles",
    "print_cost_difference",
    "print_comparison",
    "print_counts",
    "print_device_check",
    "print_devices",
    "print_measured",
    "print_methods",
    "print_profile",
    "print_summary",
    "print_sweep",
    "print_validation",
    "profile_csv",
    "screen",
    "summary",
]
