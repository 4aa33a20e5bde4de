"""A server link shared fairly: fluid flows, whose rates change only when flows begin or end.

Every flow gets ``min(most, level)``, with the level at which the link is full: max-min fairness for one shared
resource.  Sums don't depend on their order and don't drift, however long the link is busy (``exact_bits``).  The flows
that complete at a time depend only on the state before it, so the order of calls at one time doesn't matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import Any, NotRequired, TypedDict

from edgefl.simulation.inflight.exact_bits import PER_ONE, SPARE, UNIT, flow_limit, or_never, or_null
from edgefl.simulation.inflight.flows import SharedLink


def _compact(heap: list[_End], valid: int) -> list[_End]:
    """The heap, without outdated entries if they are more than half of it."""
    if len(heap) > 2 * valid + SPARE:
        heap = [end for end in heap if end[3].stamp == end[2]]
        heapify(heap)
    return heap


class _Group:
    """The flows of one cap, which always have equal rates and so share one count of units.

    ``served`` is that count at ``mark``, which is a time (capped) or a count of the level (not capped).  A flow ends
    when the count reaches its ``target``: the count at its beginning plus its own units.
    """

    __slots__ = (
        "before", "cap", "capped", "changed", "endless", "flows", "heap", "mark", "rate", "served", "stamp", "switched",
    )  # fmt: skip

    def __init__(self, cap: float, capped: bool, mark: float | int):
        self.cap, self.rate = cap, int(cap * UNIT)
        self.capped, self.served, self.mark = capped, 0, mark
        self.heap: list[tuple[int, int]] = []
        self.flows = 0
        self.endless = 0
        """Flows of the background, which have no end and aren't among ``flows``."""
        self.stamp = 0
        self.changed = False
        self.switched = -inf
        self.before: tuple[int, float | int] = (0, mark)

    def row(self, under_way: Mapping[int, tuple[_Group, int]]) -> list[Any]:
        flows = sorted({(t, f) for t, f in self.heap if under_way.get(f) == (self, t)})
        switched = or_null(self.switched)
        return [self.cap, self.capped, self.served, self.mark, switched, *self.before, [list(f) for f in flows]]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> tuple[_Group, list[tuple[int, int]]]:
        cap, capped, served, mark, switched, *before, flows = row
        group = cls(cap, capped, mark)
        group.served, group.switched, group.before = served, or_never(switched), (before[0], before[1])
        group.heap = [(target, flow) for target, flow in flows]
        group.flows = len(group.heap)
        return group, group.heap


_End = tuple[float, int, int, _Group]
"""Next end of a group: a time or a count of the level, the flow, the group's stamp at that entry, the group."""


class FairShareRows(TypedDict):
    """The state of a FairShare as plain data; a time is null for never."""

    bits_per_second: float
    instant: float | None
    counted: int
    level: tuple[float, int, float]
    before: tuple[float, int, float]
    done: list[int]
    classes: list[list[Any]]
    background: NotRequired[tuple[int, float]]


