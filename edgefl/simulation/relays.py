"""Cohorts behind relays: what each relay moves, when its clients begin, and when its sum is at the server.

A relay that has a client of the cohort downloads once what its clients need, and they begin.  When the last of them
has landed, or is waited for no longer, it uploads the sum of the updates that it has.  A lost one uploads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.cost.phases import carried_bits
from edgefl.cost.relay_traffic import shared_bytes, summed_bytes
from edgefl.devices import Relays
from edgefl.planning.planner import Plan
from edgefl.simulation.closed_form import AT_UPLOAD, RELAY_LOST, Flights, Landings
from edgefl.simulation.tally import Tally
from edgefl.work import Payload

Payloads = tuple[Payload, ...]

MOST_SETS = 4096
"""Number of sets of payloads whose bytes are known; above it all are forgotten, and counted again.  A choice, not
measured: relays whose clients need the same payloads share a set."""


class Tier:
    """The relays of a run; it knows the bytes of the sets of payloads that it has seen."""

    def __init__(self, relays: Relays, seed: int):
        self.relays, self.seed = relays, seed
        self._known: dict[tuple[Callable[..., int], tuple[int, ...]], tuple[int, Sequence[Payloads]]] = {}

    def send(self, flights: Flights) -> Relayed:
        """The relays of these flights, each of which begins its download now."""
        number = flights.dispatch.number
        numbers, of = np.unique(self.relays.of[flights.client], return_inverse=True)
        numbers = numbers.astype(np.int64)
        down = self.bytes_of(shared_bytes, of, [plan.down for plan in flights.plans], len(numbers))
        factors = self.relays.jitter(self.seed, number, numbers)
        lost = self.relays.lost_mask(self.seed, number, numbers)
        at = flights.dispatch.at
        return Relayed(self, numbers, of, at, down, factors, lost, at + self.seconds(0, down, factors[0]))

    def deliver(self, clients: Integers, needed: Sequence[Payloads]) -> tuple[Floats, int]:
        """Seconds until the relays of these clients have what each of them needs, `[clients]`, and bytes of all."""
        numbers, of = np.unique(self.relays.of[clients], return_inverse=True)
        down = self.bytes_of(shared_bytes, of, needed, len(numbers))
        return self.seconds(0, down)[of], int(down.sum())

    def seconds(self, direction: int, bytes_: Integers, factors: Floats | float = 1.0) -> Floats:
        """Seconds of downloads (0) or uploads (1) of so many bytes, none for no bytes: `[relays]`."""
        latency, rate = self.pace(direction, factors)
        return np.asarray(np.where(bytes_ > 0, latency + 8 * bytes_ / rate, 0.0))

    def pace(self, direction: int, factors: Floats | float) -> tuple[Floats | float, Floats | float]:
        """Seconds before the first bit, and bits per second."""
        link = self.relays.link
        return link.latency_seconds * factors, (link.upload_goodput if direction else link.download_goodput) / factors

    def bytes_of(
        self, count: Callable[[Iterable[Payloads]], int], of: Integers, needed: Sequence[Payloads], relays: int
    ) -> Integers:
        """``count`` of the distinct payloads that the clients of each relay need: `[relays]`.

        ``of`` is the relay of each client, and ``needed`` has the client's payloads.
        """
        # by identity, as plans of equal works share their payloads, which ``needed`` holds
        distinct: dict[int, int] = {}
        which = np.array([distinct.setdefault(id(payloads), len(distinct)) for payloads in needed], np.int64)
        held = dict(zip(which.tolist(), needed, strict=True))
        needs = np.zeros((relays, len(distinct)), bool)
        needs[of, which] = True
        # few sets are distinct: each is counted once, however many relays have it
        bits, width = np.packbits(needs, axis=1).tobytes(), -(-len(distinct) // 8)
        keys = [bits[at : at + width] for at in range(0, relays * width, width or 1)] or [b""] * relays
        row_of = {key: row for row, key in enumerate(keys)}
        found = {
            key: self._count(count, [held[number] for number in np.flatnonzero(needs[row]).tolist()])
            for key, row in row_of.items()
        }
        return np.array([found[key] for key in keys], np.int64)

    def _count(self, count: Callable[[Iterable[Payloads]], int], needed: Sequence[Payloads]) -> int:
        key = count, tuple(map(id, needed))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_SETS:
                self._known = {}
            # with the payloads, whose ids would be others' once they are gone
            known = self._known[key] = count(needed), needed
        return known[0]


@dataclass(frozen=True)
class Relayed:
    """A cohort behind relays: ``of`` `[flights]` indexes the arrays `[relays]`.

    ``numbers`` are the relays' own, ascending; they begin ``at`` a virtual time to download ``down`` bytes, which they
    have at the times ``fetched``.  ``factors`` `[2, relays]` are the jitter of their transfers, and ``lost`` says which
    are lost.
    """

    tier: Tier
    numbers: Integers
    of: Integers
    at: float
    down: Integers
    factors: Floats
    lost: Booleans
    fetched: Floats

    @property
    def begins(self) -> Floats:
        """Virtual time at which each flight begins, `[flights]`."""
        return np.asarray(self.fetched[self.of])

    @property
    def alive_mask(self) -> Booleans:
        """Mask of flights whose relay isn't lost."""
        return np.asarray(~self.lost[self.of])

    def land(self, landed: Landings, plans: Sequence[Plan], tally: Tally) -> tuple[Landings, float]:
        """The landings with the updates that were lost with their relays, and the virtual time at which the last relay
        is done; what they did goes into the tally."""
        tier, relays = self.tier, len(self.numbers)
        of = np.searchsorted(self.numbers, tier.relays.of[landed.client])
        closed = np.zeros(relays)
        np.maximum.at(closed, of, landed.ended)
        sent = np.flatnonzero(landed.finished_mask & ~self.lost[of])
        up = tier.bytes_of(summed_bytes, of[sent], [plans[flight].form.up for flight in sent.tolist()], relays)
        ended = closed + tier.seconds(1, up, self.factors[1])
        down = np.where(closed < self.fetched, self._moved_until(closed), self.down)
        last = int(np.argmax(ended))
        gone = landed.finished_mask & self.lost[of]
        if gone.any():
            outcome, phase = landed.outcome.copy(), landed.phase.copy()
            outcome[gone], phase[gone] = RELAY_LOST, AT_UPLOAD
            landed = replace(landed, outcome=outcome, phase=phase)
        tally.last_relay = int(self.numbers[last]), float(ended[last])
        tally.sums.update(
            relays=relays, relays_failed=int(self.lost.sum()),
            relay_download_bytes=int(down.sum()), relay_upload_bytes=int(up.sum()),
        )  # fmt: skip
        return landed, float(ended[last])

    def _moved_until(self, at: Floats) -> Integers:
        """Bytes of downloads that end at these times, before they are complete: `[relays]`.

        A relay whose clients are waited for no longer stops its download.
        """
        latency, rate = self.tier.pace(0, self.factors[0])
        if not np.isfinite(rate).all():  # nothing but the latency takes time
            return np.zeros(len(at), np.int64)
        return (carried_bits(at - self.at, latency, rate, 8 * self.down) // 8).astype(np.int64)
