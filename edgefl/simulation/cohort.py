"""Who is asked to take part in a round, and sent off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.planning.places import places
from edgefl.simulation.arrivals import Tally
from edgefl.simulation.inflight.closed_form import Dispatch, Flights, Integers
from edgefl.simulation.inflight.dispatch import flights_of
from edgefl.simulation.run_state import RunState
from edgefl.simulation.selection.base import NOBODY, Candidates, Chosen


def candidates(run: RunState, round: int, kinds: Sequence[str]) -> Candidates:
    """Whom the selection may draw from now, and what it may know of them."""
    setup, fleet = run.setup, run.setup.fleet
    flying, back = run.engine.flying if run.engine is not None else {}, run.queue
    groups = {kind: setup.of_kind(kind) if setup.round.gate == "everyone" else run.roster.able(kind) for kind in kinds}

    # a kind that is left out keeps its place, so that the others' draws don't change by it
    asked = [k for k in setup.clients.kinds if kinds and setup.method.participates(k, round)]
    groups = {kind: groups.get(kind, NOBODY) for kind in asked}

    def ready(clients: Integers) -> NDArray[np.bool_]:
        there = fleet.availability.available(clients, run.now)
        if run.batteries is not None:
            there &= run.batteries.ready(clients, run.now)
        if flying or back:
            there &= np.array([c not in flying and c not in back for c in clients.tolist()], dtype=bool)
        return there

    def seconds(clients: Integers) -> NDArray[np.float64]:
        return run.roster.of_cells("seconds")[run.roster.cell[clients]]

    population = {kind: len(setup.of_kind(kind)) if kind in kinds else 0 for kind in groups}
    return Candidates(groups, population, lambda clients: setup.clients.client_samples[clients], seconds, ready)


def cohort(run: RunState, kinds: Sequence[str]) -> int:
    """Clients in a cohort, without over-selection."""
    known = run.cohorts.get(tuple(kinds))
    if known is None:
        known = run.cohorts[tuple(kinds)] = _cohort(run, kinds)
    return known


def _cohort(run: RunState, kinds: Sequence[str]) -> int:
    population = {kind: len(run.setup.of_kind(kind)) for kind in kinds}
    if not sum(population.values()):
        return 0
    if not run.setup.round.stratify:
        population = {"": sum(population.values())}
    return sum(min(n, population[k]) for k, n in places(run.setup.round.cohort, population).items())


def choose(run: RunState, round: int, kinds: Sequence[str], tally: Tally, count: int | None = None) -> Chosen:
    """The cohort's clients, or ``count``."""
    chosen = run.selection.choose(candidates(run, round, kinds), round, count)
    tally.unavailable += chosen.unready
    tally.selected += len(chosen.clients)
    return chosen


def why_nobody(run: RunState, kinds: Sequence[str]) -> str:
    """Why nobody was sent off."""
    if run.setup.round.gate == "eligible" and not any(len(run.roster.able(kind)) for kind in kinds):
        return "nobody eligible"
    return "nobody available"


def dispatch_clients(run: RunState, clients: Integers, round: int) -> Flights:
    """These clients as a dispatch of their own, now."""
    run.dispatches += 1
    sent = Dispatch(round, run.dispatches, run.version, run.now, run.state.versions)
    return flights_of(run.setup, run.roster, run.batteries, clients, sent)
