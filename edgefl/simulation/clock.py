"""The virtual clock: SimPy's, with events at absolute times, because sums of delays have rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heapify, heappush
from math import inf
from typing import Any

import simpy

Steps = Generator[simpy.Event, Any, Any]
"""A process, or a part of one."""
PHASES, FLOWS, CUTS, LAST = 1, 2, 3, 4
"""Order of events of one time: ends of clients' phases, of flows on shared lines, cuts, and then the server."""
MOST_CLIENTS = 2**40
"""Bound of a client's number, which is the fraction of its events' order.  A power of two, by which division is exact;
beside an order of 4 float64 tells clients apart up to 2^50."""
SPARE = 64
"""Cancelled events that may lie in the queue, beside one for each that is waited for: a short queue isn't rebuilt at
every other one.  From 16 to 256 an event took 0.7 us; more only makes the queue longer."""


class TimedEvent(simpy.Event):
    """An event that is sure to happen."""

    _ok, _value = True, None


class Clock(simpy.Environment):
    """SimPy's environment with events at exact times, which can be cancelled.

    SimPy has neither, so this reads and writes its private ``_queue``, ``_now``, ``_eid`` and the events' ``_ok``,
    ``_value`` and ``_events``, as they are in 4.1.  If one is renamed, ``test_clock.py`` fails.
    """

    def __init__(self, initial_time: float = 0.0):
        super().__init__(initial_time)
        self._idle = 0
        self._of_idle: list[Callable[[simpy.Event], None]] = [self._pass]  # the callbacks of cancelled events

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

    def first(self, event: simpy.Event, until: float, order: float) -> Steps:
        """Wait for an event, until a time at the latest."""
        if until == inf:
            yield event
            return
        alarm = self.at(until, order)
        yield event | alarm
        self.cancel(alarm)

    def cancel(self, event: simpy.Event | None) -> None:
        """Nobody waits any more for an event of ``at``, or for several of which one was enough.

        To take one event out of the heap costs as much as to look at all others.  So cancelled ones are counted, and
        taken out together when they are SPARE more than the others.  The queue is never longer than twice the most that
        was waited for at a time, plus SPARE, and a cancelled event costs no more than two that are looked at.
        """
        if isinstance(event, simpy.events.Condition):
            for each in event._events:
                self.cancel(each)
        elif isinstance(event, TimedEvent) and event.callbacks is not None and event.callbacks is not self._of_idle:
            event.callbacks = self._of_idle
            self._idle += 1
            if 2 * self._idle > len(self._queue) + SPARE:
                self._queue = [entry for entry in self._queue if entry[3].callbacks is not self._of_idle]
                heapify(self._queue)
                self._idle = 0

    def _pass(self, event: simpy.Event) -> None:
        """The time of a cancelled event has come before it was taken out."""
        self._idle -= 1
