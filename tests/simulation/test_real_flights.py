"""Real flights that take what is simulated land as the simulated ones, and their faults have the simulation's words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from flight_toys import One, made, played

from edgefl.simulation.closed_form import OUTCOMES, PHASES, Landings
from edgefl.simulation.real_flights import land_real_flights
from edgefl.training.remote import RealFlight

FLIGHTS = made([One(), One(down_bytes=3000, up_bytes=7, latency=0.5), One(slow=3.0)], at=40.0, clients=[2, 4, 7])


def real(landed: Landings, **more: Any) -> list[RealFlight]:
    """Real flights with the seconds and bytes of simulated ones."""
    columns = (landed.client, landed.download_seconds, landed.compute_seconds, landed.upload_seconds,
               landed.carried_download_bytes, landed.carried_upload_bytes)  # fmt: skip
    return [RealFlight(*row, **more) for row in zip(*(column.tolist() for column in columns), strict=True)]


def test_flights_that_take_what_is_simulated_land_alike() -> None:
    simulated = played(FLIGHTS)
    landed = land_real_flights(FLIGHTS, real(simulated))
    for field in fields(Landings):
        ours, theirs = getattr(landed, field.name), getattr(simulated, field.name)
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-12, err_msg=field.name)


def test_a_fault_has_the_outcome_and_the_phase_of_the_simulation() -> None:
    for more, outcome in (
        ({"ended_in": "upload", "late": True}, "late"),
        ({"ended_in": "compute", "killed": True}, "out of memory"),
        ({"ended_in": "start"}, "dropped"),
    ):
        landed = land_real_flights(FLIGHTS, real(played(FLIGHTS), **more))
        assert {OUTCOMES[each] for each in landed.outcome} == {outcome}
        assert {PHASES[each] for each in landed.phase} == {more["ended_in"]}
        assert not landed.finished_mask.any()
