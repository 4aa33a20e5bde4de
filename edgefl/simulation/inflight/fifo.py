"""A server link that serves one flow after another."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TypedDict

from edgefl.simulation.inflight.exact_bits import SPARE, UNIT, or_never, or_null
from edgefl.simulation.inflight.flows import SharedLink


class FifoRows(TypedDict):
    """The state of a Fifo as plain data; a time is null for never."""

    bits_per_second: float
    instant: float | None
    begun: float | None
    done: list[int]
    flows: list[tuple[int, float, int, float]]


class Fifo(SharedLink):
    """One flow after another at ``min(most, bits_per_second)``, in the order of (time of arrival, flow number)."""

    def __init__(self, bits_per_second: float):
        super().__init__(bits_per_second)
        self._flows: dict[int, tuple[float, int, float]] = {}  # arrival, units, rate
        self._queue: list[tuple[float, int]] = []
        self._begun = -inf  # when the first flow in the queue began

    def finish(self, now: float) -> list[int]:
        """The flows completed since the last call, ascending."""
        if now == self._instant:
            self._serve(now)  # flows added at this moment may have 0 bits
        return super().finish(now)

    def rates(self) -> dict[int, float]:
        """The current rate of each flow, in bit/s."""
        first = self._first_flow()
        return {flow: rate if flow == first else 0.0 for flow, (_, _, rate) in sorted(self._flows.items())}

    def rows(self) -> FifoRows:
        """The state as JSON can hold it, from which ``from_rows`` restores it exactly."""
        return {
            "bits_per_second": self._capacity,
            "instant": or_null(self._instant),
            "begun": or_null(self._begun),
            "done": sorted(self._done),
            "flows": [(flow, *self._flows[flow]) for flow in sorted(self._flows)],
        }

    @classmethod
    def from_rows(cls, rows: FifoRows) -> Fifo:
        """The link that ``rows`` describes."""
        link = cls(rows["bits_per_second"])
        link._instant, link._begun = or_never(rows["instant"]), or_never(rows["begun"])
        link._done = set(rows["done"])
        link._flows = {flow: (arrived, units, rate) for flow, arrived, units, rate in rows["flows"]}
        link._queue = [(arrived, flow) for flow, (arrived, _, _) in link._flows.items()]
        heapify(link._queue)
        return link

    def _put(self, now: float, flow: int, units: int, cap: float) -> None:
        if not self._flows:
            self._begun = now
        self._flows[flow] = (now, units, cap)
        heappush(self._queue, (now, flow))

    def _break_off(self, now: float, flow: int) -> None:
        if self._first_flow() == flow:
            self._begun = now
        del self._flows[flow]
        if len(self._queue) > 2 * len(self._flows) + SPARE:
            self._queue = [(arrival, f) for f, (arrival, _, _) in self._flows.items()]
            heapify(self._queue)

    def _units_left(self, now: float, flow: int) -> int:
        _, units, rate = self._flows[flow]
        if self._first_flow() == flow:
            units = max(units - int(rate * (now - self._begun) * UNIT), 0)
        return units

    def _first(self) -> tuple[float, int] | None:
        queue, flows = self._queue, self._flows
        while queue:
            arrival, flow = queue[0]
            entry = flows.get(flow)
            if entry is not None and entry[0] == arrival:
                return self._begun + entry[1] / (entry[2] * UNIT), flow
            heappop(queue)  # broken off
        return None

    def _first_flow(self) -> int | None:
        first = self._first()
        return None if first is None else first[1]

    def _begin(self, now: float) -> None:
        self._serve(now)
        self._instant = now

    def _serve(self, until: float) -> None:
        while (first := self._first()) is not None and first[0] <= until:
            self._begun, flow = first
            heappop(self._queue)
            del self._flows[flow]
            self._done.add(flow)
