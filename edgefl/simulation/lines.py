"""The server's line for downloads and for uploads, shared by the clients that transfer at a time."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from edgefl.devices import ServerLinkOptions
from edgefl.simulation.clock import CUTS, FLOWS, PHASES, Clock, Steps
from edgefl.simulation.closed_form import AT_COMPUTE, AT_DOWNLOAD, AT_UPLOAD

if TYPE_CHECKING:
    from edgefl.simulation.client import Flight


class Fifo:
    """One transfer after another, each at the rate of its client's own link, or of the line if that is less.

    Of those that come at once the smaller number is first.
    """

    comes = FLOWS

    def __init__(self, env: Clock, bits_per_second: float):
        self.env, self.rate = env, bits_per_second
        self.turns = simpy.Resource(env)

    def carry(self, flight: Flight, stop: float) -> Steps:
        """Queue up, and be served; a client that is stopped before its turn leaves the queue."""
        env = self.env
        if flight.flowing == -inf:
            flight.flowing = env.now
        with self.turns.request() as turn:
            if not turn.triggered:
                yield from env.first(turn, stop, CUTS)
            if turn.triggered:
                if flight.served == -inf:
                    flight.served = env.now
                bits, rate = self._of(flight)
                over = flight.served + bits / rate
                yield env.at(stop, CUTS) if stop < over else env.at(over, PHASES, flight.client)

    def withdraw(self, flight: Flight) -> float:
        """All bits before the client's turn, then those that aren't moved yet."""
        bits, rate = self._of(flight)
        served, now = flight.served, self.env.now
        if served == -inf:
            return bits
        return bits - rate * (now - served) if now < served + bits / rate else 0.0

    def _of(self, flight: Flight) -> tuple[float, float]:
        way = flight.phase // 2
        return flight.bits[way], min(flight.rates[way], self.rate)


class FairShare:
    """Max-min fair sharing: each transfer has the rate of its own link, or an equal share of what others leave.

    At each begin or end of a transfer the bits of all are counted and their rates found anew, so that the order of
    events of one time doesn't matter.  Times differ from exact ones by rounding: 1e-9 of them at most.  ``others`` are
    transfers that never end, and the most that each takes in bit/s.
    """

    comes = PHASES

    def __init__(self, env: Clock, bits_per_second: float, others: tuple[int, float] = (0, inf)):
        self.env, self.rate = env, bits_per_second
        self._since, self._next, self._settles = env.now, inf, -inf
        self._alarm: simpy.Event | None = None
        self._events: dict[int, simpy.Event] = {}
        self._new: list[tuple[int, float, float]] = []
        self._gone: list[int] = []
        # the row of each client and the client of each row; of each row the rate of its own link, its rate now, bits
        # left at ``since``, and its end at that rate
        self._rows: dict[int, int] = {}
        self._clients = [-1] * others[0]
        self._own = np.full(max(2 * others[0], 16), min(others[1], bits_per_second))
        self._left = np.full(len(self._own), inf)
        self._share()

    def carry(self, flight: Flight, stop: float) -> Steps:
        """Begin a transfer, or go on with it, and wait for its end."""
        if flight.flowing == -inf:
            flight.flowing = self.env.now
            way = flight.phase // 2
            self._events[flight.client] = self.env.event()
            self._new.append((flight.client, min(flight.rates[way], self.rate), flight.bits[way]))
            self._settle_soon()
        yield from self.env.first(self._events[flight.client], stop, CUTS)

    def withdraw(self, flight: Flight) -> float:
        """Nothing of what is complete; else what is left at the rate since all rates were found anew."""
        if self._events.pop(flight.client).triggered:
            return 0.0
        self._settle_soon()
        self._gone.append(flight.client)
        if (row := self._rows.get(flight.client)) is None:  # it has just begun
            return flight.bits[flight.phase // 2]
        return float(self._left[row] - self._now[row] * (self.env.now - self._since))

    def _settle_soon(self) -> None:
        """Settle when all that begins or ends now is known."""
        if self._settles != self.env.now:
            self._settles = self.env.now
            self.env.at(self.env.now, FLOWS).callbacks.append(self._settle)

    def _settle(self, event: simpy.Event) -> None:
        """Count what was moved until now, end what is complete, and find all rates anew."""
        now = self.env.now
        if self._settles == now:
            self._settles = -inf
        elif self._next != now:
            return  # the next end has moved
        self._left[: len(self._clients)] -= self._now * (now - self._since)
        self._since = now
        for client in sorted([self._clients[row] for row in (self._ends <= now).nonzero()[0].tolist()]):
            if (over := self._events.get(client)) is not None:
                over.succeed()
                self._gone.append(client)
        for client in self._gone:
            self._remove(client)
        for new in self._new:
            if new[0] in self._events:
                self._add(*new)
        self._gone, self._new = [], []
        self._share()

    def _add(self, client: int, own: float, bits: float) -> None:
        self._rows[client] = row = len(self._clients)
        self._clients.append(client)
        if row == len(self._own):
            self._own, self._left = np.tile(self._own, 2), np.tile(self._left, 2)
        self._own[row], self._left[row] = own, bits

    def _remove(self, client: int) -> None:
        """Remove a transfer, if it has begun; the last row takes its place."""
        if (row := self._rows.pop(client, None)) is not None:
            mover, last = self._clients.pop(), len(self._clients)
            if mover != client:
                self._clients[row], self._rows[mover] = mover, row
                self._own[row], self._left[row] = self._own[last], self._left[last]

    def _share(self) -> None:
        """Find the rates, and when the next transfer ends."""
        count = len(self._clients)
        if not count:
            self._now = self._ends = self._own[:0]
            self._next = inf
            self.env.cancel(self._alarm)
            return
        own = self._own[:count].copy()
        own.sort()
        levels = (self.rate - (own.cumsum() - own)) / np.arange(count, 0, -1)
        full = (levels < own).argmax()
        level = levels[full] if levels[full] < own[full] else inf
        self._now = np.minimum(self._own[:count], level)
        self._ends = self._since + self._left[:count] / self._now
        following = float(self._ends.min())
        if following <= self._since:  # what is left has no time of its own
            following = float(np.nextafter(self._since, inf))
            self._ends = np.maximum(self._ends, following)
        if following != self._next:
            self._next = following
            self.env.cancel(self._alarm)
            if following < inf:
                self._alarm = self.env.at(following, FLOWS)
                self._alarm.callbacks.append(self._settle)

    def to_data(self) -> dict[str, Any]:
        """The transfers, and those that have begun or ended since all rates were found anew."""
        going = [(client, self._own[row], self._left[row]) for client, row in sorted(self._rows.items())]
        return {"since": self._since, "going": going, "new": self._new, "waited_for": sorted(self._events)}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned, exactly."""
        self._since = raw["since"]
        for row in raw["going"]:
            self._add(*row)
        self._new = [(client, own, bits) for client, own, bits in raw["new"]]
        self._events = {client: self.env.event() for client in raw["waited_for"]}
        self._share()
        self._gone = [client for client in self._rows if client not in self._events]
        if self._new or self._gone:
            self._settle_soon()


SharedLine = Fifo | FairShare
"""A line that clients share.

``carry`` is the transfer of a flight's phase, a part of its client's process; at the time ``stop`` it is broken off.
The client comes in the order ``comes`` of the events of one time.  ``withdraw`` takes a transfer off the
line and returns the bits that are left of it.
"""
Lines = Mapping[int, SharedLine | None]
"""The line of each phase: None where a client has its own link alone."""


def lines_of(env: Clock, options: ServerLinkOptions | None) -> Lines:
    """The server's lines by phase; None where they have no limit."""

    def line(rate: float | None) -> SharedLine | None:
        if rate is None:
            return None
        assert options is not None
        return FairShare(env, rate, options.others) if options.sharing == "fair" else Fifo(env, rate)

    down, up = (None, None) if options is None else (line(options.download), line(options.upload))
    return {AT_DOWNLOAD: down, AT_COMPUTE: None, AT_UPLOAD: up}
