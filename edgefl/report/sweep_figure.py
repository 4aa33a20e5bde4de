"""Figure of a sweep: a heat map over two or more axes, or a bar chart over one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from edgefl import units
from edgefl.runs.durable import replace_file, writing

SWEEP_FORMS = ("png", "pdf", "svg", "html")
MOST_WRITTEN = 400
"""Up to this many cells the heat map shows each cell's value as text."""
COLOURS = "viridis"
UNKNOWN = "#dddddd"

Values = Sequence[float | None]


def shown(name: str) -> Callable[[float], str]:
    """The function that formats a field's value, chosen by the unit at the end of the field's name."""
    last = name.rpartition(".")[2]
    if "share" in last or "coverage" in last or "accuracy" in last or last.startswith("r@"):
        return lambda value: f"{100 * value:.3g} %"
    by_end = {
        "bytes": units.show_bytes, "seconds": units.show_seconds, "joules": units.show_joules, "flops": units.show_flops
    }  # fmt: skip
    return by_end.get(last.rpartition("_")[2], "{:,.4g}".format)


def draw_sweep(
    path: Path, title: str, name: str, axes: Sequence[str], words: Sequence[Sequence[str]], values: Values
) -> None:
    """Draw ``values`` (one per cell, the last axis varies fastest) to png, pdf, svg or html.

    ``words`` are the labels of each axis.  One axis gives a bar chart.  Of several axes the last gives the columns of a
    heat map, and the combinations of the others its rows.  Raises RunError if the file can't be written.
    """
    columns = [_short(word) for word in words[-1]] if words else [title]
    lines = [", ".join(map(_short, line)) for line in product(*words[:-1])]
    assert prod(map(len, words)) == len(values)
    table = [list(values[i : i + len(columns)]) for i in range(0, len(values), len(columns))]
    draw = _page if path.suffix.lower() == ".html" else _picture
    across, down = (axes[-1] if axes else ""), ", ".join(axes[:-1])
    draw(path, f"{title}: {name}", name, (across, down), columns, lines, table)


def _short(word: str) -> str:
    """A value's label without its key, which the axis title names: ``8MiB`` for ``memory=8MiB``."""
    return word.partition("=")[2] or word


def _picture(
    path: Path, title: str, name: str, axes: tuple[str, str], columns: list[str], lines: list[str],
    table: list[list[float | None]],
) -> None:  # fmt: skip
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    show = shown(name)
    ticks = FuncFormatter(lambda value, _: show(value))
    values = np.array([[np.nan if value is None else value for value in line] for line in table], dtype=float)
    bars = len(lines) == 1
    width = max(5.0, min(1.6 + 0.9 * len(columns), 24.0))
    height = 3.6 if bars else max(2.6, min(1.4 + 0.5 * len(lines), 24.0))
    figure = Figure(figsize=(width + (0.0 if bars else 0.09 * max(map(len, lines))), height), layout="constrained")
    FigureCanvasAgg(figure)
    drawn: Any = figure.add_subplot()
    if bars:
        drawn.bar(range(len(columns)), np.nan_to_num(values[0]), color="#4477aa", width=0.7)
        drawn.yaxis.set_major_formatter(ticks)
        drawn.grid(axis="y", alpha=0.25)
        drawn.set_axisbelow(True)
        for index, value in enumerate(table[0]):
            if len(columns) <= MOST_WRITTEN // 10:
                drawn.annotate("-" if value is None else show(value), (index, value or 0.0), ha="center", va="bottom",
                               fontsize=8, xytext=(0, 2), textcoords="offset points")  # fmt: skip
        drawn.margins(y=0.12)
    else:
        drawn.set_facecolor(UNKNOWN)
        image = drawn.imshow(np.ma.masked_invalid(values), aspect="auto", cmap=COLOURS)
        figure.colorbar(image, ax=drawn, format=ticks)
        drawn.set_yticks(range(len(lines)), lines, fontsize=8)
        drawn.set_ylabel(axes[1])
        if values.size <= MOST_WRITTEN:
            _write_values(drawn, image, table, show)
    long = max(map(len, columns)) * len(columns) > 12 * width
    drawn.set_xticks(range(len(columns)), columns, fontsize=8, rotation=45 if long else 0, ha="right" if long else
                     "center")  # fmt: skip
    drawn.set_xlabel(axes[0])
    drawn.set_title(title, fontsize=10)
    with writing(path):
        figure.savefig(path, dpi=140)


def _write_values(drawn: Any, image: Any, table: list[list[float | None]], show: Callable[[float], str]) -> None:
    for y, line in enumerate(table):
        for x, value in enumerate(line):
            dark = value is not None and image.norm(value) < 0.6
            drawn.text(x, y, "-" if value is None else show(value), ha="center", va="center", fontsize=7,
                       color="white" if dark else "black")  # fmt: skip


def _page(
    path: Path, title: str, name: str, axes: tuple[str, str], columns: list[str], lines: list[str],
    table: list[list[float | None]],
) -> None:  # fmt: skip
    import plotly.graph_objects as go

    show = shown(name)
    words = [["no client" if value is None else show(value) for value in line] for line in table]
    figure = go.Figure()
    if len(lines) == 1:
        figure.add_bar(x=columns, y=table[0], text=words[0], hovertemplate="%{x}<br>%{text}<extra></extra>")
        figure.update_layout(yaxis_title=name)
    else:
        figure.add_heatmap(x=columns, y=lines, z=table, text=words, texttemplate="%{text}", colorscale=COLOURS,
                           hovertemplate="%{y}<br>%{x}<br>%{text}<extra></extra>", colorbar_title=name)  # fmt: skip
        # the first row is at the top, as in a table; numbers are category names, not positions
        figure.update_yaxes(autorange="reversed", title=axes[1], type="category")
    figure.update_xaxes(title=axes[0], type="category")
    figure.update_layout(title=title, template="plotly_white", plot_bgcolor=UNKNOWN if len(lines) > 1 else "white")
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, div_id="sweep")
    replace_file(path, page.encode())
