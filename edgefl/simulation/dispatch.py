"""Dispatch: flights of chosen clients, with their random draws."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from edgefl.cost import round_numbers
from edgefl.devices.battery import Batteries
from edgefl.devices.failures import NONE, draw_failures
from edgefl.planning.planner import Plan
from edgefl.planning.setup import Setup
from edgefl.simulation.closed_form import Dispatch, Flights, Integers
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
    fleet, numbers = setup.fleet, dispatch.number
    leaves = fleet.availability.leaves(clients, dispatch.at)
    joules = np.full(len(clients), inf) if batteries is None else batteries.level(clients, dispatch.at)
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
