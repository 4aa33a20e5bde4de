"""What follows from flights that have landed: copies held, batteries, reports, records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from edgefl.simulation.air import Flight, landings
from edgefl.simulation.course import Course
from edgefl.simulation.flights import EMPTY, FINISHED, Dispatch, Landings
from edgefl.simulation.learning import Arrival, Training
from edgefl.simulation.records import UNMEASURED, outcomes, sums
from edgefl.simulation.setup import Plan
from edgefl.simulation.staleness import mixed

Learnt = tuple[float | None, Mapping[str, Any]]
"""What a flight's record has of its training: the loss, and what was measured."""

NOTHING: Learnt = None, UNMEASURED


@dataclass
class Tally:
    """What a round has come to so far.

    ``heard`` are flights of which no record has been made yet, each with staleness, discount and what it learnt.
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
    heard: list[tuple[Flight, int, float, Learnt]] = field(default_factory=list)
    selected: int = 0
    unavailable: int = 0
    landed: int = 0
    arrived: int = 0
    nobody_at: float = -inf
    short: bool = False
    server: list[dict[str, Any]] = field(default_factory=list)


def settle(
    course: Course, landed: Landings, plans: Sequence[Plan], sent: Dispatch, round: int, tally: Tally
) -> list[Arrival]:
    """What follows from the landings of a dispatch: copies held, batteries, reports, records; the updates."""
    count = len(plans)
    carry(course, landed, plans, [sent] * count)
    learnt = [NOTHING] * count
    arrivals = []
    trains, needs_loss = isinstance(course.learning, Training), course.selection.needs_loss
    seconds = landed.virtual_seconds.tolist() if needs_loss else ()
    for place, (client, outcome) in enumerate(zip(landed.client.tolist(), landed.outcome.tolist(), strict=True)):
        plan, arrived = plans[place], outcome == FINISHED
        if trains:
            learnt[place] = report(course, client, plan, arrived, round, tally)
            arrived = arrived and accepted(course, client, plan, sent.number, learnt[place], tally)
        if arrived:
            arrivals.append(Arrival(client, plan, sent.round, sent.number))
            if needs_loss:
                learn(client, plan, seconds[place], learnt[place], tally)
    tell(course, landed, plans, [sent.round] * count, [0] * count, [1.0] * count, learnt, round, tally)
    return arrivals


def settle_one(course: Course, flight: Flight, round: int, tally: Tally) -> Arrival | None:
    """What follows from one flight of an overlapping policy, but for its record; its update, if it arrived."""
    stale = course.version - flight.sent.version
    discount = course.setup.round.staleness.discount(stale)
    if course.policy.at_once:
        discount = mixed(course.setup.round.mixing, discount)
    if course.ledger.keeping or course.batteries is not None:
        carry(course, landings([flight]), [flight.plan], [flight.sent])
    arrived, learnt = flight.outcome == FINISHED, NOTHING
    if isinstance(course.learning, Training):
        learnt = report(course, flight.client, flight.plan, arrived, round, tally)
        arrived = arrived and accepted(course, flight.client, flight.plan, flight.sent.number, learnt, tally)
    tally.heard.append((flight, stale, float(discount), learnt))
    if not arrived:
        return None
    if course.selection.needs_loss:
        learn(flight.client, flight.plan, sum(flight.seconds), learnt, tally)
    return Arrival(flight.client, flight.plan, flight.sent.round, flight.sent.number, stale, float(discount))


def tell_heard(course: Course, round: int, tally: Tally) -> None:
    """Records of all flights that were heard one by one, together: an array of one costs as much as one of many."""
    if tally.heard:
        flights, staleness, discounts, learnt = zip(*tally.heard, strict=True)
        plans, bases = [flight.plan for flight in flights], [flight.sent.round for flight in flights]
        tell(course, landings(flights), plans, bases, staleness, discounts, learnt, round, tally)
        tally.heard = []


def tell(
    course: Course,
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
    tally.lines += course.clients.lines(landed, plans, round, base_rounds, staleness, discounts, learnt)
    tally.sums.update(sums(landed, plans))
    tally.outcomes.update(outcomes(landed))


def carry(course: Course, landed: Landings, plans: Sequence[Plan], sent: Sequence[Dispatch]) -> None:
    """What clients bring from a flight: newer copies, and emptier batteries."""
    if course.ledger.keeping:
        # plans that differ in devices or samples share what they send down
        groups: dict[tuple[int, int], list[int]] = {}
        for place in np.flatnonzero(landed.downloaded).tolist():
            groups.setdefault((id(plans[place].down), id(sent[place].versions)), []).append(place)
        for rows in groups.values():
            course.ledger.sent(landed.client[rows], plans[rows[0]].down, sent[rows[0]].versions)
    if course.batteries is not None:
        # an empty battery gave all that it had, however its joules are rounded
        spent = np.where(landed.outcome == EMPTY, inf, landed.energy_joules)
        course.batteries.spend(landed.client, spent, landed.ended, landed.virtual_seconds)


def report(course: Course, client: int, plan: Plan, arrived: bool, round: int, tally: Tally) -> Learnt:
    """Await a client's training, where anybody wants its report."""
    found = course.learning.land(client, arrived)
    if found is None:
        return NOTHING
    loss = found.result.loss
    tally.hosts.append({"round": round, "client": client, **found.host})
    course.observe("client", {"round": round, "client": client, "loss": loss})
    return loss if arrived else None, course.clients.measured(client, plan, found)


def accepted(course: Course, client: int, plan: Plan, number: int, learnt: Learnt, tally: Tally) -> bool:
    """Whether an update that arrived is used; one that isn't leaves its client's name, and no loss."""
    if course.learning.rejects(client, number):
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


def why(course: Course, round: int, outcome: str, arrived: int) -> str:
    """Why a run ends here."""
    found = f"{arrived} updates arrived of a quorum of {course.setup.round.quorum}"
    return f"round {round}: {outcome} ({found}); round.below_quorum says what happens then: skip, wait or fail"
