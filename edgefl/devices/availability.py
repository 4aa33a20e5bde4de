"""Availability of clients, a registered part: always, in a daily window, as a Markov process, or as in a trace.

Availability is a function of (options, seed, client, time) and doesn't depend on earlier queries. Windows and
switches are drawn by counter, so the cost of a query depends only on the clients that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl import registry, seeds
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.availability_options import AvailabilityOptions, DiurnalOptions, MarkovOptions, TraceOptions
from edgefl.devices.availability_trace import AvailabilityIntervals, read_trace
from edgefl.devices.calls import Calls
from edgefl.errors import PluginError
from edgefl.registry.answers import name_function
from edgefl.registry.part_fields import Fields

Scalar = TypeVar("Scalar", bound=np.generic)

FEW = 64
"""Up to so many clients are asked together until when they stay as they are, and not again before.

Those that aren't asked twice take up to twice the time of a plain question with daily windows.  So a large cohort,
which has other clients each time, is asked plainly; one client that is asked again takes a tenth of the time or less.
"""


class Availability:
    """When clients are available to the server: a registered part, ``fleet.availability: {NAME: {...}}``.

    Subclass, give ``Options``, and override ``until``; its answers are a function of options, seed, client and time.
    Of the other functions ``clients`` are client numbers, and ``at`` is in seconds: one time for all or one for each
    client.
    """

    Options: ClassVar[type[Fields]] = Fields
    """Fields of a scenario's ``fleet.availability.NAME``; a subclass of ``Availability.Options``."""
    summary: ClassVar[str] = ""
    """Its description in the scenario's JSON Schema."""
    options: Any
    """The fields that the scenario gives."""
    seed: int
    """The scenario's seed, for ``edgefl.seeds``."""

    def __init__(self, options: Any = None, seed: int = 0):
        self.options, self.seed = options, seed

    def until(self, clients: Integers, at: Floats) -> tuple[ArrayLike, ArrayLike]:
        """Whether each client is available, and until when (seconds, inf for ever) it stays so: both `[clients]`.

        ``clients`` and ``at`` are both `[clients]`.  What it gives is later than ``at``.
        """
        raise NotImplementedError

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether each client is available: `[clients]`."""
        return self.state(clients, at)[0]

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """When each available client becomes unavailable, inf for never: `[clients]`.

        For a client that is unavailable, ``at`` itself.
        """
        on, until = self.state(clients, at)
        return np.where(on, until, np.asarray(at, np.float64))

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The first time from ``at`` on at which each client is available, inf if there is none: `[clients]`."""
        on, until = self.state(clients, at)
        return np.where(on, np.asarray(at, np.float64), until)

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """Whether each client is available, and until when it stays so: both `[clients]`.

        As long as it stays so, ``leaves`` and ``returns`` of one that is (isn't) available are that time.  Raises
        PluginError if ``until`` gives something else than that.
        """
        rows, times = rows_and_times(clients, at)
        on, until = (np.asarray(each) for each in self.until(rows, times))
        wanted = f"{name_function(type(self).until)} must give"
        if on.shape != rows.shape or until.shape != rows.shape:
            raise PluginError(
                f"{wanted} two arrays [clients], {list(rows.shape)}, not {[*on.shape]} and {[*until.shape]}"
            )
        if on.dtype != bool or not (until > times).all():
            raise PluginError(f"{wanted} whether clients are available (bool), and a later time than it is asked about")
        return on, until.astype(np.float64)


def availability_of(options: AvailabilityOptions | Literal["always"], clients: int, seed: int) -> Availability:
    """The availability that the options specify.  Raises DeviceError if a trace's file is invalid."""
    name, own = ("always", Fields()) if options == "always" else options.name_and_options
    made: Availability = registry.get("availability", name)(own, seed)
    return made


