"""Figure of a sweep: a map of coloured cells over two or more axes, or bars over one axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.text_tables import field_formatter, unit_of

MOST_WRITTEN = 400
"""Up to this many cells the map shows each cell's value as text, which has no room in more, smaller ones."""


def sweep_chart(
    title: str, name: str, axes: Sequence[str], words: Sequence[Sequence[str]], values: Sequence[float | None]
) -> Chart:
    """The values of the field ``name``, one per cell; the last axis varies fastest.

    ``words`` are the labels of each axis.  One axis gives bars.  Of several axes the last gives the columns of a map,
    and the combinations of the others its lines.
    """
    columns = [_short(word) for word in words[-1]] if words else [title]
    lines = [", ".join(map(_short, line)) for line in product(*words[:-1])]
    assert prod(map(len, words)) == len(values)
    show = field_formatter(name)
    notes = ["no client" if value is None else show(value) for value in values]
    cells = range(0, len(values), len(columns))
    bars = len(lines) == 1
    series = [
        Series(line, columns, values[i : i + len(columns)], notes=notes[i : i + len(columns)],
               written=len(values) <= (MOST_WRITTEN // 10 if bars else MOST_WRITTEN))
        for line, i in zip(lines, cells, strict=True)
    ]  # fmt: skip
    value, across = ChartAxis(name, unit_of(name), bottom=0.0), ChartAxis(axes[-1] if axes else "", names=columns)
    if bars:
        panel = Panel("", "bars", across, value, series)
    else:
        panel = Panel("", "map", across, ChartAxis(", ".join(axes[:-1]), names=lines), series, value=value)
    wide = max(5.0, min(1.6 + 0.9 * len(columns), 24.0)) + (0.0 if bars else 0.09 * max(map(len, lines)))
    tall = 3.6 if bars else max(2.6, min(1.4 + 0.5 * len(lines), 24.0))
    rows = [[*cell, number] for cell, number in zip(product(*words), values, strict=True)]
    return Chart(
        "sweep", f"{title}: {name}", "One bar for each cell." if bars else "One colour for each cell; none where no "
        "client has a value.", [panel], [*axes, name], rows, size=(wide, tall), headed=True,
    )  # fmt: skip


def _short(word: str) -> str:
    """A value's label without its key, which the axis title names: ``8MiB`` for ``memory=8MiB``."""
    return word.partition("=")[2] or word
