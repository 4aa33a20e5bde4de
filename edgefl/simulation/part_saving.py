"""When a round under way is written to the disk, so that an interrupted run goes on in its middle."""

from __future__ import annotations

from time import monotonic

from edgefl.simulation.learning import Training
from edgefl.simulation.run_state import RunState

PART_SECONDS = 60.0
"""Wall time between two times that a round under way is written."""
LEAST_RATIO = 20.0
"""It is written so seldom that writing takes at most one part in so many of the time."""


class PartSaver:
    """Writes what the clients of a round have trained, if the round takes long."""

    def __init__(self, run: RunState, round: int):
        self._run, self._round = run, round
        self._due = monotonic() + PART_SECONDS

    def landed(self) -> None:
        """Note that another client has landed.  Raises RunError if it is time to write and that fails."""
        run, began = self._run, monotonic()
        if began < self._due or not isinstance(run.learning, Training):
            return
        part = run.learning.part(self._round)
        if part is not None:
            run.journal.write_part(self._round, *part)
        ended = monotonic()
        self._due = ended + max(PART_SECONDS, LEAST_RATIO * (ended - began))
