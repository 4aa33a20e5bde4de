"""Availability of clients, a registered part: always, in a daily window, as a Markov process, or as in a trace.

Availability is a function of (options, seed, client, time) and doesn't depend on earlier queries. Windows and
switches are drawn by counter, so the cost of a query depends only on the clients that it asks for.
"""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from edgefl import registry, seeds
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.availability_options import AvailabilityOptions, DiurnalOptions, MarkovOptions, TraceOptions
from edgefl.devices.availability_trace import AvailabilityIntervals, read_trace
from edgefl.devices.calls import Calls
from edgefl.errors import PluginError
from edgefl.registry.answers import name_function
from edgefl.registry.part_fields import Fields

FEW = 64
"""Up to so many clients are asked together until when they stay as they are, and not again before.

Of a Markov process the plain question takes less, because it draws no next switch.  So a large cohort, which has other
clients each time, is asked plainly there; one client that is asked again takes a tenth of the time or less.
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

    A client isn't asked again as long as it stays as it is; its time only passes.  Many clients at once are asked anew
    where their presence alone is found in less time than until when it lasts.
    """

    def __init__(self, availability: Availability, clients: int):
        self._availability = availability
        # whoever is always there is asked in less time than it takes to look
        self._most = 0 if isinstance(availability, Always) else FEW
        if type(availability).available is Availability.available:
            self._most = clients
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

    def until(self, clients: Integers, at: Floats) -> tuple[Booleans, Floats]:
        """Whether ``at`` lies in a window, and the end of that window or the start of the next: both `[clients]`."""
        found = [self._until(rows, times) for rows, times in _chunks(clients, at)]
        on, until = (np.concatenate(each) for each in zip(*found, strict=True))
        return on, until

    def _until(self, rows: Integers, times: Floats) -> tuple[Booleans, Floats]:
        starts, ends = self._windows(rows, times)
        now = times[:, None]
        inside = (starts <= now) & (now < ends)
        on, later = np.asarray(inside.any(axis=1)), np.where(now < ends, starts, inf).min(axis=1)
        return on, np.where(on, np.where(inside, ends, -inf).max(axis=1), later)

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
        """Whether the last call was "on": `[clients]`; the next one, which takes longer to find, isn't drawn."""
        return np.concatenate([self._at(*chunk)[0] for chunk in _chunks(*rows_and_times(clients, at))])

    def until(self, clients: Integers, at: Floats) -> tuple[Booleans, Floats]:
        """Whether the last call was "on", and the time of the next other call: both `[clients]`."""
        found = [self._at(*chunk) for chunk in _chunks(clients, at)]
        on, until = [on for on, _ in found], [calls.after(on.astype(np.int64)) for on, calls in found]
        return np.concatenate(on), np.concatenate(until)

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

    def until(self, clients: Integers, at: Floats) -> tuple[Booleans, Floats]:
        """Whether ``at`` lies in an interval, and that interval's end or the start of the next: both `[clients]`."""
        return self.trace.until(self._record(clients), at)

    def _record(self, rows: Integers) -> Integers:
        drawn = seeds.uniforms(self.seed, "availability trace", of=rows)[:, 0]
        return np.asarray(drawn * len(self.trace), dtype=np.int64)


def rows_and_times(clients: ArrayLike, at: ArrayLike) -> tuple[Integers, Floats]:
    """Client numbers and a time for each, both `[clients]`; the times are a new array that callers may change."""
    rows = np.asarray(clients, dtype=np.int64)
    return rows, np.array(np.broadcast_to(np.asarray(at, dtype=np.float64), rows.shape))


_AT_ONCE = 8192
"""Clients per chunk, as many as counters that ``edgefl.seeds`` draws at a time: the random numbers of a million clients
would take a gigabyte."""


def _chunks(rows: Integers, times: Floats) -> list[tuple[Integers, Floats]]:
    return [
        (rows[first : first + _AT_ONCE], times[first : first + _AT_ONCE])
        for first in range(0, max(len(rows), 1), _AT_ONCE)
    ]
