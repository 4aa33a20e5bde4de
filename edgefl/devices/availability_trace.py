"""Availability traces: recorded intervals in which devices were available, read from CSV or JSON Lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import TextIOWrapper
from math import inf, isfinite
from pathlib import Path
from typing import TextIO

import numpy as np

from edgefl import units
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.errors import DeviceError, UnitError
from edgefl.files import open_regular

SINCE_1970 = 1e9
"""Seconds of a time that is taken for one since 1970: September 2001 there, 32 years of a run."""

_SHAPE = "a trace has a row for each interval in which a device was available: device, start, end (seconds)"
Columns = Mapping[str, tuple[str, ...]]
"""The columns of a trace, each with the names that it may have in the file."""
_COLUMNS: Columns = {"device": ("device", "client"), "start": ("start",), "end": ("end",)}


@dataclass(frozen=True)
class AvailabilityIntervals:
    """Intervals [start, end) in seconds in which devices were available; each device has a record of intervals.

    Record r's intervals are ``starts`` and ``ends`` from ``offsets[r]`` to ``offsets[r + 1]``. They are sorted, and
    there is a gap between two of them. All records repeat after ``period`` seconds, or never if it is None.
    ``names[r]`` is the device's name in the file.

    In the methods, ``record`` and ``times`` are arrays of equal length: a record's number and a time in seconds.
    """

    names: tuple[str, ...]
    offsets: Integers
    starts: Floats
    ends: Floats
    period: float | None

    def __len__(self) -> int:
        return len(self.names)

    def until(self, record: Integers, times: Floats) -> tuple[Booleans, Floats]:
        """Whether each time lies in an interval of its record, and until when that stays so: both `[times]`.

        That is the end of the interval or the start of the next one; inf if it never ends, or none follows.
        """
        cycle, after, inside = self._find(record, times)
        base, following = cycle * (self.period or 0.0), inf if self.period is None else (cycle + 1) * self.period
        first, none_left = self.offsets[record], after == self.offsets[record + 1]
        ends = np.minimum(base + self.ends[np.maximum(after - 1, 0)], following)
        # An interval that lasts to the end of the period continues if the next period starts with an interval.
        continues = (ends == following) & (self.starts[first] == 0)
        ends = np.where(continues, following + self.ends[first], ends)
        ends = np.where(continues & (self.ends[first] == self.period), inf, ends)
        starts = np.where(none_left, following + self.starts[first], base + self.starts[np.where(none_left, 0, after)])
        return inside, np.where(inside, ends, starts)

    def _find(self, record: Integers, times: Floats) -> tuple[Integers, Integers, Booleans]:
        """For each time: the number of its period, the index of the next interval, and whether it is in an interval.

        The next interval is the first in that period that starts after the time; the index may be one past the record.
        """
        cycle = np.zeros(len(times), dtype=np.int64)
        if self.period is not None:
            cycle = np.floor(times / self.period).astype(np.int64)
            # Rounding may have moved the quotient across the boundary of a period.
            cycle -= cycle * self.period > times
            cycle += (cycle + 1) * self.period <= times
        base = cycle * (self.period or 0.0)
        low, high = self.offsets[record], self.offsets[record + 1]
        while np.any(searching := low < high):
            middle = np.where(searching, (low + high) // 2, 0)
            # base + start, not time - base: a time that `next` returned must compare equal to the last bit.
            started = base + self.starts[middle] <= times
            low = np.where(searching & started, middle + 1, low)
            high = np.where(searching & ~started, middle, high)
        latest = np.maximum(low - 1, 0)
        return cycle, low, (low > self.offsets[record]) & (times < base + self.ends[latest])


def read_trace(file: str, period: float | None = None) -> AvailabilityIntervals:
    """Read the trace in a CSV (.csv) or JSON Lines (.jsonl, .ndjson) file; ``period`` is in seconds.

    Each row has ``device`` (or ``client``), ``start`` and ``end``. The rows of one device are sorted and don't
    overlap. Raises DeviceError with file and line.
    """
    path = Path(file)
    with reading_trace(path):
        state = path.stat()
        return _read(path, period, state.st_mtime_ns, state.st_size)


@contextmanager
def reading_trace(path: Path) -> Iterator[None]:
    """Raise DeviceError for a trace whose file can't be read in the block."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8 text"
        raise DeviceError(f"{path}: this trace can't be read: {reason}") from None


