"""``edgefl cost-diff``: what a change of code, method or scenario does to the costs, for a CI to stop at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from edgefl.errors import RunError, ScenarioError, UnitError

TABLES: dict[str, tuple[str, ...]] = {
    "rows": ("stage", "kind"),
    "totals": ("kind",),
    "server_rows": ("stage", "first_round", "when", "kind"),
    "round_totals": ("stage", "first_round"),
    "evaluation_totals": ("stage", "when"),
}
"""The tables of a profile, and the fields that tell their rows apart."""

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
"""The figures that are compared: a part of memory or traffic may grow where the whole doesn't."""

SAME = 1e-9
"""Relative difference below which two figures are the same sum added up in another order."""


class RowsDiffer(ScenarioError):
    """Two profiles without the same rows; ``found`` has the comparison of those that both have."""

    def __init__(self, message: str, found: dict[str, Any]):
        super().__init__(message)
        self.found = found


def share_of(text: str) -> float:
    """``2%`` or 0.02 as a share; growth may be more than the whole.  Raises UnitError."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise UnitError(f"{text!r} is no share that a cost may grow by: write 2% or 0.02")
    return value


def cost_diff(old: str | os.PathLike[str], new: str | os.PathLike[str], *, fail_above: float = 0.0) -> dict[str, Any]:
    """Compare two files that ``edgefl profile --json`` printed, row by row.

    ``changed`` lists the figures that differ, each with ``growth``, relative to the old (None where there was
    nothing), and ``grew``, whether that is above ``fail_above``.  Raises RunError for a file that can't be read,
    isn't JSON or isn't a profile, RowsDiffer where one has rows that the other lacks.
    """
    before, after = _read(Path(old)), _read(Path(new))
    changed = []
    figures = 0
    for where in before:
        for figure in COSTS:
            was, now = (side.get(where, {}).get(figure) for side in (before, after))
            if was is None or now is None:
                continue
            figures += 1
            if abs(now - was) > SAME * max(abs(was), abs(now)):
                growth = (now - was) / was if was else None
                grew = now > was and (growth is None or growth > fail_above)
                changed.append(
                    {"where": where, "figure": figure, "old": was, "new": now, "growth": growth, "grew": grew}
                )
    removed, added = [w for w in before if w not in after], [w for w in after if w not in before]
    found = {
        "fail_above": fail_above,
        "figures": figures,
        "changed": changed,
        "removed": removed,
        "added": added,
        "grew": any(one["grew"] for one in changed),
    }
    if removed or added:
        sides = ((f"only {old} has", removed), (f"only {new} has", added))
        raise RowsDiffer(
            "the rows don't match: " + "; ".join(f"{side} {_listed(rows)}" for side, rows in sides if rows), found
        )
    return found


def _listed(rows: list[str]) -> str:
    more = f" and {len(rows) - 6} more" if len(rows) > 6 else ""
    return ", ".join(map(repr, rows[:6])) + more


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    """The rows of a profile by what they are: ``stage 2, image``."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"{path} is no JSON: {' '.join(str(error).split())}") from None
    found: dict[str, Mapping[str, Any]] = {}
    try:
        for label, part in _parts(raw):
            for where, row in _named(part):
                if any(not isinstance(row.get(name, 0), int | float) for name in COSTS):
                    raise TypeError
                found[f"{label}: {where}" if label else where] = row
    except (TypeError, KeyError, AttributeError):
        raise RunError(f"{path} is no profile: give what edgefl profile --json prints") from None
    return found


def _parts(raw: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "profiles" in raw:
        yield from raw["profiles"].items()
    elif "combinations" in raw:
        yield from raw["combinations"].items()
    else:
        yield "", raw


def _named(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(part["rows"], list):
        raise TypeError
    for table, keys in TABLES.items():
        seen: dict[str, int] = {}
        for row in part.get(table, []):
            words = []
            for key in keys:
                value = row[key]
                words.append(str(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value}")
            where = ", ".join(words)
            where = where if table == "rows" else f"{table.replace('_', ' ').removesuffix(' rows')}, {where}"
            seen[where] = seen.get(where, 0) + 1
            # a server may do two works of one kind in a round
            yield (where if seen[where] == 1 else f"{where} ({seen[where]})"), row
