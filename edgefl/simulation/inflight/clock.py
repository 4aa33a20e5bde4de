"""The virtual clock: SimPy's, told times instead of delays, because a sum of delays is a time only up to its rounding.

What happens at one time happens in the order of what it is: phases end, flows over shared links end, flights are cut
short, and whoever waits for the outcome goes on.  Within one of these no order matters.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import simpy
from simpy.core import EmptySchedule, SimTime
from simpy.events import NORMAL, EventPriority

PHASES, FLOWS, CUTS, LAST = (EventPriority(place) for place in (1, 2, 3, 4))
"""Priorities of events of one time; SimPy's own have 0 and 1."""


class Clock(simpy.Environment):
    """Events at exact times; what would lie in the past happens now.

    All that is to come stands in one queue of the clock's own: calls, which no process waits for, and SimPy's events.
    """

    def __init__(self, initial_time: float = 0.0):
        super().__init__(initial_time)
        self._time: SimTime = initial_time
        # time, priority, order; a function and what it is called with, or None and an event of SimPy's
        self._coming: list[tuple[SimTime, EventPriority, int, Callable[[Any], Any] | None, Any]] = []
        self._order = count()

    @property
    def now(self) -> SimTime:
        """The time of what happens now, in seconds."""
        return self._time

    def at(self, when: float, then: Callable[[Any], Any], value: Any, priority: EventPriority) -> None:
        """Call ``then`` with ``value``."""
        if when < self._time:
            when = self._time
        heappush(self._coming, (when, priority, next(self._order), then, value))

    def moment(self, when: float) -> simpy.Event:
        """An event after all others of that time."""
        event = simpy.Event(self)
        self.at(when, _succeed, event, LAST)
        return event

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """Have an event of SimPy's processed after so many seconds."""
        heappush(self._coming, (self._time + delay, priority, next(self._order), None, event))

    def peek(self) -> SimTime:
        """The time of what comes next; inf if nothing does."""
        return self._coming[0][0] if self._coming else simpy.core.Infinity

    def step(self) -> None:
        """Let the next thing happen.  Raises EmptySchedule if there is none."""
        if not self._coming:
            raise EmptySchedule
        self._time, _, _, then, value = heappop(self._coming)
        if then is not None:
            then(value)
        else:  # what SimPy does with an event is SimPy's: its queue holds this one alone
            super().schedule(value)
            super().step()

    @property
    def pending(self) -> int:
        """Events that are to come."""
        return len(self._coming)

    def drop(self, outdated: Callable[[Any], bool]) -> None:
        """Forget calls by the value that they hold, and moments for which nobody waits any more."""
        self._coming = [
            entry
            for entry in self._coming
            if entry[3] is None or (entry[4].callbacks if entry[3] is _succeed else not outdated(entry[4]))
        ]
        heapify(self._coming)


def _succeed(event: simpy.Event) -> None:
    event.succeed()
