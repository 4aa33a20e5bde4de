"""Ways of sharing the server's link."""

from __future__ import annotations

from collections.abc import Mapping

from edgefl.devices import ServerLinkOptions
from edgefl.simulation.inflight.fair_share import FairShare
from edgefl.simulation.inflight.fifo import Fifo
from edgefl.simulation.inflight.flows import SharedLink

__all__ = ["SHARING", "FairShare", "Fifo", "SharedLink", "wires_of"]

SHARING: Mapping[str, type[FairShare] | type[Fifo]] = {"fair": FairShare, "fifo": Fifo}
"""Classes of shared links, by their name in a scenario."""


def wires_of(line: ServerLinkOptions) -> tuple[SharedLink | None, SharedLink | None]:
    """The server's link for downloads and for uploads; None for a direction without a rate."""

    def wire(rate: float | None) -> SharedLink | None:
        if rate is None:
            return None
        return FairShare(rate, line.others) if line.sharing == "fair" else Fifo(rate)

    return wire(line.download), wire(line.upload)
