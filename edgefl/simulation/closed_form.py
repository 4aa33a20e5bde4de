"""Flights: rounds of clients that are dispatched together, as arrays `[flights]`.

A flight downloads, computes (it loads its model from storage first) and uploads.  It ends by itself when its update
arrives or a drawn failure occurs.  It is cut short when its client goes offline, its battery is empty or the round
ends, whichever comes first.  ``land_flights`` computes independent flights in closed form, which ``client`` plays as
a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.cost.phases import Phases, carried_bits, exchanged_bytes, joules_of
from edgefl.devices.changing_links import ChangingLinks
from edgefl.devices.failures import BEFORE, CORRUPTED, DOWNLOAD, TRAINING, TRUNCATED, UPLOAD, Failures
from edgefl.planning.planner import Plan
from edgefl.planning.versions import Versions

OUTCOMES = (
    "finished", "late", "dropped", "offline", "corrupted", "truncated", "out of memory", "battery empty", "rejected",
    "relay failed",
)  # fmt: skip
FINISHED, LATE, DROPPED, OFFLINE, CORRUPT, TRUNCATE, NO_MEMORY, EMPTY, REJECTED, RELAY_LOST = range(len(OUTCOMES))
"""Outcomes of flights; REJECTED: the update arrived, and was refused for what it holds; RELAY_LOST: the update arrived
at a relay, which was lost with it."""
PHASES = ("start", "download", "compute", "upload", None)
AT_START, AT_DOWNLOAD, AT_COMPUTE, AT_UPLOAD, AT_END = range(len(PHASES))
"""Phase in which a flight ended; AT_END: its update arrived."""


@dataclass(frozen=True)
class Dispatch:
    """A dispatch of clients: its round, its number in the run, and its virtual time ``at`` in seconds.

    ``version`` counts the aggregations until then; ``versions`` are those of the server's tensors.
    """

    round: int
    number: int
    version: int
    at: float
    versions: Versions


@dataclass(frozen=True)
class Flights:
    """Clients of one dispatch, with their plans and random draws.

    ``numbers`` `[flights, NUMBERS]` and ``factors`` `[3, flights]` are those of ``Phases``.  ``leaves`` is the virtual
    time at which a client goes offline (inf: never); ``joules`` is the charge of its battery; ``no_memory`` marks works
    whose peak exceeds the memory budget.  ``begins`` is the virtual time at which each begins, after the dispatch where
    its relay has to download first; None: at the dispatch.  ``changing`` are links whose rates change.  ``waits`` are
    seconds of waiting for the server's device while it computes (``edgefl.simulation.server_turns``).
    """

    dispatch: Dispatch
    client: Integers
    plans: Sequence[Plan]
    numbers: Floats
    factors: Floats
    failures: Failures
    leaves: Floats
    joules: Floats
    no_memory: Booleans
    throttling: bool = False
    begins: Floats | None = None
    changing: ChangingLinks | None = None
    waits: Floats | float = 0.0

    def __len__(self) -> int:
        return len(self.client)

    @property
    def start(self) -> Floats:
        """Virtual time at which each begins."""
        return np.full(len(self), self.dispatch.at) if self.begins is None else self.begins

    @cached_property
    def phases(self) -> Phases:
        """Their three phases, unless they are cut short."""
        return Phases(self.numbers.T, self.throttling, self.factors, self.failures.slow, self.waits)

    @cached_property
    def ends(self) -> Ends:
        """How each flight ends if it isn't cut short."""
        phase, fraction = self.failures.phase, self.failures.fraction
        outcome = np.full(len(self), FINISHED, np.int8)
        last = np.full(len(self), AT_END, np.int8)
        if not (phase.any() or self.no_memory.any()):
            return Ends(outcome, last, self.phases.bits, self.phases.compute_seconds, np.ones(len(self)))
        stops = self.no_memory & (phase != BEFORE) & (phase != DOWNLOAD)
        for failure, stop_phase, result in (
            (BEFORE, AT_START, DROPPED), (DOWNLOAD, AT_DOWNLOAD, DROPPED), (TRAINING, AT_COMPUTE, DROPPED),
            (UPLOAD, AT_UPLOAD, DROPPED), (CORRUPTED, AT_UPLOAD, CORRUPT), (TRUNCATED, AT_UPLOAD, TRUNCATE),
        ):  # fmt: skip
            failed = phase == failure
            last[failed], outcome[failed] = stop_phase, result
        last[stops], outcome[stops] = AT_COMPUTE, NO_MEMORY
        down = self.phases.bits[0] * np.where(last == AT_DOWNLOAD, fraction, 1.0) * (last >= AT_DOWNLOAD)
        broken_off = (last == AT_UPLOAD) & (phase != CORRUPTED)
        up = self.phases.bits[1] * np.where(broken_off, fraction, 1.0) * (last >= AT_UPLOAD)
        share = np.where(last == AT_COMPUTE, np.where(stops, 0.0, fraction), last > AT_COMPUTE)
        return Ends(outcome, last, (down, up), self.phases.compute_seconds * share, share)

    @cached_property
    def seconds(self) -> tuple[Floats, Floats, Floats]:
        """Seconds of download, computing and upload until each ends by itself, on the clients' own links."""
        down, busy = self._transfer_seconds(0, self.start), self.ends.compute_seconds
        return down, busy, self._transfer_seconds(1, self.start + down + busy)

    def _transfer_seconds(self, direction: int, began: Floats) -> Floats:
        """Seconds of the downloads (0) or uploads (1) that began at these times."""
        first = AT_DOWNLOAD if direction == 0 else AT_UPLOAD
        waits = np.where(self.ends.last >= first, self.phases.latency[direction], 0.0)
        moving = self.ends.bits[direction] / self.phases.rates[direction]
        if self.changing is not None:
            moving = self.changing.seconds(direction, self.client, began + waits, moving)
        return np.asarray(waits + moving)


