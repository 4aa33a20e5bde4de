"""Synchronous rounds, as of FedAvg."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl.simulation.policies.base import Policy

if TYPE_CHECKING:
    from edgefl.simulation.clock import Steps
    from edgefl.simulation.round_server import RoundServer


class Synchronous(Policy):
    """Waits for the whole cohort until the deadline; with over-selection, for the cohort's number of updates."""

    def play(self, server: RoundServer) -> Steps:
        """Send a cohort off, wait for it, and aggregate what has arrived; below the quorum, try again or give up."""
        while True:
            clients = server.choose()
            server.tell(len(clients))
            updates = yield from server.play_cohort(clients)
            if len(updates) >= server.quorum:
                server.aggregate(updates)
                return "completed"
            outcome = "below quorum" if len(clients) else server.empty_outcome()
            if not (yield from server.tries_again(outcome, len(updates))):
                return outcome
