"""``--timeline``: live memory over the work of the highest peak, operator by operator."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.commands.profile.answer import PeakMoment, ProfileRow
from edgefl.commands.profile.profile_options import ProfileOptions
from edgefl.cost.predict import timeline
from edgefl.errors import ScenarioError
from edgefl.planning.planner import Planner
from edgefl.planning.subjects import shown_round, subjects
from edgefl.work import Timeline
from edgefl.work.halves import client_part


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
