"""A server link shared fairly: fluid flows, each at a rate that only the coming and going of others changes.

Every flow gets ``min(most, level)``, with the level at which the link is full: max-min fairness for one shared
resource.  No sum depends on its order and nothing drifts, however long the link is busy (``exact_bits``).
What completes at a moment is decided by what was so before that moment: calls of one time leave one state, in
whatever order they come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import Any

from edgefl.simulation.inflight.exact_bits import PER_ONE, SPARE, UNIT, or_never, or_null
from edgefl.simulation.inflight.flows import SharedLink


def _compact(heap: list[_End], valid: int) -> list[_End]:
    """The heap, without outdated entries once they are the most of it."""
    if len(heap) > 2 * valid + SPARE:
        heap = [end for end in heap if end[3].stamp == end[2]]
        heapify(heap)
    return heap


class _Class:
    """The flows of one cap.  They always have one rate, so one count of bits serves them all.

    ``served`` are the units that a flow which is here all along had got when ``mark`` was the time (capped) or the
    count of the level (not capped).  A flow ends when the count has grown by its own bits: at its ``target``.
    """

    __slots__ = ("before", "cap", "capped", "changed", "flows", "heap", "mark", "rate", "served", "stamp", "switched")

    def __init__(self, cap: float, capped: bool, mark: float | int):
        self.cap, self.rate = cap, int(cap * UNIT)
        self.capped, self.served, self.mark = capped, 0, mark
        self.heap: list[tuple[int, int]] = []
        self.flows = 0
        self.stamp = 0
        self.changed = False
        self.switched = -inf
        self.before: tuple[int, float | int] = (0, mark)

    def row(self, under_way: Mapping[int, tuple[_Class, int]]) -> list[Any]:
        flows = sorted({(t, f) for t, f in self.heap if under_way.get(f) == (self, t)})
        switched = or_null(self.switched)
        return [self.cap, self.capped, self.served, self.mark, switched, *self.before, [list(f) for f in flows]]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> tuple[_Class, list[tuple[int, int]]]:
        cap, capped, served, mark, switched, *before, flows = row
        each = cls(cap, capped, mark)
        each.served, each.switched, each.before = served, or_never(switched), (before[0], before[1])
        each.heap = [(target, flow) for target, flow in flows]
        each.flows = len(each.heap)
        return each, each.heap


_End = tuple[float, int, int, _Class]
"""When a class has its next end (a time, or a count of the level), of which flow, and the stamp it was noted with."""


class FairShare(SharedLink):
    """Max-min fair sharing of ``bits_per_second`` among flows that have caps of their own.

    An event costs O(log n) and a look at each distinct cap that the level passes.
    """

    def __init__(self, bits_per_second: float):
        super().__init__(bits_per_second)
        self._full = int(self._capacity * UNIT)
        self._flows: dict[int, tuple[_Class, int]] = {}  # and the target of each
        self._classes: dict[float, _Class] = {}
        self._caps: list[float] = []  # ascending; the first ``_held`` of them are held to their cap
        self._held = 0
        self._held_rate = 0
        self._free = 0  # flows at the level
        # the level, and the units that a flow at the level has got by the moment ``_since``
        self._level, self._count, self._since = 0.0, 0, 0.0
        self._count_now = 0
        self._before = (0.0, 0, 0.0)
        self._dirty = False
        self._changed: list[_Class] = []
        self._emptied: list[_Class] = []
        self._ends_held: list[_End] = []
        self._ends_free: list[_End] = []
        self._stamp = 0

    # what a caller does -----------------------------------------------------------------------------------------

    def rows(self) -> dict[str, Any]:
        """The exact state, as JSON can hold it; ``from_rows`` goes on from it to the last bit."""
        self._settle()
        return {
            "bits_per_second": self._capacity,
            "instant": or_null(self._instant),
            "counted": self._count_now,
            "level": [self._level, self._count, self._since],
            "before": list(self._before),
            "done": sorted(self._done),
            "classes": [self._classes[cap].row(self._flows) for cap in self._caps],
        }

    @classmethod
    def from_rows(cls, rows: Mapping[str, Any]) -> FairShare:
        """A link as it was."""
        link = cls(rows["bits_per_second"])
        link._instant, link._count_now = or_never(rows["instant"]), rows["counted"]
        link._level, link._count, link._since = rows["level"]
        level, count, since = rows["before"]
        link._before, link._done = (level, count, since), set(rows["done"])
        for row in rows["classes"]:
            each, flows = _Class.from_row(row)
            link._classes[each.cap] = each
            link._caps.append(each.cap)
            link._flows |= {flow: (each, target) for target, flow in flows}
            link._held += each.capped
            link._held_rate += each.capped * each.rate * each.flows
            link._free += (not each.capped) * each.flows
            link._announce(each)
            if not each.flows:
                link._emptied.append(each)
        return link

    def rates(self) -> dict[int, float]:
        """The rate of each flow as things stand, in bit/s."""
        self._settle()
        return {flow: each.cap if each.capped else self._level for flow, (each, _) in sorted(self._flows.items())}

    # flows come and go ------------------------------------------------------------------------------------------

    def _put(self, now: float, flow: int, units: int, cap: float) -> None:
        if not units:
            self._done.add(flow)
            return
        each = self._classes.get(cap)
        if each is None:
            place = bisect_left(self._caps, cap)
            capped = place < self._held
            each = self._classes[cap] = _Class(cap, capped, now if capped else self._count_now)
            self._caps.insert(place, cap)
            self._held += capped
            target = units
        else:
            target = self._served(each, now) + units
        each.flows += 1
        if each.capped:
            self._held_rate += each.rate
        else:
            self._free += 1
        heappush(each.heap, (target, flow))
        self._flows[flow] = (each, target)
        if each.heap[0][1] == flow:
            self._touch(each)
        self._dirty = True

    def _break_off(self, now: float, flow: int) -> None:
        each, _ = self._flows[flow]
        if each.heap[0][1] == flow:
            self._touch(each)
        self._take(each, flow)

    def _units_left(self, now: float, flow: int) -> int:
        each, target = self._flows[flow]
        return max(target - self._served(each, now), 0)

    # the level --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find the level for the flows that there are, and note when each changed class has its next end."""
        if not self._dirty:
            return
        self._dirty = False
        caps, classes = self._caps, self._classes
        # in whole numbers, so that the boundary is a matter of which flows there are and of nothing else
        spare = self._full - self._held_rate
        while self._held and (each := classes[caps[self._held - 1]]).rate * self._free > spare:
            self._held -= 1
            spare += each.rate * each.flows
            self._free += each.flows
            self._switch(each)
        while self._held < len(caps) and (each := classes[caps[self._held]]).rate * self._free <= spare:
            self._held += 1
            spare -= each.rate * each.flows
            self._free -= each.flows
            self._switch(each)
        self._held_rate = self._full - spare
        self._level = spare / (self._free << PER_ONE) if self._free else 0.0
        if self._level == self._before[0]:
            _, self._count, self._since = self._before
        else:
            self._count, self._since = self._count_now, self._instant
        for each in self._changed:
            each.changed = False
            self._announce(each)
        self._changed = []

    def _switch(self, each: _Class) -> None:
        served = self._served(each, self._instant)
        now = (each.served, each.mark)
        if each.switched == self._instant:
            # there and back within a moment is as if nothing had been
            each.served, each.mark = each.before
        else:
            each.served, each.mark = served, self._count_now if each.capped else self._instant
        each.before, each.switched, each.capped = now, self._instant, not each.capped
        self._touch(each)

    def _served(self, each: _Class, now: float) -> int:
        """Units that a flow of this class which is here all along has got by ``now``."""
        if each.capped:
            return each.served + int(each.cap * (now - each.mark) * UNIT)
        count = self._count_now if now == self._instant else self._count_at(now)
        return each.served + count - int(each.mark)

    def _count_at(self, now: float) -> int:
        return self._count + int(self._level * (now - self._since) * UNIT)

    def _touch(self, each: _Class) -> None:
        if not each.changed:
            each.changed = True
            self._changed.append(each)
        self._dirty = True

    # ends -------------------------------------------------------------------------------------------------------

    def _announce(self, each: _Class) -> None:
        """Put the next end of a class where it is found; what was put there before is outdated."""
        self._stamp = each.stamp = self._stamp + 1
        heap = each.heap
        if not each.flows:
            heap.clear()
            return
        while self._flows.get(heap[0][1]) != (each, heap[0][0]):
            heappop(heap)
        if len(heap) > 2 * each.flows + SPARE:
            each.heap = heap = [(t, f) for t, f in heap if self._flows.get(f) == (each, t)]
            heapify(heap)
        target, flow = heap[0]
        if each.capped:
            heappush(self._ends_held, (self._end(each, target), flow, each.stamp, each))
            self._ends_held = _compact(self._ends_held, len(self._caps))
        else:
            heappush(self._ends_free, (target - each.served + int(each.mark), flow, each.stamp, each))
            self._ends_free = _compact(self._ends_free, len(self._caps))

    @staticmethod
    def _end(each: _Class, target: int) -> float:
        return each.mark + (target - each.served) / (each.cap * UNIT)

    def _reached(self, count: float) -> float:
        return self._since + (count - self._count) / (self._level * UNIT)

    def _first(self) -> tuple[float, int] | None:
        self._settle()
        held, free = self._ends_held, self._ends_free
        while held and held[0][3].stamp != held[0][2]:
            heappop(held)
        while free and free[0][3].stamp != free[0][2]:
            heappop(free)
        # what was not complete when this moment began is complete after it, if only by the least step of the clock
        soonest = nextafter(self._instant, inf)
        ends = []
        if held:
            ends.append((max(held[0][0], soonest), held[0][1]))
        if free:
            ends.append((max(self._reached(free[0][0]), soonest), free[0][1]))
        return min(ends, default=None)

    def _begin(self, now: float) -> None:
        while (first := self._first()) is not None and first[0] <= now:
            self._begin_moment(first[0])
            self._complete()
            if first[0] == now:
                return
        self._begin_moment(now)

    def _begin_moment(self, now: float) -> None:
        if self._emptied:
            # kept until now: a flow of the same cap that comes at the moment that empties its class finds it
            for each in self._emptied:
                if not each.flows and self._classes.get(each.cap) is each:
                    place = bisect_left(self._caps, each.cap)
                    del self._caps[place], self._classes[each.cap]
                    self._held -= place < self._held
            self._emptied = []
        if self._free:
            self._count_now = self._count_at(now)
        else:
            self._count = self._count_now = 0
        self._before = (self._level, self._count, self._since)
        self._instant = now

    def _complete(self) -> None:
        """Take out what is complete as this moment begins."""
        now = self._instant
        ends = self._ends_held
        while ends and (ends[0][0] <= now or ends[0][3].stamp != ends[0][2]):
            _, _, stamp, each = heappop(ends)
            if each.stamp == stamp:
                self._complete_class(each)
        level = self._ends_free
        while level and (level[0][3].stamp != level[0][2] or self._reached(level[0][0]) <= now):
            _, _, stamp, each = heappop(level)
            if each.stamp == stamp:
                self._complete_class(each)

    def _complete_class(self, each: _Class) -> None:
        heap, ahead = each.heap, int(each.mark) - each.served
        while heap:
            target, flow = heap[0]
            if self._flows.get(flow) == (each, target):
                end = self._end(each, target) if each.capped else self._reached(target + ahead)
                if end > self._instant:
                    break
                self._done.add(flow)
                self._take(each, flow)
            heappop(heap)
        self._touch(each)

    def _take(self, each: _Class, flow: int) -> None:
        del self._flows[flow]
        each.flows -= 1
        if each.capped:
            self._held_rate -= each.rate
        else:
            self._free -= 1
        if not each.flows:
            self._emptied.append(each)
        self._dirty = True
