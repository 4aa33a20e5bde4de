"""Files of figures: the types that can be asked for, and drawing a chart as a picture or as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgefl.drawing.charts.chart import Chart
from edgefl.errors import RunError, suggestion

FIGURE_FORMS = ("png", "pdf", "svg")
TIMELINE_FORMS = ("html", "png")
SWEEP_FORMS = ("png", "pdf", "svg", "html")
PAGE_FORMS = ("html",)
"""File types of figures, of the memory timeline, of sweeps, and of pages."""


def check_figure(path: str | os.PathLike[str], forms: Sequence[str]) -> None:
    """Raise RunError if the file's extension isn't among ``forms``, its folder doesn't exist, or it is a folder."""
    path = Path(path)
    form = path.suffix.removeprefix(".").lower()
    if form not in forms:
        ending = f"ends in .{form}" if form else "has no extension"
        near = suggestion(f".{form}", [f".{name}" for name in forms])
        raise RunError(f"can't draw {path}: its name {ending}{near}")
    if not path.parent.is_dir():
        raise RunError(f"can't write {path}: the folder {path.parent} doesn't exist")
    if path.is_dir():
        raise RunError(f"can't write {path}: it is a folder")


def draw_figure(chart: Chart, path: Path) -> None:
    """Draw a chart to a file: a page for .html, a picture otherwise.  Raises RunError if it can't be written."""
    if path.suffix.lower() == ".html":
        from edgefl.drawing.page import write_figure

        write_figure(chart, path)
    else:
        from edgefl.drawing.charts.picture import draw

        lines = all(panel.form == "lines" for panel in chart.panels)
        draw(chart, path, dpi=140, title=chart.title if chart.headed else "", palette=64 if lines else 0)
