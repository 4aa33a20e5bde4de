"""``--timeline``: live memory over the work of the highest peak, operator by operator, and its figure."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl import units
from edgefl.commands.profile.answer import PeakMoment, ProfileRow
from edgefl.commands.profile.profile_options import ProfileOptions
from edgefl.cost.predict import timeline
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import INK, PARTS
from edgefl.errors import ScenarioError
from edgefl.planning.planner import Planner
from edgefl.planning.subjects import shown_round, subjects
from edgefl.work import Timeline
from edgefl.work.halves import client_part

MIB = 2**20
"""Charts show mebibytes, as tables do."""


def trace_peak(planner: Planner, rows: Sequence[ProfileRow], wanted: ProfileOptions) -> tuple[Timeline, PeakMoment]:
    """Live memory over the work of the row with the highest peak, and the facts of its peak."""
    setup = planner.setup
    if not rows:
        raise ScenarioError("there is nothing to draw: the scenario itself has no row for this stage and kind")
    # a stage without rounds is drawn only if no other is selected
    row = max(rows, key=lambda r: (bool(r.rounds), r.peak_memory_bytes))
    stage = setup.schedule.offered[row.stage - 1]
    shown = subjects(planner, [row.kind], wanted.stages_of(setup))
    subject = next(each for each in shown if each.shown_variant == row.variant)
    source = setup.clients.client(subject.largest(setup))
    work, _ = planner.work(row.kind, shown_round(setup, stage, row.kind), stage, subject.variant)
    drawn = timeline(client_part(work.limit_batches(source.size)), source, planner.predictor.device)
    peak = drawn.moments[drawn.peak]
    moment = PeakMoment(
        kind=row.kind,
        variant=row.variant,
        stage=stage.index,
        peak_memory_bytes=peak.bytes,
        **{name: getattr(peak, name) for name in ("operator", "scope", "phase", "distinct_pass", "pattern", "step")},
        moment=drawn.peak,
        moments=len(drawn.moments),
    )
    return drawn, moment


def _steps(traced: Timeline) -> list[tuple[int, str]]:
    """Index of the first moment of each metered step, and the step's label."""
    steps: list[tuple[int, str]] = []
    last = None
    passes = {m.distinct_pass for m in traced.moments}
    for index, m in enumerate(traced.moments):
        step = (m.distinct_pass, m.pattern, m.step)
        if step != last and m.phase not in ("start", "finish"):
            prefix = f"pass {m.distinct_pass + 1}, " if len(passes) > 1 else ""
            steps.append((index, f"{prefix}{m.pattern} step {len(steps) + 1}"))
        last = step
    return steps


def memory_timeline(traced: Timeline, title: str) -> Chart:
    """The parts of memory at every moment, stacked; parts that are always empty are left out."""
    moments, peak = traced.moments, traced.peak
    x, totals = range(len(moments)), [m.bytes for m in moments]
    parts = {part: [m.totals[i] for m in moments] for i, part in enumerate(PARTS) if part != "scratch"}
    parts = {part: values for part, values in parts.items() if any(values)}
    series = [Series(part, x, values, PARTS[part]) for part, values in parts.items()]
    place = f" in {moments[peak].scope}" if moments[peak].scope else ""
    words = f"peak {totals[peak] / MIB:,.2f} MiB at {moments[peak].operator}{place}, {moments[peak].phase}"
    where = [f"{units.show_bytes(m.bytes)}, {m.operator}, {m.scope or 'outside the model'}, {m.phase}" for m in moments]
    series += [
        Series("all", x, totals, INK, notes=where, form="lines"),
        Series("peak", [peak], [totals[peak]], INK, symbols=[4], notes=[words],
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
        [Panel("", "areas", ChartAxis("operators, in order"), memory, series, down=_steps(traced))],
        columns, rows, across=1, size=(11.0, 5.2), headed=True,
    )  # fmt: skip
