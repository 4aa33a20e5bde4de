"""Selection and dispatch of the clients of a round."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from edgefl.arrays import Booleans, Integers
from edgefl.cost.phases import Phases
from edgefl.devices.failures import NONE, draw_failures
from edgefl.planning.round_options import places
from edgefl.planning.setup import Setup
from edgefl.simulation.client import Flight, flights_from
from edgefl.simulation.closed_form import AT_END, FINISHED, Dispatch, Flights
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.selection.base import Candidates
from edgefl.simulation.selection.orders import NO_CLIENTS


def candidates(run: SimulationRun, round: int, kinds: Sequence[str]) -> Candidates:
    """Clients that the selection may draw from now, with the data that it may use."""
    setup, roster, batteries = run.parts.setup, run.parts.roster, run.parts.batteries
    flying, queued = ({}, {}) if run.air is None else (run.air.flying, run.air.queue)
    members = setup.of_kind if setup.round.gate == "everyone" else roster.able
    # a kind that is left out keeps its index, so that the draws of other kinds don't change
    by_index = [kind for kind in setup.clients.kinds if kinds and setup.method.participates(kind, round)]
    groups = {kind: members(kind) if kind in kinds else NO_CLIENTS for kind in by_index}

    def ready(clients: Integers) -> Booleans:
        free = run.progress.presence.available(clients, run.now)
        if batteries is not None:
            free &= batteries.ready(clients, run.now)
        if flying or queued:
            free &= np.array([c not in flying and c not in queued for c in clients.tolist()], dtype=bool)
        return free

    return Candidates(
        groups,
        {kind: len(setup.of_kind(kind)) if kind in kinds else 0 for kind in groups},
        samples=lambda clients: np.asarray(setup.clients.client_samples[clients]),
        seconds=lambda clients: roster.of_cells("seconds")[roster.cell[clients]],
        watts=lambda clients: np.array([plan.peak_watts for plan in roster.plans(clients)]),
        devices=lambda clients: [setup.fleet.device(client) for client in clients.tolist()],
        ready=ready,
        charge=lambda clients: np.ones(len(clients)) if batteries is None else batteries.charge(clients, run.now),
    )


def cohort_size(setup: Setup, kinds: Sequence[str]) -> int:
    """Number of clients in a cohort of these kinds, without over-selection."""
    population = {kind: len(setup.of_kind(kind)) for kind in kinds}
    if not sum(population.values()):
        return 0
    if not setup.round.stratify:
        population = {"": sum(population.values())}
    return sum(min(n, population[k]) for k, n in places(setup.round.cohort, population).items())


def dispatch_clients(run: SimulationRun, clients: Integers, dispatch: Dispatch) -> Flights:
    """Flights of these clients.

    Draws depend on the seed, the number of the dispatch and the client, but not on the other clients.
    """
    setup, roster, batteries = run.parts.setup, run.parts.roster, run.parts.batteries
    fleet = setup.fleet
    cells = roster.cell[clients]
    no_memory = np.zeros(len(clients), bool)
    if setup.round.gate == "everyone":
        no_memory = roster.of_cells("memory")[cells] > fleet.budgets["memory"][clients]
    return Flights(
        dispatch,
        clients,
        roster.plans(clients),
        roster.numbers[cells],
        fleet.jitter(setup.seed, dispatch.number, clients),
        draw_failures(fleet.failures, setup.seed, dispatch.number, clients),
        run.progress.presence.leaves(clients, dispatch.at),
        np.full(len(clients), inf) if batteries is None else batteries.level(clients, dispatch.at),
        no_memory,
        fleet.throttling,
    )


def dispatch_one(run: SimulationRun, client: Integers, dispatch: Dispatch, until: float) -> Flight:
    """The flight of one client `[1]`, which is late after the time ``until``: what ``dispatch_clients`` gives.

    A policy that replaces each landed client at once dispatches them one by one.  Arrays of a whole dispatch, each of
    one number, took half the time of its rounds; so here one that doesn't fail is made of plain numbers.
    """
    setup, roster, batteries = run.parts.setup, run.parts.roster, run.parts.batteries
    fleet, at = setup.fleet, dispatch.at
    failures = draw_failures(fleet.failures, setup.seed, dispatch.number, client)
    if failures.phase[0] != NONE or setup.round.gate == "everyone":
        return next(flights_from(dispatch_clients(run, client, dispatch), until))
    number, slow = int(client[0]), float(failures.slow[0])
    cell = int(roster.cell[number])
    factors = fleet.jitter(setup.seed, dispatch.number, client)[:, 0].tolist()
    phases = Phases(roster.numbers[cell].tolist(), fleet.throttling, factors, slow)
    down, busy, up = phases.seconds
    return Flight(
        number,
        dispatch,
        leaves=max(float(run.progress.presence.leaves(client, at)[0]), at),
        until=max(until, at),
        joules=inf if batteries is None else float(batteries.level(client, at)[0]),
        plan=roster.cells[cell],
        outcome=FINISHED,
        last=AT_END,
        durations=(down, float(busy), up),
        latency=phases.latency,
        rates=phases.rates,
        bits=phases.bits,
        slow=slow,
        whole=float(busy),
        watts=phases.watts,
        sent=at,
    )
