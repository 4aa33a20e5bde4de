"""Flights, simulated event by event on the virtual clock.

Every phase of a flight is an event with a callback, not a process, which is faster.  Transfers over the server's shared
link are flows whose rates depend on all other flows.  Times are computed exactly as in ``closed``, also in a resumed
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, cast

import numpy as np
import simpy

from edgefl.cost import carried, joules_of
from edgefl.planning.planner import Plan
from edgefl.simulation.inflight.clock import CUTS, FLOWS, LAST, PHASES, Clock
from edgefl.simulation.inflight.closed_form import (
    AT_COMPUTE,
    AT_DOWNLOAD,
    AT_END,
    EMPTY,
    FINISHED,
    LATE,
    OFFLINE,
    REJECTED,
    Dispatch,
    Flights,
    Landings,
)
from edgefl.simulation.inflight.shared_link import SharedLink


class Flight:
    """One client under way, in ``phase`` since ``began``; events with an older ``token`` are outdated.

    It is ``sent`` off when it is dispatched, or later, when its relay has what it downloads.
    """

    __slots__ = (
        "began", "bits", "carried", "client", "dispatch", "durations", "ended", "flowing", "joules", "last", "latency",
        "leaves", "outcome", "phase", "plan", "rates", "seconds", "sent", "slow", "token", "until", "watts",
    )  # fmt: skip

    client: int
    plan: Plan
    dispatch: Dispatch
    sent: float
    phase: int
    began: float
    durations: tuple[float, float, float]
    latency: tuple[float, float]
    rates: tuple[float, float]
    bits: tuple[float, float]
    watts: tuple[float, float, float]
    outcome: int
    last: int
    leaves: float
    until: float
    joules: float
    slow: float
    seconds: list[float]
    carried: list[float]
    flowing: float
    ended: float
    token: int

    def __init__(
        self,
        client: int,
        dispatch: Dispatch,
        leaves: float,
        until: float,
        joules: float,
        plan: Plan,
        outcome: int,
        last: int,
        durations: tuple[float, float, float],
        latency: tuple[float, float],
        rates: tuple[float, float],
        bits: tuple[float, float],
        slow: float,
        watts: tuple[float, float, float],
        *,
        sent: float | None = None,
    ):
        self.client, self.plan, self.dispatch = client, plan, dispatch
        self.outcome, self.last = outcome, last
        self.durations, self.latency, self.rates, self.bits = durations, latency, rates, bits
        self.leaves, self.until, self.joules, self.slow, self.watts = leaves, until, joules, slow, watts
        self.sent = dispatch.at if sent is None else sent
        self.phase, self.began, self.flowing, self.token = AT_DOWNLOAD, self.sent, -inf, 0
        self.ended = inf
        self.seconds, self.carried = [0.0, 0.0, 0.0], [0.0, 0.0]

    def row(self) -> dict[str, object]:
        """All fields except the plan, the dispatch and its time, as plain data."""
        row = {name: getattr(self, name) for name in WRITTEN}
        return {name: None if value in (inf, -inf) else value for name, value in row.items()}


WRITTEN = tuple(name for name in Flight.__slots__ if name not in ("plan", "dispatch", "sent"))
"""The fields of a flight that its row has.  No flight behind a relay is under way when a row is written."""
SPARE = 4096
"""Events that the clock may hold beside those of flights under way."""


class EventEngine:
    """Flights under way, and the server's shared wires for downloads and uploads (None: not shared)."""

    def __init__(self, env: Clock, wires: tuple[SharedLink | None, SharedLink | None] = (None, None)):
        self.env = env
        self.flying: dict[int, Flight] = {}
        self.landed: list[Flight] = []
        self.arrivals = 0
        self._wires = [_Shared(self, wire) if wire is not None else None for wire in wires]
        self._waiting: tuple[float, float, simpy.Event] | None = None

    # from outside ---------------------------------------------------------------------------------------------------

    def launch(self, flights: Flights, until: float = inf) -> None:
        """Begin these flights; those still under way at the virtual time ``until`` are late."""
        start = flights.start
        leaves = np.maximum(flights.leaves, start).tolist()
        own = zip(
            flights.client.tolist(), leaves, flights.joules.tolist(), start.tolist(), courses(flights), strict=True
        )
        until = max(until, flights.dispatch.at)
        for client, left, joules, sent, course in own:
            flight = Flight(client, flights.dispatch, left, until, joules, *course, sent=sent)
            if flights.begins is None:
                self.begin(flight)
            else:
                self.flying[client] = flight
                self.env.at(sent, self._begin_now, (flight, flight.token), PHASES)

    def begin(self, flight: Flight) -> None:
        """Begin one flight."""
        self.flying[flight.client] = flight
        self._enter(flight, AT_DOWNLOAD, flight.sent)

    def wait(self, arrivals: float, landings: float = inf) -> simpy.Event:
        """An event after so many arrivals or landings since the last ``take``, or when no flight is under way."""
        event = simpy.Event(self.env)
        self._waiting = arrivals, landings, event
        self._check_waiting()
        return event

    def play(self) -> None:
        """Pass the time until a flight lands, with all events of that time; nothing else may wait for the clock.

        This is ``wait`` for one landing without an event that a process is woken by, which takes a quarter of the
        time of a flight.
        """
        clock = self.env
        while self.flying and not self.landed:
            clock.step()
        while clock.peek() <= clock.now:
            clock.step()

    def stop_waiting(self) -> None:
        """Cancel the last ``wait``."""
        self._waiting = None

    def take(self) -> list[Flight]:
        """Flights that have landed since the last call, sorted by time and client."""
        landed, self.landed, self.arrivals = self.landed, [], 0
        if not landed:
            return landed
        if self.env.pending > SPARE + 4 * len(self.flying):
            # outdated events of flights that were cut short may lie far in the future
            self.env.drop(lambda held: isinstance(held, tuple) and held[0].token != held[1])
        return sorted(landed, key=lambda flight: (flight.ended, flight.client))

    def cut(self, at: float) -> None:
        """End all flights under way as late, at the time ``at``."""
        for flight in list(self.flying.values()):
            self._stop(flight, LATE, at)

    # one flight -----------------------------------------------------------------------------------------------------

    def _begin_now(self, under_way: tuple[Flight, int]) -> None:
        flight, token = under_way
        if token == flight.token:
            self.begin(flight)

    def _enter(self, flight: Flight, phase: int, now: float) -> None:
        flight.phase, flight.began, flight.flowing = phase, now, -inf
        flight.token += 1
        if phase > flight.last or flight.last < AT_DOWNLOAD:
            flight.phase = flight.last
            self._land(flight, flight.outcome, now)
            return
        if phase == AT_END:
            self._land(flight, FINISHED, now)
            return
        index = phase - AT_DOWNLOAD
        wire = self._wires[index // 2] if phase != AT_COMPUTE else None
        power = flight.watts[index]
        if wire is not None and flight.bits[index // 2] > 0:
            self._plan_stop(flight, now)
            if flight.latency[index // 2] > 0:
                self.env.at(now + flight.latency[index // 2], self._after_latency, (flight, flight.token), PHASES)
            else:
                self._begin_flow(flight, now)
            return
        seconds = flight.durations[index]
        over = now + seconds
        stop, outcome = self._stops(flight, now, flight.joules < seconds * power)
        if stop < over:
            self.env.at(stop, self._cut_short, (flight, flight.token, outcome), CUTS)
        else:
            self.env.at(over, self._done, (flight, flight.token), PHASES)

    def _stops(self, flight: Flight, now: float, drained: bool) -> tuple[float, int]:
        """Time and outcome of a cut of this phase; ``drained`` says that the battery doesn't last."""
        stop, outcome = flight.leaves, OFFLINE
        if drained and (empty := now + flight.joules / flight.watts[flight.phase - AT_DOWNLOAD]) < stop:
            stop, outcome = empty, EMPTY
        return (flight.until, LATE) if flight.until < stop else (stop, outcome)

    def _plan_stop(self, flight: Flight, now: float) -> None:
        """Schedule the cut of a transfer whose end isn't known yet."""
        power = flight.watts[flight.phase - AT_DOWNLOAD]
        stop, outcome = self._stops(flight, now, flight.joules < inf and power > 0)
        if stop < inf:
            self.env.at(stop, self._cut_short, (flight, flight.token, outcome), CUTS)

    def _done(self, under_way: tuple[Flight, int]) -> None:
        flight, token = under_way
        if token == flight.token:
            index = flight.phase - AT_DOWNLOAD
            self._end_phase(flight, index, flight.durations[index])
            if index != 1:
                flight.carried[index // 2] = flight.bits[index // 2]
            self._enter(flight, flight.phase + 1, self.env.now)

    def _end_phase(self, flight: Flight, index: int, seconds: float) -> None:
        flight.seconds[index] = seconds
        if flight.joules < inf:
            flight.joules = max(flight.joules - seconds * flight.watts[index], 0.0)

    def _after_latency(self, under_way: tuple[Flight, int]) -> None:
        flight, token = under_way
        if token == flight.token:
            self._begin_flow(flight, self.env.now)

    def _begin_flow(self, flight: Flight, now: float) -> None:
        direction = (flight.phase - AT_DOWNLOAD) // 2
        wire = self._wires[direction]
        assert wire is not None
        flight.flowing = now
        wire.add(now, flight.client, flight.bits[direction], flight.rates[direction])

    def flown(self, client: int, at: float) -> None:
        """End the transfer of a client whose flow over a shared wire is complete."""
        flight = self.flying[client]
        index = flight.phase - AT_DOWNLOAD
        self._end_phase(flight, index, at - flight.began)
        flight.carried[index // 2] = flight.bits[index // 2]
        self._enter(flight, flight.phase + 1, at)

    def _cut_short(self, under_way: tuple[Flight, int, int]) -> None:
        flight, token, outcome = under_way
        if token == flight.token:
            self._stop(flight, outcome, self.env.now)

    def _stop(self, flight: Flight, outcome: int, at: float) -> None:
        if at < flight.sent:  # it hasn't begun
            flight.sent = flight.began = at
        index = flight.phase - AT_DOWNLOAD
        self._end_phase(flight, index, at - flight.began)
        if index != 1:
            direction = index // 2
            wire = self._wires[direction]
            if wire is None or not flight.bits[direction]:
                spent, latency = flight.seconds[index], flight.latency[direction]
                moved = carried(spent, latency, flight.rates[direction], flight.bits[direction])
                flight.carried[direction] = float(moved)
            elif flight.flowing > -inf:
                left = wire.remove(at, flight.client)
                flight.carried[direction] = min(max(flight.bits[direction] - left, 0.0), flight.bits[direction])
        self._land(flight, outcome, at)

    def _land(self, flight: Flight, outcome: int, at: float) -> None:
        flight.token += 1
        flight.outcome, flight.ended = outcome, at
        del self.flying[flight.client]
        self.landed.append(flight)
        self.arrivals += outcome == FINISHED
        self._check_waiting()

    def _check_waiting(self) -> None:
        if self._waiting is None:
            return
        arrivals, landings, event = self._waiting
        if self.arrivals >= arrivals or len(self.landed) >= landings or not self.flying:
            self._waiting = None
            # after all other events of this time, so that their order doesn't matter
            self.env.at(self.env.now, event.succeed, None, LAST)

    # checkpoints ----------------------------------------------------------------------------------------------------

    def rows(self) -> list[Any]:
        """The state of the wires, as plain data."""
        return [wire.wire.rows() if wire is not None else None for wire in self._wires]

    def restore(self, flying: Sequence[Flight]) -> None:
        """Resume these flights; the wires already have their flows."""
        for flight in flying:
            self.flying[flight.client] = flight
            direction = (flight.phase - AT_DOWNLOAD) // 2
            wire = self._wires[direction] if flight.phase != AT_COMPUTE else None
            if wire is None or flight.flowing == -inf:
                self._enter(flight, flight.phase, flight.began)
            else:
                self._plan_stop(flight, flight.began)  # its flow is on the wire
        for shared in self._wires:
            if shared is not None:
                shared.plan()


def flight_of(row: Mapping[str, object], plan: Plan, dispatch: Dispatch) -> Flight:
    """The flight that ``row`` describes, which may say more."""
    flight = Flight.__new__(Flight)
    for name in WRITTEN:
        value = row[name]
        if value is None:
            value = -inf if name == "flowing" else inf
        elif name in ("durations", "latency", "rates", "bits", "watts"):
            value = tuple(cast(Sequence[float], value))
        setattr(flight, name, value)
    flight.plan, flight.dispatch, flight.sent = plan, dispatch, dispatch.at
    return flight


class _Shared:
    """A wire on the clock, with one event at its next completion."""

    def __init__(self, engine: EventEngine, wire: SharedLink):
        self.engine, self.wire, self._at = engine, wire, inf

    def add(self, now: float, client: int, bits: float, most: float) -> None:
        self.wire.add(now, client, bits, most)
        self.plan()

    def remove(self, now: float, client: int) -> float:
        left = self.wire.remove(now, client)
        self.plan()
        return left

    def plan(self) -> None:
        following = self.wire.next()
        if following is None or self._at <= following[0]:
            return  # an event that comes too early plans the next one
        self._at = following[0]
        self.engine.env.at(self._at, self._tick, self._at, FLOWS)

    def _tick(self, at: float) -> None:
        if at != self._at:
            return
        self._at = inf
        for client in self.wire.finish(at):
            self.engine.flown(client, at)
        self.plan()


def courses(flights: Flights) -> Iterator[tuple[Any, ...]]:
    """The arguments of ``Flight`` that don't depend on the time: plan, outcome, ... for each flight."""
    ends, phases = flights.ends, flights.phases
    return zip(
        flights.plans,
        ends.outcome.tolist(),
        ends.last.tolist(),
        # seconds of each phase on the clients' own links
        _rows(flights.transfer_seconds(0), ends.compute_seconds, flights.transfer_seconds(1)),
        _rows(*phases.latency),
        _rows(*phases.rates),
        _rows(*ends.bits),
        flights.failures.slow.tolist(),
        _rows(*phases.watts),
        strict=True,
    )


def _rows(*columns: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def landings(flown: Sequence[Flight]) -> Landings:
    """Results of these flights, as arrays in their order."""
    seconds = np.array([f.seconds for f in flown], dtype=np.float64).reshape(-1, 3).T
    carried = (np.array([f.carried for f in flown], dtype=np.float64).reshape(-1, 2).T // 8.0).astype(np.int64)
    # power of download, compute and upload, which includes idle power
    power = np.array([f.watts for f in flown], dtype=np.float64).reshape(-1, 3).T
    outcomes = np.array([f.outcome for f in flown], np.int8)
    return Landings(
        np.array([f.client for f in flown], np.int64),
        outcomes,
        np.where((outcomes == FINISHED) | (outcomes == REJECTED), AT_END, np.array([f.phase for f in flown], np.int8)),
        np.array([f.sent for f in flown], dtype=np.float64),
        np.array([f.ended for f in flown], dtype=np.float64),
        seconds[0],
        seconds[1],
        seconds[2],
        carried[0],
        carried[1],
        joules_of(seconds, power),
        np.array([f.slow for f in flown], dtype=np.float64),
    )