def trace_rows(path: Path, names: Columns, shape: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The rows of a CSV or JSON Lines file with their lines, each by the names of the columns.

    Raises DeviceError with file and line, which says what the ``shape`` of a trace is.
    """
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}
    if path.suffix.lower() not in readers:
        raise DeviceError(
            f"{path}: a trace is a file with suffix {', '.join(readers)}, not {path.suffix or 'without a suffix'}"
        )
    with open_regular(path) as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        yield from readers[path.suffix.lower()](path, text, names, shape)


@lru_cache(maxsize=2)  # a sweep draws a fleet for every combination
def _read(path: Path, period: float | None, changed: int, size: int) -> AvailabilityIntervals:
    records: dict[str, tuple[list[float], list[float], list[int]]] = {}
    for line, row in trace_rows(path, _COLUMNS, _SHAPE):
        start, end = (amount_in(path, line, name, row[name], units.SECONDS) for name in ("start", "end"))
        if start >= SINCE_1970:
            raise DeviceError(
                f"{path}:{line}: the interval starts {start / 31_557_600:,.0f} years after the run's beginning; if "
                "these are times since 1970, subtract from all of them the time at which the run begins"
            )
        if end <= start:
            raise DeviceError(f"{path}:{line}: the interval ends at {end:g} s, not after its start at {start:g} s")
        if period is not None and end > period:
            raise DeviceError(
                f"{path}:{line}: the interval ends at {end:g} s, after the period of {period:g} s; "
                "make the period longer"
            )
        starts, ends, lines = records.setdefault(str(row["device"]), ([], [], []))
        if starts and start < starts[-1]:
            raise DeviceError(
                f"{path}:{line}: the rows of device {row['device']} aren't sorted: this one starts at {start:g} s, "
                f"line {lines[-1]} at {starts[-1]:g} s; sort its rows by start"
            )
        if starts and start < ends[-1]:
            raise DeviceError(
                f"{path}:{line}: the interval overlaps line {lines[-1]}: device {row['device']} starts at "
                f"{start:g} s, before that line's end at {ends[-1]:g} s; join the two rows"
            )
        if starts and start == ends[-1]:
            ends[-1], lines[-1] = end, line
            continue
        starts.append(start)
        ends.append(end)
        lines.append(line)
    if not records:
        raise DeviceError(f"{path}: this trace is empty; {_SHAPE}")
    offsets = np.cumsum([0, *(len(starts) for starts, _, _ in records.values())])
    starts_, ends_ = (np.concatenate([record[i] for record in records.values()]) for i in (0, 1))
    return AvailabilityIntervals(tuple(records), offsets, starts_, ends_, period)


def _csv_rows(path: Path, text: TextIO, names: Columns, shape: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    rows = csv.reader(text)
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        if not header:
            return
        columns = _columns(path, 1, header, names, shape)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise DeviceError(f"{path}:{rows.line_num}: {len(row)} values under {len(header)} columns")
            yield rows.line_num, {name: row[header.index(column)] for name, column in columns.items()}
    except csv.Error as error:
        raise DeviceError(f"{path}:{max(rows.line_num, 1)}: this line isn't CSV: {error}") from None


def _json_rows(path: Path, text: TextIO, names: Columns, shape: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    for line, written in enumerate(text, 1):
        if not written.strip():
            continue
        try:
            row = json.loads(written)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise DeviceError(f"{path}:{line}: this line isn't JSON: {reason}") from None
        if not isinstance(row, dict):
            raise DeviceError(f"{path}:{line}: a row is an object {{{', '.join(names)}}}, not {written.strip()[:40]}")
        yield line, {name: row[key] for name, key in _columns(path, line, list(row), names, shape).items()}


def _columns(path: Path, line: int, given: list[str], names: Columns, shape: str) -> dict[str, str]:
    """The names that the file uses for these columns."""
    columns = {}
    for name, aliases in names.items():
        column = next((alias for alias in aliases if alias in given), None)
        if column is None:
            found = ", ".join(f"{each!r:.40}" for each in given[:6])
            raise DeviceError(f"{path}:{line}: {name!r} is missing, there are {found}; {shape}")
        if given.count(column) > 1:
            raise DeviceError(f"{path}:{line}: {given.count(column)} columns are named {column!r}: rename all but one")
        columns[name] = column
    return columns


def amount_in(path: Path, line: int, name: str, value: object, quantity: units.Quantity) -> float:
    """A value of a trace in the base unit of its quantity.  Raises DeviceError with file and line."""
    try:
        if isinstance(value, str):
            try:
                amount = float(value)
            except ValueError:
                amount = quantity.parse(value)
        else:
            amount = quantity.parse(value)
    except UnitError as error:
        raise DeviceError(f"{path}:{line}: {name}: {error}") from None
    if not isfinite(amount) or amount < 0:
        noun = "time" if quantity is units.SECONDS else quantity.noun
        raise DeviceError(
            f"{path}:{line}: {name}: {value!r} is not a {noun}; it must be finite and at least 0 {quantity.unit}"
        )
    return amount
