"""Columns of a run's tables: nested fields by paths, and constant columns that name the run."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def varied_columns(
    names: Mapping[str, Mapping[str, object]], sets: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """``{label: {column: value}}``: ``names`` of each run, and the fields of ``sets`` that differ between the runs."""
    own = {name for each in names.values() for name in each}
    found = columns_of({label: sets.get(label, {}) for label in names}, own)
    return {label: {**each, **found[label]} for label, each in names.items()}


def columns_of(
    sets: Mapping[str, Mapping[str, object]], own: Container[str] = (), kept: Container[str] = ()
) -> dict[str, dict[str, object]]:
    """``{label: {column: value}}``: the fields of ``sets`` that are ``kept`` or differ between the labels.

    Fields of a mapping are columns of their own; a list is JSON text, so that rows can be grouped by it.  ``own`` are
    columns that the table has already, under their name or ``NAME.name``.
    """
    flat = {label: flatten(dict(fields)) for label, fields in sets.items()}
    columns = [
        column for column in dict.fromkeys(column for fields in flat.values() for column in fields)
        if column.removesuffix(".name") not in own
        and (column in kept or len({json.dumps(fields.get(column)) for fields in flat.values()}) > 1 or len(flat) == 1)
    ]  # fmt: skip
    return {
        label: {c: json.dumps(v) if isinstance(v := fields.get(c), list) else v for c in columns}
        for label, fields in flat.items()
    }


def prepend_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """The frame with these constant columns first; a column that it has already is left as it is."""
    for place, (name, value) in enumerate((name, value) for name, value in columns.items() if name not in frame):
        frame.insert(place, name, value)
    return frame


def flatten(record: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """A record with nested fields joined by dots."""
    flat: dict[str, object] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
