"""Flights with explicit numbers instead of a drawn fleet, and their simulation event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

import numpy as np

from edgefl.devices.failures import NONE, Failures
from edgefl.simulation.client import flights_from, landings
from edgefl.simulation.clock import LAST, Clock
from edgefl.simulation.closed_form import AT_DOWNLOAD, AT_UPLOAD, Dispatch, Flights, Landings
from edgefl.simulation.in_flight import InFlight

Wires = tuple[Any, Any]
ALONE: Wires = (None, None)


@dataclass(frozen=True)
class One:
    """One flight; by default its three phases take 1 + 10 + 100 s and draw 3, 8 and 4 W."""

    down_bytes: int = 1000
    up_bytes: int = 1000
    latency: float = 0.0
    down_goodput: float = 8000.0
    up_goodput: float = 80.0
    cool_seconds: float = 10.0
    throttle_after: float = inf
    throttled_share: float = 1.0
    idle_watts: float = 2.0
    download_watts: float = 1.0
    upload_watts: float = 2.0
    compute_watts: float = 8.0
    busy_share: float = 1.0
    exchange_down_bytes: int = 0
    exchange_up_bytes: int = 0
    exchange_down_seconds: float = 0.0
    exchange_up_seconds: float = 0.0
    server_seconds: float = 0.0
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0)
    phase: int = NONE
    fraction: float = 1.0
    slow: float = 1.0
    leaves: float = inf
    joules: float = inf
    no_memory: bool = False

    def numbers(self) -> tuple[float, ...]:
        """The numbers in the order of ``edgefl.cost.phases.NUMBERS``; nothing is exchanged in no time."""
        exchanges = bool(self.exchange_down_seconds + self.exchange_up_seconds + self.server_seconds)
        return (
            8.0 * self.down_bytes, 8.0 * self.up_bytes, self.latency, self.down_goodput, self.up_goodput,
            self.cool_seconds, self.throttle_after, self.throttled_share, self.idle_watts, self.download_watts,
            self.upload_watts, self.compute_watts, self.busy_share, 8.0 * self.exchange_down_bytes * exchanges,
            8.0 * self.exchange_up_bytes * exchanges, self.exchange_down_seconds, self.exchange_up_seconds,
            self.server_seconds,
        )  # fmt: skip


def made(
    flights: Sequence[One], at: float = 0.0, clients: Sequence[int] | None = None, throttling: bool = True
) -> Flights:
    """The ``Flights`` of single flights, dispatched ``at`` seconds; clients are numbered from 0 by default."""

    def column(name: str) -> Any:
        return np.array([getattr(flight, name) for flight in flights])

    return Flights(
        Dispatch(1, 1, 0, at, {}),
        np.arange(len(flights)) if clients is None else np.asarray(clients),
        [None] * len(flights),  # type: ignore[list-item]
        np.array([flight.numbers() for flight in flights]),
        np.array([flight.factors for flight in flights]).T,
        Failures(column("phase").astype(np.int8), column("fraction"), column("slow")),
        column("leaves").astype(float),
        column("joules").astype(float),
        column("no_memory").astype(bool),
        throttling,
    )


def played(flights: Flights, over: float = inf, wanted: int | None = None, wires: Wires = ALONE) -> Landings:
    """Landings of the event engine in a synchronous round, which ends at ``over`` seconds or ``wanted`` updates."""
    clock = Clock(initial_time=flights.dispatch.at)
    air = over_lines(clock, wires)

    def cohort() -> Iterator[Any]:
        air.launch(flights_from(flights))
        done = air.landing_event(len(flights), inf if wanted is None else wanted)
        yield done if over == inf else done | clock.at(over, LAST)
        if air.flying:
            yield from air.cut()

    clock.run(clock.process(cohort()))  # type: ignore[arg-type]
    return landings(sorted(air.take(), key=lambda flight: flight.client))


def over_lines(clock: Clock, wires: Wires) -> InFlight:
    """Nobody under way, with lines that ``wires`` make of the clock."""
    air = InFlight(clock)
    down, up = (None if wire is None else wire(clock) for wire in wires)
    air.lines = {**air.lines, AT_DOWNLOAD: down, AT_UPLOAD: up}
    return air


def permuted(landed: Landings, order: Any) -> Landings:
    """The landings in another order."""
    columns = {f.name: getattr(landed, f.name) for f in fields(landed)}
    joules = tuple(phase[order] for phase in columns.pop("joules"))
    arrays = {name: np.broadcast_to(column, len(landed.client))[order] for name, column in columns.items()}
    return replace(landed, joules=joules, **arrays)


def assert_same(one: Landings, other: Landings) -> None:
    """Assert that every field of two landings is bit-equal."""
    for field in fields(Landings):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)
