"""The links of a fleet whose rates change with time, and the availability of clients over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.availability import Availability, rows_and_times, state_of
from edgefl.devices.link_trace import LinkTrace
from edgefl.devices.profile import Link

MOST_TURNS = 1000
"""How often a client that is back is asked whether its link is.  A choice: a year of days, with some more."""


class ChangingLinks:
    """The traced links of a fleet, by their places in its ``links``; times are the run's own.

    ``link_index`` is the fleet's, and ``begins`` the time of day in seconds at which the run begins.  In the methods,
    ``clients``, times and results are `[n]`; a link without a trace has its own rate at any time.
    """

    def __init__(self, links: Sequence[Link], link_index: Integers, begins: float):
        self.traces = {index: link.trace for index, link in enumerate(links) if link.trace is not None}
        self._link_index, self._begins = link_index, begins

    @property
    def may_be_offline(self) -> bool:
        """Whether a link has a time without rates."""
        return any(trace.online is not None for trace in self.traces.values())

    def seconds(self, way: int, clients: Integers, at: Floats, needed: Floats) -> Floats:
        """``LinkTrace.seconds`` of each client; inf for one that begins at inf."""
        taken = np.array(needed, dtype=float)
        for rows, trace in self._parts(clients):
            rows = rows[np.isfinite(at[rows])]
            taken[rows] = trace.seconds(way, clients[rows], at[rows] + self._begins, needed[rows])
        return taken

    def integral(self, way: int, clients: Integers, at: Floats, spent: Floats) -> Floats:
        """``LinkTrace.integral`` of each client."""
        done = np.array(spent, dtype=float)
        for rows, trace in self._parts(clients):
            rows = rows[np.isfinite(at[rows])]
            done[rows] = trace.integral(way, clients[rows], at[rows] + self._begins, spent[rows])
        return done

    def online(self, clients: Integers, at: Floats) -> Booleans:
        """Whether the link of each client has rates above 0."""
        there = np.ones(len(clients), dtype=bool)
        for rows, trace in self._parts(clients):
            if trace.online is not None:
                there[rows] = trace.online.inside(trace.record(clients[rows]), at[rows] + self._begins)
        return there

    def leaves(self, clients: Integers, at: Floats) -> Floats:
        """When each link that is online loses its rates, inf for never; ``at`` for one that is offline."""
        until = np.full(len(clients), inf)
        for rows, trace in self._parts(clients):
            if trace.online is not None:
                times = trace.online.end(trace.record(clients[rows]), at[rows] + self._begins)
                until[rows] = np.maximum(times - self._begins, at[rows])
        return until

    def returns(self, clients: Integers, at: Floats) -> Floats:
        """When each link that is offline has rates again, inf for never; ``at`` for one that is online."""
        back = np.array(at)
        for rows, trace in self._parts(clients):
            if trace.online is not None:
                times = trace.online.next(trace.record(clients[rows]), at[rows] + self._begins)
                back[rows] = np.maximum(times - self._begins, at[rows])
        return back

    def _parts(self, clients: Integers) -> Iterator[tuple[Integers, LinkTrace]]:
        links = self._link_index[clients]
        for index, trace in self.traces.items():
            if len(rows := np.flatnonzero(links == index)):
                yield rows, trace


class AvailableOverLinks(Availability):
    """Clients are available where another availability says so and their link has rates above 0."""

    def __init__(self, own: Availability, links: ChangingLinks):
        super().__init__(own.options, own.seed)
        self._own, self._links = own, links

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether both are there: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        return self._own.available(rows, times) & self._links.online(rows, times)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """When the first of both leaves, ``at`` for a client that isn't available: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        return np.minimum(self._own.leaves(rows, times), self._links.leaves(rows, times))

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The first time at which both are there, inf if there is none within ``MOST_TURNS`` turns: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        for _ in range(MOST_TURNS):
            before, finite = times.copy(), np.isfinite(times)
            own = self._own.returns(rows[finite], times[finite])
            times[finite] = own
            there = np.isfinite(times)
            times[there] = self._links.returns(rows[there], times[there])
            if (same := times == before).all():
                return times
        return np.where(same, times, inf)

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """Whether both are there, and until when it stays so: both `[clients]`."""
        return state_of(self, clients, at)
