"""Relays: edge servers between the clients and the server, each with some clients and a link of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from edgefl import seeds
from edgefl.arrays import AnyArray, Booleans, Floats, Integers
from edgefl.devices.options import RelayLinkOptions, RelayOptions
from edgefl.devices.profile import Link, load_link
from edgefl.errors import DeviceError
from edgefl.records.record import types_of
from edgefl.records.relays import FlightRelay, RelaySums


@dataclass(frozen=True)
class Relays:
    """The relays of a fleet, numbered from 0.

    ``of`` `[clients]` is the relay of each client, the same in all rounds; ``link`` is each relay's own link to the
    server.  ``failures`` is the probability that a relay is lost in a round.  They are one of a fleet's ``columns``.
    """

    of: AnyArray
    link: Link
    failures: float = 0.0
    flight_fields = tuple(types_of(FlightRelay))
    round_sums = dict.fromkeys(types_of(RelaySums), 0)

    @classmethod
    def draw(cls, options: RelayOptions, clients: int, seed: int) -> Relays:
        """Spread this many clients over the relays, whose numbers of clients differ by one at most.

        Raises DeviceError for fewer clients than relays.
        """
        if options.count > clients:
            raise DeviceError(f"fleet.relays: {options.count} relays, but there are {clients} clients")
        of = np.arange(clients, dtype=np.int64) % options.count
        of = of.astype(np.min_scalar_type(options.count - 1))
        seeds.generator(seed, "relays").shuffle(of)
        return cls(of, _link(options.link), options.failures)

    def flight_columns(self, clients: Integers, joules: object) -> dict[str, AnyArray]:
        """The relay of each of these clients, `[flights]`."""
        return {"relay": self.of[clients]}

    def lost_mask(self, seed: int, number: int, relays: ArrayLike) -> Booleans:
        """Which of these relays are lost in the dispatch of this ``number``: `[relays]`.

        A relay's draw doesn't depend on the others.
        """
        if not self.failures:
            return np.zeros(len(np.asarray(relays)), bool)
        drawn: Booleans = seeds.uniforms(seed, "relay failures", number, of=relays)[:, 0] < self.failures
        return drawn

    def jitter(self, seed: int, number: int, relays: ArrayLike) -> Floats:
        """Lognormal factors with median 1 on the seconds of these relays' downloads and uploads: `[2, relays]`."""
        if not self.link.jitter:
            return np.ones((2, len(np.asarray(relays))))
        drawn = seeds.normals(seed, "relay jitter", number, of=relays)[:, :2].T
        return np.asarray(np.exp(self.link.jitter * drawn))


def _link(given: str | RelayLinkOptions) -> Link:
    if isinstance(given, str):
        return load_link(given)
    download, upload = given.download or inf, given.upload or inf
    return Link("relay", "A relay's line to the server", download, upload, given.latency, 0.0, 0.0, 0.0)
