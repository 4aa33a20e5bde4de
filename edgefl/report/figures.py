"""Figures of a profile: live memory over a work, and what each stage costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.errors import RunError, suggestion
from edgefl.runs.durable import writing

Facts = Mapping[str, Any]

FIGURE_FORMS = ("png", "pdf", "svg")
TIMELINE_FORMS = ("html", "png")
"""What the two figures can be written as."""

KIND_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#bbbbbb")
MARKS = "osD^vPX"
COLOURS = 64
"""Of a PNG: as many as lines and their edges need, so that the file is a third of the size."""


def check_figure(path: str | os.PathLike[str], forms: Sequence[str]) -> None:
    """Raise RunError for a file whose name doesn't end in one of ``forms``, or that has no folder to go to."""
    path = Path(path)
    form = path.suffix.removeprefix(".").lower()
    if form not in forms:
        ending = f"ends in .{form}" if form else "has no ending"
        near = suggestion(f".{form}", [f".{known}" for known in forms])
        raise RunError(f"can't draw {path}: its name {ending}{near}")
    if not path.parent.is_dir():
        raise RunError(f"can't write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise RunError(f"can't write {path}: it is a folder")


def draw_stages(parts: Mapping[str, Facts], path: Path) -> None:
    """Peak memory, MACs and traffic of a client's round at each stage: a column for each label, a line for each kind.

    ``parts`` are profiles by label (a scenario's combinations).  Rows share their axis, so that labels compare.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    curves: tuple[tuple[str, Callable[[Facts], float]], ...] = (
        ("peak memory, MiB", lambda row: row["peak_memory_bytes"] / 2**20),
        ("GMACs a sample", lambda row: row["fvcore_macs_per_sample"] / 1e9),
        ("traffic a round, MiB", lambda row: (row["download_bytes"] + row["upload_bytes"]) / 2**20),
    )
    figure = Figure(figsize=(1.6 + 2.6 * len(parts), 6.4), layout="constrained", dpi=140)
    canvas: Any = FigureCanvasAgg(figure)
    grid: Any = figure.subplots(len(curves), len(parts), sharex=True, sharey="row", squeeze=False)
    last = max((row["stage"] for part in parts.values() for row in part["rows"]), default=1)
    kinds = list(dict.fromkeys(row["kind"] for part in parts.values() for row in part["rows"]))
    for column, (label, part) in enumerate(parts.items()):
        for line, (title, value) in enumerate(curves):
            axes = grid[line][column]
            for index, kind in enumerate(kinds):
                rows = [row for row in part["rows"] if row["kind"] == kind]
                stages, values = [row["stage"] for row in rows], [value(row) for row in rows]
                style: dict[str, Any] = {"marker": MARKS[index % len(MARKS)], "markersize": 5}
                if stages == [1] and last > 1:  # one stage beside others' many: the same all along
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
