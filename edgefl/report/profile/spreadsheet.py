"""Rows of a profile for a spreadsheet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefl.report.console import Facts, csv_text


def flat(row: Facts) -> dict[str, Any]:
    """The row with nested fields joined by a dot: ``memory_bytes.activations``."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            fields |= {f"{name}.{part}": item for part, item in value.items()}
        else:
            fields[name] = value
    return fields


def profile_csv(result: Facts) -> str:
    """The rows as CSV, one line per stage and kind.

    The first column names the combination or the scenario if there are several.  Fields that a row doesn't have (such
    as payloads of another method) are empty.
    """
    parts: Mapping[str, Facts]
    parts, first = {"": result}, ""
    for name, word in (("combinations", "combination"), ("profiles", "scenario")):
        if name in result:
            parts, first = result[name], word
    rows = [({first: label} if first else {}) | flat(row) for label, part in parts.items() for row in part["rows"]]
    # parts of one quantity are adjacent columns, even if only a later row has some of them
    order = list(dict.fromkeys(name.partition(".")[0] for row in rows for name in row))
    names = dict.fromkeys(name for row in rows for name in row)
    return csv_text(rows, sorted(names, key=lambda name: order.index(name.partition(".")[0])))
