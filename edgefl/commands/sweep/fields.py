"""The fields of a sweep's rows that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.commands.sweep.store import flattened
from edgefl.errors import RunError, UnknownName

NUMBERS = (
    "eligible_share",
    "eligible_share_ever",
    "eligible_share_at_hardest_stage",
    "eligible_samples_share",
    "eligible_samples_share_ever",
    "class_coverage_ever",
    "excluded_samples",
    "empty_rounds",
    "peak_memory_bytes",
    "eligible_peak_memory_bytes",
    "download_bytes",
    "upload_bytes",
    "flops",
    "energy_joules",
    "round_seconds",
    "schedule_seconds",
    "schedule_client_rounds",
    "schedule_download_bytes",
    "schedule_upload_bytes",
    "schedule_bytes",
    "schedule_flops",
    "schedule_energy_joules",
)
FIELDS = (
    *("label", "method", "schedule", "clients", "rounds", "hardest_stage"),
    *("refused_by", "refused_memory_by", "stages"),
    *("eligible_share_ever_by_kind", "lost_classes", "lost_modalities", "modality_samples_share_ever"),
    *NUMBERS,
)
"""The fields of every row."""
TRAINED = ("metrics.", "trained.")
_INNER = (
    *("eligible_share_ever_by_kind.", "modality_samples_share_ever.", "refused_by.", "refused_memory_by.", "stage"),
    *TRAINED,
)
"""Prefixes of the names of nested fields, which differ between cells."""


def check_value(name: str, *, train: bool) -> None:
    """Raise UnknownName for a value that no row can have, RunError for one that only a trained cell has."""
    if name.startswith(TRAINED) and not train:
        raise RunError(f"{name} is known for trained cells only: add --train")
    if name not in NUMBERS and not name.startswith(_INNER):
        raise UnknownName("value", name, (*NUMBERS, "metrics.image.accuracy", "stage1.kinds.image.eligible_share"))


def values_of(rows: Sequence[Mapping[str, Any]], name: str) -> list[float | None]:
    """The field of each row, None if a row lacks it.  Raises UnknownName if no row has it as a number."""
    flat = [flattened(row) for row in rows]
    if not any(_is_number(row.get(name)) for row in flat):
        known = dict.fromkeys(key for row in flat for key, value in row.items() if _is_number(value))
        if name in NUMBERS:
            return [None] * len(flat)
        raise UnknownName("value", name, known)
    return [float(row[name]) if _is_number(row.get(name)) else None for row in flat]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
