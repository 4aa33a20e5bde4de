"""A client's round as a SimPy process: download, computing, upload, unless a deadline or its battery cuts it short."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

import numpy as np
import simpy

from edgefl.cost.phases import carried_bits, exchanged_bytes, joules_of
from edgefl.devices.changing_links import ChangingLinks
from edgefl.planning.planner import Plan
from edgefl.simulation.clock import CUTS, PHASES, Clock, Steps
from edgefl.simulation.closed_form import (
    AT_COMPUTE,
    AT_DOWNLOAD,
    AT_END,
    AT_UPLOAD,
    EMPTY,
    FINISHED,
    LATE,
    OFFLINE,
    REJECTED,
    Dispatch,
    Flights,
    Landings,
    own_link_bits,
)  # fmt: skip
from edgefl.simulation.lines import Lines, SharedLine


@dataclass(slots=True, eq=False)
class Flight:
    """A client's round: what was drawn for it, and where it stands: in ``phase`` since ``began``.

    It is ``sent`` off when it is dispatched, or later, when its relay has what it downloads.  Unless it is cut short,
    it ends with its ``outcome`` in the phase ``last``, after which nothing follows.  Its battery has ``joules`` left.
    Loading and computing takes ``whole`` seconds if the client doesn't fail, ``waits`` of them for the server's device.
    ``changing`` are the fleet's links whose rates change; ``durations`` know them.
    """

    client: int
    dispatch: Dispatch
    leaves: float
    until: float
    joules: float
    plan: Plan
    outcome: int
    last: int
    durations: tuple[float, float, float]
    latency: tuple[float, float]
    rates: tuple[float, float]
    bits: tuple[float, float]
    slow: float
    whole: float
    watts: tuple[float, float, float]
    exchanged: tuple[float, float]
    waits: float
    sent: float
    changing: ChangingLinks | None = None
    phase: int = AT_DOWNLOAD
    began: float = -inf
    flowing: float = -inf
    served: float = -inf
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    carried: list[float] = field(default_factory=lambda: [0.0, 0.0])
    ended: float = inf

    def enter(self, phase: int, now: float) -> None:
        """Begin a phase."""
        self.phase, self.began, self.flowing, self.served = phase, now, -inf, -inf

    def leave(self, seconds: float, moved: float) -> None:
        """End a phase, or break it off, after so many seconds: count them, their joules, and the bits moved."""
        index = self.phase - AT_DOWNLOAD
        self.seconds[index] = seconds
        if self.joules < inf:
            self.joules = max(self.joules - seconds * self.watts[index], 0.0)
        if index != 1:
            self.carried[index // 2] = moved

    def stop(self, seconds: float = inf) -> tuple[float, int]:
        """When a phase of so many seconds is cut short, and why."""
        when, why = self.leaves, OFFLINE
        if self.joules < inf:
            power = self.watts[self.phase - AT_DOWNLOAD]
            if self.joules < min(seconds * power, inf) and (empty := self.began + self.joules / power) < when:
                when, why = empty, EMPTY
        return (self.until, LATE) if self.until < when else (when, why)

    def to_data(self) -> dict[str, Any]:
        """All fields that are finite, except the plan, the dispatch and its time, and the links.

        No flight behind a relay is under way when a checkpoint is written: all were sent off as they were dispatched.
        """
        names = (name for name in self.__slots__ if name not in ("plan", "dispatch", "sent", "changing"))
        return {name: value for name in names if (value := getattr(self, name)) not in (inf, -inf)}

    @classmethod
    def from_data(
        cls, raw: Mapping[str, Any], plan: Plan, dispatch: Dispatch, changing: ChangingLinks | None
    ) -> Flight:
        """The flight of which ``to_data`` made this."""
        infinite = dict.fromkeys(("leaves", "until", "joules"), inf)
        return cls(plan=plan, dispatch=dispatch, sent=dispatch.at, changing=changing, **{**infinite, **raw})


class CutShort(Exception):
    """A client's round ends early, with this outcome."""

    def __init__(self, outcome: int):
        self.outcome = outcome


