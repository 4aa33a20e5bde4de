"""Selection and dispatch of the clients of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from edgefl import registry
from edgefl.arrays import Booleans, Integers
from edgefl.cost.phases import Phases
from edgefl.devices.failures import NONE, draw_failures
from edgefl.planning.planner import Plan, Planner
from edgefl.planning.privacy import PrivacyAccount, RoundDraw
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions, Versions
from edgefl.simulation.client import Flight, flights_from
from edgefl.simulation.closed_form import AT_END, FINISHED, Dispatch, Flights
from edgefl.simulation.learning.interface import ExpectedRound
from edgefl.simulation.roster import NO_CELL, Roster
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.selection.base import Candidates, Chosen
from edgefl.simulation.selection.orders import NO_CLIENTS
from edgefl.simulation.server_turns import take_turns

DRAWS = 1000
"""Draws after which a round has nobody, if all that are drawn are sent home.  A choice: with one client in a hundred
that takes part and a cohort of one, a round has nobody once in 23,000 times."""


def candidates(run: SimulationRun, round: int, kinds: Sequence[str]) -> Candidates:
    """Clients that the selection may draw from now, with the data that it may use."""
    setup, roster, batteries = run.parts.setup, run.parts.roster, run.parts.batteries
    flying, queued = ({}, {}) if run.air is None else (run.air.flying, run.air.queue)
    drawn = setup.drawn_kinds(round)

    def members(kind: str) -> Integers:
        if kind not in drawn:
            return NO_CLIENTS
        return members_of(setup, roster, kind) if kind in kinds else setup.of_kind(kind)  # whoever is sent home fits

    # a kind that is left out keeps its index, so that the draws of other kinds don't change
    groups = {kind: members(kind) for kind in setup.clients.kinds if kinds and setup.method.is_drawn(kind, round)}

    def ready(clients: Integers) -> Booleans:
        free = run.progress.presence.available(clients, run.now)
        # at noon a million phones that train at night are away, and their caps and batteries needn't be looked at
        here = clients[free]
        fits = roster.within_day(here, run.now)
        if batteries is not None:
            fits &= batteries.ready(here, run.now)
        if flying or queued:
            fits &= np.array([c not in flying and c not in queued for c in here.tolist()], dtype=bool)
        free[free] = fits
        return free

    return Candidates(
        groups,
        {kind: drawn.get(kind, 0) for kind in groups},
        samples=lambda clients: np.asarray(setup.clients.client_samples[clients]),
        seconds=lambda clients: np.where(
            roster.cell[clients] == NO_CELL, 0.0, roster.of_cells("seconds")[roster.cell[clients]]
        ),
        watts=lambda clients: np.array(
            [0.0 if cell == NO_CELL else roster.cells[cell].peak_watts for cell in roster.cell[clients].tolist()]
        ),
        devices=lambda clients: [setup.fleet.device(client) for client in clients.tolist()],
        ready=ready,
        charge=lambda clients: np.ones(len(clients)) if batteries is None else batteries.charge(clients, run.now),
    )


def expected_round(run: SimulationRun, noise: float) -> ExpectedRound:
    """The round that is played, with this noise as a multiple of ``clip``, and whom it draws: a plan for equal uploads,
    and how many clients with it are expected, in the order of kinds and clients."""
    setup, roster, found, round = run.parts.setup, run.parts.roster, list[tuple[Plan, float]](), run.at.round + 1
    for kind, draw in draws_of(setup, roster, round).items():
        cells, first, counts = np.unique(
            roster.cell[members_of(setup, roster, kind)], return_index=True, return_counts=True
        )
        # not by cell, because a resumed run may number its cells differently
        alike: dict[str, tuple[Plan, int]] = {}
        for index in np.argsort(first).tolist():
            plan = roster.cells[cells[index]]
            upload = plan.form.upload
            alike[upload] = alike.get(upload, (plan, 0))[0], alike.get(upload, (plan, 0))[1] + int(counts[index])
        found += [(plan, count * draw.places / draw.clients) for plan, count in alike.values()]
    return ExpectedRound(round, noise * (setup.method.setting.aggregation.clip or 0.0), found)


def draws_of(setup: Setup, roster: Roster, round: int) -> dict[str, RoundDraw]:
    """How many clients of each kind a round draws of how many; those of one draw together, if kinds share it."""
    sizes = {k: len(members_of(setup, roster, k)) for k in setup.clients.kinds if setup.participates(k, round)}
    seats = setup.seats(round)
    if not setup.round.stratify:
        together = RoundDraw(min(seats[""], sum(sizes.values())), sum(sizes.values()))
        return dict.fromkeys(sizes, together)
    return {kind: RoundDraw(min(seats[kind], size), size) for kind, size in sizes.items()}


def members_of(setup: Setup, roster: Roster, kind: str) -> Integers:
    """Clients of a kind that may be drawn, ascending."""
    return setup.of_kind(kind) if setup.round.gate == "everyone" else roster.able(kind)


def account_of(setup: Setup, planner: Planner, versions: Versions) -> PrivacyAccount | None:
    """What the rounds of a run spend, by the clients that are eligible in each stage; None without noise.

    Raises MethodError for noise that can't be found or counted.
    """
    privacy, aggregation = setup.privacy, setup.method.setting.aggregation
    if aggregation.noise is None and privacy.epsilon is None:
        return None
    sampling = registry.get("selection", setup.round.selection_name).sampling
    roster = Roster(planner, ClientVersions(len(setup.clients.client_kind), keeping=False))
    draws = dict[object, RoundDraw]()

    def draw(round: int) -> RoundDraw:
        kinds = tuple(kind for kind in setup.clients.kinds if setup.participates(kind, round))
        key = setup.schedule.stage(round).index, kinds
        if key not in draws:
            roster.judge(round, versions)
            found = [each for each in draws_of(setup, roster, round).values() if each.clients]
            draws[key] = max(found, key=lambda each: each.places / each.clients, default=RoundDraw(0, 0))
        return draws[key]

    rounds = range(1, setup.schedule.rounds + 1)
    return PrivacyAccount(privacy, sampling, [draw(round) for round in rounds], aggregation.noise)


def choose(run: SimulationRun, among: Candidates, round: int, kinds: Sequence[str], count: int | None) -> Chosen:
    """Choose a cohort, or ``count`` clients, and keep those of these kinds; the others are sent home.

    A cohort of which nobody is left is drawn again, up to ``DRAWS`` times.  Where the method draws all, nothing is
    drawn: all that are ready take part.
    """
    if run.parts.setup.method.draws_all(round):
        everyone = np.sort(np.concatenate([NO_CLIENTS, *among.groups.values()]))
        ready = np.asarray(among.ready(everyone), bool)
        return Chosen(everyone[ready], len(everyone), int((~ready).sum()))
    home = [clients for kind, clients in among.groups.items() if kind not in kinds and len(clients)]
    others = np.concatenate([NO_CLIENTS, *home])
    may_change = any(len(among.groups.get(kind, NO_CLIENTS)) for kind in kinds)
    for _ in range(DRAWS if home and may_change else 1):
        chosen = run.parts.selection.choose(among, round, count)
        kept = chosen.clients[~np.isin(chosen.clients, others)] if home else chosen.clients
        if len(kept):
            break
    return replace(chosen, clients=kept)


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
    flights = Flights(
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
        changing=fleet.changing,
    )
    return take_turns(flights, setup.seed)


def dispatch_one(run: SimulationRun, client: Integers, dispatch: Dispatch, until: float) -> Flight:
    """The flight of one client `[1]`, which is late after the time ``until``: what ``dispatch_clients`` gives.

    A policy that replaces each landed client at once dispatches them one by one.  Arrays of a whole dispatch, each of
    one number, took half the time of its rounds; so here one that doesn't fail is made of plain numbers.
    """
    setup, roster, batteries = run.parts.setup, run.parts.roster, run.parts.batteries
    fleet, at = setup.fleet, dispatch.at
    failures = draw_failures(fleet.failures, setup.seed, dispatch.number, client)
    if failures.phase[0] != NONE or setup.round.gate == "everyone" or fleet.changing is not None:
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
        exchanged=phases.exchanged_bits,
        waits=0.0,
        sent=at,
    )
