"""Records: everything that is written to a run's folder, and the answers of commands."""

from __future__ import annotations

from edgefl.records.record import (
    UNSET,
    ByKind,
    Clients,
    FieldRow,
    Flights,
    Keys,
    Maybe,
    Record,
    Rounds,
    Samples,
    Share,
    Unit,
    fields_of,
    part_of,
    to_data,
)

__all__ = [
    "UNSET",
    "ByKind",
    "Clients",
    "Flights",
    "Keys",
    "Maybe",
    "Record",
    "Rounds",
    "FieldRow",
    "Samples",
    "Share",
    "Unit",
    "fields_of",
    "part_of",
    "to_data",
]
