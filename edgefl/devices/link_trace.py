"""Traces of links: rates that change with the time of day, read from CSV or JSON Lines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from edgefl import units
from edgefl.arrays import Floats, Integers
from edgefl.devices.availability_trace import (
    DEVICE,
    SINCE_1970,
    AvailabilityIntervals,
    Columns,
    amount_in,
    first_index,
    reading_trace,
    trace_rows,
)
from edgefl.errors import DeviceError
from edgefl.registry.part_fields import Fields

_SHAPE = "a link's trace has a row for each time at which its rates change: device, start (seconds), download, upload"
_COLUMNS: Columns = {"device": DEVICE, "start": ("start",), "download": ("download",), "upload": ("upload",)}


class LinkTraceOptions(Fields):
    """The ``trace`` of a link's profile."""

    file: str = Field(min_length=1, description="CSV or JSON Lines file, beside the profile.")
    period: units.Seconds | None = Field(default=None, description="Time after which the trace begins anew.")

    @model_validator(mode="after")
    def _is_positive(self) -> LinkTraceOptions:
        if self.period is not None and self.period <= 0:
            raise ValueError("a period must be more than 0 s; leave it out if the trace doesn't repeat")
        return self


@dataclass(frozen=True)
class LinkTrace:
    """Rates of a link by time, piecewise constant: ``rates`` `[2, spans]` down and up, in shares of the link's own.

    There is a record of ``spans`` for each device of the file; client c has record c modulo their number.  The spans of
    a record follow each other without gaps from time 0 on.  The last one lasts for ever, or to the end of the period.

    Transfers are counted in seconds that they would take at the link's own rate, its profile's number.  In the methods
    ``way`` is 0 for downloads and 1 for uploads; ``clients``, the times ``at`` and the result are `[n]`.
    """

    digest: str
    """Of all that follows, which is what two traces are compared by."""
    spans: AvailabilityIntervals = field(compare=False, repr=False)
    rates: Floats = field(compare=False, repr=False)

    @property
    def period(self) -> float:
        """Seconds after which the trace begins anew, 0 for never."""
        return self.spans.period or 0.0

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """What is carried from a record's beginning until each span begins and until it ends: `[2, spans]` each."""
        until = np.zeros_like(self.rates)
        with np.errstate(invalid="ignore"):
            carried = np.where(self.rates > 0, self.rates * (self.spans.ends - self.spans.starts), 0.0)
        for first, last in zip(self.spans.offsets[:-1], self.spans.offsets[1:], strict=True):
            until[:, first:last] = np.cumsum(carried[:, first:last], axis=1)
        since = np.roll(until, 1, axis=1)
        since[:, self.spans.offsets[:-1]] = 0.0
        return since, until

    @cached_property
    def online(self) -> AvailabilityIntervals | None:
        """The intervals in which both rates are above 0; None if they always are."""
        on, offsets, starts, ends = (self.rates > 0).all(axis=0), [0], list[float](), list[float]()
        if on.all():
            return None
        for first, last in zip(self.spans.offsets[:-1], self.spans.offsets[1:], strict=True):
            for span in np.flatnonzero(on[first:last]) + first:
                if len(starts) > offsets[-1] and ends[-1] == self.spans.starts[span]:
                    ends[-1] = float(self.spans.ends[span])
                else:
                    starts.append(float(self.spans.starts[span]))
                    ends.append(float(self.spans.ends[span]))
            offsets.append(len(starts))
        times = np.array(starts), np.array(ends)
        return AvailabilityIntervals(self.spans.names, np.array(offsets), *times, self.spans.period)

    def record(self, clients: Integers) -> Integers:
        """The record of each client: `[n]`."""
        return np.asarray(clients % len(self.spans))

    def seconds(self, way: int, clients: Integers, at: Floats, needed: Floats) -> Floats:
        """How long transfers take that begin ``at`` these times and need so many seconds at the link's own rate.

        It is the time in which the integral of the rate is ``needed``; inf where the trace ends before.
        """
        rate, (since, until) = self.rates[way], (sums[way] for sums in self._sums)
        _, span, elapsed = self._place(clients, at)
        with np.errstate(divide="ignore", invalid="ignore"):
            here = np.where(rate[span] > 0, rate[span] * (self.spans.ends[span] - elapsed), 0.0)
            taken = np.where(needed > 0, needed / rate[span], 0.0)
        if not (beyond := needed > here).any():
            return taken
        record, elapsed = self.record(clients[beyond]), elapsed[beyond]
        first, last = self.spans.offsets[record], self.spans.offsets[record + 1]
        target, whole = until[span[beyond]] + (needed - here)[beyond], until[last - 1]
        laps = np.zeros(len(target))
        if self.period:
            laps = np.ceil(target / whole) - 1
            target = np.minimum(target - laps * whole, whole)
        found = first_index(first, last, lambda index: until[index] >= target)
        ends, found = found < last, np.minimum(found, last - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            over = laps * self.period + self.spans.starts[found] + (target - since[found]) / rate[found]
        taken[beyond] = np.where(ends, over - elapsed, inf)
        return taken

    def integral(self, way: int, clients: Integers, at: Floats, spent: Floats) -> Floats:
        """What transfers have carried ``spent`` seconds after they began ``at`` these times, in seconds at the link's
        own rate: the integral of the rate."""
        rate, (since, until) = self.rates[way], (sums[way] for sums in self._sums)
        spent = np.maximum(spent, 0.0)
        began, ended = (self._place(clients, times) for times in (at, at + spent))
        whole = until[self.spans.offsets[self.record(clients) + 1] - 1] if self.period else 0.0

        def sum_until(cycle: Integers, span: Integers, elapsed: Floats) -> Floats:
            return np.asarray(cycle * whole + since[span] + rate[span] * (elapsed - self.spans.starts[span]))

        same = (began[0] == ended[0]) & (began[1] == ended[1])
        return np.where(same, rate[began[1]] * spent, sum_until(*ended) - sum_until(*began))

    def _place(self, clients: Integers, at: Floats) -> tuple[Integers, Integers, Floats]:
        """The period of each time, the span that it lies in, and the seconds since the period's beginning."""
        cycle, after, _ = self.spans.find(self.record(clients), at)
        return cycle, after - 1, at - cycle * self.period


def read_link_trace(file: Path, period: float | None, own: tuple[float, float]) -> LinkTrace:
    """The trace in a file; ``period`` is in seconds, and ``own`` are the link's rates down and up in bit/s.

    Each row has ``start``, ``download`` and ``upload``, which hold until the device's next row; before its first row a
    device is offline.  Raises DeviceError with file and line, also if no device can ever transfer.
    """
    records: dict[str, list[tuple[float, float, float]]] = {}
    with reading_trace(file):
        for line, row in trace_rows(file, _COLUMNS, _SHAPE):
            start = amount_in(file, line, "start", row["start"], units.SECONDS)
            down, up = (amount_in(file, line, n, row[n], units.BITS_PER_SECOND) for n in ("download", "upload"))
            rows = records.setdefault(str(row["device"]), [])
            if start >= (period or SINCE_1970):
                why = "subtract the time at which the run begins from all times" if period is None else "make it longer"
                limit = "the year 2001" if period is None else f"the period of {period:g} s"
                raise DeviceError(f"{file}:{line}: the rates begin at {start:g} s, after {limit}; {why}")
            if rows and start <= rows[-1][0]:
                raise DeviceError(
                    f"{file}:{line}: the rows of device {row['device']} aren't sorted: this one starts at {start:g} s, "
                    f"the one before at {rows[-1][0]:g} s; sort its rows by start"
                )
            rows += [(0.0, 0.0, 0.0)] * (not rows and start > 0) + [(start, down, up)]
    if not records:
        raise DeviceError(f"{file}: this trace is empty; {_SHAPE}")
    for device, rows in records.items():
        if not any(down and up for _, down, up in rows):
            raise DeviceError(f"{file}: device {device} never has a rate above 0 down and up at a time; leave it out")
    columns = [np.array(rows).T for rows in records.values()]
    starts, *rates = np.concatenate(columns, axis=1)
    ends = np.concatenate([[*column[0][1:], period or inf] for column in columns])
    offsets = np.cumsum([0, *(len(rows) for rows in records.values())])
    hashed = hashlib.blake2b(repr((period, list(records.items()))).encode(), digest_size=12)
    spans = AvailabilityIntervals(tuple(records), offsets, starts, ends, period)
    return LinkTrace(hashed.hexdigest(), spans, np.array(rates) / np.array(own)[:, None])
