"""Flights that no fleet was drawn for: their numbers are said one by one, and they are played event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

import numpy as np

from edgefl.devices.failures import NONE, Failures
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.closed_form import Dispatch, Flights, Landings
from edgefl.simulation.inflight.events import EventEngine, landings
from edgefl.simulation.inflight.shared_link import SharedLink

Wires = tuple[SharedLink | None, SharedLink | None]
ALONE: Wires = (None, None)


@dataclass(frozen=True)
class One:
    """One flight; as it stands it takes 1 + 10 + 100 s and draws 3, 8 and 4 W."""

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
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0)
    phase: int = NONE
    fraction: float = 1.0
    slow: float = 1.0
    leaves: float = inf
    joules: float = inf
    no_memory: bool = False

    def numbers(self) -> tuple[float, ...]:
        """As ``edgefl.simulation.inflight.closed_form.NUMBERS``."""
        return (
            8.0 * self.down_bytes, 8.0 * self.up_bytes, self.latency, self.down_goodput, self.up_goodput,
            self.cool_seconds, self.throttle_after, self.throttled_share, self.idle_watts, self.download_watts,
            self.upload_watts, self.compute_watts,
        )  # fmt: skip


def made(
    ones: Sequence[One], at: float = 0.0, clients: Sequence[int] | None = None, throttling: bool = True
) -> Flights:
    """These flights, sent off ``at``; clients are numbered from 0 unless said."""

    def column(name: str) -> Any:
        return np.array([getattr(one, name) for one in ones])

    return Flights(
        Dispatch(1, 1, 0, at, {}),
        np.arange(len(ones)) if clients is None else np.asarray(clients),
        [None] * len(ones),  # type: ignore[list-item]
        np.array([one.numbers() for one in ones]),
        np.array([one.factors for one in ones]).T,
        Failures(column("phase").astype(np.int8), column("fraction"), column("slow")),
        column("leaves").astype(float),
        column("joules").astype(float),
        column("no_memory").astype(bool),
        throttling,
    )


def played(flights: Flights, over: float = inf, wanted: int | None = None, wires: Wires = ALONE) -> Landings:
    """Event by event, as a synchronous round waits for a cohort: until ``over``, or for so many updates."""
    clock = Clock(initial_time=flights.dispatch.at)
    engine = EventEngine(clock, wires)

    def cohort() -> Iterator[Any]:
        engine.launch(flights)
        done = engine.wait(len(flights) if wanted is None else wanted)
        yield done if over == inf else done | clock.moment(over)
        if engine.flying:
            engine.cut(clock.now)

    clock.run(clock.process(cohort()))  # type: ignore[arg-type]
    return landings(sorted(engine.take(), key=lambda flight: flight.client))


def permuted(landed: Landings, order: Any) -> Landings:
    """The same in another order."""
    return replace(landed, **{f.name: getattr(landed, f.name)[order] for f in fields(landed)})


def assert_same(one: Landings, other: Landings) -> None:
    """Equal in every field, to the last digit."""
    for field in fields(Landings):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)
