"""Availability of clients: always, in a daily window, as a Markov process, or as recorded in a trace.

Availability is a function of (options, seed, client, time) and doesn't depend on earlier queries. Windows and
switches are drawn by counter, so the cost of a query depends only on the clients that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl import seeds
from edgefl.devices.availability_options import AvailabilityOptions, DiurnalOptions, MarkovOptions
from edgefl.devices.trace import Trace, read_trace

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)


class Availability(Protocol):
    """When clients are available to the server.

    ``clients`` are client numbers. ``at`` is in seconds: one time for all or one for each client.
    """

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether each client is available: `[clients]`."""
        ...

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """When each available client becomes unavailable, inf for never: `[clients]`.

        For a client that is unavailable, ``at`` itself.
        """
        ...

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The first time from ``at`` on at which each client is available, inf if there is none: `[clients]`."""
        ...


def availability_of(options: AvailabilityOptions | Literal["always"], clients: int, seed: int) -> Availability:
    """The availability that the options specify.  Raises DeviceError if a trace's file is invalid."""
    if options == "always":
        return Always()
    if options.diurnal is not None:
        return Diurnal(options.diurnal, seed)
    if options.markov is not None:
        return Markov(options.markov, seed)
    assert options.trace is not None
    return Traced(read_trace(options.trace.file, options.trace.period), seed)


@dataclass(frozen=True)
class Always:
    """All clients are available at any time."""

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """True for every client: `[clients]`."""
        return np.ones(len(np.asarray(clients)), dtype=bool)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """Infinity (never) for every client: `[clients]`."""
        return np.full(len(np.asarray(clients)), inf)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The given time for every client: `[clients]`."""
        return _rows_and_times(clients, at)[1]


@dataclass(frozen=True)
class Diurnal:
    """Clients are available in one window per day; see DiurnalOptions.

    On day d, a client's window begins at ``d * period + start + jitter * u``, with u uniform in (-1, 1). It lasts for
    the client's hours.
    """

    options: DiurnalOptions
    seed: int

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether ``at`` lies in a window: `[clients]`."""

        def inside(rows: Integers, times: Floats) -> Booleans:
            starts, ends = self._windows(rows, times)
            in_any: Booleans = np.any((starts <= times[:, None]) & (times[:, None] < ends), axis=1)
            return in_any

        return _in_chunks(inside, clients, at)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The end of the window that ``at`` lies in, else ``at``: `[clients]`."""

        def end(rows: Integers, times: Floats) -> Floats:
            starts, ends = self._windows(rows, times)
            inside = (starts <= times[:, None]) & (times[:, None] < ends)
            return np.where(inside.any(axis=1), np.where(inside, ends, -inf).max(axis=1), times)

        return _in_chunks(end, clients, at)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The start of the next window, or ``at`` if it lies in one: `[clients]`."""

        def start(rows: Integers, times: Floats) -> Floats:
            starts, ends = self._windows(rows, times)
            # The earliest window that hasn't ended; it may have begun already.
            first: Floats = np.where(times[:, None] < ends, starts, inf).min(axis=1)
            return np.asarray(np.maximum(first, times))

        return _in_chunks(start, clients, at)

    def _windows(self, rows: Integers, times: Floats) -> tuple[Floats, Floats]:
        """Starts and ends of the windows of four days around each time: `[clients, 4]`.

        A window with its jitter is shorter than a day, so one of these four contains the time or is the next one.
        """
        options = self.options
        uniforms = seeds.uniforms(self.seed, "availability window", of=rows)
        earliest, latest = (0.0, options.period) if options.start == "spread" else np.multiply(options.start, 3600)
        usual = earliest + uniforms[:, 0] * (latest - earliest) - options.begins[0] * 3600
        shortest, longest = np.multiply(options.hours, 3600)
        length = shortest + uniforms[:, 1] * (longest - shortest)
        day = np.floor((times - usual) / options.period).astype(np.int64)[:, None] + np.arange(-1, 3)
        starts = day * options.period + usual[:, None]
        if options.jitter:
            # A block of random numbers covers four days, so these four days need two blocks.
            block = day[:, 0] // 4
            drawn = [seeds.uniforms(self.seed, "availability day", of=rows, block=block + i) for i in (0, 1)]
            shifts = np.take_along_axis(np.concatenate(drawn, axis=1), day - 4 * block[:, None], axis=1)
            starts = starts + options.jitter * (2 * shifts - 1)
        return starts, starts + length[:, None]


