"""One run: the moment it has reached, the parts it is made of, what it has noted so far, and the flights in the air."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import simpy
from torch import Tensor

from edgefl.devices.battery import Batteries
from edgefl.devices.options import ServerLinkOptions
from edgefl.methods import ServerState
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions
from edgefl.records import Record
from edgefl.records.host import Scratch
from edgefl.records.rounds import Round, Stopped
from edgefl.records.run import Best
from edgefl.schedules import Stage
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.closed_form import Dispatch, Flights, Landings
from edgefl.simulation.inflight.events import EventEngine, Flight
from edgefl.simulation.inflight.relayed import Tier
from edgefl.simulation.inflight.shared_link import wires_of
from edgefl.simulation.learning import Arrival, Learning
from edgefl.simulation.policies import Policy
from edgefl.simulation.records import ClientLines, verdict_records
from edgefl.simulation.roster import Roster
from edgefl.simulation.selection.base import Selection
from edgefl.simulation.tally import Tally
from edgefl.simulation.watch import Watch

OnProgress = Callable[[str, Mapping[str, Any]], None]
OnRound = Callable[[Round], str | None]
"""Called with the record of each round; may return "stop"."""
Events = Generator[simpy.Event, Any, Any]


class Journal(Protocol):
    """Writer of records and checkpoints (edgefl.runs.RunDirectory)."""

    @property
    def kept_folder(self) -> Path:
        """The folder of what clients keep, to whose files checkpoints refer; it needn't be there."""
        ...

    def append(self, *records: Record) -> None:
        """Append records of one class to its table."""
        ...

    def append_lines(self, cls: type[Record], lines: Sequence[bytes]) -> None:
        """Append records of a class that are already lines of JSON."""
        ...

    def keep_best(self, tensors: Mapping[str, Tensor], facts: Best) -> None:
        """Write the best weights so far, which count from the next checkpoint on."""
        ...

    def write_part(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Write what clients of a round under way have trained, until the round's checkpoint."""
        ...

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Write a checkpoint of everything that the next round depends on."""
        ...


@dataclass
class Moment:
    """Where a run stands, the head of its checkpoint.

    ``round`` is the last finished round, ``now`` the exact virtual time in seconds (the SimPy clock beside it orders
    the events), ``version`` the number of aggregations and ``dispatches`` the number of dispatches so far.
    """

    round: int = 0
    now: float = 0.0
    version: int = 0
    dispatches: int = 0


@dataclass(frozen=True)
class Parts:
    """What a run is made of.

    ``scoring`` plans the evaluation on the clients' own samples; None without one.  ``flown`` lands the flights of a
    synchronous round, whose works have been submitted, with times from elsewhere (an emulation's wall clock).  ``tier``
    are the relays between the clients and the server; None without.
    """

    setup: Setup
    planner: Planner
    policy: Policy
    selection: Selection
    roster: Roster
    learning: Learning
    batteries: Batteries | None
    scoring: ScoringPlanner | None
    journal: Journal
    on_progress: OnProgress
    flown: Callable[[Flights], Landings] | None = None
    tier: Tier | None = None


@dataclass
class Progress:
    """What a run has noted so far.

    ``diverged`` says what isn't finite after the last round: a tensor, a metric's scores or a kind's losses.
    ``asked_to_stop`` says that ``on_round`` ended the run early, as ``watch.stopped`` says it of a metric.
    ``reached`` are the indices of the schedule's ``offered`` stages whose updates were aggregated.
    ``scored_versions`` are those that clients received to be scored; training takes no notice of it.  Cached are
    ``lines`` (texts of plans), ``cohorts`` (sizes by kinds) and ``weight_factors`` (of an update, by its staleness).
    """

    lines: ClientLines
    scored_versions: ClientVersions
    watch: Watch | None
    totals: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    diverged: str | None = None
    asked_to_stop: Stopped | None = None
    reached: set[int] = field(default_factory=set)
    cohorts: dict[tuple[str, ...], int] = field(default_factory=dict)
    weight_factors: dict[int, float] = field(default_factory=dict)

    @property
    def stopped(self) -> Stopped | None:
        """Why the run ends early, once it does."""
        return (self.watch.stopped if self.watch is not None else None) or self.asked_to_stop


class DrawnAhead(Protocol):
    """Choices that are drawn beforehand (edgefl.simulation.ahead)."""

    def dispatch(self, run: Run, round: int, kinds: Sequence[str], tally: Tally, until: float) -> Flight | None:
        """Choose and dispatch one client; None where the selection has to choose."""
        ...


@dataclass
class Air:
    """Flights that are played event by event.

    ``queue`` has landed flights that aren't processed yet, by client, in order of landing.
    """

    engine: EventEngine
    queue: OrderedDict[int, Flight] = field(default_factory=OrderedDict)
    ahead: DrawnAhead | None = None

    @classmethod
    def over(cls, line: ServerLinkOptions | None, now: float = 0.0) -> Air:
        """No flights yet; transfers share the server's ``line``, if it has limits."""
        return cls(EventEngine(Clock(initial_time=now), (None, None) if line is None else wires_of(line)))

    def take(self) -> None:
        """Queue landed flights for processing."""
        for flight in self.engine.take():
            self.queue[flight.client] = flight

    def under_way(self) -> int:
        """Number of clients that were dispatched and aren't processed yet."""
        return len(self.engine.flying) + len(self.engine.landed) + len(self.queue)


@dataclass
class Run:
    """One run.  Without events (``air``), rounds are computed in closed form; records don't depend on it."""

    at: Moment
    parts: Parts
    progress: Progress
    air: Air | None

    @property
    def state(self) -> ServerState:
        """The server's state."""
        return self.parts.learning.state

    def next_dispatch(self, round: int) -> Dispatch:
        """A dispatch at the current virtual time, with the next number."""
        at = self.at
        at.dispatches += 1
        return Dispatch(round, at.dispatches, at.version, at.now, self.parts.learning.state.versions)

    def pass_until(self, env: Clock, until: float) -> Events:
        """Advance the virtual time to ``until``, in seconds."""
        self.at.now = max(self.at.now, until)
        if self.at.now > env.now:
            yield env.moment(self.at.now)

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
