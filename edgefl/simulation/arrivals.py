"""Processing of landed flights: versions held, batteries, training reports and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from edgefl.planning.planner import Plan
from edgefl.planning.staleness import mixed
from edgefl.planning.versions import computed_once
from edgefl.schedules import Stage
from edgefl.simulation.client_evaluation import ScoredClients
from edgefl.simulation.inflight.closed_form import EMPTY, FINISHED, REJECTED, Dispatch, Landings
from edgefl.simulation.inflight.events import Flight, landings
from edgefl.simulation.learning import Arrival, Training
from edgefl.simulation.part_saving import PartSaver
from edgefl.simulation.records import UNMEASURED, Learnt, outcomes, sums
from edgefl.simulation.run_state import RunState

UNTRAINED = Learnt(None, UNMEASURED)


@dataclass
class Tally:
    """Counts and records of one round.

    ``losses`` are those of accepted updates with their samples, ``all_losses`` also those of rejected ones, both by
    kind; ``rejections`` counts rejected updates by reason.  ``processed`` are flights without a record yet, each with
    staleness, weight factor and training part.  ``short`` means that places are free and may be filled by clients that
    come back online.
    """

    lines: list[bytes] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    learnt: list[tuple[int, float, float, int]] = field(default_factory=list)
    buffer: list[Arrival] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)
    all_losses: dict[str, list[float]] = field(default_factory=dict)
    processed: list[tuple[Flight, int, float, Learnt]] = field(default_factory=list)
    selected: int = 0
    unavailable: int = 0
    landed: int = 0
    arrived: int = 0
    unfilled_at: float = -inf
    short: bool = False
    server: list[dict[str, Any]] = field(default_factory=list)
    scored: ScoredClients = field(default_factory=ScoredClients)


def process_arrivals(
    run: RunState,
    landed: Landings,
    plans: Sequence[Plan],
    dispatch: Dispatch,
    round: int,
    stage: Stage,
    tally: Tally,
) -> list[Arrival]:
    """Process the landings of a dispatch (versions, batteries, reports, records); return its updates."""
    count = len(plans)
    update_clients(run, landed, plans, [dispatch] * count)
    learnt = [UNTRAINED] * count
    landed = replace(landed, outcome=landed.outcome.copy())
    arrivals = []
    trains, needs_loss = isinstance(run.learning, Training), run.selection.needs_loss
    seconds = landed.virtual_seconds.tolist() if needs_loss else ()
    finished = (landed.outcome == FINISHED).tolist()
    of = zip(landed.client.tolist(), plans, finished, strict=True)
    run.learning.expect([Arrival(c, plan, dispatch.round, dispatch.number) for c, plan, there in of if there], stage)
    part = PartSaver(run, round)
    for index, (client, outcome) in enumerate(zip(landed.client.tolist(), landed.outcome.tolist(), strict=True)):
        plan, arrived = plans[index], outcome == FINISHED
        if trains:
            learnt[index] = await_report(run, client, plan, arrived, round, tally)
            if arrived and not accepted(run, client, plan, dispatch.number, learnt[index], tally):
                arrived, landed.outcome[index] = False, REJECTED
            part.landed()
        if arrived:
            arrivals.append(Arrival(client, plan, dispatch.round, dispatch.number))
            if needs_loss:
                learn(client, plan, seconds[index], learnt[index], tally)
    record_landings(run, landed, plans, [dispatch.round] * count, [0] * count, [1.0] * count, learnt, round, tally)
    return arrivals


def process_arrival(run: RunState, flight: Flight, round: int, tally: Tally) -> Arrival | None:
    """Process one flight of an overlapping policy, except for its record; return its update, if it arrived."""
    stale = run.version - flight.dispatch.version
    factor = run.weight_factors.get(stale)
    if factor is None:
        discount = run.setup.round.staleness.discount(stale)
        factor = float(mixed(run.setup.round.mixing, discount) if run.policy.at_once else discount)
        run.weight_factors[stale] = factor
    if run.roster.moving or run.batteries is not None:
        update_clients(run, landings([flight]), [flight.plan], [flight.dispatch])
    arrived, learnt = flight.outcome == FINISHED, UNTRAINED
    if isinstance(run.learning, Training):
        learnt = await_report(run, flight.client, flight.plan, arrived, round, tally)
        if arrived and not accepted(run, flight.client, flight.plan, flight.dispatch.number, learnt, tally):
            arrived, flight.outcome = False, REJECTED
    tally.processed.append((flight, stale, factor, learnt))
    if not arrived:
        return None
    if run.selection.needs_loss:
        learn(flight.client, flight.plan, sum(flight.seconds), learnt, tally)
    return Arrival(flight.client, flight.plan, flight.dispatch.round, flight.dispatch.number, stale, factor)


def record_processed(run: RunState, round: int, tally: Tally) -> None:
    """Write the records of all processed flights at once, which is faster than one by one."""
    if tally.processed:
        flights, staleness, factors, learnt = zip(*tally.processed, strict=True)
        plans, bases = [flight.plan for flight in flights], [flight.dispatch.round for flight in flights]
        record_landings(run, landings(flights), plans, bases, staleness, factors, learnt, round, tally)
        tally.processed = []


def record_landings(
    run: RunState,
    landed: Landings,
    plans: Sequence[Plan],
    base_rounds: Sequence[int],
    staleness: Sequence[int],
    factors: Sequence[float],
    learnt: Sequence[Learnt],
    round: int,
    tally: Tally,
) -> None:
    """Add the records of landings and their sums to the tally."""
    tally.lines += run.client_lines.lines(landed, plans, round, base_rounds, staleness, factors, learnt)
    tally.sums.update(sums(run.setup, landed, plans))
    tally.outcomes.update(outcomes(landed))


def update_clients(run: RunState, landed: Landings, plans: Sequence[Plan], dispatches: Sequence[Dispatch]) -> None:
    """Update the versions, the battery charges and the joules spent of clients after their flights."""
    run.roster.spend(landed.client, landed.energy_joules)
    if run.client_versions.keeping:
        # plans that differ in devices or samples share their downloads
        groups: dict[tuple[int, int, str | None], list[int]] = {}
        for row in np.flatnonzero(landed.downloaded).tolist():
            computed = computed_once(plans[row].form) if landed.outcome[row] == FINISHED else None
            groups.setdefault((id(plans[row].down), id(dispatches[row].versions), computed), []).append(row)
        for (_, _, computed), rows in groups.items():
            run.client_versions.sent(landed.client[rows], plans[rows[0]].down, dispatches[rows[0]].versions, computed)
    if run.batteries is not None:
        # an empty battery has spent its whole charge, whatever the rounding
        spent = np.where(landed.outcome == EMPTY, inf, landed.energy_joules)
        run.batteries.spend(landed.client, spent, landed.ended, landed.virtual_seconds)


def await_report(run: RunState, client: int, plan: Plan, arrived: bool, round: int, tally: Tally) -> Learnt:
    """Await a client's training, if its report is needed."""
    report = run.learning.land(client, arrived)
    if report is None:
        return UNTRAINED
    loss = report.result.loss
    tally.hosts.append({"round": round, "client": client, **report.host})
    run.on_progress("client", {"round": round, "client": client, "loss": loss})
    measured = run.client_lines.measured(client, plan, report)
    return Learnt(loss, measured, report.result.metrics) if arrived else Learnt(None, measured)


def accepted(run: RunState, client: int, plan: Plan, number: int, learnt: Learnt, tally: Tally) -> bool:
    """Whether an arrived update is used.

    A rejected one is listed in ``rejected`` and counted by its reason; its loss doesn't enter the round's mean.
    """
    loss = learnt.loss
    if loss is not None:
        tally.all_losses.setdefault(plan.kind, []).append(loss)
    if (reason := run.learning.rejects(client, number)) is not None:
        tally.rejected.append(client)
        tally.rejections[reason] += 1
        return False
    if loss is not None:
        tally.losses.setdefault(plan.kind, []).append((loss, plan.samples))
    return True


def learn(client: int, plan: Plan, seconds: float, learnt: Learnt, tally: Tally) -> None:
    """Note the loss and duration of an arrived update for the selection."""
    loss = learnt.loss
    tally.learnt.append((client, float("nan") if loss is None else loss, seconds, plan.samples))


def why_ended(run: RunState, round: int, outcome: str, arrived: int) -> str:
    """Error message of a run that ends because its quorum isn't met."""
    count = f"{arrived} updates arrived of a quorum of {run.setup.round.quorum}"
    return f"round {round}: {outcome} ({count}); round.below_quorum sets what happens then: skip, wait or fail"
