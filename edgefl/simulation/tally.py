"""What is counted and recorded while a round is played."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edgefl.records.clients import ScoredClient
from edgefl.records.host import HostWork
from edgefl.records.record import UNSET, Maybe
from edgefl.records.rounds import ClientMetrics, ServerWorkRecord
from edgefl.simulation.client import Flight
from edgefl.simulation.learning import Arrival
from edgefl.work.update import Update


@dataclass
class ScoredClients:
    """Records of clients that were scored on their own samples, and the round's ``client_metrics``."""

    records: list[ScoredClient] = field(default_factory=list)
    groups: list[ClientMetrics] = field(default_factory=list)


@dataclass
class Tally:
    """Counts and records of one round.

    ``losses`` are those of accepted updates with their samples, ``all_losses`` also those of rejected ones, both by
    kind; ``rejections`` counts rejected updates by reason.  ``processed`` are flights without a record yet.
    ``scored_part`` is the index of the ``offered`` stage that was evaluated, where the schedule chooses one.
    ``last_relay`` is the relay that the last dispatch waited for, and the virtual time at which it was done; None where
    no client was sent off behind one.
    """

    lines: list[bytes] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
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
    scored: ScoredClients = field(default_factory=ScoredClients)
