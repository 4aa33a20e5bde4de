"""What the display of progress is told of rounds and of combinations side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.records.metrics import Metrics
from edgefl.records.reading import from_data
from edgefl.records.record import UNSET, Clients, Flights, Maybe, Record, part_of
from edgefl.records.rounds import EarlyStop, Round, RoundCourse, RoundTimes, ServerWorkRecord


@part_of(Round)
class ToldRound(RoundCourse, RoundTimes):
    """What is told of a finished round."""

    selected: Clients
    finished: Flights
    server_works: Sequence[ServerWorkRecord]
    metrics: Metrics
    stopped: EarlyStop | Maybe | None = UNSET


class ToldCell(Record):
    """What is told of combinations side by side: the one that something is said of, and all that are under way."""

    label: str
    status: str
    started: bool
    done: int | None
    of: int
    share: float
    running: Mapping[str, str]


def read_round(facts: Mapping[str, Any]) -> ToldRound:
    """The facts of a ``record`` event."""
    return from_data(ToldRound, facts, "a round's record")


def read_cell(facts: Mapping[str, Any]) -> ToldCell:
    """The facts of a ``cell`` event."""
    return from_data(ToldCell, facts, "an event")