@dataclass(frozen=True)
class Ends:
    """Ends of flights that aren't cut short: outcome, phase, bits moved down and up, seconds of computing, and their
    share of all of it."""

    outcome: Integers
    last: Integers
    bits: tuple[Floats, Floats]
    compute_seconds: Floats
    share: Floats


@dataclass(frozen=True)
class Landings:
    """Results of flights, `[flights]`: outcome, phase, seconds of each phase, bytes carried, joules of each phase.

    Computing that isn't cut short takes ``whole_compute_seconds``.  ``exchanged_download_bytes`` are those of the bytes
    carried that came down while half of a split model trained, and ``waits`` the seconds in the whole that each waits
    for the server's device.  Real devices have seconds of ``start_up`` and ``metering`` too.
    """

    client: Integers
    outcome: Integers
    phase: Integers
    began: Floats
    ended: Floats
    download_seconds: Floats
    compute_seconds: Floats
    upload_seconds: Floats
    carried_download_bytes: Integers
    carried_upload_bytes: Integers
    joules: tuple[Floats, Floats, Floats]
    slow: Floats
    whole_compute_seconds: Floats
    exchanged_download_bytes: Integers | int = 0
    waits: Floats | float = 0.0
    start_up_seconds: Floats | float = 0.0
    metering_seconds: Floats | float = 0.0

    @property
    def server_wait_seconds(self) -> Floats:
        """Seconds of computing in which each waited for the server's device, as far as it came."""
        return self.waits * self.compute_seconds / np.maximum(self.whole_compute_seconds, np.finfo(float).tiny)

    @property
    def energy_joules(self) -> Floats:
        """Joules of all phases together."""
        down, busy, up = self.joules
        return down + busy + up

    @property
    def finished_mask(self) -> Booleans:
        """Mask of flights whose update arrived intact and wasn't rejected."""
        return np.asarray(self.outcome == FINISHED)

    @property
    def downloaded_mask(self) -> Booleans:
        """Mask of flights whose download is complete."""
        return np.asarray(self.phase >= AT_COMPUTE)

    @property
    def lost_download_bytes(self) -> Integers:
        """Bytes carried by downloads that aren't complete, and by exchanges for an update that didn't arrive."""
        arrived = (self.outcome == FINISHED) | (self.outcome == REJECTED)
        return np.where(
            self.downloaded_mask, np.where(arrived, 0, self.exchanged_download_bytes), self.carried_download_bytes
        )

    @property
    def lost_upload_bytes(self) -> Integers:
        """Bytes carried by uploads that didn't arrive intact."""
        return np.where((self.outcome == FINISHED) | (self.outcome == REJECTED), 0, self.carried_upload_bytes)

    @property
    def virtual_seconds(self) -> Floats:
        """Seconds of all phases together."""
        own = self.start_up_seconds + self.metering_seconds
        return self.download_seconds + self.compute_seconds + self.upload_seconds + own


