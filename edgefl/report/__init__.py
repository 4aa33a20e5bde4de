"""Output for people: summaries of runs, tables on the console, figures, and progress lines.

The names of ``__all__`` are imported on first use: tables of devices wait for nothing that draws figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.report.bench import bench_csv, print_bench
    from edgefl.report.compare import comparison_csv, orderings_markdown, print_comparison
    from edgefl.report.compared_profiles import print_compared_profiles, print_cost_difference
    from edgefl.report.console import screen
    from edgefl.report.device_check import devices_markdown, print_device_check, print_device_checks
    from edgefl.report.devices import print_devices
    from edgefl.report.facts import compare_runs, facts_of, summary
    from edgefl.report.figures import FIGURE_FORMS, SWEEP_FORMS, TIMELINE_FORMS, check_figure, draw_figure
    from edgefl.report.latex import comparison_latex
    from edgefl.report.measured import print_counts, print_measured
    from edgefl.report.profile import print_profile, profile_csv
    from edgefl.report.profile_clients import print_clients
    from edgefl.report.progress import Lines, Live, make_progress
    from edgefl.report.sweep import print_sweep
    from edgefl.report.tables import print_options, print_parts, print_summary
    from edgefl.report.validation import print_validation

__all__ = [
    "FIGURE_FORMS",
    "Lines",
    "Live",
    "SWEEP_FORMS",
    "TIMELINE_FORMS",
    "bench_csv",
    "check_figure",
    "compare_runs",
    "comparison_csv",
    "devices_markdown",
    "comparison_latex",
    "draw_figure",
    "facts_of",
    "make_progress",
    "orderings_markdown",
    "print_bench",
    "print_clients",
    "print_compared_profiles",
    "print_cost_difference",
    "print_comparison",
    "print_counts",
    "print_device_check",
    "print_device_checks",
    "print_devices",
    "print_measured",
    "print_options",
    "print_parts",
    "print_profile",
    "print_summary",
    "print_sweep",
    "print_validation",
    "profile_csv",
    "screen",
    "summary",
]

_MODULES = {
    "FIGURE_FORMS": "figures",
    "Lines": "progress",
    "Live": "progress",
    "SWEEP_FORMS": "figures",
    "TIMELINE_FORMS": "figures",
    "bench_csv": "bench",
    "check_figure": "figures",
    "compare_runs": "facts",
    "comparison_csv": "compare",
    "devices_markdown": "device_check",
    "comparison_latex": "latex",
    "draw_figure": "figures",
    "facts_of": "facts",
    "make_progress": "progress",
    "orderings_markdown": "compare",
    "print_bench": "bench",
    "print_clients": "profile_clients",
    "print_compared_profiles": "compared_profiles",
    "print_comparison": "compare",
    "print_cost_difference": "compared_profiles",
    "print_counts": "measured",
    "print_device_check": "device_check",
    "print_device_checks": "device_check",
    "print_devices": "devices",
    "print_measured": "measured",
    "print_options": "tables",
    "print_parts": "tables",
    "print_profile": "profile",
    "print_summary": "tables",
    "print_sweep": "sweep",
    "print_validation": "validation",
    "profile_csv": "profile",
    "screen": "console",
    "summary": "facts",
}
"""Module of each public name."""


__getattr__ = first_use.imports(__name__, _MODULES)
