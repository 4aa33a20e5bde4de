"""Mutable state of one run, shared by all parts of the simulation, and its clock."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import simpy
from torch import Tensor

from edgefl import registry
from edgefl.cost import Predictor
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.planning.coverage import DataCoverage
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.closed_form import Flights, Landings
from edgefl.simulation.inflight.events import EventEngine, Flight
from edgefl.simulation.inflight.shared_link import SharedLink, wires_of
from edgefl.simulation.kept import KeptValues
from edgefl.simulation.learning import Learning, NoTraining, Training
from edgefl.simulation.policy import Policy
from edgefl.simulation.records import ClientLines, verdict_records
from edgefl.simulation.roster import Roster
from edgefl.simulation.selection.base import Selection
from edgefl.simulation.watch import Watch
from edgefl.training import Executor

if TYPE_CHECKING:
    from edgefl.simulation.ahead import Ahead

OnProgress = Callable[[str, Mapping[str, Any]], None]
Events = Generator[simpy.Event, Any, Any]

UNTRAINED_SECONDS = 5.0
"""Wall time between checkpoints without training, as a large fleet's takes longer to write than a round to play."""


class Journal(Protocol):
    """Writer of records and checkpoints (edgefl.runs.RunDirectory)."""

    @property
    def kept_folder(self) -> Path:
        """The folder of what clients keep, to whose files checkpoints refer; it needn't be there."""
        ...

    def append(self, table: Any, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records to a table."""
        ...

    def append_lines(self, table: Any, lines: Sequence[bytes]) -> None:
        """Append records that are already lines of JSON."""
        ...

    def keep_best(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the best weights so far, which count from the next checkpoint on."""
        ...

    def write_part(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write what clients of a round under way have trained, until the round's checkpoint."""
        ...

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint of everything that the next round depends on."""
        ...


class RunState:
    """State of one run: server state, versions held by clients, flights under way, and virtual time.

    ``now`` is the exact virtual time in seconds; the SimPy clock beside it orders the events.  Without an ``executor``
    nothing is trained.  ``events`` plays every flight event by event even where a closed form exists; records don't
    depend on it.  A checkpoint is written after the last round, and after each round that ends ``checkpoint_seconds``
    of wall time or more after the previous one; None: 0 s with training, else 5 s.  Updates that wait for the end of
    their round take ``updates_memory`` bytes at most; the others lie on disk.  ``flown`` lands the flights of a
    synchronous round, whose works have been submitted, with times from elsewhere (an emulation's wall clock).
    """

    def __init__(
        self,
        setup: Setup,
        executor: Executor | None,
        predictor: Predictor,
        journal: Journal,
        on_progress: OnProgress = lambda event, facts: None,
        *,
        events: bool = False,
        checkpoint_seconds: float | None = None,
        updates_memory: float = inf,
        on_divergence: Literal["stop", "continue"] = "stop",
        flown: Callable[[Flights], Landings] | None = None,
    ):
        if setup.schedule.adapts:
            setup = replace(setup, schedule=setup.schedule.fresh())
        self.setup, self.journal, self.on_progress, self.flown = setup, journal, on_progress, flown
        self.planner = Planner(setup, predictor)
        self.policy: Policy = registry.get("round policy", setup.round.policy_name)(setup.round)
        self.selection: Selection = registry.get("selection", setup.round.selection_name)(setup.round, setup.seed)
        kept = KeptValues(journal.kept_folder)
        self.learning: Learning = (
            Training(
                setup,
                self.planner,
                executor,
                setup.method.at_start(setup.seed),
                kept,
                folder=journal.kept_folder.parent,
                most=updates_memory,
            )
            if executor is not None
            else NoTraining(setup)
        )
        if isinstance(self.learning, Training):
            self.learning.on_trained = lambda done, of: on_progress(
                "trained", {"round": self.round + 1, "done": done, "of": of}
            )
        # if everything trains in every round nothing is ever frozen, and everything is sent
        offered = setup.schedule.offered
        names = [name for kind in setup.method.setting.kinds.values() for name in kind.parameters()]
        frozen = len(setup.schedule.stages) > 1 or any(not stage.active(name) for stage in offered for name in names)
        frozen |= any(kind.fixed() for kind in setup.method.setting.kinds.values())
        self.client_versions = ClientVersions(len(setup.clients.client_kind), keeping=frozen)
        self.roster = Roster(self.planner, self.client_versions)
        pause = 0.0 if executor is not None else UNTRAINED_SECONDS
        self.checkpoint_seconds = pause if checkpoint_seconds is None else checkpoint_seconds
        held_out = setup.held_out
        self.scoring = None if held_out is None else ScoringPlanner(setup, self.planner, held_out)
        self.scored_versions = ClientVersions(
            len(setup.clients.client_kind), keeping=frozen and self.scoring is not None
        )
        """What clients received to be scored; training takes no notice of it."""
        self._coverage = DataCoverage.of(setup)
        self._lost: tuple[Any, dict[str, Any]] = (None, {})
        self.batteries = setup.fleet.battery.fresh() if setup.fleet.battery is not None else None
        self.client_lines = ClientLines(setup)
        self.cohorts: dict[tuple[str, ...], int] = {}
        self.weight_factors: dict[int, float] = {}
        """The policy's factor on an update's weight by its staleness, as far as it was asked for."""
        self.round, self.now = 0, 0.0
        self.last_round: int | None = None
        self.dispatches = self.version = 0
        self.totals: Counter[str] = Counter()
        self.metrics: dict[str, dict[str, float | None]] = {}
        self.watch = Watch.of(setup.stop, setup.evaluation.best) if executor is not None else None
        self.on_divergence = on_divergence
        self.diverged: str | None = None
        """What isn't finite after the last round: a tensor, a metric's scores or a kind's losses."""
        self.queue: OrderedDict[int, Flight] = OrderedDict()
        """Landed flights that aren't processed yet, by client, in order of landing."""
        self.wires: tuple[SharedLink | None, SharedLink | None] = (None, None)
        if setup.fleet.server_link is not None:
            self.wires = wires_of(setup.fleet.server_link)
        self._by_event = events or self.policy.overlapping or any(wire is not None for wire in self.wires)
        self.engine: EventEngine | None = None
        self.resumed: list[Flight] = []
        self.ahead: Ahead | None = None
        """Choices drawn beforehand, for a policy that replaces clients one by one, without training."""

    @property
    def over(self) -> bool:
        """Whether the last round has been played: of the schedule, or the one that ended the run early."""
        stopped = self.watch is not None and self.watch.stopped is not None
        return stopped or self.round in (self.setup.schedule.rounds, self.last_round)

    @property
    def state(self) -> Any:
        """The server's state."""
        return self.learning.state

    def pass_until(self, env: Clock, until: float) -> Events:
        """Advance the virtual time to ``until``, in seconds."""
        self.now = max(self.now, until)
        if self.now > env.now:
            yield env.moment(self.now)

    def judge(self, round: int) -> None:
        """Update the verdicts to this round, and record each one that has changed."""
        cells = self.roster.cells
        new = self.roster.judge(round, self.state.versions)
        if len(new):
            self.journal.append("eligibility", verdict_records(self.roster, new, round))
        self.record_scratch(round)
        if self.roster.cells is not cells:
            self.client_lines.keep_only(self.roster.cells)

    def record_scratch(self, round: int) -> None:
        """Record what kernels take, as far as predictions asked for it since the last call."""
        if self.planner.predictor.scratch is not None:
            rows = self.planner.predictor.scratch.new_rows()
            self.journal.append("scratch", [{"round": round, **row} for row in rows])

    def under_way(self) -> int:
        """Number of clients that were dispatched and have no record yet."""
        return 0 if self.engine is None else len(self.engine.flying) + len(self.engine.landed) + len(self.queue)
