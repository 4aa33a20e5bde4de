"""The virtual clock: SimPy's, told times instead of delays, because a sum of delays is a time only up to its rounding.

What happens at one time happens in the order of what it is: phases end, flows over shared links end, flights are cut
short, and whoever waits for the outcome goes on.  Within one of these no order matters.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import Any

import simpy
from simpy.events import EventPriority

PHASES, FLOWS, CUTS, LAST = (EventPriority(place) for place in (1, 2, 3, 4))
"""Priorities of events of one time; SimPy's own have 0 and 1."""


class Call(simpy.Event):
    """A call at a time, which no process waits for: an event without what SimPy needs for that."""

    _ok = True

    def __init__(self, then: Callable[[simpy.Event], None], value: Any):
        self.callbacks = [then]
        self._value = value


class Clock(simpy.Environment):
    """Events at exact times; what would lie in the past happens now."""

    def at(self, when: float, then: Callable[[simpy.Event], None], value: Any, priority: EventPriority) -> None:
        """Call ``then`` with an event that holds ``value``."""
        if when < self._now:
            when = self._now
        heappush(self._queue, (when, priority, next(self._eid), Call(then, value)))

    def moment(self, when: float) -> simpy.Event:
        """An event after all others of that time."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        heappush(self._queue, (max(when, self._now), LAST, next(self._eid), event))
        return event

    @property
    def pending(self) -> int:
        """Events that are to come."""
        return len(self._queue)

    def drop(self, outdated: Callable[[Any], bool]) -> None:
        """Forget calls by the value that they hold, and moments for which nobody waits any more."""
        queue = self._queue
        queue[:] = [
            entry
            for entry in queue
            if entry[3].callbacks and not (isinstance(entry[3], Call) and outdated(entry[3]._value))
        ]
        heapify(queue)
