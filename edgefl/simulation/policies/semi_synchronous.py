"""Semi-synchronous rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl.simulation.policies.base import Policy

if TYPE_CHECKING:
    from edgefl.simulation.clock import Steps
    from edgefl.simulation.round_server import RoundServer


class SemiSynchronous(Policy):
    """A round is a window of time: updates that arrived are aggregated, and clients still under way count in a later
    round."""

    overlapping = True

    def play(self, server: RoundServer) -> Steps:
        """Fill all places, wait for the end of the window, and aggregate what has arrived."""
        updates = server.receive_all()
        server.fill()
        server.tell()
        while True:
            yield from server.pass_until(self.over(server.now))
            updates += server.receive_all()
            if len(updates) >= server.options.quorum or not server.is_patient(server.why_short()):
                return (yield from server.finish(updates))
            server.landed = 0
            server.fill()

    def updates_needed(self, cohort: int, asked: int) -> int | None:
        """No number: the window alone ends the round."""
        return None

    def over(self, started: float) -> float:
        """End of the window, in seconds of virtual time."""
        return started + self.section.window
