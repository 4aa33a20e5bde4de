"""``edgefl cost-diff``: how a change of code, method or scenario changes the costs, as a check in CI."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from edgefl.commands.profile.answer import ChangedFigure, CostDifference
from edgefl.errors import RunError, ScenarioError, UnitError
from edgefl.files import read_regular

TABLES: dict[str, tuple[str, ...]] = {
    "rows": ("stage", "kind", "variant"),
    "totals": ("kind", "variant"),
    "server_rows": ("stage", "first_round", "when", "kind"),
    "round_totals": ("stage", "first_round"),
    "evaluation_totals": ("stage", "when"),
    "client_evaluation_rows": ("stage", "kind", "variant"),
}
"""The tables of a profile, and the fields that identify their rows; few rows have a variant."""

COSTS = (
    "peak_memory_bytes",
    "runtime_overhead_bytes",
    "forward_flops",
    "backward_flops",
    "fvcore_macs",
    "fvcore_macs_per_sample",
    "fvcore_macs_per_sample_all_rounds",
    "download_bytes",
    "upload_bytes",
    "serialised_download_bytes",
    "serialised_upload_bytes",
    "compute_seconds",
    "virtual_seconds",
    "energy_joules",
)
"""The figures that are compared, without parts of memory and traffic, which may grow where the whole doesn't."""

SAME = 1e-9
"""Relative difference below which figures count as equal: sums depend on the order of their terms.

As for a run's records (``verify.conservation.CLOSE``), so that CI doesn't fail by rounding.
"""


class RowsDiffer(ScenarioError):
    """Two profiles have different rows or figures; ``found`` is the comparison of what both have."""

    def __init__(self, message: str, found: CostDifference):
        super().__init__(message)
        self.found = found


def share_of(text: str) -> float:
    """The share that ``2%`` or ``0.02`` says; it may be above 1.  Raises UnitError."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise UnitError(f"{text!r} isn't a share: write 2% or 0.02")
    return value


def cost_diff(old: str | os.PathLike[str], new: str | os.PathLike[str], *, fail_above: float = 0.0) -> CostDifference:
    """Compare two files that ``edgefl profile --json`` printed, row by row.

    ``changed`` lists the figures that differ, each with ``growth``, relative to the old (None where that was 0), and
    ``grew``, whether growth is above ``fail_above``.  Raises RunError for a file that can't be read, isn't JSON or
    isn't a profile, or has a cost that isn't a finite number; RowsDiffer if one file has rows that the other lacks, or
    the old one a figure that the new one lacks.
    """
    before, after = _read(Path(old)), _read(Path(new))
    changed = []
    lost = []
    figures = 0
    for name in before:
        for figure in COSTS:
            old_value, new_value = (side.get(name, {}).get(figure) for side in (before, after))
            if old_value is not None and new_value is None and name in after:
                lost.append(f"{figure} of {name}")
            if old_value is None or new_value is None:
                continue
            figures += 1
            if abs(new_value - old_value) > SAME * max(abs(old_value), abs(new_value)):
                growth = (new_value - old_value) / old_value if old_value else None
                grew = new_value > old_value and (growth is None or growth > fail_above)
                changed.append(
                    ChangedFigure(where=name, figure=figure, old=old_value, new=new_value, growth=growth, grew=grew)
                )
    removed, added = [name for name in before if name not in after], [name for name in after if name not in before]
    comparison = CostDifference(
        fail_above=fail_above,
        figures=figures,
        changed=changed,
        removed=removed,
        added=added,
        lost=lost,
        grew=any(change.grew for change in changed),
    )
    if removed or added or lost:
        sides = ((f"only {old} has", removed), (f"only {new} has", added), (f"{new} lacks", lost))
        raise RowsDiffer(
            "the profiles don't match: " + "; ".join(f"{side} {_quote_rows(rows)}" for side, rows in sides if rows),
            comparison,
        )
    return comparison


def _quote_rows(rows: list[str]) -> str:
    more = f" and {len(rows) - 6} more" if len(rows) > 6 else ""
    return ", ".join(map(repr, rows[:6])) + more


def _read(path: Path) -> dict[str, dict[str, float]]:
    """The costs of a profile's rows, by their names: ``stage 2, image``."""
    try:
        raw = json.loads(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise RunError(f"can't read {path}: {error.strerror or error}") from error
    except RecursionError:
        raise RunError(f"{path} isn't a profile: its JSON is nested too deeply") from None
    except ValueError as error:
        raise RunError(f"{path} isn't valid JSON: {' '.join(str(error).split())}") from None
    rows_by_name: dict[str, dict[str, float]] = {}
    try:
        for label, part in _parts(raw):
            for name, row in _named_rows(part):
                rows_by_name[f"{label}: {name}" if label else name] = _costs(path, name, row)
    except (TypeError, KeyError, AttributeError):
        raise RunError(f"{path} isn't a profile: give a file that edgefl profile --json printed") from None
    return rows_by_name


def _costs(path: Path, name: str, row: Any) -> dict[str, float]:
    """The COSTS that a row has.  Raises TypeError for one that isn't a number, RunError for one that isn't finite."""
    found: dict[str, float] = {}
    for cost in COSTS:
        value = row.get(cost)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        if not isfinite(value):
            raise RunError(f"{path}: {cost} of {name} is {value}, not a finite number")
        found[cost] = value
    return found


def _parts(raw: Any) -> Iterator[tuple[str, Any]]:
    if "profiles" in raw:
        yield from raw["profiles"].items()
    elif "combinations" in raw:
        yield from raw["combinations"].items()
    else:
        yield "", raw


def _named_rows(part: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(part["rows"], list):
        raise TypeError
    for table, keys in TABLES.items():
        seen: dict[str, int] = {}
        for row in part.get(table, []):
            words = []
            for key in keys:
                if key == "variant" and key not in row:
                    continue
                value = row[key]
                words.append(str(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value}")
            name = ", ".join(words)
            name = name if table == "rows" else f"{table.replace('_', ' ').removesuffix(' rows')}, {name}"
            seen[name] = seen.get(name, 0) + 1
            # the server may have two works of one kind in a round
            yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), row
