"""Fleets of very many clients, of which those that no cell and no budget tells apart share a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edgefl.arrays import AnyArray, Floats, Integers
from edgefl.devices.caps import CAPS
from edgefl.drawing.sliders.page_columns import PageColumns, numbers
from edgefl.drawing.sliders.page_data import PackedColumn, Place, SliderCell, SliderFleet
from edgefl.records.record import to_data

MOST_ROWS = 100_000
"""Clients of a fleet in which each has a row of its own: a page of so many takes 4 MB (docs/guides/sliders.md)."""


def are_many(clients: int) -> bool:
    """Whether clients of such a fleet share rows."""
    return clients > MOST_ROWS


class Needed(NamedTuple):
    """What an offer of a cell takes of a budget: `[spots]`, and the column that has each client's spot."""

    budget: str
    spot: Place
    costs: Floats


def with_shared_rows(
    fleets: Sequence[SliderFleet],
    cells: Sequence[SliderCell],
    needed: Sequence[Needed],
    known: Mapping[Place, PackedColumn],
) -> tuple[list[SliderFleet], list[SliderCell], dict[Place, PackedColumn]]:
    """Fleets in which each client has a row, their cells and columns, as those of fleets whose clients share rows.

    Clients do if all cells cost them the same on equal devices and links, and the amounts that their owners grant are
    enough for the same costs; the row has the least of these amounts.  So they fit or don't, whatever is set.
    """
    new, told, shared = PageColumns(), list(cells), list[SliderFleet]()
    for index, fleet in enumerate(fleets):
        mine = {c: cell.priced for c, cell in enumerate(cells) if cell.priced and cell.priced.fleet == index}
        rows = _FleetRows(fleet, [cell.spot for cell in mine.values()], needed, known)
        shared.append(rows.fleet(new))
        for c, cell in mine.items():
            told[c] = replace(cells[c], priced=replace(cell, spot=rows.alike(cell.spot, new)))
    columns = {**known, **new.untold()}
    used = set(_texts(to_data([shared, told])))
    return shared, told, {name: column for name, column in columns.items() if name in used}


def _texts(data: Any) -> Iterator[str]:
    """All texts in JSON data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _texts(each)


class _FleetRows:
    """The rows that the clients of a fleet share."""

    def __init__(
        self,
        fleet: SliderFleet,
        spots: Sequence[Place],
        needed: Sequence[Needed],
        known: Mapping[Place, PackedColumn],
    ):
        self.given, self.known = fleet, known
        row: Integers = np.zeros(fleet.rows, np.int64)
        for place in dict.fromkeys((fleet.kind, fleet.device, fleet.link, fleet.samples, *spots)):
            row = _together(row, self._column(place))
        if fleet.classes is not None:
            row = _together(row, np.unique(self._held_classes, axis=0, return_inverse=True)[1].ravel())
        granted = [*fleet.granted.items(), *((CAPS[name].budget, place) for name, place in fleet.caps.items())]
        for name, place in granted:
            if (amounts := self._column(place)).min() < amounts.max():
                row = _together(row, self._steps(name, amounts, [each for each in needed if each.spot in spots]))
        self.first, self.row, self.counts = np.unique(row, return_index=True, return_inverse=True, return_counts=True)[
            1:
        ]

    def _steps(self, budget: str, amounts: Floats, needed: Sequence[Needed]) -> Integers:
        """Equal for clients of equal cost whose amounts are enough for the same costs: `[clients]`."""
        costs = {(each.spot, each.costs.tobytes()): each for each in needed if each.budget == budget}
        steps = np.zeros(len(amounts), np.int64)
        for each in costs.values():
            steps += amounts >= each.costs[self._column(each.spot)]
        if budget == "memory":  # whether it is the owner's word or the device's
            available = np.array([device.available_memory_bytes for device in self.given.devices], float)
            steps = 2 * steps + (amounts > available[self._column(self.given.device)])
        return 2 * steps + np.isinf(amounts)

    def fleet(self, columns: PageColumns) -> SliderFleet:
        """The fleet with these rows; its columns are added."""
        given = self.given
        return replace(
            given,
            rows=len(self.first),
            counts=columns.add(self.counts),
            kind=self.alike(given.kind, columns),
            device=self.alike(given.device, columns),
            link=self.alike(given.link, columns),
            samples=self.alike(given.samples, columns),
            granted={name: self._least(place, columns) for name, place in given.granted.items()},
            caps={name: self._least(place, columns) for name, place in given.caps.items()},
            classes=given.classes and replace(given.classes, held=columns.add(self._held_classes[self.first])),
        )

    def alike(self, place: Place, columns: PageColumns) -> Place:
        """A column that clients of a row have in common, by row."""
        return columns.add(self._column(place)[self.first])

    def _least(self, place: Place, columns: PageColumns) -> Place:
        found = np.full(len(self.first), np.inf)
        np.minimum.at(found, self.row, self._column(place))
        return columns.add(found)

    def _column(self, place: Place) -> AnyArray:
        return numbers(self.known[place])

    @property
    def _held_classes(self) -> AnyArray:
        assert self.given.classes is not None
        return self._column(self.given.classes.held).reshape(self.given.rows, -1)


def _together(row: Integers, values: AnyArray) -> Integers:
    """Indices that are equal where both are."""
    distinct, index = np.unique(values, return_inverse=True)
    joined: Integers = np.unique(row * len(distinct) + index, return_inverse=True)[1]
    return joined.astype(np.int64)
