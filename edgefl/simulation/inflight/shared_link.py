"""Ways of sharing the server's link."""

from __future__ import annotations

from collections.abc import Mapping

from edgefl.simulation.inflight.fair_share import FairShare
from edgefl.simulation.inflight.fifo import Fifo
from edgefl.simulation.inflight.flows import SharedLink

__all__ = ["SHARING", "FairShare", "Fifo", "SharedLink"]

SHARING: Mapping[str, type[FairShare] | type[Fifo]] = {"fair": FairShare, "fifo": Fifo}
"""Classes of shared links, by their name in a scenario."""
