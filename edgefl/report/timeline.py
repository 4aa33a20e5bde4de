"""Figure of live memory during a work, by part, with its peak marked: a picture or an interactive page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.runs.durable import replace_file, writing

if TYPE_CHECKING:
    from edgefl.work import Timeline

COLOURS = {
    "parameters": "#332288",
    "gradients": "#cc6677",
    "optimizer": "#882255",
    "activations": "#88ccee",
    "buffers": "#999933",
    "inputs": "#117733",
    "received": "#44aa99",
    "reference": "#661100",
    "outputs": "#6699cc",
    "temporaries": "#ddcc77",
}
"""Colour of each part of memory.  The order is that of ``edgefl.work.PARTS``, which is slow to import."""
MIB = 2**20


def draw_timeline(timeline: Timeline, path: Path, title: str) -> None:
    """Draw the timeline to ``path``, as html or png.  Raises RunError if the file can't be written."""
    if path.suffix.lower() == ".html":
        replace_file(path, _page(timeline, title).encode())
    else:
        _picture(timeline, path, title)


def _series(timeline: Timeline) -> dict[str, list[float]]:
    """MiB at every moment, by part; parts that are always empty are left out."""
    series = {part: [m.totals[i] / MIB for m in timeline.moments] for i, part in enumerate(COLOURS)}
    return {part: values for part, values in series.items() if any(values)}


def _steps(timeline: Timeline) -> list[tuple[int, str]]:
    """Index of the first moment of each metered step, and the step's label."""
    steps: list[tuple[int, str]] = []
    last = None
    passes = {m.distinct_pass for m in timeline.moments}
    for index, m in enumerate(timeline.moments):
        step = (m.distinct_pass, m.pattern, m.step)
        if step != last and m.phase not in ("start", "finish"):
            prefix = f"pass {m.distinct_pass + 1}, " if len(passes) > 1 else ""
            steps.append((index, f"{prefix}{m.pattern} step {len(steps) + 1}"))
        last = step
    return steps


def peak_words(timeline: Timeline) -> str:
    """The peak, its operator, module and phase as text: ``12.3 MiB at aten.mm in image.blocks.3, backward``."""
    peak = timeline.moments[timeline.peak]
    where = f" in {peak.scope}" if peak.scope else ""
    return f"{peak.bytes / MIB:,.2f} MiB at {peak.operator}{where}, {peak.phase}"


def _picture(timeline: Timeline, path: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    series = _series(timeline)
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    x = range(len(timeline.moments))
    axes.stackplot(
        x, *series.values(), labels=list(series), colors=[COLOURS[p] for p in series], step="post", linewidth=0
    )
    top = timeline.moments[timeline.peak].bytes / MIB
    for index, name in _steps(timeline):
        axes.axvline(index, color="#777777", linewidth=0.6, linestyle=":")
        axes.annotate(name, (index, 0.995), xycoords=("data", "axes fraction"), fontsize=7, rotation=90, va="top",
                      xytext=(2, 0), textcoords="offset points", color="#555555")  # fmt: skip
    left = timeline.peak < len(timeline.moments) / 2
    axes.plot([timeline.peak], [top], "v", color="black", markersize=7)
    axes.annotate(f"peak {peak_words(timeline)}", (timeline.peak, top), xytext=(8 if left else -8, 6),
                  textcoords="offset points", ha="left" if left else "right", fontsize=9,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1})  # fmt: skip
    axes.set(title=title, xlabel="operators, in order", ylabel="live memory, MiB", xlim=(0, max(len(x) - 1, 1)))
    axes.set_ylim(0, top * 1.12 or 1)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside right center", frameon=False)
    with writing(path):
        figure.savefig(path, dpi=140)


def _page(timeline: Timeline, title: str) -> str:
    import plotly.graph_objects as go

    series = _series(timeline)
    totals = [m.bytes / MIB for m in timeline.moments]
    words = [f"{m.operator}<br>{m.scope or 'outside the model'}, {m.phase}" for m in timeline.moments]
    x = list(range(len(totals)))
    figure = go.Figure()
    for part, values in series.items():
        figure.add_scatter(x=x, y=values, name=part, stackgroup="memory", mode="lines",
                           line={"width": 0, "shape": "hv"}, fillcolor=COLOURS[part],
                           hovertemplate="%{y:,.3f} MiB")  # fmt: skip
    # the total is drawn on top; its hover text names the operator of each moment
    figure.add_scatter(x=x, y=totals, name="all", mode="lines", line={"width": 1, "shape": "hv", "color": "#222222"},
                       customdata=words, hovertemplate="%{y:,.3f} MiB<br>%{customdata}")  # fmt: skip
    peak = timeline.moments[timeline.peak]
    figure.add_annotation(x=timeline.peak, y=totals[timeline.peak], text=f"peak {peak_words(timeline)}", ay=-30)
    for index, name in _steps(timeline):
        figure.add_vline(x=index, line={"width": 1, "dash": "dot", "color": "#777777"})
        figure.add_annotation(x=index, y=1, yref="paper", text=name, textangle=-90, showarrow=False, xanchor="left",
                              yanchor="top", font={"size": 10, "color": "#555555"})  # fmt: skip
    figure.update_layout(title=f"{title}: peak in {peak.scope or 'no part'}", hovermode="x unified",
                         template="plotly_white", xaxis_title="operators, in order",
                         yaxis_title="live memory, MiB", legend_traceorder="reversed")  # fmt: skip
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, div_id="timeline")
    return page
