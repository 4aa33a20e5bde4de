"""Clients under way, each a process, and those that have landed and wait for the server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, cast

import simpy

from edgefl.devices import ServerLinkOptions
from edgefl.simulation.client import Flight, client
from edgefl.simulation.clock import LAST, Clock, Steps
from edgefl.simulation.closed_form import FINISHED, LATE
from edgefl.simulation.lines import FairShare, lines_of


class InFlight:
    """Clients under way by number, and the ``queue`` of landed ones, in the order of their times and numbers."""

    def __init__(self, env: Clock, line: ServerLinkOptions | None = None):
        self.env, self.lines = env, lines_of(env, line)
        self.flying: dict[int, Flight] = {}
        self.queue: OrderedDict[int, Flight] = OrderedDict()
        self._processes: dict[int, simpy.Process] = {}
        self._landed: list[Flight] = []
        self._arrivals = 0
        self._awaited: tuple[float, float, simpy.Event] | None = None

    def launch(self, flights: Iterable[Flight]) -> None:
        """Begin these flights, or go on with them."""
        for flight in flights:
            self.flying[flight.client] = flight
            process = self._processes[flight.client] = self.env.process(client(self.env, flight, self.lines))
            process.callbacks.append(self._land)

    def _land(self, process: simpy.Event) -> None:
        if not process.ok:
            return  # its error ends the run
        flight = cast(Flight, process.value)
        del self.flying[flight.client], self._processes[flight.client]
        self._landed.append(flight)
        self._arrivals += flight.outcome == FINISHED
        self._tell()

    def landing_event(self, landings: float = 1, arrivals: float = inf) -> simpy.Event:
        """An event after so many landings or arrivals since the last ``take``, or when nobody is under way."""
        event = simpy.Event(self.env)
        self._awaited = landings, arrivals, event
        self._tell()
        return event

    def _tell(self) -> None:
        if self._awaited is not None:
            landings, arrivals, event = self._awaited
            if len(self._landed) >= landings or self._arrivals >= arrivals or not self.flying:
                self._awaited = None
                # after all other events of this time, so that their order doesn't matter
                self.env.trigger(event, self.env.now, LAST)

    def cut(self) -> Steps:
        """End all flights under way as late."""
        for process in list(self._processes.values()):
            process.interrupt(LATE)
        yield self.landing_event(inf)

    def take(self) -> list[Flight]:
        """Flights that have landed since the last call, sorted by time and client."""
        landed, self._landed, self._arrivals, self._awaited = self._landed, [], 0, None
        return sorted(landed, key=lambda flight: (flight.ended, flight.client))

    def line_up(self) -> None:
        """Queue landed flights for the server."""
        for flight in self.take():
            self.queue[flight.client] = flight

    def under_way(self) -> int:
        """Number of clients that were dispatched and aren't processed yet."""
        return len(self.flying) + len(self._landed) + len(self.queue)

    def to_data(self) -> list[dict[str, Any] | None]:
        """The state of shared lines; of a queue the flights tell since when they wait, and since when one is served."""
        return [line.to_data() if isinstance(line, FairShare) else None for line in self.lines.values()]

    def load_data(self, raw: Sequence[Mapping[str, Any] | None], flying: Sequence[Flight]) -> None:
        """Go on with these flights, over lines in the state that ``to_data`` returned."""
        for line, its in zip(self.lines.values(), raw, strict=True):
            if isinstance(line, FairShare) and its is not None:
                line.load_data(its)
        # of a queue the one that is served asks first, then those that have waited longest
        self.launch(sorted(flying, key=lambda each: (each.served == -inf, each.flowing, each.client)))