class Always(Availability):
    """All clients are available at any time."""

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """True for every client: `[clients]`."""
        return np.ones(len(np.asarray(clients)), dtype=bool)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """Infinity (never) for every client: `[clients]`."""
        return np.full(len(np.asarray(clients)), inf)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The given time for every client: `[clients]`."""
        return rows_and_times(clients, at)[1]

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """True and infinity for every client: both `[clients]`."""
        return self.available(clients, at), self.leaves(clients, at)


class Presence:
    """What a run knows of its clients' availability.

    One that was asked with a few others isn't asked again as long as it stays as it is; its time only passes.
    """

    def __init__(self, availability: Availability, clients: int):
        self._availability = availability
        # whoever is always there is asked in less time than it takes to look
        self._most = 0 if isinstance(availability, Always) else FEW
        self._on, self._until = np.zeros(clients, bool), np.zeros(clients)

    def available(self, clients: Integers, at: float) -> Booleans:
        """Whether each client is available: `[clients]`."""
        if len(clients) > self._most:
            return self._availability.available(clients, at)
        self._ask(clients, at)
        return self._on[clients]

    def leaves(self, clients: Integers, at: float) -> Floats:
        """When each available client becomes unavailable, inf for never; ``at`` for one that is unavailable."""
        if len(clients) > self._most:
            return self._availability.leaves(clients, at)
        self._ask(clients, at)
        return np.where(self._on[clients], self._until[clients], at)

    def _ask(self, clients: Integers, at: float) -> None:
        asked = clients[self._until[clients] <= at]
        if len(asked):
            self._on[asked], self._until[asked] = self._availability.state(asked, at)


class Diurnal(Availability):
    """Clients are available in one window per day; see DiurnalOptions.

    On day d, a client's window begins at ``d * period + start + jitter * u``, with u uniform in (-1, 1). It lasts for
    the client's hours.
    """

    Options = DiurnalOptions

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

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """Whether ``at`` lies in a window, and the end of that window or the start of the next: both `[clients]`."""
        return _state(self, clients, at)

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


class Markov(Availability):
    """Clients switch between available (on) and unavailable (off) as a two-state Markov process; see MarkovOptions.

    The process is equivalent to two independent Poisson processes of calls: calls "on" with mean gap ``off`` seconds,
    and calls "off" with mean gap ``on`` seconds. The state is that of the last call. Time is divided into cells, and
    the calls in a cell are drawn by counter. So a query looks only at a few cells around its time, not at the history.
    """

    Options = MarkovOptions

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether the last call was "on": `[clients]`."""
        return _in_chunks(lambda rows, times: self._at(rows, times)[0], clients, at)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The time of the next call "off", or ``at`` if the client is off: `[clients]`."""
        return _in_chunks(partial(self._switch, True), clients, at)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The time of the next call "on", or ``at`` if the client is on: `[clients]`."""
        return _in_chunks(partial(self._switch, False), clients, at)

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """Whether the last call was "on", and the time of the next other call: both `[clients]`."""

        def switches(rows: Integers, times: Floats) -> Floats:
            on, calls = self._at(rows, times)
            until = calls.after(on.astype(np.int64))
            return np.where(on, until, -until)  # the sign says whether it is on

        signed = _in_chunks(switches, clients, at)
        return ~np.signbit(signed), np.abs(signed)

    def _switch(self, of_on: bool, rows: Integers, times: Floats) -> Floats:
        on, calls = self._at(rows, times)
        wanted = np.flatnonzero(on == of_on)
        times[wanted] = calls.after(np.full(len(wanted), int(of_on)), wanted)
        return times

    def _at(self, rows: Integers, times: Floats) -> tuple[Booleans, Calls]:
        """Whether these clients are on, and the calls around the times."""
        calls = Calls(self.seed, (self.options.off, self.options.on), rows, times)
        return calls.on(), calls


class TracedAvailability(Availability):
    """Clients are available as in a trace; see TraceOptions. Each client gets the record of a random device."""

    Options = TraceOptions

    def __init__(self, options: TraceOptions, seed: int = 0):
        super().__init__(options, seed)
        self.trace: AvailabilityIntervals = read_trace(options.file, options.period)

    def available(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether ``at`` lies in an interval of the client's record: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        return self.trace.inside(self._record(rows), times)

    def leaves(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The end of the interval that ``at`` lies in, else ``at``: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        return self.trace.end(self._record(rows), times)

    def returns(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The start of the next interval, or ``at`` if it lies in one: `[clients]`."""
        rows, times = rows_and_times(clients, at)
        return self.trace.next(self._record(rows), times)

    def state(self, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
        """Whether ``at`` lies in an interval, and that interval's end or the start of the next: both `[clients]`."""
        return _state(self, clients, at)

    def _record(self, rows: Integers) -> Integers:
        drawn = seeds.uniforms(self.seed, "availability trace", of=rows)[:, 0]
        return np.asarray(drawn * len(self.trace), dtype=np.int64)


def _state(availability: Availability, clients: ArrayLike, at: ArrayLike) -> tuple[Booleans, Floats]:
    on = availability.available(clients, at)
    return on, np.where(on, availability.leaves(clients, at), availability.returns(clients, at))


def rows_and_times(clients: ArrayLike, at: ArrayLike) -> tuple[Integers, Floats]:
    """Client numbers and a time for each, both `[clients]`; the times are a new array that callers may change."""
    rows = np.asarray(clients, dtype=np.int64)
    return rows, np.array(np.broadcast_to(np.asarray(at, dtype=np.float64), rows.shape))


_AT_ONCE = 8192
"""Clients per chunk, as many as counters that ``edgefl.seeds`` draws at a time: the random numbers of a million clients
would take a gigabyte."""


def _in_chunks(
    answer: Callable[[Integers, Floats], NDArray[Scalar]], clients: ArrayLike, at: ArrayLike
) -> NDArray[Scalar]:
    rows, times = rows_and_times(clients, at)
    if len(rows) <= _AT_ONCE:
        return answer(rows, times)
    chunks = [slice(first, first + _AT_ONCE) for first in range(0, len(rows), _AT_ONCE)]
    return np.concatenate([answer(rows[chunk], times[chunk]) for chunk in chunks])
