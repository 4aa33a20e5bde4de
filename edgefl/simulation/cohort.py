"""Selection and dispatch of the clients of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgefl.devices import Device
from edgefl.planning.cohort_places import places
from edgefl.planning.setup import Setup
from edgefl.simulation.closed_form import Flights, Integers
from edgefl.simulation.dispatch import flights_of
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.selection.base import Candidates, Chosen
from edgefl.simulation.selection.orders import NO_CLIENTS
from edgefl.simulation.tally import Tally


def candidates(run: SimulationRun, round: int, kinds: Sequence[str]) -> Candidates:
    """Clients that the selection may draw from now, with the data that it may use."""
    setup, roster, batteries = run.parts.setup, run.parts.roster, run.parts.batteries
    flying, queued = ({}, {}) if run.air is None else (run.air.flying, run.air.queue)
    groups = {kind: setup.of_kind(kind) if setup.round.gate == "everyone" else roster.able(kind) for kind in kinds}

    # a kind that is left out keeps its index, so that the draws of other kinds don't change
    kinds_by_index = [k for k in setup.clients.kinds if kinds and setup.method.participates(k, round)]
    groups = {kind: groups.get(kind, NO_CLIENTS) for kind in kinds_by_index}

    def ready(clients: Integers) -> NDArray[np.bool_]:
        free = setup.fleet.availability.available(clients, run.now)
        if batteries is not None:
            free &= batteries.ready(clients, run.now)
        if flying or queued:
            free &= np.array([c not in flying and c not in queued for c in clients.tolist()], dtype=bool)
        return free

    def seconds(clients: Integers) -> NDArray[np.float64]:
        return roster.of_cells("seconds")[roster.cell[clients]]

    def watts(clients: Integers) -> NDArray[np.float64]:
        return np.array([roster.plan(client).cost.duration.peak_watts for client in clients.tolist()])

    def devices(clients: Integers) -> list[Device]:
        return [setup.fleet.device(client) for client in clients.tolist()]

    def charge(clients: Integers) -> NDArray[np.float64]:
        return np.ones(len(clients)) if batteries is None else batteries.charge(clients, run.now)

    def samples(clients: Integers) -> Integers:
        return np.asarray(setup.clients.client_samples[clients])

    population = {kind: len(setup.of_kind(kind)) if kind in kinds else 0 for kind in groups}
    return Candidates(groups, population, samples, seconds, watts, devices, ready, charge)


def cohort(run: SimulationRun, kinds: Sequence[str]) -> int:
    """Number of clients in a cohort, without over-selection."""
    key, known = tuple(kinds), run.progress.cohorts
    if key not in known:
        known[key] = _cohort(run.parts.setup, key)
    return known[key]


def _cohort(setup: Setup, kinds: Sequence[str]) -> int:
    population = {kind: len(setup.of_kind(kind)) for kind in kinds}
    if not sum(population.values()):
        return 0
    if not setup.round.stratify:
        population = {"": sum(population.values())}
    return sum(min(n, population[k]) for k, n in places(setup.round.cohort, population).items())


def choose(run: SimulationRun, round: int, kinds: Sequence[str], tally: Tally, count: int | None = None) -> Chosen:
    """Select the cohort's clients, or ``count`` clients, and count them in the tally."""
    chosen = run.parts.selection.choose(candidates(run, round, kinds), round, count)
    tally.unavailable += chosen.unready
    tally.selected += len(chosen.clients)
    return chosen


def empty_outcome(run: SimulationRun, kinds: Sequence[str]) -> str:
    """Outcome of a round in which no client was dispatched."""
    if run.parts.setup.round.gate == "eligible" and not any(len(run.parts.roster.able(kind)) for kind in kinds):
        return "nobody eligible"
    return "nobody available"


def dispatch_clients(run: SimulationRun, clients: Integers, round: int) -> Flights:
    """Dispatch these clients at the current virtual time."""
    parts = run.parts
    return flights_of(parts.setup, parts.roster, parts.batteries, clients, run.next_dispatch(round))
