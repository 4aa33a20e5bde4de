"""The report of a run: one HTML file that opens without a network."""

from __future__ import annotations

from edgefl.drawing.page.page import write_figure, write_page

__all__ = ["write_figure", "write_page"]
