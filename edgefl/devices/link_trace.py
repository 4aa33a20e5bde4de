"""Traces of links: rates that change with the time of day, read from CSV or JSON Lines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from pathlib import Path

import numpy as np
from pydantic import Field

from edgefl import units
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.availability_trace import SINCE_1970, Columns, amount_in, reading_trace, trace_rows
from edgefl.errors import DeviceError
from edgefl.registry.part_fields import Fields

_SHAPE = "a link's trace has a row for each time at which its rates change: start (seconds), download, upload"
_COLUMNS: Columns = {name: (name,) for name in ("start", "download", "upload")}


class LinkTraceOptions(Fields):
    """The ``trace`` of a link's profile: a file beside it, and after which time it begins anew."""

    file: str = Field(min_length=1)
    period: units.Seconds = Field(default=inf, gt=0)


@dataclass(frozen=True)
class LinkTrace:
    """Rates of a link by time, piecewise constant: ``rates`` `[2, spans]` down and up, in shares of the link's own.

    A span lasts until the next one starts, and the last to the end of the ``period`` (seconds; inf: for ever).

    Transfers are counted in seconds that they would take at the link's own rate, its profile's number.  In the methods
    ``way`` is 0 for downloads and 1 for uploads; times ``at`` in seconds, amounts and results are `[n]`.
    """

    digest: str
    """Of all that follows, by which two traces are compared."""
    starts: Floats = field(compare=False, repr=False)
    rates: Floats = field(compare=False, repr=False)
    period: float = field(compare=False)

    @cached_property
    def _online(self) -> Booleans:
        return np.asarray((self.rates > 0).all(axis=0))

    @cached_property
    def _ends(self) -> Floats:
        return np.append(self.starts[1:], self.period)

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """The integrals of the rates until each span starts and until it ends, `[2, spans]` each."""
        with np.errstate(invalid="ignore"):
            until = np.cumsum(np.where(self.rates > 0, self.rates * (self._ends - self.starts), 0.0), axis=1)
        return np.hstack([np.zeros((2, 1)), until[:, :-1]]), until

    @cached_property
    def _switches(self) -> Floats:
        """When a link that is online goes offline or the other way round, ascending; the last lies in the next
        period."""
        on = self._online
        switches = self.starts[1:][on[1:] != on[:-1]]
        if isfinite(self.period):
            switches = np.append(switches, self.period) if on[0] != on[-1] else switches
        return np.append(switches, self.period + switches[0] if len(switches) else inf)

    @property
    def may_be_offline(self) -> bool:
        """Whether a rate is ever 0."""
        return not self.rates.all()

    def state(self, at: Floats) -> tuple[Booleans, Floats]:
        """Whether both rates are above 0, and until when it stays so, inf for ever: both `[n]`."""
        elapsed, span = self._place(at)
        until = self._switches[np.searchsorted(self._switches[:-1], elapsed, "right")]
        return self._online[span], np.maximum(at - elapsed + until, np.nextafter(at, inf))

    def seconds(self, way: int, at: Floats, needed: Floats) -> Floats:
        """How long transfers take that begin ``at`` these times and need so many seconds at the link's own rate.

        It is the time in which the integral of the rate is ``needed``; inf where the trace ends before.
        """
        rate, since, until = self.rates[way], self._sums[0][way], self._sums[1][way]
        elapsed, span = self._place(at)
        with np.errstate(divide="ignore", invalid="ignore"):
            here = np.where(rate[span] > 0, rate[span] * (self._ends[span] - elapsed), 0.0)
            beyond, alone = needed > here, np.where(needed > 0, needed / rate[span], 0.0)
            target, passed = until[span] + (needed - here), np.zeros(len(at))
            if isfinite(self.period):
                laps = np.ceil(target / until[-1]) - 1
                target, passed = np.minimum(target - laps * until[-1], until[-1]), laps * self.period
            found = np.searchsorted(until, target)
            found, ends = np.minimum(found, len(until) - 1), found < len(until)
            later = passed + (self.starts[found] - elapsed) + (target - since[found]) / rate[found]
        return np.where(beyond, np.where(ends, later, inf), alone)

    def integral(self, way: int, at: Floats, spent: Floats) -> Floats:
        """The integral of the rate over the ``spent`` seconds after these times: what is carried of ``seconds``."""
        rate, since, until = self.rates[way], self._sums[0][way], self._sums[1][way]
        elapsed, span = self._place(at)
        laps, whole = np.floor((elapsed + spent) / self.period), until[-1] if isfinite(self.period) else 0.0
        rest, last = self._place(elapsed + spent)
        before = laps * whole + since[last] - since[span]
        beyond = before + rate[last] * (rest - self.starts[last]) - rate[span] * (elapsed - self.starts[span])
        return np.asarray(np.where(elapsed + spent <= self._ends[span], rate[span] * spent, beyond))

    def _place(self, at: Floats) -> tuple[Floats, Integers]:
        """Seconds since the beginning of the period, exactly, and the span that they lie in."""
        elapsed: Floats = np.mod(at, self.period)
        return elapsed, np.searchsorted(self.starts, elapsed, "right") - 1


def read_link_trace(file: Path, period: float, own: tuple[float, float]) -> LinkTrace:
    """The trace in a file; ``period`` is in seconds, and ``own`` are the link's rates down and up in bit/s.

    Each row has ``start``, ``download`` and ``upload``, which hold until the next row; before the first one the link is
    offline.  Raises DeviceError with file and line.
    """
    rows: list[tuple[float, float, float]] = []
    with reading_trace(file):
        for line, row in trace_rows(file, _COLUMNS, _SHAPE):
            start = amount_in(file, line, "start", row["start"], units.SECONDS)
            down, up = (amount_in(file, line, n, row[n], units.BITS_PER_SECOND) for n in ("download", "upload"))
            if start >= min(period, SINCE_1970):
                what = f"the period of {period:g} s; make it longer" if period < inf else "32 years; subtract the first"
                raise DeviceError(f"{file}:{line}: the rates start at {start:g} s, after {what}")
            if rows and start <= rows[-1][0]:
                raise DeviceError(
                    f"{file}:{line}: the rows aren't sorted by start: {start:g} s, {rows[-1][0]:g} s before"
                )
            rows += [(0.0, 0.0, 0.0)] * (not rows and start > 0) + [(start, down, up)]
    if not any(down and up for _, down, up in rows):
        raise DeviceError(f"{file}: at no time are both rates above 0; {_SHAPE}")
    starts, *rates = np.array(rows).T
    digest = hashlib.blake2b(repr((period, rows)).encode(), digest_size=12).hexdigest()
    return LinkTrace(digest, starts, np.array(rates) / np.array(own)[:, None], period)
