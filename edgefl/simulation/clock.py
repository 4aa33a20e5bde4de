"""The virtual clock: SimPy's, with events at absolute times, because sums of delays have rounding errors."""

from __future__ import annotations

from collections.abc import Generator
from heapq import heapify, heappush
from typing import Any

import simpy

Steps = Generator[simpy.Event, Any, Any]
"""A process, or a part of one."""
PHASES, FLOWS, CUTS, LAST = 1, 2, 3, 4
"""Order of events of one time: ends of clients' phases, of flows on shared lines, cuts, and then the server."""
MOST_CLIENTS = 2**40
SPARE = 4096
"""Events that may be left of clients that were cut short."""


class TimedEvent(simpy.Event):
    """An event that is sure to happen."""

    _ok, _value = True, None


class Clock(simpy.Environment):
    """SimPy's environment with events at exact times."""

    def at(self, when: float, order: float = PHASES, client: int = 0) -> simpy.Event:
        """An event at the time ``when``, or now if that is past; of one order the smaller number of a client is first.

        ``timeout(when - now)`` would be at ``now + (when - now)``, which may be another float.
        """
        event, now = TimedEvent(self), self._now
        entry = when if when > now else now, order + client / MOST_CLIENTS, next(self._eid), event
        heappush(self._queue, entry)  # type: ignore[misc]
        return event

    def trigger(self, event: simpy.Event, when: float, order: float) -> None:
        """Let an event happen at the time ``when``."""
        event._ok, event._value = True, None
        heappush(self._queue, (when, order, next(self._eid), event))  # type: ignore[misc]

    def forget(self, clients: int) -> None:
        """Drop later events that no process waits for any more, if they are many for so many clients under way."""
        if len(self._queue) > SPARE + 4 * clients:
            self._queue = [entry for entry in self._queue if entry[3].callbacks or entry[0] <= self._now]
            heapify(self._queue)
