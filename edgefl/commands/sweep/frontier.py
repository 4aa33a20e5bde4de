"""The Pareto frontier of each method over eligible share and cost, and the cells that are dominated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

SHARE = "eligible_share"
AGAINST = ("schedule_bytes", "schedule_seconds", "schedule_energy_joules")
"""The costs that are compared with an eligible share."""


def frontiers(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """For each method and each cost of AGAINST the cells that no other cell of the method dominates, cheapest first.

    A cell dominates another if its share is no lower and its cost no higher, and one of the two is better.
    ``dominated`` names for each dominated cell one that dominates it: the one with the highest share, then the
    cheapest.  ``nobody`` lists cells in which no client can take part; they are on no frontier.
    """
    by_method: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [row for row in rows if row["method"] == method]
        eligible = [row for row in cells if row[SHARE] > 0]
        by_method[method] = {
            **{cost: _frontier(eligible, cost) for cost in AGAINST},
            "nobody": [row["label"] for row in cells if not row[SHARE] > 0],
        }
    return by_method


def _frontier(rows: Sequence[Row], cost: str) -> dict[str, Any]:
    order = sorted(rows, key=lambda row: (row[cost], -row[SHARE]))
    best: Row | None = None
    frontier: list[dict[str, Any]] = []
    dominated: dict[str, str] = {}
    for row in order:
        # all rows so far cost no more than this one
        if best is None or row[SHARE] > best[SHARE]:
            best = row
        elif row[SHARE] < best[SHARE] or row[cost] > best[cost]:
            dominated[row["label"]] = best["label"]
            continue
        frontier.append({"label": row["label"], SHARE: row[SHARE], cost: row[cost]})
    position = {row["label"]: index for index, row in enumerate(rows)}
    return {"frontier": frontier, "dominated": dict(sorted(dominated.items(), key=lambda item: position[item[0]]))}
