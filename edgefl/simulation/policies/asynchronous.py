"""FedAsync (Xie et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl.planning.staleness import mixing_share
from edgefl.simulation.policies.base import Policy

if TYPE_CHECKING:
    from edgefl.simulation.clock import Steps
    from edgefl.simulation.round_server import RoundServer


class FedAsync(Policy):
    """FedAsync (Xie et al. 2019): each update is mixed into the model when it arrives, and its client is replaced.

    A round has as many arrivals as a cohort has clients, so that rounds of all policies have similar costs.
    """

    paper = "Xie et al. 2019"
    overlapping = at_once = True

    def play(self, server: RoundServer) -> Steps:
        """Mix updates into the model one by one, and give each free place to another client."""
        wanted = server.cohort()
        server.fill()
        server.tell()
        while server.arrived < wanted and (flight := (yield from server.next_landed(wanted))) is not None:
            if (update := server.receive(flight)) is not None:
                server.aggregate([update], at_once=True)
            if server.arrived < wanted:
                server.fill()
        return (yield from server.finish([]))

    def weight(self, staleness: int) -> float:
        """The weight of an update, ``round.mixing`` times the discount of its staleness."""
        return float(mixing_share(self.section.mixing, super().weight(staleness)))

    def updates_needed(self, cohort: int, asked: int) -> int | None:
        """The size of the cohort."""
        return cohort
