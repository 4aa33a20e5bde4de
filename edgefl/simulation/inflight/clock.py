"""The virtual clock: SimPy's with absolute times instead of delays, because sums of delays have rounding errors.

Events of equal time are processed by priority: ends of phases, ends of flows over shared links, cuts of flights, and
then the processes that wait for the outcome.  The order within one priority doesn't matter.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import simpy
from simpy.core import EmptySchedule, SimTime
from simpy.events import NORMAL, EventPriority

PHASES, FLOWS, CUTS, LAST = (EventPriority(priority) for priority in (1, 2, 3, 4))
"""Priorities of events of equal time; SimPy's own are 0 and 1."""


class Clock(simpy.Environment):
    """Events at exact times; a time in the past means now.

    The clock has one queue of its own for calls, which no process waits for, and SimPy's events.
    """

    def __init__(self, initial_time: float = 0.0):
        super().__init__(initial_time)
        self._time: SimTime = initial_time
        # time, priority, order; a function and its argument, or None and a SimPy event
        self._entries: list[tuple[SimTime, EventPriority, int, Callable[[Any], Any] | None, Any]] = []
        self._order = count()

    @property
    def now(self) -> SimTime:
        """The current virtual time, in seconds."""
        return self._time

    def at(self, when: float, then: Callable[[Any], Any], value: Any, priority: EventPriority) -> None:
        """Call ``then(value)`` at the time ``when``, in seconds."""
        if when < self._time:
            when = self._time
        heappush(self._entries, (when, priority, next(self._order), then, value))

    def moment(self, when: float) -> simpy.Event:
        """An event at the time ``when``, after all others of that time."""
        event = simpy.Event(self)
        self.at(when, _succeed, event, LAST)
        return event

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """Schedule a SimPy event after ``delay`` seconds."""
        heappush(self._entries, (self._time + delay, priority, next(self._order), None, event))

    def peek(self) -> SimTime:
        """The time of the next event; inf if there is none."""
        return self._entries[0][0] if self._entries else simpy.core.Infinity

    def step(self) -> None:
        """Process the next event.  Raises EmptySchedule if there is none."""
        if not self._entries:
            raise EmptySchedule
        self._time, _, _, then, value = heappop(self._entries)
        if then is not None:
            then(value)
        else:  # SimPy processes its event: its own queue holds only this one
            super().schedule(value)
            super().step()

    @property
    def pending(self) -> int:
        """Number of scheduled calls and events."""
        return len(self._entries)

    def drop(self, outdated: Callable[[Any], bool]) -> None:
        """Drop calls whose value is ``outdated``, and moments that no process waits for."""
        self._entries = [
            entry
            for entry in self._entries
            if entry[3] is None or (entry[4].callbacks if entry[3] is _succeed else not outdated(entry[4]))
        ]
        heapify(self._entries)


def _succeed(event: simpy.Event) -> None:
    event.succeed()
