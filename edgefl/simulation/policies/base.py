"""What all round policies have in common, and what others ask of them before a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

from edgefl.planning.round_options import RoundOptions
from edgefl.registry.answers import check_answers
from edgefl.registry.part_fields import NamedFields

if TYPE_CHECKING:
    from edgefl.simulation.clock import Steps
    from edgefl.simulation.round_server import RoundServer


def _no_number(policy: Policy, arguments: tuple[int, int], answer: object) -> str:
    """What is wrong with an answer of ``updates_needed``."""
    if answer is None or (isinstance(answer, Integral) and int(answer) >= min(1, max(arguments))):
        return ""
    return f"returned {answer!r:.60}, not a whole number of updates, 1 or more, or None"


def _no_time(policy: Policy, arguments: tuple[float], answer: object) -> str:
    """What is wrong with an answer of ``over``."""
    if isinstance(answer, Real) and float(answer) >= arguments[0]:
        return ""
    return f"returned {answer!r:.60}, not a time in seconds from {arguments[0]:g} s on, or inf"


class Policy(ABC):
    """What the server does in a round: ``play``.

    The fields of edgefl's own policies are those of the ``round`` section.  A policy of one's own may have fields: its
    ``Options`` have what a scenario gives next to the name, ``policy: {name: half, share: 30%}``.
    """

    class Options(NamedFields):
        """Fields next to the name: none."""

    options: Any
    """The ``Options`` of this policy."""
    section: RoundOptions
    """The scenario's ``round`` section."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    overlapping: ClassVar[bool] = False
    """Whether flights may last longer than the round in which they began."""
    at_once: ClassVar[bool] = False
    """Whether each update is mixed into the model as it arrives."""
    weighted: ClassVar[bool] = False
    """Whether ``round.weighting`` says how updates weigh; else their samples do."""
    size: ClassVar[str] = "round.cohort"
    """The scenario's field that says how many updates a round has at most: ``round.cohort``."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_answers(cls, {"updates_needed": _no_number, "over": _no_time})

    def __init__(self, options: Any, section: RoundOptions):
        self.options, self.section = options, section

    @property
    def waits_for_all(self) -> bool:
        """Whether a round ends with the last of its clients, or at the deadline."""
        return not self.overlapping and self.updates_needed(1, 1) is None

    @property
    def is_time_bound(self) -> bool:
        """Whether rounds end by time alone; overlapping rounds may have a ``quorum`` only then."""
        return self.overlapping and self.updates_needed(1, 1) is None

    @abstractmethod
    def play(self, server: RoundServer) -> Steps:
        """The server's process in one round; returns its outcome."""

    def weight(self, staleness: int) -> float:
        """Factor on the weight of an update that so many aggregations have overtaken."""
        return float(self.section.staleness.discount(staleness))

    def updates_needed(self, cohort: int, asked: int) -> int | None:
        """Number of updates that ends a round with this cohort and ``asked`` selected clients; None: no number."""
        return cohort if asked > cohort else None

    def over(self, started: float) -> float:
        """Latest virtual time at which the round ends, in seconds; a deadline is each client's where rounds overlap."""
        deadline = self.section.deadline
        return inf if deadline is None or self.overlapping else started + deadline

    def holds(self, cohort: int) -> int:
        """Number of updates that the server holds at a time, at most, with this cohort.

        Where rounds overlap, as many as end a round, or else as clients are under way.
        """
        if self.at_once:
            return 0
        return (
            (self.updates_needed(cohort, cohort) or self.section.concurrency or cohort) if self.overlapping else cohort
        )
