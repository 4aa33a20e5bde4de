"""Which rows of a sweep no other row beats in both eligible share and a cost."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.commands.sweep.answer import CellRow, Frontier, FrontierPoint, MethodFrontier

AGAINST = ("schedule_bytes", "schedule_seconds", "schedule_energy_joules")
"""The costs that are compared with an eligible share."""


def frontiers(rows: Sequence[CellRow]) -> dict[str, MethodFrontier]:
    """For each method and each cost of AGAINST the cells that no other cell of the method dominates, cheapest first.

    A cell dominates another if its share is no lower and its cost no higher, and one of the two is better.
    ``dominated`` names for each dominated cell one that dominates it: the one with the highest share, then the
    cheapest.  ``nobody`` lists cells in which no client can take part; they are on no frontier.
    """
    by_method: dict[str, MethodFrontier] = {}
    for method in dict.fromkeys(row.method for row in rows):
        cells = [row for row in rows if row.method == method]
        eligible = [row for row in cells if row.eligible_share > 0]
        by_method[method] = MethodFrontier(
            **{cost: _frontier(eligible, cost) for cost in AGAINST},
            nobody=[row.label for row in cells if not row.eligible_share > 0],
        )
    return by_method


def _frontier(rows: Sequence[CellRow], cost: str) -> Frontier:
    costs: dict[str, float] = {row.label: getattr(row, cost) for row in rows}
    best: CellRow | None = None
    frontier: list[FrontierPoint] = []
    dominated: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (costs[row.label], -row.eligible_share)):
        # all rows so far cost no more than this one
        if best is None or row.eligible_share > best.eligible_share:
            best = row
        elif row.eligible_share < best.eligible_share or costs[row.label] > costs[best.label]:
            dominated[row.label] = best.label
            continue
        frontier.append(FrontierPoint(label=row.label, eligible_share=row.eligible_share, **{cost: costs[row.label]}))
    position = {row.label: index for index, row in enumerate(rows)}
    return Frontier(frontier=frontier, dominated=dict(sorted(dominated.items(), key=lambda item: position[item[0]])))
