"""The server's own works: before and after a round, evaluation, and the delivery of a finished stage."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from edgefl.cost import ComputeCost, duration, numbers_of, priced, traffic
from edgefl.planning.versions import final_blocks
from edgefl.records.record import UNSET
from edgefl.simulation.clock import Steps
from edgefl.simulation.finite import finite_metrics
from edgefl.simulation.records import server_record
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.tally import Tally
from edgefl.work import Payload, Work
from edgefl.work.update import Update


@dataclass(frozen=True)
class ServerWork:
    """A work of the server under way."""

    work: Work
    when: str
    compute: ComputeCost
    future: Future[Update] | None


def run_server_works(run: SimulationRun, works: Sequence[Work], when: str, tally: Tally) -> Steps:
    """Run works of the server in sequence, charged to its device; each changes the state."""
    for index, work in enumerate(works):
        work = run.parts.setup.staged(work, tally.stage)
        report = yield from server_work(run, submit(run, work, tally.round, when, index), tally)
        run.parts.learning.absorb(work, report)


def submit(run: SimulationRun, work: Work, round: int, when: str, index: int) -> ServerWork:
    """Begin a work of the server."""
    _, computed = run.parts.planner.server(work)
    return ServerWork(work, when, computed, run.parts.learning.submit(work, when, round, index))


def server_work(run: SimulationRun, under_way: ServerWork, tally: Tally) -> Steps:
    """Charge a work to the server's device; return its report."""
    work, computed = under_way.work, under_way.compute
    spent = duration(computed, traffic((), ()), run.parts.setup.fleet.server, None)
    yield from run.pass_until(run.now + spent.compute_seconds)
    report = under_way.future.result() if under_way.future is not None else None
    tally.server.append(server_record(run.parts.setup, work, under_way.when, computed, spent.compute_seconds, report))
    return report


def evaluate(run: SimulationRun, split: str, tally: Tally) -> Steps:
    """Evaluate every kind's model; return the metrics by kind, None where a model or its scores aren't finite.

    Without training the result is empty.
    """
    setup = run.parts.setup
    part = setup.schedule.scored(run.progress.reached)
    tally.scored_part = UNSET if part is None else part.index
    works = setup.evaluations(split, part or tally.stage)
    submitted = [submit(run, work, tally.round, f"evaluate {split}", i) for i, (work, _) in enumerate(works)]
    metrics: dict[str, dict[str, float | None]] = {}
    bad = run.parts.learning.non_finite()
    for under_way, (_, kinds) in zip(submitted, works, strict=True):
        report = yield from server_work(run, under_way, tally)
        if report is not None:
            metrics |= {kind: finite_metrics(under_way.work, report.metrics, bad) for kind in kinds}
    return {kind: metrics[kind] for kind in setup.clients.kinds if kind in metrics}


def deliver_final(run: SimulationRun, round: int) -> Steps:
    """Send a finished stage's blocks once to all eligible clients.

    Return tensor and serialised bytes, and those that went to relays, which pass them on when they have them.
    """
    schedule, roster, tier = run.parts.setup.schedule, run.parts.roster, run.parts.tier
    stage = schedule.ends(round)
    if stage is None or not schedule.deliver_final:
        return 0, 0, 0
    bytes_ = serialised = relayed = 0
    slowest = 0.0
    holders = np.flatnonzero(roster.eligible & (roster.cell >= 0))
    # group the holders by cell with one sort
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
    for number, clients in zip(numbers.tolist(), parts, strict=True):
        plan, (payload,) = roster.cells[number], finals[number]
        bytes_ += payload.tensor_bytes * len(clients)
        serialised += payload.serialised_bytes * len(clients)
        delivery = numbers_of(payload.serialised_bytes, 0, 0.0, plan.device, plan.link)
        seconds = float(priced(np.array([delivery]), throttling=False)[0][0])
        slowest = max(slowest, float(had[clients].max()) + seconds)
        roster.client_versions.sent(clients, (payload,), run.state.versions)
    yield from run.pass_until(run.now + slowest)
    return bytes_, serialised, relayed
