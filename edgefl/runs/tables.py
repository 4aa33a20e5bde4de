"""Append-only tables: one record per line, as a JSON object with a ``round``.

Lines are strict JSON.  Infinity (the margin of an unlimited budget) and NaN are written as null, so that any JSON
parser can read the files.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from edgefl.errors import RunError
from edgefl.runs.contents import not_following
from edgefl.runs.durable import replace_file, writing

SUMMED = (
    "download_bytes",
    "upload_bytes",
    "serialised_download_bytes",
    "serialised_upload_bytes",
    "forward_flops",
    "backward_flops",
    "energy_joules",
    "carried_download_bytes",
    "carried_upload_bytes",
    "lost_download_bytes",
    "lost_upload_bytes",
)
"""Fields of client records that are summed in the round's record, and over rounds in the run's totals."""

CARBON = ("download_carbon_grams", "compute_carbon_grams", "upload_carbon_grams")
"""More summed fields, where the scenario states a carbon intensity: grams of CO2 equivalent by phase."""

SCORED = "evaluate held-out"
"""``when`` of a client's record of an evaluation on its own held-out samples; records of training have none."""


def plain(value: Any) -> Any:
    """``value`` as strict JSON data: numpy values become numbers and lists, numbers that aren't finite become None.

    Raises TypeError for a key that isn't a string and for a value that JSON can't represent.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a record's keys must be strings, not {key!r}")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"a record can't hold a value of type {type(value).__name__}: {value!r}")


def encoded(table: str, records: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Records as lines of JSON with a final newline.

    Raises ValueError for a record without an integer ``round``, and TypeError for a value that JSON can't represent.
    """
    lines = []
    for record in records:
        line = plain(record)
        if type(line.get("round")) is not int:
            raise ValueError(f"a record of {table} has no round: {line}")
        lines.append(json.dumps(line, allow_nan=False).encode() + b"\n")
    return lines


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append encoded records to a table: each a line of JSON with a ``round`` and a final newline.

    Either all lines are written or none.  Raises RunError if the file can't be written.
    """
    if not lines:
        return
    with writing(path), open(path, "ab", opener=not_following) as file:
        before = file.tell()
        try:
            file.write(b"".join(lines))
            file.flush()
        except OSError:  # for example a full disk: remove the partial line, which the next append would continue
            os.truncate(path, before)
            raise


def read(path: Path) -> list[dict[str, Any]]:
    """All complete records of a table.  An incomplete last line is ignored, because a run may be writing it.

    Raises RunError if any other line is damaged.
    """
    return list(each(path))


def each(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the records that ``read`` returns, without loading the whole table."""
    return (record for _, record in _complete_records(path))


def rewind(path: Path, round: int) -> None:
    """Remove the records of rounds after ``round`` and an incomplete last line; other lines keep their bytes.

    Raises RunError for a damaged line before the last one, and if the file can't be written.
    """
    if not path.exists():
        return
    size = path.stat().st_size
    kept, later, mixed = 0, False, False
    for line, record in _complete_records(path):
        later |= record["round"] > round
        mixed |= later and record["round"] <= round
        kept += len(line) * (record["round"] <= round)
    if mixed:
        replace_file(path, b"".join(line for line, record in _complete_records(path) if record["round"] <= round))
    elif kept != size:  # the usual case: all later records are at the end of the file
        with writing(path), open(path, "rb+", opener=not_following) as file:
            file.truncate(kept)


def mend(path: Path) -> None:
    """Remove an incomplete last line, so that the next record starts on a new line."""
    if not path.exists():
        return
    with writing(path), open(path, "rb+", opener=not_following) as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            file.truncate(position)


def _complete_records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Iterate over the complete lines of a table and their records, as described at ``read``."""
    try:
        if not path.exists():
            return
        with path.open("rb") as file:
            remaining = file.seek(0, os.SEEK_END)
            file.seek(0)
            for number, line in enumerate(file, start=1):
                remaining -= len(line)
                try:
                    record = orjson.loads(line)
                    if not line.endswith(b"\n") or type(record["round"]) is not int:
                        raise ValueError
                except (ValueError, TypeError, KeyError):
                    if not remaining:
                        return
                    raise RunError(f"{path}:{number}: this line is damaged: {line[:60]!r}") from None
                yield line, record
    except OSError as error:
        raise RunError(f"can't read {path}: {error.strerror or error}") from error