class FairShare(SharedLink):
    """Max-min fair sharing of ``bits_per_second`` among flows with caps of their own.

    ``background`` is a number of flows that are there all the time, from 0 s on, and the most that each takes in bit/s.
    An event takes O(log n) steps, plus one for each distinct cap that the level passes.
    """

    def __init__(self, bits_per_second: float, background: tuple[int, float] = (0, inf)):
        super().__init__(bits_per_second)
        self._full = int(self._capacity * UNIT)
        self._flows: dict[int, tuple[_Group, int]] = {}  # group and target
        self._groups: dict[float, _Group] = {}
        self._caps: list[float] = []  # ascending; the first ``_held`` of them limit their flows
        self._held = 0
        self._held_rate = 0
        self._free = 0  # flows at the level
        # the level, and the count of units of a flow at the level by the time ``_since``
        self._level, self._count, self._since = 0.0, 0, 0.0
        self._count_now = 0
        self._before = (0.0, 0, 0.0)
        self._dirty = False
        self._changed: list[_Group] = []
        self._emptied: list[_Group] = []
        self._ends_held: list[_End] = []
        self._ends_free: list[_End] = []
        self._stamp = 0
        self._background: _Group | None = None
        flows, most = background
        if flows:
            self._instant = 0.0
            self._background = self._new_group(flow_limit(most, self._capacity), 0.0)
            self._background.endless = self._free = flows
            self._dirty = True

    # calls ------------------------------------------------------------------------------------------------------

    def rows(self) -> FairShareRows:
        """The state as JSON can hold it, from which ``from_rows`` restores it exactly."""
        self._settle()
        rows: FairShareRows = {
            "bits_per_second": self._capacity,
            "instant": or_null(self._instant),
            "counted": self._count_now,
            "level": (self._level, self._count, self._since),
            "before": self._before,
            "done": sorted(self._done),
            "classes": [self._groups[cap].row(self._flows) for cap in self._caps],
        }
        if self._background is not None:
            rows["background"] = self._background.endless, self._background.cap
        return rows

    @classmethod
    def from_rows(cls, rows: FairShareRows) -> FairShare:
        """The link that ``rows`` describes."""
        link = cls(rows["bits_per_second"])
        link._instant, link._count_now = or_never(rows["instant"]), rows["counted"]
        link._level, link._count, link._since = rows["level"]
        level, count, since = rows["before"]  # a list once it was JSON
        link._before, link._done = (level, count, since), set(rows["done"])
        endless, most = rows.get("background", (0, None))
        for row in rows["classes"]:
            group, flows = _Group.from_row(row)
            if group.cap == most:
                group.endless, link._background = endless, group
            link._groups[group.cap] = group
            link._caps.append(group.cap)
            link._flows |= {flow: (group, target) for target, flow in flows}
            link._held += group.capped
            link._held_rate += group.capped * group.rate * (group.flows + group.endless)
            link._free += (not group.capped) * (group.flows + group.endless)
            link._push_end(group)
            if not group.flows:
                link._emptied.append(group)
        return link

    def rates(self) -> dict[int, float]:
        """The current rate of each flow, in bit/s."""
        self._settle()
        return {flow: group.cap if group.capped else self._level for flow, (group, _) in sorted(self._flows.items())}

    # flows begin and end ----------------------------------------------------------------------------------------

    def _put(self, now: float, flow: int, units: int, cap: float) -> None:
        if not units:
            self._done.add(flow)
            return
        group = self._groups.get(cap)
        if group is None:
            group = self._new_group(cap, now)
            target = units
        else:
            target = self._served(group, now) + units
        group.flows += 1
        if group.capped:
            self._held_rate += group.rate
        else:
            self._free += 1
        heappush(group.heap, (target, flow))
        self._flows[flow] = (group, target)
        if group.heap[0][1] == flow:
            self._touch(group)
        self._dirty = True

    def _new_group(self, cap: float, now: float) -> _Group:
        index = bisect_left(self._caps, cap)
        capped = index < self._held
        group = self._groups[cap] = _Group(cap, capped, now if capped else self._count_now)
        self._caps.insert(index, cap)
        self._held += capped
        return group

    def _break_off(self, now: float, flow: int) -> None:
        group, _ = self._flows[flow]
        if group.heap[0][1] == flow:
            self._touch(group)
        self._remove_flow(group, flow)

    def _units_left(self, now: float, flow: int) -> int:
        group, target = self._flows[flow]
        return max(target - self._served(group, now), 0)

    # the level --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find the level for the current flows, and the next end of each group that has changed."""
        if not self._dirty:
            return
        self._dirty = False
        caps, groups = self._caps, self._groups
        # in integers, so that the boundary depends only on the current flows
        spare = self._full - self._held_rate
        while self._held and (group := groups[caps[self._held - 1]]).rate * self._free > spare:
            self._held -= 1
            flows = group.flows + group.endless
            spare += group.rate * flows
            self._free += flows
            self._switch(group)
        while self._held < len(caps) and (group := groups[caps[self._held]]).rate * self._free <= spare:
            self._held += 1
            flows = group.flows + group.endless
            spare -= group.rate * flows
            self._free -= flows
            self._switch(group)
        self._held_rate = self._full - spare
        self._level = spare / (self._free << PER_ONE) if self._free else 0.0
        if self._level == self._before[0]:
            _, self._count, self._since = self._before
        else:
            self._count, self._since = self._count_now, self._instant
        for group in self._changed:
            group.changed = False
            self._push_end(group)
        self._changed = []

    def _switch(self, group: _Group) -> None:
        served = self._served(group, self._instant)
        now = (group.served, group.mark)
        if group.switched == self._instant:
            # two switches at one time cancel out
            group.served, group.mark = group.before
        else:
            group.served, group.mark = served, self._count_now if group.capped else self._instant
        group.before, group.switched, group.capped = now, self._instant, not group.capped
        self._touch(group)

    def _served(self, group: _Group, now: float) -> int:
        """The group's count of units at the time ``now``."""
        if group.capped:
            return group.served + int(group.cap * (now - group.mark) * UNIT)
        count = self._count_now if now == self._instant else self._count_at(now)
        return group.served + count - int(group.mark)

    def _count_at(self, now: float) -> int:
        return self._count + int(self._level * (now - self._since) * UNIT)

    def _touch(self, group: _Group) -> None:
        if not group.changed:
            group.changed = True
            self._changed.append(group)
        self._dirty = True

    # ends -------------------------------------------------------------------------------------------------------

    def _push_end(self, group: _Group) -> None:
        """Push the next end of a group onto its heap; earlier entries become outdated."""
        self._stamp = group.stamp = self._stamp + 1
        heap = group.heap
        if not group.flows:
            heap.clear()
            return
        while self._flows.get(heap[0][1]) != (group, heap[0][0]):
            heappop(heap)
        if len(heap) > 2 * group.flows + SPARE:
            group.heap = heap = [(t, f) for t, f in heap if self._flows.get(f) == (group, t)]
            heapify(heap)
        target, flow = heap[0]
        if group.capped:
            heappush(self._ends_held, (self._end(group, target), flow, group.stamp, group))
            self._ends_held = _compact(self._ends_held, len(self._caps))
        else:
            heappush(self._ends_free, (target - group.served + int(group.mark), flow, group.stamp, group))
            self._ends_free = _compact(self._ends_free, len(self._caps))

    @staticmethod
    def _end(group: _Group, target: int) -> float:
        return group.mark + (target - group.served) / (group.cap * UNIT)

    def _reached(self, count: float) -> float:
        return self._since + (count - self._count) / (self._level * UNIT)

    def _first(self) -> tuple[float, int] | None:
        self._settle()
        held, free = self._ends_held, self._ends_free
        while held and held[0][3].stamp != held[0][2]:
            heappop(held)
        while free and free[0][3].stamp != free[0][2]:
            heappop(free)
        # flows that weren't complete at the start of this moment end at least one float later
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
            # kept until now, so that a flow of equal cap that begins when its group is emptied can join it
            for group in self._emptied:
                if not group.flows and not group.endless and self._groups.get(group.cap) is group:
                    index = bisect_left(self._caps, group.cap)
                    del self._caps[index], self._groups[group.cap]
                    self._held -= index < self._held
            self._emptied = []
        if self._background is not None and not self._flows:
            # counts begin anew, as they do without a background when no flow is at the level
            self._count, self._count_now, self._since = 0, 0, now
            self._background.served, self._background.mark = 0, now if self._background.capped else 0
        elif self._free:
            self._count_now = self._count_at(now)
        else:
            self._count = self._count_now = 0
        self._before = (self._level, self._count, self._since)
        self._instant = now

    def _complete(self) -> None:
        """Remove the flows that are complete at the start of this moment."""
        now = self._instant
        ends = self._ends_held
        while ends and (ends[0][0] <= now or ends[0][3].stamp != ends[0][2]):
            _, _, stamp, group = heappop(ends)
            if group.stamp == stamp:
                self._complete_group(group)
        level = self._ends_free
        while level and (level[0][3].stamp != level[0][2] or self._reached(level[0][0]) <= now):
            _, _, stamp, group = heappop(level)
            if group.stamp == stamp:
                self._complete_group(group)

    def _complete_group(self, group: _Group) -> None:
        heap, ahead = group.heap, int(group.mark) - group.served
        while heap:
            target, flow = heap[0]
            if self._flows.get(flow) == (group, target):
                end = self._end(group, target) if group.capped else self._reached(target + ahead)
                if end > self._instant:
                    break
                self._done.add(flow)
                self._remove_flow(group, flow)
            heappop(heap)
        self._touch(group)

    def _remove_flow(self, group: _Group, flow: int) -> None:
        del self._flows[flow]
        group.flows -= 1
        if group.capped:
            self._held_rate -= group.rate
        else:
            self._free -= 1
        if not group.flows:
            self._emptied.append(group)
        self._dirty = True
