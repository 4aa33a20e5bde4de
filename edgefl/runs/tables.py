"""Append-only tables: one record per line, as a JSON object with a ``round``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgefl.errors import RunError
from edgefl.records.reading import data, lines
from edgefl.runs.contents import not_following
from edgefl.runs.durable import append_file, replace_file, writing


def append_lines(path: Path, encoded: Sequence[bytes]) -> None:
    """Append encoded records to a table: each a line of JSON with a ``round`` and a final newline.

    Either all lines are written or none.  Raises RunError if the file can't be written.
    """
    if encoded:
        append_file(path, b"".join(encoded))


def each(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over all complete records of a table, as dictionaries.

    An incomplete last line is ignored, because a run may be writing it.  Raises RunError if any other is damaged.
    """
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
    """Iterate over the complete lines of a table and their records, as described at ``each``."""
    for number, line, last in lines(path):
        try:
            record = data(line)
            if type(record["round"]) is not int:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            if last:
                return
            raise RunError(f"{path}:{number}: this line is damaged: {line[:60]!r}") from None
        yield line, record
