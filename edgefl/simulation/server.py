"""The server's own works: before and after a round, evaluation, and the delivery of a finished stage."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.cost import ComputeCost, duration, numbers_of, priced, traffic
from edgefl.planning.versions import final_blocks
from edgefl.simulation.finite import finite_metrics
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.records import server_record
from edgefl.simulation.run_state import Events, RunState
from edgefl.training import Report
from edgefl.work import Work


@dataclass(frozen=True)
class ServerWork:
    """A work of the server under way."""

    work: Work
    when: str
    compute: ComputeCost
    future: Future[Report] | None


def run_server_works(
    run: RunState, env: Clock, works: Sequence[Work], round: int, when: str, server: list[dict[str, Any]]
) -> Events:
    """Run works of the server in sequence, charged to its device; each changes the state."""
    stage = run.setup.schedule.stage(round)
    for index, work in enumerate(works):
        work = run.setup.staged(work, stage)
        report = yield from server_work(run, env, submit(run, work, round, when, index), server)
        run.learning.absorb(work, report)


def submit(run: RunState, work: Work, round: int, when: str, index: int) -> ServerWork:
    """Begin a work of the server."""
    _, computed = run.planner.server(work)
    return ServerWork(work, when, computed, run.learning.submit(work, when, round, index))


def server_work(run: RunState, env: Clock, under_way: ServerWork, server: list[dict[str, Any]]) -> Events:
    """Charge a work to the server's device; return its report."""
    work, computed = under_way.work, under_way.compute
    spent = duration(computed, traffic((), ()), run.setup.fleet.server, None)
    yield from run.pass_until(env, run.now + spent.compute_seconds)
    report = under_way.future.result() if under_way.future is not None else None
    server.append(server_record(run.setup, work, under_way.when, computed, spent.compute_seconds, report))
    return report


def evaluate(run: RunState, env: Clock, round: int, split: str, server: list[dict[str, Any]]) -> Events:
    """Evaluate every kind's model; return the metrics by kind, None where a model or its scores aren't finite.

    Without training the result is empty.
    """
    works = run.setup.evaluations(split, run.setup.schedule.stage(round))
    submitted = [submit(run, work, round, f"evaluate {split}", i) for i, (work, _) in enumerate(works)]
    metrics: dict[str, dict[str, float | None]] = {}
    bad = run.learning.non_finite()
    for under_way, (_, kinds) in zip(submitted, works, strict=True):
        report = yield from server_work(run, env, under_way, server)
        if report is not None:
            metrics |= {kind: finite_metrics(under_way.work, report.result.metrics, bad) for kind in kinds}
    return {kind: metrics[kind] for kind in run.setup.clients.kinds if kind in metrics}


def deliver_final(run: RunState, env: Clock, round: int) -> Events:
    """Send a finished stage's blocks once to all eligible clients; return tensor and serialised bytes."""
    stage = run.setup.schedule.ends(round)
    if stage is None or not run.setup.schedule.deliver_final:
        return 0, 0
    bytes_ = serialised = 0
    slowest = 0.0
    holders = np.flatnonzero(run.roster.eligible & (run.roster.cell >= 0))
    # group the holders by cell with one sort
    cells = run.roster.cell[holders]
    order = np.argsort(cells, kind="stable")
    numbers, first = np.unique(cells[order], return_index=True)
    parts = np.split(holders[order], first[1:]) if len(holders) else []
    for number, clients in zip(numbers, parts, strict=True):
        plan = run.roster.cells[number]
        payload = final_blocks(plan.work, stage)
        bytes_ += payload.tensor_bytes * len(clients)
        serialised += payload.serialised_bytes * len(clients)
        delivery = numbers_of(payload.serialised_bytes, 0, 0.0, plan.device, plan.link)
        slowest = max(slowest, float(priced(np.array([delivery]), throttling=False)[0][0]))
        run.client_versions.sent(clients, (payload,), run.state.versions)
    yield from run.pass_until(env, run.now + slowest)
    return bytes_, serialised
