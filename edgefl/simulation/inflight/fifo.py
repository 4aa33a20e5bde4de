"""A server link that serves one flow after another; its calls and its guarantees are those of ``FairShare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from typing import Any

from edgefl.simulation.inflight.exact_bits import SPARE, UNIT, flow_limit, link_rate, or_never, or_null, units_of


class Fifo:
    """One flow after another at ``min(most, bits_per_second)``, in the order of (time of arrival, flow number).

    The calls are those of ``FairShare``.
    """

    def __init__(self, bits_per_second: float):
        self._capacity = link_rate(bits_per_second)
        self._flows: dict[int, tuple[float, int, float]] = {}  # arrival, units, rate
        self._queue: list[tuple[float, int]] = []
        self._done: set[int] = set()
        self._instant = self._begun = -inf  # ``_begun``: when the first in the queue became the first

    def add(self, now: float, flow: int, bits: float, most: float) -> None:
        """Queue a flow of so many bits that takes at most so many bit/s.  Raises ValueError for a number in use."""
        self._advance(now)
        if flow in self._flows or flow in self._done:
            raise ValueError(f"flow {flow} is under way")
        if not self._flows:
            self._begun = now
        self._flows[flow] = (now, units_of(bits), flow_limit(most, self._capacity))
        heappush(self._queue, (now, flow))

    def add_all(self, now: float, flows: Iterable[int], bits: Iterable[float], most: Iterable[float]) -> None:
        """Queue many flows that arrive at one moment: as ``add`` on each, in any order."""
        for flow, size, cap in zip(flows, bits, most, strict=True):
            self.add(now, flow, size, cap)

    def remove(self, now: float, flow: int) -> float:
        """Break a flow off.  Gives the bits that it had not carried."""
        left = self.left(now, flow)
        if flow in self._done:
            self._done.remove(flow)
            return left
        if self._first_in_queue() == flow:
            self._begun = now
        del self._flows[flow]
        if len(self._queue) > 2 * len(self._flows) + SPARE:
            self._queue = [(at, f) for f, (at, _, _) in self._flows.items()]
            heapify(self._queue)
        return left

    def next(self) -> tuple[float, int] | None:
        """When the next flow completes as things stand, and which."""
        if self._done:
            return self._instant, min(self._done)
        flow = self._first_in_queue()
        return None if flow is None else (self._end(flow), flow)

    def finish(self, now: float) -> list[int]:
        """The flows that are complete, ascending; each is handed out once."""
        self._advance(now)
        self._serve(now)  # what came at this moment may have nothing to carry
        done, self._done = sorted(self._done), set()
        return done

    def left(self, now: float, flow: int) -> float:
        """Bits that a flow has still to carry."""
        self._advance(now)
        if flow in self._done:
            return 0.0
        _, units, rate = self._flows[flow]
        if self._first_in_queue() == flow:
            units = max(units - int(rate * (now - self._begun) * UNIT), 0)
        return units / UNIT

    def rates(self) -> dict[int, float]:
        """The rate of each flow as things stand, in bit/s."""
        first = self._first_in_queue()
        return {flow: rate if flow == first else 0.0 for flow, (_, _, rate) in sorted(self._flows.items())}

    def rows(self) -> dict[str, Any]:
        """The exact state, as JSON can hold it; ``from_rows`` goes on from it to the last bit."""
        return {
            "bits_per_second": self._capacity,
            "instant": or_null(self._instant),
            "begun": or_null(self._begun),
            "done": sorted(self._done),
            "flows": [[flow, *self._flows[flow]] for flow in sorted(self._flows)],
        }

    @classmethod
    def from_rows(cls, rows: Mapping[str, Any]) -> Fifo:
        """A link as it was."""
        link = cls(rows["bits_per_second"])
        link._instant, link._begun = or_never(rows["instant"]), or_never(rows["begun"])
        link._done = set(rows["done"])
        link._flows = {flow: (arrived, units, rate) for flow, arrived, units, rate in rows["flows"]}
        link._queue = [(arrived, flow) for flow, (arrived, _, _) in link._flows.items()]
        heapify(link._queue)
        return link

    def __len__(self) -> int:
        return len(self._flows)

    def _first_in_queue(self) -> int | None:
        queue = self._queue
        while queue and (queue[0][1] not in self._flows or self._flows[queue[0][1]][0] != queue[0][0]):
            heappop(queue)
        return queue[0][1] if queue else None

    def _end(self, flow: int) -> float:
        _, units, rate = self._flows[flow]
        return self._begun + units / (rate * UNIT)

    def _advance(self, now: float) -> None:
        if now == self._instant:
            return
        if not (now > self._instant and isfinite(now)):
            raise ValueError(f"a time of {now} s after {self._instant} s: time doesn't run backwards")
        self._serve(now)
        self._instant = now

    def _serve(self, until: float) -> None:
        while (flow := self._first_in_queue()) is not None and (end := self._end(flow)) <= until:
            heappop(self._queue)
            del self._flows[flow]
            self._done.add(flow)
            self._begun = end
