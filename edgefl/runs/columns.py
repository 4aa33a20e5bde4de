"""Columns of a run's tables: nested fields by paths, and constant columns that name the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def varied_columns(names: Mapping[str, Mapping[str, Any]], sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``{label: {column: value}}``: ``names`` of each run, and the fields of ``sets`` that differ between the runs.

    A list is shown as JSON text, so that rows can be grouped by it.
    """
    flat = {label: flatten(dict(sets.get(label, {}))) for label in names}
    columns = dict.fromkeys(column for fields in flat.values() for column in fields)
    differing = [
        column for column in columns
        if len({json.dumps(fields.get(column)) for fields in flat.values()}) > 1 or len(flat) == 1
    ]  # fmt: skip
    found = {}
    for label, own in names.items():
        values = {column: flat[label].get(column) for column in differing if column.removesuffix(".name") not in own}
        found[label] = {**own, **{c: json.dumps(v) if isinstance(v, list) else v for c, v in values.items()}}
    return found


def joined(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """The frame with these constant columns first; a column that it has already is left as it is."""
    for place, (name, value) in enumerate((name, value) for name, value in columns.items() if name not in frame):
        frame.insert(place, name, value)
    return frame


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A record with nested fields joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
