"""FedBuff (Nguyen et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl.simulation.policies.base import Policy

if TYPE_CHECKING:
    from edgefl.simulation.clock import Steps
    from edgefl.simulation.learning import Arrival
    from edgefl.simulation.round_server import RoundServer


class FedBuff(Policy):
    """FedBuff (Nguyen et al. 2022): a round is a buffer of updates, aggregated together; clients are replaced.

    Each of K updates has the weight 1 / K (Algorithm 1), unless ``round.weighting`` says samples.
    """

    paper = "Nguyen et al. 2022"
    overlapping = weighted = True
    size = "round.buffer"

    def play(self, server: RoundServer) -> Steps:
        """Collect updates until the buffer is full, give free places to other clients, and aggregate the buffer."""
        wanted = self.section.buffer
        buffer: list[Arrival] = []
        server.fill()
        server.tell()
        while len(buffer) < wanted and (flight := (yield from server.next_landed(wanted))) is not None:
            if (update := server.receive(flight)) is not None:
                buffer.append(update)
            if len(buffer) < wanted:
                server.fill()
        return (yield from server.finish(buffer))

    def updates_needed(self, cohort: int, asked: int) -> int | None:
        """The size of the buffer."""
        return self.section.buffer
