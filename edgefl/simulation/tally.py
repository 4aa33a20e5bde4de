"""What is counted and recorded while a round is played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgefl.records.clients import ScoredClient
from edgefl.records.host import HostWork
from edgefl.records.record import UNSET, Maybe
from edgefl.records.rounds import ClientMetrics, EarlyStop, ServerWorkRecord
from edgefl.schedules import Stage
from edgefl.simulation.client import Flight
from edgefl.simulation.learning import Arrival
from edgefl.work.update import Update


@dataclass
class Tally:
    """Counts and records of one round, which ``started`` at a virtual time.

    ``sums`` has every field of the round's record that is a sum, from its value over no flight.
    ``losses`` are those of accepted updates with their samples, ``all_losses`` also those of rejected ones, both by
    kind; ``rejections`` counts rejected updates by reason.  ``processed`` are flights without a record yet.
    ``scored_part`` is the index of the ``offered`` stage that was evaluated, where the schedule chooses one.
    ``last_relay`` is the relay that the last dispatch waited for, and the virtual time of its sum, or at which it had
    none to send; None where no client was sent off behind one.  ``metrics`` are those of the evaluation.  ``watched``
    are the values of those that are followed, and ``stopped`` says why they end the run; UNSET without any to follow.
    """

    round: int
    stage: Stage
    kinds: Sequence[str]
    started: float
    sums: Counter[str]
    lines: list[bytes] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    hosts: list[HostWork] = field(default_factory=list)
    losses: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    learnt: list[tuple[int, float, float, int]] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)
    all_losses: dict[str, list[float]] = field(default_factory=dict)
    processed: list[tuple[Flight, Arrival, Update | None]] = field(default_factory=list)
    selected: int = 0
    unavailable: int = 0
    last_relay: tuple[int, float] | None = None
    server: list[ServerWorkRecord] = field(default_factory=list)
    scored_part: int | Maybe = UNSET
    scored: list[ScoredClient] = field(default_factory=list)
    client_metrics: list[ClientMetrics] = field(default_factory=list)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    watched: Mapping[str, float | None] | Maybe = UNSET
    stopped: EarlyStop | Maybe | None = UNSET
