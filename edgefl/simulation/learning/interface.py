"""What a simulation asks of training, and the updates that arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeVar

from edgefl.methods import ServerState
from edgefl.planning.planner import Plan
from edgefl.planning.versions import is_always_sent
from edgefl.schedules import Stage
from edgefl.simulation.closed_form import Dispatch
from edgefl.work import Description, Work
from edgefl.work.update import Update


class Arrival(NamedTuple):
    """A client's update at the server: client, plan, round and number of the dispatch, staleness and weight factor."""

    client: int
    plan: Plan
    round: int
    number: int
    staleness: int = 0
    weight_factor: float = 1.0


Sent = tuple[int, Plan, bool]
"""A client that is sent off: its number, its plan, and whether it may return an update."""


class ExpectedRound(NamedTuple):
    """A round with noise: its number, the noise's deviation, and whom it expects, some of each of these plans."""

    round: int
    deviation: float
    senders: Sequence[tuple[Plan, float]]


class Learning(ABC):
    """What a simulation asks of training, which doesn't affect virtual time; by default nothing is trained."""

    state: ServerState
    expected: Callable[[], ExpectedRound] | None = None
    """With noise: the round that is played."""

    def send(self, sent: Sequence[Sent], dispatch: Dispatch, *, in_order: bool = False) -> None:
        """Dispatch clients; ``in_order`` says that they land in the order in which they are sent."""

    def expect(self, arrivals: Sequence[Arrival], stage: Stage) -> None:
        """All the updates that the next aggregation gets, before any of them lands; some may be refused."""

    def receive(self, arrival: Arrival, stage: Stage, *, arrived: bool) -> Update | None:
        """Take the update of a client that has landed, if it has ``arrived``; return it for the records, without
        payloads, and with the reason if it is ``refused``.

        None if nothing is known of it: it doesn't train, or hasn't arrived and isn't measured.
        """
        return None

    def non_finite(self) -> list[str]:
        """The addresses of the state whose tensors have a NaN or an infinity."""
        return []

    @abstractmethod
    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Aggregate these updates into the state, each with its starting values.

        ``at_once``: each is mixed into the current model, ``(1 - a) w + a w_client``.
        """

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Drop these updates: their round doesn't change the state."""

    def submit(self, work: Work, when: str, round: int, index: int) -> Future[Update] | None:
        """Begin a work of the server; None if it computes nothing."""
        return None

    @abstractmethod
    def absorb(self, work: Work, report: Update | None) -> None:
        """Apply a finished work of the server to the state."""

    def leave(self) -> None:
        """End the run; works still under way aren't needed."""


Described = TypeVar("Described", bound=Description)


def part_of_stage(work: Described, stage: Stage) -> Described:
    """The work with uploads of what trains at ``stage`` only: an update may have begun at an earlier stage.

    What clients change one after the other isn't among them, since no mean is taken of it.
    """
    up = tuple(p.only(lambda item: is_always_sent(item, stage)) for p in work.up if not p.in_turn)
    return work if [p.items for p in up] == [p.items for p in work.up] else replace(work, up=up)
