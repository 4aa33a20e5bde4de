"""Round policies: when a round ends, and what becomes of those who are under way then."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from edgefl.planning.round_options import RoundOptions


class Policy:
    """What a round waits for.

    ``overlapping``: flights outlive the round that they began in.  ``at_once``: each update goes into the model as it
    arrives, onto what the model is then.  ``refills``: a client that is back is replaced at once, else at the next
    round.
    """

    overlapping: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    refills: ClassVar[bool] = False

    def __init__(self, options: RoundOptions):
        self.options = options

    def wanted(self, cohort: int, asked: int) -> int | None:
        """Updates with whose arrival the round ends, of a cohort of which so many were asked; None: no number."""
        return cohort if asked > cohort else None

    def over(self, started: float) -> float:
        """The virtual time at which the round ends at the latest."""
        return inf if self.options.deadline is None else started + self.options.deadline


class Synchronous(Policy):
    """Waits for the whole cohort, until the deadline, or of an over-selection for the cohort's number of updates."""


class Asynchronous(Policy):
    """FedAsync (Xie et al. 2019): each update is mixed into the model as it arrives, and its client replaced.

    A round is as many arrivals as a cohort has clients, so that rounds of all policies cost alike.
    """

    overlapping = at_once = refills = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """The cohort's number."""
        return cohort

    def over(self, started: float) -> float:
        """A deadline is each client's own."""
        return inf


class Buffered(Asynchronous):
    """FedBuff (Nguyen et al. 2022): a round is a buffer of updates, aggregated together; clients are replaced."""

    at_once = False

    def wanted(self, cohort: int, asked: int) -> int | None:
        """The buffer's size."""
        return self.options.buffer


class SemiSynchronous(Policy):
    """A round is a window of time: what has arrived is aggregated, and whoever is still under way comes in a later
    one."""

    overlapping = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """However many arrive."""
        return None

    def over(self, started: float) -> float:
        """The window's end."""
        return started + self.options.window
