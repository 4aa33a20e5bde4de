"""What follows from flights that have landed: copies held, batteries, reports, records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from edgefl.planning.planner import Plan
from edgefl.planning.staleness import mixed
from edgefl.simulation.inflight.closed_form import EMPTY, FINISHED, Dispatch, Landings
from edgefl.simulation.inflight.events import Flight, landings
from edgefl.simulation.learning import Arrival, Training
from edgefl.simulation.records import UNMEASURED, outcomes, sums
from edgefl.simulation.run_state import RunState

Learnt = tuple[float | None, Mapping[str, Any]]
"""What a flight's record has of its training: the loss, and what was measured."""

NOTHING: Learnt = None, UNMEASURED


@dataclass
class Tally:
    """What a round has come to so far.

    ``processed`` are flights of which no record has been made yet, each with staleness, discount and what it learnt.
    ``short`` says that places are free for clients that may come back online.
    """

    lines: list[bytes] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    learnt: list[tuple[int, float, float, int]] = field(default_factory=list)
    buffer: list[Arrival] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    processed: list[tuple[Flight, int, float, Learnt]] = field(default_factory=list)
    selected: int = 0
    unavailable: int = 0
    landed: int = 0
    arrived: int = 0
    nobody_at: float = -inf
    short: bool = False
    server: list[dict[str, Any]] = field(default_factory=list)


def process_arrivals(
    run: RunState, landed: Landings, plans: Sequence[Plan], sent: Dispatch, round: int, tally: Tally
) -> list[Arrival]:
    """What follows from the landings of a dispatch: copies held, batteries, reports, records; the updates."""
    count = len(plans)
    update_clients(run, landed, plans, [sent] * count)
    learnt = [NOTHING] * count
    arrivals = []
    trains, needs_loss = isinstance(run.learning, Training), run.selection.needs_loss
    seconds = landed.virtual_seconds.tolist() if needs_loss else ()
    for place, (client, outcome) in enumerate(zip(landed.client.tolist(), landed.outcome.tolist(), strict=True)):
        plan, arrived = plans[place], outcome == FINISHED
        if trains:
            learnt[place] = await_report(run, client, plan, arrived, round, tally)
            arrived = arrived and accepted(run, client, plan, sent.number, learnt[place], tally)
        if arrived:
            arrivals.append(Arrival(client, plan, sent.round, sent.number))
            if needs_loss:
                learn(client, plan, seconds[place], learnt[place], tally)
    record_landings(run, landed, plans, [sent.round] * count, [0] * count, [1.0] * count, learnt, round, tally)
    return arrivals


def process_arrival(run: RunState, flight: Flight, round: int, tally: Tally) -> Arrival | None:
    """What follows from one flight of an overlapping policy, but for its record; its update, if it arrived."""
    stale = run.version - flight.sent.version
    discount = run.setup.round.staleness.discount(stale)
    if run.policy.at_once:
        discount = mixed(run.setup.round.mixing, discount)
    if run.client_versions.keeping or run.batteries is not None:
        update_clients(run, landings([flight]), [flight.plan], [flight.sent])
    arrived, learnt = flight.outcome == FINISHED, NOTHING
    if isinstance(run.learning, Training):
        learnt = await_report(run, flight.client, flight.plan, arrived, round, tally)
        arrived = arrived and accepted(run, flight.client, flight.plan, flight.sent.number, learnt, tally)
    tally.processed.append((flight, stale, float(discount), learnt))
    if not arrived:
        return None
    if run.selection.needs_loss:
        learn(flight.client, flight.plan, sum(flight.seconds), learnt, tally)
    return Arrival(flight.client, flight.plan, flight.sent.round, flight.sent.number, stale, float(discount))


def record_processed(run: RunState, round: int, tally: Tally) -> None:
    """Records of all flights that were heard one by one, together: an array of one costs as much as one of many."""
    if tally.processed:
        flights, staleness, discounts, learnt = zip(*tally.processed, strict=True)
        plans, bases = [flight.plan for flight in flights], [flight.sent.round for flight in flights]
        record_landings(run, landings(flights), plans, bases, staleness, discounts, learnt, round, tally)
        tally.processed = []


def record_landings(
    run: RunState,
    landed: Landings,
    plans: Sequence[Plan],
    base_rounds: Sequence[int],
    staleness: Sequence[int],
    discounts: Sequence[float],
    learnt: Sequence[Learnt],
    round: int,
    tally: Tally,
) -> None:
    """Records of landings, and what they add up to."""
    tally.lines += run.client_lines.lines(landed, plans, round, base_rounds, staleness, discounts, learnt)
    tally.sums.update(sums(landed, plans))
    tally.outcomes.update(outcomes(landed))


def update_clients(run: RunState, landed: Landings, plans: Sequence[Plan], sent: Sequence[Dispatch]) -> None:
    """What clients bring from a flight: newer copies, and emptier batteries."""
    if run.client_versions.keeping:
        # plans that differ in devices or samples share what they send down
        groups: dict[tuple[int, int], list[int]] = {}
        for place in np.flatnonzero(landed.downloaded).tolist():
            groups.setdefault((id(plans[place].down), id(sent[place].versions)), []).append(place)
        for rows in groups.values():
            run.client_versions.sent(landed.client[rows], plans[rows[0]].down, sent[rows[0]].versions)
    if run.batteries is not None:
        # an empty battery gave all that it had, however its joules are rounded
        spent = np.where(landed.outcome == EMPTY, inf, landed.energy_joules)
        run.batteries.spend(landed.client, spent, landed.ended, landed.virtual_seconds)


def await_report(run: RunState, client: int, plan: Plan, arrived: bool, round: int, tally: Tally) -> Learnt:
    """Await a client's training, where anybody wants its report."""
    found = run.learning.land(client, arrived)
    if found is None:
        return NOTHING
    loss = found.result.loss
    tally.hosts.append({"round": round, "client": client, **found.host})
    run.on_progress("client", {"round": round, "client": client, "loss": loss})
    return loss if arrived else None, run.client_lines.measured(client, plan, found)


def accepted(run: RunState, client: int, plan: Plan, number: int, learnt: Learnt, tally: Tally) -> bool:
    """Whether an update that arrived is used; one that isn't leaves its client's name, and no loss."""
    if run.learning.rejects(client, number):
        tally.rejected.append(client)
        return False
    loss, _ = learnt
    if loss is not None:
        tally.losses.setdefault(plan.kind, []).append((loss, plan.samples))
    return True


def learn(client: int, plan: Plan, seconds: float, learnt: Learnt, tally: Tally) -> None:
    """What a selection may learn from an update that arrived."""
    loss, _ = learnt
    tally.learnt.append((client, float("nan") if loss is None else loss, seconds, plan.samples))


def why_ended(run: RunState, round: int, outcome: str, arrived: int) -> str:
    """Why a run ends here."""
    found = f"{arrived} updates arrived of a quorum of {run.setup.round.quorum}"
    return f"round {round}: {outcome} ({found}); round.below_quorum says what happens then: skip, wait or fail"