def land_flights(flights: Flights, deadline: float = inf, wanted: int | None = None) -> Landings:
    """Results of flights that don't share a link, in closed form.

    Flights still under way at the virtual time ``deadline`` are late; so are those after the arrival of ``wanted``
    updates.  One that should have begun later begins and ends at that time.
    """
    ends, start = flights.ends, flights.start
    down, busy, up = flights.seconds
    fetched = start + down
    computed = fetched + busy
    arrived = computed + up
    outcome, stop = ends.outcome.copy(), np.full(len(flights), inf)
    empty = empty_times(flights)
    for times, reason in ((np.maximum(flights.leaves, start), OFFLINE), (empty, EMPTY)):
        cut = (times < arrived) & (times < stop)
        stop[cut], outcome[cut] = times[cut], reason
    ended = np.minimum(arrived, stop)
    over = max(deadline, flights.dispatch.at)
    if wanted is not None:
        successes = np.sort(ended[outcome == FINISHED])
        if len(successes) >= wanted:
            over = min(over, float(successes[wanted - 1]))
    late = ended > over
    stop[late], outcome[late] = over, LATE
    ended = np.minimum(ended, over)
    began = np.minimum(start, over)

    cut = stop < arrived
    phase = ends.last.copy()
    phase[cut] = AT_UPLOAD
    phase[cut & (stop < computed)] = AT_COMPUTE
    phase[cut & (stop < fetched)] = AT_DOWNLOAD
    spent = [
        np.where(cut & (phase == step), ended - since, np.where(cut & (phase < step), 0.0, whole))
        for step, since, whole in ((AT_DOWNLOAD, began, down), (AT_COMPUTE, fetched, busy), (AT_UPLOAD, computed, up))
    ]
    moved, latency, rates = [], flights.phases.latency, flights.phases.rates
    for direction, step, since in ((0, AT_DOWNLOAD, began), (1, AT_UPLOAD, computed)):
        part = own_link_bits(
            flights.changing, direction, flights.client, since, spent[direction * 2], latency[direction],
            rates[direction], ends.bits[direction],
        )  # fmt: skip
        moved.append(np.where(cut & (phase <= step), np.where(phase == step, part, 0.0), ends.bits[direction]))
    fetching, computing, sending = spent
    whole, exchanged = flights.phases.compute_seconds, flights.phases.exchanged_bits
    also = [exchanged_bytes(bits, computing, whole) for bits in exchanged]
    down_bytes, up_bytes = ((bits // 8).astype(np.int64) + more for bits, more in zip(moved, also, strict=True))
    joules, slow = joules_of(spent, flights.phases.watts), flights.failures.slow
    return Landings(
        flights.client, outcome, phase, began, ended, fetching, computing, sending, down_bytes, up_bytes, joules, slow,
        whole, also[0], np.broadcast_to(flights.waits, len(flights)),
    )  # fmt: skip


def own_link_bits(
    changing: ChangingLinks | None, direction: int, client: Integers, began: Floats, spent: Floats, latency: Any,
    rates: Any, bits: Any,
) -> Floats:  # fmt: skip
    """Bits that transfers over the clients' own links have moved ``spent`` seconds after ``began``: `[flights]`."""
    if changing is not None:
        spent, latency = changing.integral(direction, client, began + latency, spent - latency), 0.0
    return carried_bits(spent, latency, rates, bits)


def empty_times(flights: Flights) -> Floats:
    """Virtual time at which each battery would be empty, inf if it lasts: `[flights]`."""
    times = np.full(len(flights), inf)
    left = flights.joules
    if not np.isfinite(left).any():
        return times
    began = flights.start
    for whole, power in zip(flights.seconds, flights.phases.watts, strict=True):
        needs = whole * power
        drained = np.isinf(times) & (left < needs)
        moments = began[drained] + left[drained] / power[drained]
        # after rounding it may equal the end of the phase
        times[drained] = np.where(moments < began[drained] + whole[drained], moments, inf)
        left, began = np.maximum(left - needs, 0.0), began + whole
    return times
