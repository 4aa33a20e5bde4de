"""The figure of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edgefl.data.federation import Federation

COLOURS = {"image": "#4477aa", "text": "#ee6677", "image-text": "#228833"}


def draw(federation: Federation, path: Path) -> None:
    """Clients from left to right, classes from bottom to top, colour by kind.

    Areas compare within a kind, since texts are far fewer than pictures.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = federation.class_counts()
    names = [*federation.class_names, "no class"]
    if not counts[:, -1].any():
        counts, names = counts[:, :-1], names[:-1]
    clients, classes = counts.shape
    figure = Figure(figsize=(2.5 + 0.26 * min(clients, 120), 1.6 + 0.3 * classes), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, kind in enumerate(federation.kinds):
        x, y = np.nonzero(counts * (federation.client_kind == index)[:, None])
        largest = max(int(counts[x, y].max(initial=0)), 1)
        area = 220 * counts[x, y] / largest
        axes.scatter(x, y, s=area, color=COLOURS[kind], label=f"{kind} (largest: {largest})", linewidths=0)
    axes.set(xlabel="client", xlim=(-1, clients), ylim=(-1, classes), yticks=range(classes), yticklabels=names)
    axes.set_title(f"{federation.title}: samples of each class by client")
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([40])  # type: ignore[union-attr]
    figure.savefig(path)
