"""The front page's picture: eligible clients, costs of a round and metrics, by schedule.

It is drawn from ``tests/docs/quickstart.json``, the ``compared`` part of what ``edgefl run quickstart --json`` prints.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#8a8f98", "#d08a2c", "#2f74b5")
"""One colour for each run, distinguishable with red-green colour blindness."""
INK, PAPER = "#24292f", "#ffffff"
"""The fixed background keeps the picture readable on light and dark pages."""


RECORDED = Path(__file__).resolve().parents[2] / "tests" / "docs" / "quickstart.json"


def front_picture() -> str:
    """The picture as SVG; equal summaries give equal texts."""
    rows = json.loads(RECORDED.read_text(encoding="utf-8"))["compared"]["rows"]
    names = [row["label"] for row in rows]
    style = {"svg.hashsalt": "edgefl", "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9.2, 2.9), facecolor=PAPER, layout="constrained")
        axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.9))
        total = sum(rows[0]["clients"].values())
        eligible = [sum(row["eligible_at_hardest_stage"].values()) for row in rows]
        bars(axes[0], f"Clients that fit\n(of {total}, hardest stage)", names, eligible, "{:.0f}")
        peaks = [max(row["peak_memory_bytes"].values()) / 2**20 for row in rows]
        bars(axes[1], "Peak memory\n(largest client, MiB)", names, peaks, "{:.1f}")
        traffic = [row["bytes_per_client_round"] / 2**20 for row in rows]
        bars(axes[2], "Traffic of a client's\nround (MiB)", names, traffic, "{:.2f}")
        scores(axes[3], rows)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def same_picture(now: str, made: str) -> bool:
    """Whether two pictures are equal; matplotlib of another version may place letters otherwise."""
    return now == made if f"v{mpl.__version__}," in now else now != ""


def bars(axes: Axes, title: str, names: Sequence[str], values: Sequence[float], form: str) -> None:
    """Draw one bar per run, with its value above it."""
    drawn = axes.bar(names, values, color=COLOURS[: len(names)], width=0.7)
    axes.bar_label(drawn, [form.format(value) for value in values], padding=2, color=INK)
    axes.set_ylim(0, 1.18 * max(values))
    plain(axes, title)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")


def scores(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Draw a group of bars per metric on the test split, with a dotted line at chance level."""
    metrics = (("image", "balanced_accuracy"), ("text", "balanced_accuracy"), ("image-text", "r@10"))
    titles = ("image\nbal. accuracy", "text\nbal. accuracy", "image-text\nR@10")
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        values = [row["metrics"][kind][name] for kind, name in metrics]
        positions = [group + (index - (len(rows) - 1) / 2) * width for group in range(len(metrics))]
        drawn = axes.bar(positions, values, width=0.9 * width, color=COLOURS[index])
        axes.bar_label(drawn, [f"{value:.2f}" for value in values], padding=2, color=INK, fontsize=8)
    for group, (kind, name) in enumerate(metrics):
        axes.hlines(rows[0]["chance"][kind][name], group - 0.45, group + 0.45, color=INK, linestyle=":", linewidth=1.2)
    axes.set_ylim(0, 0.85)
    plain(axes, "Learned (test split;\ndotted: guessing)")
    axes.set_xticks(range(len(metrics)), titles)


def plain(axes: Axes, title: str) -> None:
    """Set the title, and remove the vertical axis and the frame."""
    axes.set_title(title, fontsize=9.5)
    axes.set_facecolor(PAPER)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)
