"""Round policies: when a round ends, and what happens to clients that are still under way then.

Synchronous, asynchronous (FedAsync), buffered (FedBuff) and semi-synchronous.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar

from edgefl.planning.round_options import RoundOptions


class Policy:
    """What a round waits for.

    ``overlapping``: flights may last beyond the round in which they began.  ``at_once``: each update is mixed into the
    current model when it arrives.  ``refills``: a landed client is replaced at once, else at the next round.
    ``weighted``: ``round.weighting`` says how updates weigh, else their samples do.
    """

    overlapping: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    refills: ClassVar[bool] = False
    weighted: ClassVar[bool] = False

    def __init__(self, options: RoundOptions):
        self.options = options

    def wanted(self, cohort: int, asked: int) -> int | None:
        """Number of updates that ends a round with this cohort and ``asked`` selected clients; None: no number."""
        return cohort if asked > cohort else None

    def over(self, started: float) -> float:
        """Latest virtual time at which the round ends, in seconds."""
        return inf if self.options.deadline is None else started + self.options.deadline


class Synchronous(Policy):
    """Waits for the whole cohort until the deadline; with over-selection, for the cohort's number of updates."""


class Asynchronous(Policy):
    """FedAsync (Xie et al. 2019): each update is mixed into the model when it arrives, and its client is replaced.

    A round has as many arrivals as a cohort has clients, so that rounds of all policies have similar costs.
    """

    overlapping = at_once = refills = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """The size of the cohort."""
        return cohort

    def over(self, started: float) -> float:
        """No end by time: a deadline applies to each client alone."""
        return inf


class Buffered(Asynchronous):
    """FedBuff (Nguyen et al. 2022): a round is a buffer of updates, aggregated together; clients are replaced.

    Each of K updates has the weight 1 / K (Algorithm 1), unless ``round.weighting`` says samples.
    """

    at_once = False
    weighted = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """The size of the buffer."""
        return self.options.buffer


class SemiSynchronous(Policy):
    """A round is a window of time: updates that arrived are aggregated, and clients still under way count in a later
    round."""

    overlapping = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """No number: the window alone ends the round."""
        return None

    def over(self, started: float) -> float:
        """End of the window, in seconds of virtual time."""
        return started + self.options.window
