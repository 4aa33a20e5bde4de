"""The figure of a partition: samples by client and class."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from edgefl.data.federation import Federation
from edgefl.modalities import KINDS
from edgefl.runs.durable import replace_file

MOST_CLIENTS = 2000
"""Clients that are drawn; of more, every second, every third ... is.  In the widest figure, of
3,370 pixels, a column has less than two then."""

COLOURS: dict[str, str] = dict(
    zip(KINDS, ("#4477aa", "#ee6677", "#aa3377", "#b8860b", "#66bbdd", "#886644"), strict=True)
)


def draw_partition(federation: Federation, path: Path) -> None:
    """Save a bubble chart, PNG: clients on the x axis, classes on the y axis, colour by kind.

    Of more than MOST_CLIENTS, clients at equal distances stand for all.  Areas are relative to the kind's largest,
    since texts are far fewer than pictures.  Raises RunError if the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts, client_kind = federation.class_counts(), federation.client_kind
    names = [*federation.class_names, "no class"]
    if not counts[:, -1].any():
        counts, names = counts[:, :-1], names[:-1]
    clients, classes = counts.shape
    step = max(-(-clients // MOST_CLIENTS), 1)
    counts, client_kind = counts[::step], client_kind[::step]
    figure = Figure(figsize=(2.5 + 0.26 * min(clients, 120), 1.6 + 0.3 * classes))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, kind in enumerate(federation.kinds):
        x, y = np.nonzero(counts * (client_kind == index)[:, None])
        largest = max(int(counts[x, y].max(initial=0)), 1)
        area = 220 * counts[x, y] / largest
        axes.scatter(x * step, y, s=area, color=COLOURS[kind], label=f"{kind} (largest: {largest})", linewidths=0)
    axes.set(xlabel="client", xlim=(-1, clients), ylim=(-1, classes), yticks=range(classes), yticklabels=names)
    shown = "by client" if step == 1 else f"at {len(counts):,} of {clients:,} clients"
    axes.set_title(f"{federation.title}: samples of each class {shown}")
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([40])  # type: ignore[union-attr]
    figure.savefig(content := BytesIO(), format="png", bbox_inches="tight")
    replace_file(path, content.getvalue())
