"""``--against``: how a change of code, method or scenario changes the costs, as a check in CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from edgefl.commands.profile.answer import ChangedFigure, CostDifference, Profile, Tables
from edgefl.errors import RunError, ScenarioError
from edgefl.files import read_regular
from edgefl.records.reading import decode
from edgefl.records.record import UNSET, Record
from edgefl.units import SHARE

TABLES: dict[str, tuple[str, ...]] = {
    "rows": ("stage", "kind", "variant"),
    "totals": ("kind", "variant"),
    "server_rows": ("stage", "first_round", "when", "kind"),
    "round_totals": ("stage", "first_round"),
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

GROWTH = replace(SHARE, example="2%", most=inf)
"""The share by which a cost may grow, more than all of it too."""

SAME = 1e-9
"""Relative difference below which figures count as equal: sums depend on the order of their terms.

As for a run's records (``results.conservation.CLOSE``), so that CI doesn't fail by rounding.
"""


class RowsDiffer(ScenarioError):
    """Two profiles have different rows; ``answer`` is the new one, with the comparison of what both have."""

    def __init__(self, message: str, answer: Profile):
        super().__init__(message)
        self.answer = answer


def read_profile(path: Path) -> Profile:
    """The profile in a file that ``edgefl profile --as json`` printed.

    Raises RunError for a file that can't be read, and for one that isn't a profile as this version has it.
    """
    try:
        text = read_regular(path)
    except OSError as error:
        raise RunError(f"can't read {path}: {error.strerror or error}") from error
    return decode(Profile, text, f"{path} isn't what this version's edgefl profile --as json prints")


def with_difference(profile: Profile, old: Profile, fail_above: float) -> Profile:
    """The profile with what differs from an old one.

    Each figure has its ``growth`` relative to the old one, None where that was 0, and ``grew``, whether that is above
    ``fail_above``.  Raises RowsDiffer if one has rows that the other lacks.
    """
    before, after = _named_rows(old), _named_rows(profile)
    changed = list[ChangedFigure]()
    figures = 0
    for name in [name for name in before if name in after]:
        for figure in COSTS:
            old_value, new_value = (getattr(side[name], figure, None) for side in (before, after))
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
    compared = replace(
        profile,
        against=CostDifference(
            fail_above=fail_above,
            figures=figures,
            changed=changed,
            removed=removed,
            added=added,
            grew=any(change.grew for change in changed),
        ),
    )
    if removed or added:
        sides = (("only the old one has", removed), ("only the new one has", added))
        said = "; ".join(f"{side} {_quote_rows(rows)}" for side, rows in sides if rows)
        raise RowsDiffer(f"the profiles don't match: {said}", compared)
    return compared


def _quote_rows(rows: Sequence[str]) -> str:
    more = f" and {len(rows) - 6} more" if len(rows) > 6 else ""
    return ", ".join(map(repr, rows[:6])) + more


def _named_rows(profile: Profile) -> dict[str, Record]:
    """The rows by their names: ``stage 2, image``; those of a combination begin with its label."""
    parts: Mapping[str, Tables] = profile.combinations or {"": profile}
    return {f"{label}: {name}" if label else name: row for label, part in parts.items() for name, row in _rows_of(part)}


def _rows_of(part: Tables) -> Iterator[tuple[str, Record]]:
    for table, keys in TABLES.items():
        seen = Counter[str]()
        for row in getattr(part, table):
            words = []
            for key in keys:
                if (value := getattr(row, key)) is not UNSET:
                    words.append(value if isinstance(value, str) else f"{key.replace('_', ' ')} {value}")
            name = ", ".join(words)
            name = name if table == "rows" else f"{table.replace('_', ' ').removesuffix(' rows')}, {name}"
            seen[name] += 1
            # the server may have two works of one kind in a round
            yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), row
