"""Comparisons of runs as tables, CSV and Markdown."""

from edgefl.report.comparison.markdown import orderings_markdown
from edgefl.report.comparison.tables import comparison_csv, print_comparison

__all__ = ["comparison_csv", "orderings_markdown", "print_comparison"]
