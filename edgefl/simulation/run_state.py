"""One run: the moment it has reached, the parts it is made of, what it has noted so far, and the flights in the air."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from edgefl.devices.availability import Presence
from edgefl.devices.battery import Batteries
from edgefl.methods import ServerState
from edgefl.plain_data import to_data
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.planning.planner import Planner
from edgefl.planning.privacy import PrivacyAccount
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions
from edgefl.records.host import Scratch
from edgefl.records.record import Record
from edgefl.records.rounds import EarlyStop, Round
from edgefl.records.run import BestRecord
from edgefl.schedules import Stage
from edgefl.simulation.clock import LAST, Clock, Steps
from edgefl.simulation.closed_form import Dispatch, Flights, Landings
from edgefl.simulation.in_flight import InFlight
from edgefl.simulation.learning import Arrival, Learning
from edgefl.simulation.policies import Policy
from edgefl.simulation.records import ClientLines, verdict_records
from edgefl.simulation.relays import Tier
from edgefl.simulation.roster import Roster
from edgefl.simulation.selection.base import Selection
from edgefl.simulation.watch import MetricWatch

OnProgress = Callable[[str, Mapping[str, Any]], None]
OnRound = Callable[[Round], str | None]
"""Called with the record of each round; may return "stop"."""


class RecordWriter(Protocol):
    """Writer of records and checkpoints (edgefl.runs.RunDirectory)."""

    @property
    def kept_folder(self) -> Path:
        """The folder of what clients keep, to whose files checkpoints refer; it needn't be there."""

    def append(self, *records: Record) -> None:
        """Append records of one class to its table."""

    def append_lines(self, cls: type[Record], lines: Sequence[bytes]) -> None:
        """Append records of a class that are already lines of JSON."""

    def keep_best(self, weights: Mapping[str, Tensor], facts: BestRecord) -> None:
        """Write new best weights, which count from the next checkpoint on."""

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Write a checkpoint of everything that the next round depends on."""


@dataclass
class RunMoment:
    """Where a run stands beside its clock: the last finished ``round``, and the number of aggregations
    (``version``) and of ``dispatches`` so far."""

    round: int = 0
    version: int = 0
    dispatches: int = 0


@dataclass(frozen=True)
class RunParts:
    """What a run is made of.

    ``scoring`` plans the evaluation on the clients' own samples; None without one.  ``flown`` lands the flights of a
    synchronous round, whose works have been submitted, with times from elsewhere (an emulation's wall clock).  ``tier``
    are the relays between the clients and the server; None without.  ``account`` says what noise spends; None without.
    """

    setup: Setup
    planner: Planner
    policy: Policy
    selection: Selection
    roster: Roster
    learning: Learning
    batteries: Batteries | None
    scoring: ScoringPlanner | None
    journal: RecordWriter
    on_progress: OnProgress
    flown: Callable[[Flights], Landings] | None = None
    tier: Tier | None = None
    account: PrivacyAccount | None = None


@dataclass
class RunProgress:
    """What a run has noted so far.

    ``diverged`` says what isn't finite after the last round: a tensor, a metric's scores or a kind's losses.
    ``asked_to_stop`` says that ``on_round`` or the account of privacy ended the run early, as ``watch.stopped`` says it
    of a metric.
    ``reached`` are the indices of the schedule's ``offered`` stages whose updates were aggregated.
    ``scored_versions`` are those that clients received to be scored; training takes no notice of it.  Cached are
    ``lines`` (texts of plans), ``presence`` (who is there) and ``weight_factors`` (of an update, by its staleness).
    """

    lines: ClientLines
    presence: Presence
    scored_versions: ClientVersions
    watch: MetricWatch | None
    totals: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    diverged: str | None = None
    asked_to_stop: EarlyStop | None = None
    reached: set[int] = field(default_factory=set)
    weight_factors: dict[int, float] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """What later rounds and the result depend on, without versions and the watch."""
        names = ("totals", "metrics", "diverged", "asked_to_stop", "reached")
        return {name: to_data(getattr(self, name)) for name in names}

    @property
    def early_stop(self) -> EarlyStop | None:
        """Why the run ends early, once it does."""
        return (self.watch.stopped if self.watch is not None else None) or self.asked_to_stop


@dataclass
class SimulationRun:
    """One run.  Without processes of clients (``air``) rounds are computed in closed form; records are the same."""

    env: Clock
    at: RunMoment
    parts: RunParts
    progress: RunProgress
    air: InFlight | None

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self.env.now

    @property
    def state(self) -> ServerState:
        """The server's state."""
        return self.parts.learning.state

    def next_dispatch(self, round: int) -> Dispatch:
        """A dispatch at the current virtual time, with the next number."""
        at = self.at
        at.dispatches += 1
        return Dispatch(round, at.dispatches, at.version, self.now, self.parts.learning.state.versions)

    def pass_until(self, until: float) -> Steps:
        """Advance the virtual time to ``until``, in seconds."""
        if until > self.now:
            yield self.env.at(until, LAST)

    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Aggregate these updates, which makes a version."""
        self.parts.learning.aggregate(arrivals, stage, at_once=at_once)
        self.progress.reached |= {arrival.plan.stage.index for arrival in arrivals}
        self.at.version += 1

    def judge(self, round: int) -> None:
        """Update the verdicts to this round, and record each one that has changed."""
        roster = self.parts.roster
        cells = roster.cells
        new = roster.judge(round, self.state.versions)
        if len(new):
            self.parts.journal.append(*verdict_records(roster, new, round))
        self.record_scratch(round)
        if roster.cells is not cells:
            self.progress.lines.keep_only(roster.cells)

    def record_scratch(self, round: int) -> None:
        """Record what kernels take, as far as predictions asked for it since the last call."""
        scratch = self.parts.planner.predictor.scratch
        if scratch is not None:
            self.parts.journal.append(*(Scratch(round=round, **row._asdict()) for row in scratch.new_rows()))

    def under_way(self) -> int:
        """Number of clients that were dispatched and have no record yet."""
        return 0 if self.air is None else self.air.under_way()
