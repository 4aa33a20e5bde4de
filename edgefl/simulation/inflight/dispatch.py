"""Dispatch: flights of chosen clients, with their random draws."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from edgefl.cost import round_numbers
from edgefl.devices.battery import Batteries
from edgefl.devices.failures import NONE, draw_failures
from edgefl.planning.planner import Plan
from edgefl.planning.setup import Setup
from edgefl.simulation.inflight.closed_form import Dispatch, Flights, Floats, Integers
from edgefl.simulation.roster import Roster


def flights_of(
    setup: Setup,
    roster: Roster,
    batteries: Batteries | None,
    clients: Integers,
    dispatch: Dispatch,
) -> Flights:
    """Flights of these clients.

    Draws depend on the seed, the number of the dispatch and the client, but not on the other clients.
    """
    leaves = setup.fleet.availability.leaves(clients, dispatch.at)
    joules = np.full(len(clients), inf) if batteries is None else batteries.level(clients, dispatch.at)
    return _flights(setup, roster, clients, dispatch, dispatch.number, leaves, joules)


def drawn_ahead(setup: Setup, roster: Roster, clients: Integers, numbers: Sequence[int]) -> Flights:
    """Flights of single dispatches of these ``numbers``, without what depends on their times.

    They begin at 0 s, and neither availability nor batteries end them.
    """
    endless = np.full(len(clients), inf)
    return _flights(setup, roster, clients, Dispatch(0, 0, 0, 0.0, {}), numbers, endless, endless)


def _flights(
    setup: Setup,
    roster: Roster,
    clients: Integers,
    dispatch: Dispatch,
    numbers: int | Sequence[int],
    leaves: Floats,
    joules: Floats,
) -> Flights:
    fleet = setup.fleet
    cells = roster.cell[clients]
    jitter = fleet.jitter(setup.seed, numbers, clients)
    no_memory = np.zeros(len(clients), bool)
    if setup.round.gate == "everyone":
        no_memory = roster.of_cells("memory")[cells] > fleet.budgets["memory"][clients]
    return Flights(
        dispatch,
        clients,
        [roster.cells[cell] for cell in cells.tolist()],
        roster.numbers(_numbers)[cells],
        np.stack([jitter["download"], jitter["compute"], jitter["upload"]]),
        draw_failures(fleet.failures, setup.seed, numbers, clients),
        leaves,
        joules,
        no_memory,
        fleet.throttling,
    )


def _numbers(plan: Plan) -> tuple[float, ...]:
    return round_numbers(plan.cost.compute, plan.cost.traffic, plan.device, plan.link)


def may_arrive(flights: Flights) -> NDArray[np.bool_]:
    """Mask of flights whose update isn't already lost by a drawn failure or for lack of memory."""
    return np.asarray((flights.failures.phase == NONE) & ~flights.no_memory)
