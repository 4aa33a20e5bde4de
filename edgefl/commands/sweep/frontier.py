"""The Pareto frontier of each method: which cells let in more clients only at a price, and which are beaten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

SHARE = "eligible_share"
AGAINST = ("schedule_bytes", "schedule_seconds", "schedule_energy_joules")
"""What an eligible share is held against."""


def frontiers(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """For each method and each cost of AGAINST the cells that no other cell of the method dominates, cheapest first.

    A cell dominates another if no fewer clients are eligible there for no more, and one of the two is better.
    ``dominated`` names for each cell that is beaten one that beats it: the one with the highest share, then the
    cheapest.  ``nobody`` lists cells in which nobody can take part; they stand on no frontier.
    """
    found: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        able = [row for row in mine if row[SHARE] > 0]
        found[method] = {
            **{cost: _frontier(able, cost) for cost in AGAINST},
            "nobody": [row["label"] for row in mine if not row[SHARE] > 0],
        }
    return found


def _frontier(rows: Sequence[Row], cost: str) -> dict[str, Any]:
    order = sorted(rows, key=lambda row: (row[cost], -row[SHARE]))
    best: Row | None = None
    frontier: list[dict[str, Any]] = []
    dominated: dict[str, str] = {}
    for row in order:
        # so far everything costs no more than this one
        if best is None or row[SHARE] > best[SHARE]:
            best = row
        elif row[SHARE] < best[SHARE] or row[cost] > best[cost]:
            dominated[row["label"]] = best["label"]
            continue
        frontier.append({"label": row["label"], SHARE: row[SHARE], cost: row[cost]})
    places = {row["label"]: index for index, row in enumerate(rows)}
    return {"frontier": frontier, "dominated": dict(sorted(dominated.items(), key=lambda item: places[item[0]]))}