@dataclass(frozen=True)
class Markov:
    """Clients switch between available (on) and unavailable (off) as a two-state Markov process; see MarkovOptions.

    The process is equivalent to two independent Poisson processes of calls: calls "on" with mean gap ``off`` seconds,
    and calls "off" with mean gap ``on`` seconds. The state is that of the last call. Time is divided into cells, and
    the calls in a cell are drawn by counter. So a query looks only at a few cells around its time, not at the history.
    """

    options: MarkovOptions
    seed: int

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether the last call was "on": `[clients]`."""
        return _in_chunks(self._is_on, clients, at)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The time of the next call "off", or ``at`` if the client is off: `[clients]`."""

        def end(rows: Integers, times: Floats) -> Floats:
            on = self._is_on(rows, times)
            times[on] = self._next("off", rows[on], times[on])
            return times

        return _in_chunks(end, clients, at)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The time of the next call "on", or ``at`` if the client is on: `[clients]`."""

        def start(rows: Integers, times: Floats) -> Floats:
            off = ~self._is_on(rows, times)
            times[off] = self._next("on", rows[off], times[off])
            return times

        return _in_chunks(start, clients, at)

    def _is_on(self, rows: Integers, times: Floats) -> Booleans:
        return self._last("on", rows, times) >= self._last("off", rows, times)

    def _mean_gap(self, call: Literal["on", "off"]) -> float:
        return self.options.off if call == "on" else self.options.on

    def _last(self, call: Literal["on", "off"], rows: Integers, times: Floats) -> Floats:
        """The time of the last call at or before each time; there is always one, because cells extend before time 0."""
        return self._search(call, rows, times, -1)

    def _next(self, call: Literal["on", "off"], rows: Integers, times: Floats) -> Floats:
        """The time of the first call after each time."""
        return self._search(call, rows, times, 1)

    def _search(self, call: Literal["on", "off"], rows: Integers, times: Floats, step: int) -> Floats:
        length = _MEANS_A_CELL * self._mean_gap(call)
        cell = np.floor(times / length).astype(np.int64)
        # Rounding may have moved the quotient across the boundary of a cell.
        cell -= cell * length > times
        cell += (cell + 1) * length <= times
        call_times = np.empty(len(rows))
        pending = np.arange(len(rows))
        while len(pending):
            calls = self._calls(call, rows[pending], cell[pending])
            query = times[pending, None]
            if step > 0:
                nearest = np.where(calls > query, calls, inf).min(axis=1)
            else:
                nearest = np.where(calls <= query, calls, -inf).max(axis=1)
            call_times[pending] = nearest
            pending = pending[np.isinf(nearest)]
            cell[pending] += step
        return call_times

    def _calls(self, call: Literal["on", "off"], rows: Integers, cell: Integers) -> Floats:
        """Times of the calls of one kind, in one cell per client: `[clients, most calls]`, padded with inf.

        A Poisson process has no memory, so the gaps of every cell can be drawn independently from its start.
        """
        length, purpose = _MEANS_A_CELL * self._mean_gap(call), f"availability calls {call}"
        last = np.nextafter((cell + 1) * length, -inf)  # keeps a call in its cell despite rounding
        batches: list[Floats] = []
        reached = np.zeros(len(rows))  # position of the last call in its cell, as a fraction of the cell
        pending = np.arange(len(rows))
        while len(pending):
            first_block = cell[pending, None] * _MOST_DRAWS_A_CELL + len(batches) * _DRAWS_AT_ONCE
            blocks = first_block + np.arange(_DRAWS_AT_ONCE)
            drawn = seeds.uniforms(
                self.seed, purpose, of=np.repeat(rows[pending], _DRAWS_AT_ONCE), block=blocks.reshape(-1)
            )
            gaps = np.log(drawn).reshape(len(pending), -1) / -_MEANS_A_CELL
            positions = reached[pending, None] + np.cumsum(gaps, axis=1)
            at = np.minimum((cell[pending, None] + positions) * length, last[pending, None])
            calls = np.full((len(rows), gaps.shape[1]), inf)
            calls[pending] = np.where(positions < 1, at, inf)
            batches.append(calls)
            reached[pending] = positions[:, -1]
            pending = pending[positions[:, -1] < 1]
        return batches[0] if len(batches) == 1 else np.concatenate(batches, axis=1)


_MEANS_A_CELL = 4
"""Mean number of calls in a cell: few cells are empty, and few have more calls than the first draws provide."""

_DRAWS_AT_ONCE, _MOST_DRAWS_A_CELL = 4, 48
"""Blocks of four gaps: how many are drawn together, and the most per cell.

A cell with more than 48 * 4 calls, where 4 are expected, has a probability below 10^-240.
"""


@dataclass(frozen=True)
class Traced:
    """Clients are available as in a trace; see TraceOptions. Each client gets the record of a random device."""

    trace: Trace
    seed: int

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether ``at`` lies in an interval of the client's record: `[clients]`."""
        rows, times = _rows_and_times(clients, at)
        return self.trace.inside(self._record(rows), times)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The end of the interval that ``at`` lies in, else ``at``: `[clients]`."""
        rows, times = _rows_and_times(clients, at)
        return self.trace.end(self._record(rows), times)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The start of the next interval, or ``at`` if it lies in one: `[clients]`."""
        rows, times = _rows_and_times(clients, at)
        return self.trace.next(self._record(rows), times)

    def _record(self, rows: Integers) -> Integers:
        drawn = seeds.uniforms(self.seed, "availability trace", of=rows)[:, 0]
        return np.asarray(drawn * len(self.trace), dtype=np.int64)


def _rows_and_times(clients: ArrayLike, at: ArrayLike) -> tuple[Integers, Floats]:
    """Client numbers and a time for each, both `[clients]`; the times are a new array that callers may change."""
    rows = np.asarray(clients, dtype=np.int64)
    return rows, np.array(np.broadcast_to(np.asarray(at, dtype=np.float64), rows.shape))


_AT_ONCE = 8192
"""Clients per chunk, to limit memory: the random numbers of a million clients would take a gigabyte."""


def _in_chunks(
    answer: Callable[[Integers, Floats], NDArray[Scalar]], clients: ArrayLike, at: ArrayLike
) -> NDArray[Scalar]:
    rows, times = _rows_and_times(clients, at)
    if len(rows) <= _AT_ONCE:
        return answer(rows, times)
    chunks = [slice(first, first + _AT_ONCE) for first in range(0, len(rows), _AT_ONCE)]
    return np.concatenate([answer(rows[chunk], times[chunk]) for chunk in chunks])
