"""Recorded times at which devices were there, read from CSV or JSON Lines and asked by record and time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from edgefl import units
from edgefl.errors import DeviceError, UnitError, suggestion

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_SHAPE = "a trace has a row for each time that a device was there: device, start, end (seconds)"


@dataclass(frozen=True)
class Trace:
    """Records of when devices were there: intervals [start, end), ascending, that don't touch.

    Record r's are ``starts`` and ``ends`` from ``offsets[r]`` to ``offsets[r + 1]``, in seconds; all repeat after
    ``period`` seconds, or never.
    """

    names: tuple[str, ...]
    offsets: Integers
    starts: Floats
    ends: Floats
    period: float | None

    def __len__(self) -> int:
        return len(self.names)

    def inside(self, record: Integers, times: Floats) -> Booleans:
        """Whether each time lies in an interval of its record: `[times]`."""
        return self._find(record, times)[2]

    def end(self, record: Integers, times: Floats) -> Floats:
        """The end of the interval that each time lies in, inf if it has none; the time itself if in none."""
        cycle, after, inside = self._find(record, times)
        first, latest = self.offsets[record], np.maximum(after - 1, 0)
        if self.period is None:
            return np.where(inside, self.ends[latest], times)
        following = (cycle + 1) * self.period
        ends = np.minimum(cycle * self.period + self.ends[latest], following)
        # one that lasts until the period is over goes on in the next one, if that begins with one
        on = (ends == following) & (self.starts[first] == 0)
        ends = np.where(on, following + self.ends[first], ends)
        ends = np.where(on & (self.ends[first] == self.period), inf, ends)
        return np.where(inside, ends, times)

    def next(self, record: Integers, times: Floats) -> Floats:
        """The start of the first interval after each time, or the time if it lies in one; inf if there is none."""
        cycle, after, inside = self._find(record, times)
        last = after == self.offsets[record + 1]
        starts = cycle * (self.period or 0.0) + self.starts[np.where(last, 0, after)]
        again = inf if self.period is None else (cycle + 1) * self.period + self.starts[self.offsets[record]]
        return np.where(inside, times, np.where(last, again, starts))

    def _find(self, record: Integers, times: Floats) -> tuple[Integers, Integers, Booleans]:
        """The period that each time lies in, the first interval after it, and whether it lies in the one before."""
        cycle = np.zeros(len(times), dtype=np.int64)
        if self.period is not None:
            cycle = np.floor(times / self.period).astype(np.int64)
            # the quotient may have been rounded over the border of a period
            cycle -= cycle * self.period > times
            cycle += (cycle + 1) * self.period <= times
        base = cycle * (self.period or 0.0)
        low, high = self.offsets[record], self.offsets[record + 1]
        while np.any(searching := low < high):
            middle = np.where(searching, (low + high) // 2, 0)
            # base + start and not time - base: what `next` gives must be found again to the last bit
            begun = base + self.starts[middle] <= times
            low = np.where(searching & begun, middle + 1, low)
            high = np.where(searching & ~begun, middle, high)
        latest = np.maximum(low - 1, 0)
        return cycle, low, (low > self.offsets[record]) & (times < base + self.ends[latest])


def read_trace(file: str, period: float | None = None) -> Trace:
    """The trace in a CSV (.csv) or JSON Lines (.jsonl, .ndjson) file.

    A row says ``device`` (or ``client``), ``start`` and ``end``; those of one device are in order and don't overlap.
    Raises DeviceError with file and line.
    """
    path = Path(file)
    try:
        state = path.stat()
        return _read(path, period, state.st_mtime_ns, state.st_size)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "this isn't UTF-8 text"
        raise DeviceError(f"{file}: this trace can't be read: {said}") from None


@lru_cache(maxsize=2)  # a fleet is drawn anew for every combination of a sweep
def _read(path: Path, period: float | None, changed: int, size: int) -> Trace:
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}
    if path.suffix.lower() not in readers:
        raise DeviceError(
            f"{path}: a trace is a file {', '.join(readers)}, not {path.suffix or 'one without a suffix'}"
        )
    records: dict[str, tuple[list[float], list[float], list[int]]] = {}
    with path.open(encoding="utf-8-sig", newline="") as text:
        for line, row in readers[path.suffix.lower()](path, text):
            start, end = (_seconds(path, line, name, row[name]) for name in ("start", "end"))
            if end <= start:
                raise DeviceError(f"{path}:{line}: it ends at {end:g} s, not after its start at {start:g} s")
            if period is not None and end > period:
                raise DeviceError(
                    f"{path}:{line}: it ends at {end:g} s, after the period of {period:g} s; make the period longer"
                )
            starts, ends, lines = records.setdefault(str(row["device"]), ([], [], []))
            if starts and start < starts[-1]:
                raise DeviceError(
                    f"{path}:{line}: time runs backwards: device {row['device']} starts at {start:g} s, after "
                    f"{starts[-1]:g} s in line {lines[-1]}; sort its rows by start"
                )
            if starts and start < ends[-1]:
                raise DeviceError(
                    f"{path}:{line}: it overlaps with line {lines[-1]}: device {row['device']} starts at {start:g} s, "
                    f"before the end at {ends[-1]:g} s; join the two rows"
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
    return Trace(tuple(records), offsets, starts_, ends_, period)


def _csv_rows(path: Path, text: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.reader(text)
    header = [name.strip().lower() for name in next(rows, [])]
    if not header:
        return
    places = _columns(path, 1, header)
    try:
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise DeviceError(f"{path}:{rows.line_num}: {len(row)} values under {len(header)} columns")
            yield rows.line_num, {name: row[header.index(at)] for name, at in places.items()}
    except csv.Error as error:
        raise DeviceError(f"{path}:{rows.line_num}: this isn't CSV: {error}") from None


def _json_rows(path: Path, text: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, written in enumerate(text, 1):
        if not written.strip():
            continue
        try:
            row = json.loads(written)
        except ValueError as error:
            raise DeviceError(f"{path}:{line}: this isn't JSON: {error}") from None
        if not isinstance(row, dict):
            raise DeviceError(f"{path}:{line}: a row is an object {{device, start, end}}, not {written.strip()[:40]}")
        yield line, {name: row[at] for name, at in _columns(path, line, list(row)).items()}


def _columns(path: Path, line: int, given: list[str]) -> dict[str, str]:
    """device, start, end -> what they are called in the file."""
    found = {}
    for name, aliases in (("device", ("device", "client")), ("start", ("start",)), ("end", ("end",))):
        at = next((alias for alias in aliases if alias in given), None)
        if at is None:
            raise DeviceError(f"{path}:{line}: {name!r} is missing{suggestion(name, given)}; {_SHAPE}")
        found[name] = at
    return found


def _seconds(path: Path, line: int, name: str, value: object) -> float:
    try:
        if isinstance(value, str):
            try:
                seconds = float(value)
            except ValueError:
                seconds = units.SECONDS.parse(value)
        else:
            seconds = units.SECONDS.parse(value)
    except UnitError as error:
        raise DeviceError(f"{path}:{line}: {name}: {error}") from None
    if not isfinite(seconds) or seconds < 0:
        raise DeviceError(f"{path}:{line}: {name}: {value!r} is not a time; it must be finite and from 0 s on")
    return seconds
