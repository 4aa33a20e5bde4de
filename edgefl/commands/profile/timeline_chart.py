"""Figure of live memory during a work, by part, with its peak marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import units
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import INK, PARTS

if TYPE_CHECKING:
    from edgefl.work import Timeline

MIB = 2**20
"""Charts show mebibytes, as tables do."""


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


def memory_timeline(timeline: Timeline, title: str) -> Chart:
    """The parts of memory at every moment, stacked; parts that are always empty are left out."""
    moments, peak = timeline.moments, timeline.peak
    x, totals = range(len(moments)), [m.bytes for m in moments]
    parts = {part: [m.totals[i] for m in moments] for i, part in enumerate(PARTS) if part != "scratch"}
    parts = {part: values for part, values in parts.items() if any(values)}
    series = [Series(part, x, values, PARTS[part]) for part, values in parts.items()]
    where = [f"{units.show_bytes(m.bytes)}, {m.operator}, {m.scope or 'outside the model'}, {m.phase}" for m in moments]
    series += [
        Series("all", x, totals, INK, notes=where, form="lines"),
        Series("peak", [peak], [totals[peak]], INK, symbols=[4], notes=[f"peak {peak_words(timeline)}"],
               written=True, form="points"),
    ]  # fmt: skip
    memory = ChartAxis("live memory", "bytes", bottom=0.0, top=totals[peak] * 1.12 or 1.0)
    columns = ["moment", "operator", "module", "phase", "bytes", *(f"{part}_bytes" for part in parts)]
    rows = [
        [i, m.operator, m.scope, m.phase, m.bytes, *(values[i] for values in parts.values())]
        for i, m in enumerate(moments)
    ]
    return Chart(
        "timeline", title, "Live memory by part at every operator; dotted lines begin steps, a triangle is the peak.",
        [Panel("", "areas", ChartAxis("operators, in order"), memory, series, down=_steps(timeline))],
        columns, rows, across=1, size=(11.0, 5.2), headed=True,
    )  # fmt: skip