def client(env: Clock, flight: Flight, lines: Lines) -> Generator[simpy.Event, Any, Flight]:
    """A client's round, from the phase on in which it is.  The server may interrupt it; the cause is the outcome."""
    try:
        if flight.began == -inf:  # it isn't resumed
            if flight.sent > env.now:
                yield env.at(flight.sent, PHASES, flight.client)
            flight.enter(AT_DOWNLOAD, flight.sent)
        last = min(flight.last, AT_UPLOAD)
        while (phase := flight.phase) <= last:
            line, bits = lines[phase], flight.bits[phase // 2]
            if line is not None and bits > 0:
                yield from transfer(env, flight, line)
            else:  # to compute, or to transfer over the client's own link: the time of its end is known
                seconds = flight.durations[phase - AT_DOWNLOAD]
                over, (stop, why) = flight.began + seconds, flight.stop(seconds)
                if stop < over:
                    yield env.at(stop, CUTS, flight.client)
                    flight.leave(env.now - flight.began, bits_until(flight, env.now))
                    raise CutShort(why)
                yield env.at(over, PHASES, flight.client)
                flight.leave(seconds, bits)
            flight.enter(phase + 1, env.now)
        flight.phase = min(flight.phase, flight.last)
    except CutShort as cut:
        flight.outcome = cut.outcome
    except simpy.Interrupt as cut:
        assert env.active_process is not None
        env.cancel(env.active_process.target)  # nobody waits for it any more
        flight.outcome = cast(int, cut.cause)
        if env.now < flight.sent:  # it hasn't begun
            flight.sent = flight.began = env.now
        if flight.flowing == -inf:  # else what was moved over the line is counted
            moved = bits_until(flight, env.now) if lines[flight.phase] is None else 0.0
            flight.leave(env.now - flight.began, moved)
    flight.ended = env.now
    return flight


def transfer(env: Clock, flight: Flight, line: SharedLine) -> Steps:
    """Download or upload over a line that other clients share: its end depends on them."""
    way = flight.phase // 2
    (stop, why), bits = flight.stop(), flight.bits[way]
    if flight.flowing == -inf:  # it hasn't come to the line
        over = flight.began + flight.latency[way]
        yield env.at(min(stop, over), line.comes, flight.client)
        if stop < over:
            flight.leave(env.now - flight.began, 0.0)
            raise CutShort(why)
    try:
        yield from line.carry(flight, stop)
    finally:
        left = line.withdraw(flight)
        flight.leave(env.now - flight.began, min(max(bits - left, 0.0), bits))
    if left > 0:
        raise CutShort(why)


def bits_until(flight: Flight, now: float) -> float:
    """Bits that a transfer over the client's own link has moved."""
    if flight.phase == AT_COMPUTE:
        return 0.0
    way = flight.phase // 2
    spent, own = now - flight.began, (flight.latency[way], flight.rates[way], flight.bits[way])
    if flight.changing is None:
        return float(carried_bits(spent, *own))
    one = np.array([flight.client]), np.array([flight.began]), np.array([spent])
    return float(own_link_bits(flight.changing, way, *one, *own)[0])


# --- many clients ----------------------------------------------------------------------------------------------------


def flights_from(flights: Flights, until: float = inf) -> Iterator[Flight]:
    """The single flights of a dispatch; those still under way at the time ``until`` are late."""
    ends, phases, start = flights.ends, flights.phases, flights.start
    columns = zip(
        flights.client.tolist(),
        np.maximum(flights.leaves, start).tolist(),
        flights.joules.tolist(),
        flights.plans,
        ends.outcome.tolist(),
        ends.last.tolist(),
        # seconds of each phase on the clients' own links
        _rows(*flights.seconds),
        _rows(*phases.latency),
        _rows(*phases.rates),
        _rows(*ends.bits),
        flights.failures.slow.tolist(),
        phases.compute_seconds.tolist(),
        _rows(*phases.watts),
        _rows(*(np.broadcast_to(bits, len(flights)) for bits in phases.exchanged_bits)),
        np.broadcast_to(flights.waits, len(flights)).tolist(),
        start.tolist(),
        [flights.changing] * len(flights),
        strict=True,
    )
    until = max(until, flights.dispatch.at)
    return (Flight(client, flights.dispatch, leaves, until, *own) for client, leaves, *own in columns)


def _rows(*columns: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def landings(flown: Sequence[Flight]) -> Landings:
    """Results of these flights, as arrays in their order."""
    rows = [
        (
            f.client,
            f.outcome,
            f.phase,
            f.sent,
            f.ended,
            f.slow,
            f.whole,
            *f.seconds,
            *f.carried,
            *f.watts,
            *f.exchanged,
            f.waits,
        )
        for f in flown
    ]
    columns = np.array(rows, np.float64).reshape(-1, 18).T.copy()
    client, outcome, phase, sent, ended, slow, whole, fetching, computing, sending, *numbers, waits = columns
    also = [exchanged_bytes(bits, computing, whole) for bits in numbers[5:]]
    down, up = ((bits // 8.0).astype(np.int64) + more for bits, more in zip(numbers[:2], also, strict=True))
    outcomes = outcome.astype(np.int8)
    phases = np.where((outcomes == FINISHED) | (outcomes == REJECTED), AT_END, phase.astype(np.int8))
    joules = joules_of((fetching, computing, sending), numbers[2:5])
    clients = client.astype(np.int64)
    return Landings(
        clients, outcomes, phases, sent, ended, fetching, computing, sending, down, up, joules, slow, whole, also[0],
        waits,
    )  # fmt: skip
