"""The server's own works: before and after a round, evaluation, and the delivery of a finished stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from math import isfinite

import numpy as np

from edgefl.cost.phases import Phases, numbers_of
from edgefl.planning.versions import final_blocks
from edgefl.records.record import UNSET
from edgefl.simulation.clock import Steps
from edgefl.simulation.records import server_record
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.tally import Tally
from edgefl.work import Description, Payload, Work
from edgefl.work.update import Update


def run_server_works(run: SimulationRun, works: Sequence[Work], when: str, tally: Tally) -> Steps:
    """Run works of the server in sequence, charged to its device; each changes the state."""
    learning = run.parts.learning
    for index, work in enumerate(works):
        work = run.parts.setup.restrict_to_stage(work, tally.stage)
        future = learning.submit(work, when, tally.round, index)
        learning.absorb(work, (yield from server_work(run, work, when, future, tally)))


def server_work(run: SimulationRun, work: Work, when: str, future: Future[Update] | None, tally: Tally) -> Steps:
    """Charge a work under way to the server's device; return its report."""
    _, computed = run.parts.planner.server(work)
    seconds = computed.seconds(run.parts.setup.fleet.server)
    yield from run.pass_until(run.now + seconds)
    report = None if future is None else future.result()
    tally.server.append(server_record(run.parts.setup, work, when, computed, seconds, report))
    return report


def works_of_evaluation(run: SimulationRun, split: str, tally: Tally) -> list[tuple[Work, list[str]]]:
    """``Setup.evaluations`` of the part that is scored now, which the tally notes."""
    setup = run.parts.setup
    part = setup.schedule.evaluated_stage(run.progress.reached)
    tally.scored_part = UNSET if part is None else part.index
    return setup.evaluations(split, part or tally.stage)


def evaluate(run: SimulationRun, split: str, tally: Tally) -> Steps:
    """Evaluate every kind's model; return the metrics by kind, None where a model or its scores aren't finite.

    Without training the result is empty.
    """
    setup, works = run.parts.setup, works_of_evaluation(run, split, tally)
    when, submit = f"evaluate {split}", run.parts.learning.submit
    submitted = [submit(work, when, tally.round, index) for index, (work, _) in enumerate(works)]
    metrics: dict[str, dict[str, float | None]] = {}
    bad = run.parts.learning.non_finite()
    for future, (work, kinds) in zip(submitted, works, strict=True):
        report = yield from server_work(run, work, when, future, tally)
        if report is not None:
            metrics |= {kind: finite_metrics(work, report.metrics, bad) for kind in kinds}
    return {kind: metrics[kind] for kind in setup.clients.kinds if kind in metrics}


def finite_metrics(work: Description, metrics: Mapping[str, float], bad: Collection[str]) -> dict[str, float | None]:
    """The metrics of an evaluation, with None for those that aren't finite.

    All are None if the work reads one of the ``bad`` addresses, whose tensors aren't finite.
    """
    spoilt = any(item.source in bad for payload in work.down for item in payload.items)
    return {name: value if isfinite(value) and not spoilt else None for name, value in metrics.items()}


def deliver_final(run: SimulationRun, tally: Tally) -> Steps:
    """Send a finished stage's blocks once to all eligible clients, through relays when these have them.

    Add the bytes to the round's sums, and return those of tensors.
    """
    schedule, roster, tier = run.parts.setup.schedule, run.parts.roster, run.parts.tier
    changing = run.parts.setup.fleet.changing
    stage = schedule.ends(tally.round)
    if stage is None or not schedule.deliver_final:
        return 0
    bytes_ = serialised = 0
    slowest = 0.0
    holders = np.flatnonzero(roster.eligible & (roster.cell >= 0))
    cells = roster.cell[holders]
    order = np.argsort(cells, kind="stable")
    numbers, first = np.unique(cells[order], return_index=True)
    parts = np.split(holders[order], first[1:]) if len(holders) else []
    distinct: dict[tuple[str, str], tuple[Payload, ...]] = {}
    finals: dict[int, tuple[Payload, ...]] = {}
    for number in numbers.tolist():
        plan = roster.cells[number]
        if (key := (plan.kind, plan.form.upload)) not in distinct:
            distinct[key] = (final_blocks(plan.form, stage),)
        finals[number] = distinct[key]
    had = np.zeros(len(roster.cell))
    if tier is not None:
        had[holders], relayed = tier.deliver(holders, [finals[number] for number in cells.tolist()])
        tally.sums["relay_download_bytes"] += relayed
    for number, clients in zip(numbers.tolist(), parts, strict=True):
        plan, (payload,) = roster.cells[number], finals[number]
        bytes_ += payload.tensor_bytes * len(clients)
        serialised += payload.serialised_bytes * len(clients)
        phases = Phases(numbers_of(payload.serialised_bytes, 0, 0.0, plan.device, plan.link))
        over = had[clients] + phases.seconds[0]
        if changing is not None:
            begins = had[clients] + phases.latency[0]
            moving = np.full(len(clients), phases.bits[0] / phases.rates[0])
            over = begins + changing.seconds(0, clients, run.now + begins, moving)
        # a link that never comes back is waited for by nobody
        slowest = max(slowest, float(over[np.isfinite(over)].max(initial=0.0)))
        roster.client_versions.record_download(clients, (payload,), run.state.versions)
    yield from run.pass_until(run.now + slowest)
    tally.sums.update(download_bytes=bytes_, serialised_download_bytes=serialised, carried_download_bytes=serialised)
    return bytes_
