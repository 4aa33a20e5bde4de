"""Selection and dispatch of the clients of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.devices import Device
from edgefl.planning.places import places
from edgefl.simulation.arrivals import Tally
from edgefl.simulation.inflight.closed_form import Dispatch, Flights, Integers
from edgefl.simulation.inflight.dispatch import flights_of
from edgefl.simulation.run_state import RunState
from edgefl.simulation.selection.base import Candidates, Chosen
from edgefl.simulation.selection.orders import NO_CLIENTS


def candidates(run: RunState, round: int, kinds: Sequence[str]) -> Candidates:
    """Clients that the selection may draw from now, with the data that it may use."""
    setup, fleet = run.setup, run.setup.fleet
    flying, queued = run.engine.flying if run.engine is not None else {}, run.queue
    groups = {kind: setup.of_kind(kind) if setup.round.gate == "everyone" else run.roster.able(kind) for kind in kinds}

    # a kind that is left out keeps its index, so that the draws of other kinds don't change
    kinds_by_index = [k for k in setup.clients.kinds if kinds and setup.method.participates(k, round)]
    groups = {kind: groups.get(kind, NO_CLIENTS) for kind in kinds_by_index}

    def ready(clients: Integers) -> NDArray[np.bool_]:
        free = fleet.availability.available(clients, run.now)
        if run.batteries is not None:
            free &= run.batteries.ready(clients, run.now)
        if flying or queued:
            free &= np.array([c not in flying and c not in queued for c in clients.tolist()], dtype=bool)
        return free

    def seconds(clients: Integers) -> NDArray[np.float64]:
        return run.roster.of_cells("seconds")[run.roster.cell[clients]]

    def watts(clients: Integers) -> NDArray[np.float64]:
        return np.array([run.roster.plan(client).cost.duration.peak_watts for client in clients.tolist()])

    def devices(clients: Integers) -> list[Device]:
        return [fleet.device(client) for client in clients.tolist()]

    def samples(clients: Integers) -> Integers:
        return np.asarray(setup.clients.client_samples[clients])

    population = {kind: len(setup.of_kind(kind)) if kind in kinds else 0 for kind in groups}
    return Candidates(groups, population, samples, seconds, watts, devices, ready)


def cohort(run: RunState, kinds: Sequence[str]) -> int:
    """Number of clients in a cohort, without over-selection."""
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
    """Select the cohort's clients, or ``count`` clients, and count them in the tally."""
    chosen = run.selection.choose(candidates(run, round, kinds), round, count)
    tally.unavailable += chosen.unready
    tally.selected += len(chosen.clients)
    return chosen


def empty_outcome(run: RunState, kinds: Sequence[str]) -> str:
    """Outcome of a round in which no client was dispatched."""
    if run.setup.round.gate == "eligible" and not any(len(run.roster.able(kind)) for kind in kinds):
        return "nobody eligible"
    return "nobody available"


def dispatch_clients(run: RunState, clients: Integers, round: int) -> Flights:
    """Dispatch these clients at the current virtual time."""
    run.dispatches += 1
    dispatch = Dispatch(round, run.dispatches, run.version, run.now, run.state.versions)
    return flights_of(run.setup, run.roster, run.batteries, clients, dispatch)
