"""Single dispatches, drawn many at a time.

A policy that replaces each landed client at once dispatches clients one by one.  Whom it asks, and what is drawn for a
flight, are functions of the seed and of numbers that are known beforehand: the number of the choice and of the
dispatch.  So they are computed for many choices together; only whether the client is still free is asked at its time.
A choice that turns out otherwise is made by the selection as usual, which gives the same records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.devices.availability import Always
from edgefl.planning.planner import Plan
from edgefl.simulation.cohort import candidates, cohort
from edgefl.simulation.inflight.dispatch import drawn_ahead
from edgefl.simulation.inflight.events import Flight, courses
from edgefl.simulation.run_state import Run
from edgefl.simulation.tally import Tally

FEWEST, MOST = 8, 128
"""Choices that are drawn together: FEWEST at first, then twice as many each time, as long as they are used."""

WIDTHS = (1, 6, 64)
"""Clients of a choice that are asked at a time whether they are there."""


@dataclass(frozen=True)
class Drawn:
    """A choice and the flight that it leads to, if nothing changes until its time.

    ``unready`` clients were asked before it; they and the client stay as they are before the time ``until``.
    ``course`` are arguments of ``Flight``.
    """

    client: int
    cell: int
    unready: int
    until: float
    leaves: float
    course: tuple[Any, ...]


class Ahead:
    """The next choices of one client each in a round, as far as they are drawn."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._drawn: list[Drawn | None] = []
        self._cells: list[Plan] = []
        self._first, self._size = 0, FEWEST

    def dispatch(self, run: Run, round: int, kinds: Sequence[str], tally: Tally, until: float) -> Flight | None:
        """Choose and dispatch one client, which is late after the time ``until``.

        Returns None, and has done nothing, where the selection has to choose.
        """
        drawn, parts, air, now = self._next(run, round, kinds, tally), run.parts, run.air, run.at.now
        if drawn is None or now >= drawn.until or parts.roster.cell[drawn.client] != drawn.cell:
            return None
        client, joules = drawn.client, inf
        assert air is not None
        if client in air.engine.flying or client in air.queue:
            return None
        if parts.batteries is not None:
            one = np.array([client])
            if not parts.batteries.ready(one, now)[0]:
                return None
            joules = float(parts.batteries.level(one, now)[0])
        parts.selection.skip(round)
        tally.unavailable += drawn.unready
        tally.selected += 1
        return Flight(client, run.next_dispatch(round), drawn.leaves, max(until, now), joules, *drawn.course)

    def _next(self, run: Run, round: int, kinds: Sequence[str], tally: Tally) -> Drawn | None:
        parts = run.parts
        known, call = parts.selection.call
        call = call + 1 if known == round else 0
        cells = parts.roster.cells
        # a choice that led to no dispatch moves the numbers of calls and dispatches apart
        key = round, tuple(kinds), parts.roster.changes, run.at.dispatches - call
        index = call - self._first
        if key != self._key or cells is not self._cells or not 0 <= index < len(self._drawn):
            if key == self._key and index == len(self._drawn):
                self._size = min(2 * self._size, MOST)
            elif self._key and round == self._key[0]:
                self._size = FEWEST
            self._key, self._cells, self._first, index = key, cells, call, 0
            wanted = parts.policy.wanted(cohort(run, kinds), 0) or 0
            self._drawn = _draw(run, round, kinds, max(min(self._size, wanted - tally.arrived), 1))
        return self._drawn[index] if self._drawn else None


def _draw(run: Run, round: int, kinds: Sequence[str], count: int) -> list[Drawn | None]:
    """The next ``count`` choices; None where the selection has to choose."""
    parts, now, dispatches = run.parts, run.at.now, run.at.dispatches
    availability = parts.setup.fleet.availability
    pieces = 1 if isinstance(availability, Always) else 2
    asked = parts.selection.upcoming(candidates(run, round, kinds), round, count, pieces)
    chosen: dict[int, tuple[int, int, float, float]] = {}
    until = [inf] * len(asked)
    start = 0
    for width in WIDTHS:
        some = [(i, clients[start : start + width]) for i, clients in enumerate(asked) if i not in chosen]
        some = [(i, clients) for i, clients in some if len(clients)]
        if not some:
            break
        on, changes = availability.state(np.concatenate([clients for _, clients in some]), now)
        begin = 0
        for i, clients in some:
            end = begin + len(clients)
            hits = on[begin:end].nonzero()[0]
            last = int(hits[0]) if len(hits) else len(clients) - 1
            until[i] = min(until[i], float(changes[begin : begin + last + 1].min()))
            if len(hits):
                chosen[i] = int(clients[last]), start + last, until[i], float(changes[begin + last])
            begin = end
        start += width
    places = list(chosen)
    takers: NDArray[np.int64] = np.array([chosen[i][0] for i in places], dtype=np.int64)
    cells = parts.roster.cell[takers].tolist()
    flights = drawn_ahead(parts.setup, parts.roster, takers, [dispatches + 1 + i for i in places])
    drawn: list[Drawn | None] = [None] * len(asked)
    for i, cell, course in zip(places, cells, courses(flights), strict=True):
        client, unready, lasts, leaves = chosen[i]
        drawn[i] = Drawn(client, cell, unready, lasts, leaves, course)
    return drawn
