"""Who is asked to take part in a round, and sent off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.simulation.course import Course
from edgefl.simulation.dispatch import flights_of
from edgefl.simulation.flights import Dispatch, Flights, Integers
from edgefl.simulation.selection import NOBODY, Candidates, Chosen, places
from edgefl.simulation.settling import Tally


def candidates(course: Course, round: int, kinds: Sequence[str]) -> Candidates:
    """Whom the selection may draw from now, and what it may know of them."""
    setup, fleet = course.setup, course.setup.fleet
    flying, back = course.air.flying if course.air is not None else {}, course.queue
    groups = {
        kind: setup.of_kind(kind) if setup.round.gate == "everyone" else course.roster.able(kind) for kind in kinds
    }

    # a kind that is left out keeps its place, so that the others' draws don't change by it
    asked = [k for k in setup.clients.kinds if kinds and setup.method.participates(k, round)]
    groups = {kind: groups.get(kind, NOBODY) for kind in asked}

    def ready(clients: Integers) -> NDArray[np.bool_]:
        there = fleet.availability.available(clients, course.now)
        if course.batteries is not None:
            there &= course.batteries.ready(clients, course.now)
        if flying or back:
            there &= np.array([c not in flying and c not in back for c in clients.tolist()], dtype=bool)
        return there

    def seconds(clients: Integers) -> NDArray[np.float64]:
        return course.roster.of_cells("seconds")[course.roster.cell[clients]]

    population = {kind: len(setup.of_kind(kind)) if kind in kinds else 0 for kind in groups}
    return Candidates(groups, population, lambda clients: setup.clients.client_samples[clients], seconds, ready)


def cohort(course: Course, kinds: Sequence[str]) -> int:
    """Clients in a cohort, without over-selection."""
    known = course.cohorts.get(tuple(kinds))
    if known is None:
        known = course.cohorts[tuple(kinds)] = _cohort(course, kinds)
    return known


def _cohort(course: Course, kinds: Sequence[str]) -> int:
    population = {kind: len(course.setup.of_kind(kind)) for kind in kinds}
    if not sum(population.values()):
        return 0
    if not course.setup.round.stratify:
        population = {"": sum(population.values())}
    return sum(min(n, population[k]) for k, n in places(course.setup.round.cohort, population).items())


def choose(course: Course, round: int, kinds: Sequence[str], tally: Tally, count: int | None = None) -> Chosen:
    """The cohort's clients, or ``count``."""
    chosen = course.selection.choose(candidates(course, round, kinds), round, count)
    tally.unavailable += chosen.unready
    tally.selected += len(chosen.clients)
    return chosen


def nobody(course: Course, kinds: Sequence[str]) -> str:
    """Why nobody was sent off."""
    if course.setup.round.gate == "eligible" and not any(len(course.roster.able(kind)) for kind in kinds):
        return "nobody eligible"
    return "nobody available"


def send_off(course: Course, clients: Integers, round: int) -> Flights:
    """These clients as a dispatch of their own, now."""
    course.dispatches += 1
    sent = Dispatch(round, course.dispatches, course.version, course.now, course.state.versions)
    return flights_of(course.setup, course.roster, course.batteries, clients, sent)
