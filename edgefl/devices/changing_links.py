"""The links of a fleet whose rates change with time, and the availability of clients over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.availability import Availability, rows_and_times
from edgefl.devices.link_trace import LinkTrace
from edgefl.devices.profile import Link

MOST_TURNS = 1000
"""How often a client that is back is asked whether its link is.  A choice: a year of days, with some more."""


class ChangingLinks:
    """The traced links of a fleet: ``LinkTrace``'s answers for clients `[n]`, at times of the run.

    ``link_index`` is the fleet's, and ``begins`` the time of day in seconds at which the run begins.  A link without a
    trace has its own rates at any time.
    """

    def __init__(self, links: Sequence[Link], link_index: Integers, begins: float):
        self.traces = {index: link.trace for index, link in enumerate(links) if link.trace is not None}
        self._link_index, self._begins = link_index, begins

    def seconds(self, way: int, clients: Integers, at: Floats, needed: Floats) -> Floats:
        """``LinkTrace.seconds`` of each client; inf for one that begins at inf."""
        taken = np.where(np.isfinite(at), needed, inf)
        for rows, trace in self._parts(clients, np.isfinite(at)):
            taken[rows] = trace.seconds(way, at[rows] + self._begins, needed[rows])
        return taken

    def integral(self, way: int, clients: Integers, at: Floats, spent: Floats) -> Floats:
        """``LinkTrace.integral`` of each client; 0 where less than 0 s are spent."""
        done = np.maximum(spent, 0.0)
        for rows, trace in self._parts(clients, np.isfinite(at)):
            done[rows] = trace.integral(way, at[rows] + self._begins, done[rows])
        return done

    def state(self, clients: Integers, at: Floats) -> tuple[Booleans, Floats]:
        """``LinkTrace.state`` of each client."""
        on, until = np.ones(len(clients), dtype=bool), np.full(len(clients), inf)
        for rows, trace in self._parts(clients, True):
            on[rows], times = trace.state(at[rows] + self._begins)
            until[rows] = np.maximum(times - self._begins, np.nextafter(at[rows], inf))
        return on, until

    def _parts(self, clients: Integers, among: Booleans | bool) -> Iterator[tuple[Integers, LinkTrace]]:
        links = self._link_index[clients]
        return ((np.flatnonzero((links == index) & among), trace) for index, trace in self.traces.items())


class AvailableOverLinks(Availability):
    """Clients are available where another availability says so and their link has rates above 0."""

    def __init__(self, own: Availability, links: ChangingLinks):
        super().__init__(own.options, own.seed)
        self._own, self._links = own, links

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether both are there: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        return self._own.available(rows, times) & self._links.state(rows, times)[0]

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """Whether both are there, and until when it stays so: both `[clients]`."""
        rows, times = rows_and_times(clients, at)
        on, until = self._both(rows, times)
        waits = np.flatnonzero(~on & np.isfinite(until))
        for _ in range(MOST_TURNS):  # whoever is back may find the link gone, and the other way round
            if not len(waits):
                break
            there, later = self._both(rows[waits], until[waits])
            waits, later = waits[~there], later[~there]
            until[waits] = later
            waits = waits[np.isfinite(later)]
        until[waits] = inf
        return on, until

    def _both(self, clients: Integers, at: Floats) -> tuple[Booleans, Floats]:
        """Whether both are there, and until when one of them stays as it is that decides it."""
        (on, until), (linked, change) = self._own.state(clients, at), self._links.state(clients, at)
        off = np.maximum(np.where(on, -inf, until), np.where(linked, -inf, change))
        return on & linked, np.where(on & linked, np.minimum(until, change), off)
