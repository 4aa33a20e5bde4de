"""Round policies: synchronous, FedAsync, FedBuff, semi-synchronous.

They say when a round ends, and what happens to clients that are still under way then.
"""

from __future__ import annotations

from math import inf
from numbers import Integral, Real
from typing import Any, ClassVar

from edgefl.planning.round_options import PolicyOptions, RoundOptions
from edgefl.registry.answers import check_answers


def _no_number(policy: Policy, arguments: tuple[int, int], answer: object) -> str:
    """What is wrong with an answer of ``wanted``."""
    if answer is None or (isinstance(answer, Integral) and int(answer) >= min(1, max(arguments))):
        return ""
    return f"returned {answer!r:.60}, not a whole number of updates, 1 or more, or None"


def _no_time(policy: Policy, arguments: tuple[float], answer: object) -> str:
    """What is wrong with an answer of ``over``."""
    if isinstance(answer, Real) and float(answer) >= arguments[0]:
        return ""
    return f"returned {answer!r:.60}, not a time in seconds from {arguments[0]:g} s on, or inf"


class Policy:
    """What a round waits for.

    The fields of edgefl's own policies are those of the ``round`` section.  A policy of one's own may have fields: its
    ``Options`` have what a scenario gives beside the name, ``policy: {name: half, share: 30%}``.
    """

    class Options(PolicyOptions):
        """Fields beside the name: none."""

    options: RoundOptions
    """The scenario's ``round`` section."""
    own: Any
    """The ``Options`` of this policy."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    overlapping: ClassVar[bool] = False
    """Whether flights may last longer than the round in which they began."""
    at_once: ClassVar[bool] = False
    """Whether each update is mixed into the model as it arrives."""
    refills: ClassVar[bool] = False
    """Whether a client that has returned is replaced at once, else at the next round."""
    weighted: ClassVar[bool] = False
    """Whether ``round.weighting`` says how updates weigh; else their samples do."""
    waits_for_all: ClassVar[bool] = False
    """Whether a round ends with the last of its clients, or at the deadline."""
    by_time: ClassVar[bool] = False
    """Whether rounds end by time alone; overlapping rounds may have a ``quorum`` only then."""
    size: ClassVar[str] = "round.cohort"
    """The scenario's field that says how many updates a round has at most: ``round.cohort``."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_answers(cls, {"wanted": _no_number, "over": _no_time})

    def __init__(self, options: RoundOptions):
        self.options = options
        own: object = options.policy
        self.own = own if isinstance(own, self.Options) else self.Options.model_validate({})

    def wanted(self, cohort: int, asked: int) -> int | None:
        """Number of updates that ends a round with this cohort and ``asked`` selected clients; None: no number."""
        return cohort if asked > cohort else None

    def over(self, started: float) -> float:
        """Latest virtual time at which the round ends, in seconds."""
        return inf if self.options.deadline is None else started + self.options.deadline

    def holds(self, cohort: int) -> int:
        """Number of updates that the server holds at a time, at most, with this cohort.

        Where rounds overlap, as many as clients are under way.
        """
        if self.at_once:
            return 0
        return (self.options.concurrency or cohort) if self.overlapping else cohort


class Synchronous(Policy):
    """Waits for the whole cohort until the deadline; with over-selection, for the cohort's number of updates."""

    waits_for_all = True


class FedAsync(Policy):
    """FedAsync (Xie et al. 2019): each update is mixed into the model when it arrives, and its client is replaced.

    A round has as many arrivals as a cohort has clients, so that rounds of all policies have similar costs.
    """

    paper = "Xie et al. 2019"

    overlapping = at_once = refills = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """The size of the cohort."""
        return cohort

    def over(self, started: float) -> float:
        """No end by time: a deadline applies to each client alone."""
        return inf


class FedBuff(FedAsync):
    """FedBuff (Nguyen et al. 2022): a round is a buffer of updates, aggregated together; clients are replaced.

    Each of K updates has the weight 1 / K (Algorithm 1), unless ``round.weighting`` says samples.
    """

    paper = "Nguyen et al. 2022"

    at_once = False
    weighted = True
    size = "round.buffer"

    def wanted(self, cohort: int, asked: int) -> int | None:
        """The size of the buffer."""
        return self.options.buffer

    def holds(self, cohort: int) -> int:
        """The size of the buffer."""
        return self.options.buffer


class SemiSynchronous(Policy):
    """A round is a window of time: updates that arrived are aggregated, and clients still under way count in a later
    round."""

    overlapping = by_time = True

    def wanted(self, cohort: int, asked: int) -> int | None:
        """No number: the window alone ends the round."""
        return None

    def over(self, started: float) -> float:
        """End of the window, in seconds of virtual time."""
        return started + self.options.window
