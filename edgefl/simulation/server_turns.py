"""The server's device under ``split``: it computes its halves of the model for one client at a time.

With a half for each client it takes batches in the order in which they come.  One half for all is visited by whole
clients, in an order that the seed draws.  Either way clients wait, and idle meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np

from edgefl import seeds
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.simulation.closed_form import AT_COMPUTE, Flights, empty_times


@dataclass(frozen=True)
class Visits:
    """What clients ask of the server's device: arrays `[clients]`.

    Each is ``ready`` to compute at that virtual time, unless it fails before.  All of its ``trips`` take ``seconds`` of
    its own, those on its link included, and ``served`` seconds of the server.  It fails after a ``share`` of them: 1 if
    it doesn't fail, 0 if it doesn't begin.  It is gone when it ``leaves``.
    """

    ready: Floats
    seconds: Floats
    served: Floats
    trips: Integers
    share: Floats
    leaves: Floats

    def wait_by_batch(self) -> Floats:
        """Seconds that each waits, if the server takes batches in the order in which they come: `[clients]`.

        A batch is the client's own part, and then its turn.  Of two that come at once the first row is served first.
        A client that leaves before its turn isn't served; one that leaves during it occupies the server to its end.
        """
        waited = np.zeros(len(self.ready))
        think, serve = ((each / np.maximum(self.trips, 1)).tolist() for each in (self.seconds, self.served))
        work, ready, leaves = (self.share * self.trips).tolist(), self.ready.tolist(), self.leaves.tolist()
        coming = [(ready[i] + think[i], i) for i in np.flatnonzero(self.share > 0).tolist()]
        heapify(coming)
        free = -np.inf
        while coming:
            comes, i = heappop(coming)
            if work[i] < 1 and work[i] * (think[i] + serve[i]) <= think[i]:
                continue  # it fails before it comes
            begins = max(comes, free)
            waited[i] += begins - comes
            if leaves[i] < begins:
                continue
            free = begins + serve[i]
            work[i] -= 1
            if work[i] > 0:
                heappush(coming, (free + think[i], i))
        return self._of_whole(waited)

    def wait_in_turn(self, order: Sequence[int]) -> Floats:
        """Seconds that each waits, if whole clients visit the server in this order: `[clients]`.

        The server waits for the next one until it is ready, fails or leaves.
        """
        waited, free = np.zeros(len(self.ready)), -np.inf
        for i in order:
            if self.share[i] > 0:
                waited[i] = max(free - self.ready[i], 0.0)
            ends = self.ready[i] + waited[i] + self.share[i] * (self.seconds[i] + self.served[i])
            free = max(free, min(ends, self.leaves[i]))
        return self._of_whole(waited)

    def _of_whole(self, waited: Floats) -> Floats:
        """Of clients that fail all seconds of which their share are these."""
        return np.divide(waited, self.share, out=np.zeros_like(waited), where=self.share > 0)


def order_of(seed: int, dispatch: int, clients: Integers) -> Integers:
    """The rows of these clients in the order in which they visit one half of the model: `[clients]`."""
    return np.lexsort((clients, seeds.uniforms(seed, "turns", dispatch, of=clients)[:, 0]))


def take_turns(flights: Flights, seed: int) -> Flights:
    """These flights with the seconds in which they wait for the server's device; as they are without a split model.

    A client whose battery would be empty while it computes leaves then.  Those that are cut short are found one after
    the other, since each shortens the queue for the others.
    """
    exchanged = flights.phases.exchange_seconds
    if not np.any(exchanged[2]):
        return flights
    plans, ends, (down, *_) = flights.plans, flights.ends, flights.seconds
    trips = np.array([0 if plan.compute.exchange is None else plan.compute.exchange.trips for plan in plans])
    own = np.asarray(flights.phases.own_seconds + exchanged[0] + exchanged[1])
    share = np.where(ends.last < AT_COMPUTE, 0.0, ends.share)
    visits = Visits(flights.start + down, own, exchanged[2], trips, share, np.maximum(flights.leaves, flights.start))
    order = order_of(seed, flights.dispatch.number, flights.client) if plans[0].form.in_turn else None
    return with_batteries(flights, visits, order)


def with_batteries(flights: Flights, visits: Visits, order: Integers | None) -> Flights:
    """These flights with their waits at the server, where batteries may be empty before a client is through."""
    over: Booleans = np.zeros(len(flights), bool)
    fixed = np.zeros(len(flights))
    while True:
        waits = visits.wait_by_batch() if order is None else visits.wait_in_turn(order.tolist())
        waiting = replace(flights, waits=np.where(over, fixed, waits))
        empty = empty_times(waiting)
        new = ~over & (empty < np.minimum(visits.ready + waiting.ends.compute_seconds, visits.leaves))
        if not new.any():
            return waiting
        first = int(np.where(new, empty, np.inf).argmin())
        over[first], fixed[first] = True, waits[first]
        leaves = visits.leaves.copy()
        leaves[first] = empty[first]
        visits = replace(visits, leaves=leaves)
