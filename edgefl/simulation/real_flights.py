"""Flights on a wall clock as the simulation's landings: what ``Simulation(flown=...)`` is given of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgefl.cost.phases import joules_of
from edgefl.simulation.closed_form import DROPPED, FINISHED, LATE, NO_MEMORY, PHASES, Flights, Landings
from edgefl.training.remote import RealFlight


def land_real_flights(flights: Flights, real: Sequence[RealFlight], *, priced: bool = True) -> Landings:
    """The landings of a dispatch's flights, in its order, with the seconds and bytes of their real ones.

    ``priced`` joules are the profiles' watts times these seconds, as nobody metered them; else they are NaN.
    """
    outcome = [
        FINISHED if each.ended_in is None else NO_MEMORY if each.killed else LATE if each.late else DROPPED
        for each in real
    ]
    seconds = np.array([[each.download_seconds, each.compute_seconds, each.upload_seconds] for each in real]).T
    beside = np.array([[each.start_up_seconds, each.metering_seconds] for each in real]).T
    began = np.full(len(real), flights.dispatch.at)
    return Landings(
        flights.client,
        np.array(outcome, np.int8),
        np.array([PHASES.index(each.ended_in) for each in real], np.int8),
        began,
        began + seconds.sum(axis=0) + beside.sum(axis=0),
        seconds[0],
        seconds[1],
        seconds[2],
        np.array([each.download_bytes for each in real], np.int64),
        np.array([each.upload_bytes for each in real], np.int64),
        joules_of(seconds, flights.phases.watts if priced else (np.full(len(real), np.nan),) * 3),
        flights.failures.slow,
        flights.phases.compute_seconds,
        start_up_seconds=beside[0],
        metering_seconds=beside[1],
    )
