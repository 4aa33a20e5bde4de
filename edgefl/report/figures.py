"""Figure of a profile: costs of a client's round by stage.  Also the checks and colours that all figures share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.errors import RunError, suggestion
from edgefl.records.profile import ProfileRow, Tables
from edgefl.runs.durable import writing

FIGURE_FORMS = ("png", "pdf", "svg")
TIMELINE_FORMS = ("html", "png")
"""File types of figures, and of the memory timeline."""

KIND_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#bbbbbb")
MARKS = "osD^vPX"
COLOURS = 64
"""Colours of a PNG's palette: enough for lines and their smoothed edges, and the file is a third as large."""


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


def draw_stages(profiles: Mapping[str, Tables], path: Path, memory: str = "peak_memory_bytes") -> None:
    """Draw peak memory (a row's field ``memory``), MACs and traffic of a client's round over the stages.

    ``profiles`` are given by label (a scenario's combinations).  Each label is a column of panels, each client kind a
    line.  The panels of a row share their y axis, so that labels can be compared.  Raises RunError if the file can't be
    written.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    curves: tuple[tuple[str, Callable[[ProfileRow], float]], ...] = (
        ("peak memory, MiB", lambda row: getattr(row, memory) / 2**20),
        ("GMACs a sample", lambda row: row.fvcore_macs_per_sample / 1e9),
        ("traffic a round, MiB", lambda row: (row.download_bytes + row.upload_bytes) / 2**20),
    )
    figure = Figure(figsize=(1.6 + 2.6 * len(profiles), 6.4), layout="constrained", dpi=140)
    canvas: Any = FigureCanvasAgg(figure)
    grid: Any = figure.subplots(len(curves), len(profiles), sharex=True, sharey="row", squeeze=False)
    last = max((row.stage for profile in profiles.values() for row in profile.rows), default=1)
    kinds = list(dict.fromkeys(row.whose for profile in profiles.values() for row in profile.rows))
    for column, (label, profile) in enumerate(profiles.items()):
        for panel_row, (title, value) in enumerate(curves):
            axes = grid[panel_row][column]
            for index, kind in enumerate(kinds):
                rows = [row for row in profile.rows if row.whose == kind]
                stages, values = [row.stage for row in rows], [value(row) for row in rows]
                style: dict[str, Any] = {"marker": MARKS[index % len(MARKS)], "markersize": 5}
                if stages == [1] and last > 1:  # one stage only: draw its value as a dashed line over all stages
                    stages, values, style = [1, last], values * 2, {"linestyle": "--"}
                axes.plot(stages, values, label=kind, color=KIND_COLOURS[index % len(KIND_COLOURS)], **style)
            axes.grid(alpha=0.25)
            axes.set_ylim(bottom=0)
            axes.set_xticks(range(1, last + 1))
            if column == 0:
                axes.set_ylabel(title)
        grid[0][column].set_title(label, fontsize=10)
        grid[-1][column].set_xlabel("stage")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=max(len(kinds), 1), frameon=False)
    with writing(path):
        if path.suffix.lower() != ".png":
            figure.savefig(path)
            return
        canvas.draw()
        Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(COLOURS).save(path, optimize=True)
