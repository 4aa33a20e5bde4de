"""The ways in which the server's shared link can be shared."""

from __future__ import annotations

from collections.abc import Mapping

from edgefl.simulation.inflight.fair_share import FairShare
from edgefl.simulation.inflight.fifo import Fifo
from edgefl.simulation.inflight.flows import SharedLink

__all__ = ["SHARING", "FairShare", "Fifo", "SharedLink"]

SHARING: Mapping[str, type[FairShare] | type[Fifo]] = {"fair": FairShare, "fifo": Fifo}
"""The ways to share a link of so many bit/s, by the name that a scenario gives them."""
